"""Quantization to integers and back. Source: WebNN 2026, "quantizeLinear", "dequantizeLinear".

int4 and uint4 are an extension, see D8 in spec/deviations.md.
"""

from __future__ import annotations

import math

from webnn_py.core.dtypes import DTYPES, FLOATS, PACKED_4BIT
from webnn_py.core.errors import ValidationError
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand, NodeBuilder
from webnn_py.ops.surface import narrow, surface, wide

QUANTIZED = ("uint8", "int8", "uint32", "int32", *PACKED_4BIT)


def _check_blocks(input: MLOperand, scale: MLOperand, zero_point: MLOperand) -> None:
    """Scale and zero point have one shape, which divides the input's."""
    if scale.rank != input.rank:
        raise ValidationError(
            f"operand 'scale': rank {scale.rank} of shape {list(scale.shape)}, expected"
            f" {input.rank} as the input's {list(input.shape)}"
        )
    if zero_point.shape != scale.shape:
        raise ValidationError(
            f"operand 'zero_point': shape {list(zero_point.shape)}, expected the scale's"
            f" {list(scale.shape)}"
        )
    if any(size % blocks for size, blocks in zip(input.shape, scale.shape, strict=True)):
        raise ValidationError(
            f"operand 'scale': shape {list(scale.shape)}, expected dimensions that divide the"
            f" input's {list(input.shape)}"
        )


def _blockwise(emitter: NodeBuilder, blocks: MLOperand, target: MLOperand) -> MLOperand:
    """`blocks` in a shape that broadcasts to `target`: elements repeated along split axes."""
    g = surface(emitter)
    for axis, (count, size) in enumerate(zip(blocks.shape, target.shape, strict=True)):
        if count in (1, size):
            continue
        outer, inner = blocks.shape[:axis], blocks.shape[axis + 1 :]
        before, after = math.prod(outer), math.prod(inner)
        apart = g.reshape(blocks, [before, count, 1, after])
        repeated = g.expand(apart, [before, count, size // count, after])
        blocks = g.reshape(repeated, [*outer, size, *inner])
    return blocks


def _dequantize(
    emitter: NodeBuilder, input: MLOperand, scale: MLOperand, zero_point: MLOperand
) -> MLOperand:
    g = surface(emitter)
    zero = _blockwise(emitter, wide(emitter, zero_point), input)
    factor = _blockwise(emitter, wide(emitter, scale), input)
    product = g.mul(g.sub(wide(emitter, input), zero), factor)
    return narrow(emitter, product, scale.data_type)


def _quantize(
    emitter: NodeBuilder, input: MLOperand, scale: MLOperand, zero_point: MLOperand
) -> MLOperand:
    g = surface(emitter)
    info = DTYPES[zero_point.data_type]
    zero = _blockwise(emitter, wide(emitter, zero_point), input)
    factor = _blockwise(emitter, wide(emitter, scale), input)
    shifted = g.add(g.round_even(g.div(wide(emitter, input), factor)), zero)
    held = g.clamp(shifted, min_value=info.min, max_value=info.max)
    return narrow(emitter, held, zero_point.data_type)


class Quantization:
    """Builder methods of linear quantization.

    Scale and zero point have the input's rank, and each of their dimensions divides the input's:
    one number for all (1), for each place (the same size), or for each block.
    """

    @operator(
        input=Limits(QUANTIZED),
        scale=Limits(FLOATS),
        zero_point=Limits("input"),
        output="scale",
        decompose=_dequantize,
    )
    def dequantize_linear(
        self, input: MLOperand, scale: MLOperand, zero_point: MLOperand, *, label: str = ""
    ) -> Inferred:
        """(input - zero_point) * scale, scale and zero point by blocks; of the scale's type."""
        _check_blocks(input, scale, zero_point)
        return result(Descriptor(scale.data_type, input.shape))

    @operator(
        input=Limits(FLOATS),
        scale=Limits("input"),
        zero_point=Limits(QUANTIZED),
        output="zero_point",
        decompose=_quantize,
    )
    def quantize_linear(
        self, input: MLOperand, scale: MLOperand, zero_point: MLOperand, *, label: str = ""
    ) -> Inferred:
        """round(input / scale) + zero_point, halves to the even one, held in the type's range.

        Scale and zero point by blocks; the output is of the zero point's type.
        """
        _check_blocks(input, scale, zero_point)
        return result(Descriptor(zero_point.data_type, input.shape))
