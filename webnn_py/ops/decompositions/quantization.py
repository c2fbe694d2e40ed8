"""Quantization to integers and back in terms of other operators; computed in float32."""

from __future__ import annotations

import math

from webnn_py.core.dtypes import DTYPES
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


def _blockwise(g: GraphBuilder, blocks: MLOperand, target: MLOperand) -> MLOperand:
    """`blocks` in a shape that broadcasts to `target`: elements repeated along split axes."""
    for axis, (count, size) in enumerate(zip(blocks.shape, target.shape, strict=True)):
        if count in (1, size):
            continue
        outer, inner = blocks.shape[:axis], blocks.shape[axis + 1 :]
        before, after = math.prod(outer), math.prod(inner)
        apart = g.reshape(blocks, [before, count, 1, after])
        repeated = g.expand(apart, [before, count, size // count, after])
        blocks = g.reshape(repeated, [*outer, size, *inner])
    return blocks


@decomposition
def dequantize_linear(
    g: GraphBuilder, input: MLOperand, scale: MLOperand, zero_point: MLOperand
) -> MLOperand:
    """(input - zero point) * scale."""
    zero = _blockwise(g, wide(g, zero_point), input)
    factor = _blockwise(g, wide(g, scale), input)
    product = g.mul(g.sub(wide(g, input), zero), factor)
    return narrow(g, product, scale.data_type)


@decomposition
def quantize_linear(
    g: GraphBuilder, input: MLOperand, scale: MLOperand, zero_point: MLOperand
) -> MLOperand:
    """Rounded, held in the range of the type, and only then cast."""
    info = DTYPES[zero_point.data_type]
    zero = _blockwise(g, wide(g, zero_point), input)
    factor = _blockwise(g, wide(g, scale), input)
    shifted = g.add(g.round_even(g.div(wide(g, input), factor)), zero)
    held = g.clamp(shifted, min_value=info.min, max_value=info.max)
    return narrow(g, held, zero_point.data_type)
