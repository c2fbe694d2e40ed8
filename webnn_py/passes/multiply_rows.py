"""Pass that replaces products of one row and large weights by 1 x 1 convolutions.

Reading the weights from memory dominates such a product. An engine with the NCHWc layout streams
the weights of convolutions, which is faster than its gemm.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.convolution import Conv2dFilterLayout
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK_CHANNELS
from webnn_py.passes.target import Target

MIN_WEIGHTS = 1 << 19
"""Least number of weights; fewer stay in the processor's caches from one run to the next."""


def multiply_rows(graph: Graph, target: Target) -> Graph:
    """Replace gemm with one row by reshape, conv2d and reshape.

    Requires: float32, constant weights and summand, alpha = beta = 1, whole blocks of columns.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "gemm" or not _is_row(node):
            return None
        row, weights, bias = (None if v is None else rewriter.map[v] for v in node.inputs)
        assert row is not None
        array, shift = rewriter.array_of(weights), rewriter.array_of(bias)
        outer, inner = node.output.shape[1], row.shape[1]
        if array is None or (bias is not None and shift is None):
            return None
        made = convolve(
            rewriter,
            target,
            rewriter.reshape(row, [1, inner, 1, 1]),
            array,
            None if shift is None else _summand(shift, outer),
            transposed=bool(node.attrs["b_transpose"]),
        )
        return [rewriter.reshape(made, [1, outer])]

    return Rewriter(graph).run(rule)


def _is_row(node: Node) -> bool:
    """Whether a gemm multiplies one row by large weights, and adds the summand unscaled."""
    row, weights, *_ = node.operands
    attrs = node.attrs
    return (
        row.data_type == "float32"
        and row.shape[0] == 1
        and not any(map(is_dimension, (*row.shape, *weights.shape)))
        and row.shape[1] % BLOCK_CHANNELS == 0
        and math.prod(weights.shape) >= MIN_WEIGHTS
        and (attrs["alpha"], attrs["beta"], attrs["a_transpose"]) == (1, 1, False)
    )


def convolve(
    rewriter: Rewriter,
    target: Target,
    images: MLOperand,
    weights: Array,
    summand: Array | None,
    transposed: bool = False,
) -> MLOperand:
    """Build a 1 x 1 convolution that multiplies channels by weights; it does not copy the weights.

    Args:
        rewriter: The rewriter of the graph.
        target: The target, whose cache holds the reshaped weights.
        images: The rows as an NCHW image: rows are pixels, columns are channels.
        weights: [input channels, output channels], or the reverse if `transposed`.
        summand: One number for each output channel.
        transposed: Whether the weights are [output channels, input channels].
    """
    layout: Conv2dFilterLayout = "oihw" if transposed else "ihwo"
    first, last = weights.shape
    shape = (first, last, 1, 1) if transposed else (first, 1, 1, last)
    (filters,) = target.derive(layout, [weights], lambda: (weights.reshape(shape),))
    return rewriter.conv2d(
        images,
        rewriter.add_constant(filters, "float32"),
        bias=None if summand is None else rewriter.add_constant(summand, "float32"),
        filter_layout=layout,
    )


def _summand(bias: Array, size: int) -> Array:
    return np.broadcast_to(bias.reshape(-1), (size,)).copy()
