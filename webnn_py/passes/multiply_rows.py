"""Products of one row and large weights, as convolutions of one element.

Such a product takes as long as its weights take from memory. An engine that lays out weights of
convolutions in blocks reads these from one end to the other, faster than those of a gemm.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.convolution import Conv2dFilterLayout
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK
from webnn_py.passes.target import Target

LARGE = 1 << 19
"""Weights that caches of cores do not keep from one run to the next."""


def multiply_rows_by_convolutions(graph: Graph, target: Target) -> Graph:
    """Put reshape, conv2d and reshape in the place of gemm with one row."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "gemm" or not _is_row(node):
            return None
        row, weights, bias = (None if v is None else rewriter.map[v] for v in node.inputs)
        assert row is not None
        array, shift = rewriter.array_of(weights), rewriter.array_of(bias)
        outer, inner = node.output.shape[1], row.shape[1]
        if array is None or (bias is not None and shift is None):
            return None
        made = convolved(
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
    """Whether a gemm is one row times weights of many blocks, and a summand as it is."""
    row, weights, *_ = node.operands
    attrs = node.attrs
    return (
        row.data_type == "float32"
        and row.shape[0] == 1
        and not any(map(is_dimension, (*row.shape, *weights.shape)))
        and row.shape[1] % BLOCK == 0
        and math.prod(weights.shape) >= LARGE
        and (attrs["alpha"], attrs["beta"], attrs["a_transpose"]) == (1, 1, False)
    )


def convolved(
    rewriter: Rewriter,
    target: Target,
    images: MLOperand,
    weights: Array,
    summand: Array | None,
    transposed: bool = False,
) -> MLOperand:
    """Channels times weights, which stay as they lie in memory.

    Args:
        rewriter: Of the graph.
        target: Gives what passes compute from constants.
        images: Rows as places, columns as channels.
        weights: Of (columns of rows, columns of results), or `transposed`.
        summand: Of each column.
        transposed: Whether the weights are.
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
