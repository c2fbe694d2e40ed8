"""Decomposition of `split`."""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.movement import split_sizes
from webnn_py.ops.operand import MLOperand


@decomposition
def split(
    g: GraphBuilder, input: MLOperand, splits: int | Sequence[int], axis: int
) -> list[MLOperand]:
    """Slice out each part."""
    starts, sizes = [0] * input.rank, list(input.shape)
    parts = []
    for size in split_sizes(input.shape[axis], splits):
        sizes[axis] = size
        parts.append(g.slice(input, starts, sizes))
        starts[axis] += size
    return parts
