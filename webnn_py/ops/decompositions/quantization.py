"""Decompositions of linear quantization; they compute in float32."""

from __future__ import annotations

import math

from webnn_py.core.dtypes import DTYPES
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


def _blockwise(g: GraphBuilder, blocks: MLOperand, target: MLOperand) -> MLOperand:
    """Repeat the elements of `blocks` so that it broadcasts to `target`."""
    for axis, (count, size) in enumerate(zip(blocks.shape, target.shape, strict=True)):
        if count in (1, size):
            continue
        outer, inner = blocks.shape[:axis], blocks.shape[axis + 1 :]
        before, after = math.prod(outer), math.prod(inner)
        unrepeated = g.reshape(blocks, [before, count, 1, after])
        repeated = g.expand(unrepeated, [before, count, size // count, after])
        blocks = g.reshape(repeated, [*outer, size, *inner])
    return blocks


@decomposition
def dequantize_linear(
    g: GraphBuilder, input: MLOperand, scale: MLOperand, zero_point: MLOperand
) -> MLOperand:
    """Compute (input - zero point) * scale."""
    zero = _blockwise(g, wide(g, zero_point), input)
    factor = _blockwise(g, wide(g, scale), input)
    product = g.mul(g.sub(wide(g, input), zero), factor)
    return narrow(g, product, scale.data_type)


@decomposition
def quantize_linear(
    g: GraphBuilder, input: MLOperand, scale: MLOperand, zero_point: MLOperand
) -> MLOperand:
    """Round, clamp to the range of the type, then cast."""
    info = DTYPES[zero_point.data_type]
    zero = _blockwise(g, wide(g, zero_point), input)
    factor = _blockwise(g, wide(g, scale), input)
    shifted = g.add(g.round_even(g.div(wide(g, input), factor)), zero)
    clamped = g.clamp(shifted, min_value=info.min, max_value=info.max)
    return narrow(g, clamped, zero_point.data_type)


@decomposition
def dynamic_quantize_linear(g: GraphBuilder, input: MLOperand) -> list[MLOperand]:
    """Compute scale and zero point from the range, then quantize."""
    zero = g.constant_of(0.0, input)
    low, high = g.min(g.reduce_min(input), zero), g.max(g.reduce_max(input), zero)
    span, most = g.sub(high, low), g.constant_of(255.0, input)
    # The span is 0 for zeros alone: the scale is then 1.
    scale = g.div(g.where(g.equal(span, zero), most, span), most)
    start = g.clamp(g.div(g.neg(low), scale), min_value=0, max_value=255)
    zero_point = g.cast(g.round_even(start), "uint8")
    shape = [1] * input.rank
    codes = g.quantize_linear(input, g.reshape(scale, shape), g.reshape(zero_point, shape))
    return [codes, scale, zero_point]
