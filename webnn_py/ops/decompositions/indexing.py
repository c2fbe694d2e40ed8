"""Decomposition of `scatter_rows`."""

from __future__ import annotations

import math

from webnn_py.ops.decompositions.positions import iota, number, position_type
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


@decomposition
def scatter_rows(
    g: GraphBuilder, cache: MLOperand, rows: MLOperand, starts: MLOperand, axis: int
) -> MLOperand:
    """Select at each position the new row that belongs there, or the cached one."""
    batch, *outer = cache.shape[:axis]
    inner, size, count = cache.shape[axis + 1 :], cache.shape[axis], rows.shape[axis]
    heads = math.prod(outer)
    kind = position_type(batch * heads, size + count)
    starts = g.reshape(g.cast(starts, kind), [starts.shape[0], 1])
    offset = g.sub(iota(g, size, 1, 2, kind), starts)  # the row of each position
    zero = g.constant_of(0, offset)
    around = [offset.shape[0], *[1] * len(outer), size, *[1] * len(inner)]
    if count == 1:
        return g.where(g.reshape(g.equal(offset, zero), around), rows, cache)
    end = number(g, count, kind)
    is_new = g.logical_and(g.greater_or_equal(offset, zero), g.lesser(offset, end))
    inside = g.max(g.min(offset, g.sub(end, g.constant_of(1, end))), zero)
    first = g.mul(iota(g, batch * heads, 0, 1, kind), end)  # the first row of each head
    index = g.add(
        g.reshape(first, [batch, heads, 1]), g.reshape(inside, [inside.shape[0], 1, size])
    )
    flat = g.reshape(rows, [batch * heads * count, math.prod(inner)])
    taken = g.reshape(g.gather(flat, g.cast(index, "int32")), cache.shape)
    return g.where(g.reshape(is_new, around), taken, cache)
