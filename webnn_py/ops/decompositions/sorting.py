"""Decomposition of `arg_top_k` into comparisons of pairs, because WebNN has no sorting."""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import fixed
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.errors import NotSupportedError
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand

MAX_SEQUENTIAL_K = 3
"""Largest k for which elements are found one after the other."""
MIN_BLOCK_ELEMENTS = 128
"""Least number of elements in a block, within which all pairs are compared."""
MAX_COMPARISONS = 1 << 26
"""Most comparisons in one operator; each takes some bytes of memory."""
MAX_SEQUENTIAL_K_OF_LARGE_ROWS = 256
"""Largest k to find one after the other where pairs would exceed MAX_COMPARISONS."""


@decomposition
def arg_top_k(g: GraphBuilder, input: MLOperand, axis: int, k: int, largest: bool) -> MLOperand:
    """Find a small k, or any k of large rows, one after the other; else rank all elements."""
    k = fixed(k, "option 'k'")
    order = [i for i in range(input.rank) if i != axis] + [axis]
    outer, size = [input.shape[i] for i in order[:-1]], input.shape[axis]
    rows = math.prod(outer)
    block = max(MIN_BLOCK_ELEMENTS, 1 << (2 * k - 1).bit_length())
    pairs = rows * size * min(size, block)
    if k <= MAX_SEQUENTIAL_K or (pairs > MAX_COMPARISONS and k <= MAX_SEQUENTIAL_K_OF_LARGE_ROWS):
        return _one_by_one(g, input, axis, k, largest)
    if pairs > MAX_COMPARISONS:
        raise NotSupportedError(
            f"k = {k} of {size} elements takes {pairs} comparisons, as WebNN has no"
            " sorting; a CPU context has no such limit"
        )
    moved = input if axis == input.rank - 1 else g.transpose(input, permutation=order)
    positions = _top_k(g, g.reshape(moved, [rows, size]), None, k, largest, block)
    reshaped = g.reshape(positions, [*outer, k])
    back = [order.index(i) for i in range(input.rank)]
    return reshaped if axis == input.rank - 1 else g.transpose(reshaped, permutation=back)


def _worst(x: MLOperand, largest: bool) -> float:
    info = DTYPES[x.data_type]
    if info.kind == "f":
        return -math.inf if largest else math.inf
    return int(info.min if largest else info.max)


def _positions(g: GraphBuilder, size: int) -> MLOperand:
    return g.add_constant(np.arange(size)[None], "int64")


def _top_k(
    g: GraphBuilder, x: MLOperand, positions: MLOperand | None, k: int, largest: bool, block: int
) -> MLOperand:
    """Return the positions of the k extremes of each row, block by block.

    The extremes of each block form a shorter row; repeat until one or two blocks' length remains.

    Args:
        g: The graph builder.
        x: Rows of elements [rows, size].
        positions: Original positions of the elements; None: their positions in `x`.
        k: Number of extremes.
        largest: Whether to find the greatest elements.
        block: Elements per block.
    """
    rows, size = x.shape
    if size <= 2 * block:
        first = _top_k_by_rank(g, x, k, largest)
        return first if positions is None else g.gather_elements(positions, first, axis=1)
    blocks = -(-size // block)
    fill = blocks * block - size
    if positions is None:
        positions = g.expand(_positions(g, size), [rows, size])
    if fill:
        x = g.pad(x, [0, 0], [0, fill], value=_worst(x, largest))
        positions = g.pad(positions, [0, 0], [0, fill])
    x, positions = (g.reshape(one, [rows * blocks, block]) for one in (x, positions))
    first = _top_k_by_rank(g, x, k, largest)
    x, positions = (
        g.reshape(g.gather_elements(one, first, axis=1), [rows, blocks * k])
        for one in (x, positions)
    )
    return _top_k(g, x, positions, k, largest, block)


def _top_k_by_rank(g: GraphBuilder, x: MLOperand, k: int, largest: bool) -> MLOperand:
    """Return the positions of the k extremes of each row from the ranks of all elements.

    An element's rank is the number of elements before it: the more extreme ones, and equal ones on
    its left.
    """
    rows, size = x.shape
    each, other = g.reshape(x, [rows, size, 1]), g.reshape(x, [rows, 1, size])
    left = g.add_constant(np.tri(size, k=-1, dtype=np.uint8)[None], "uint8")
    beyond = (g.greater if largest else g.lesser)(other, each)
    before = g.logical_or(beyond, g.logical_and(g.equal(other, each), left))
    rank = g.reduce_sum(g.cast(before, "int32"), axes=[2])
    numbers = g.expand(_positions(g, size), [rows, size])
    order = g.scatter_elements(numbers, rank, numbers, axis=1)
    return order if k == size else g.slice(order, [0, 0], [rows, k])


def _one_by_one(g: GraphBuilder, x: MLOperand, axis: int, k: int, largest: bool) -> MLOperand:
    """Find one extreme after the other, and replace each by the worst value before the next."""
    find = g.arg_max if largest else g.arg_min
    reduce = g.reduce_max if largest else g.reduce_min
    size = x.shape[axis]
    positions = g.reshape(_positions(g, size), [size if i == axis else 1 for i in range(x.rank)])
    worst, big = g.constant_of(_worst(x, largest), x), g.constant_of(size, positions)
    found = [find(x, axis, keep_dimensions=True, output_data_type="int64")]
    taken, left = g.equal(positions, found[0]), x
    for _ in range(k - 1):
        # Of the remaining elements, find the extreme value, then the first position that has it.
        left = g.where(g.equal(positions, found[-1]), worst, left)
        extreme = reduce(left, axes=[axis], keep_dimensions=True)
        fits = g.logical_and(g.equal(left, extreme), g.logical_not(taken))
        found.append(g.reduce_min(g.where(fits, positions, big), axes=[axis], keep_dimensions=True))
        taken = g.logical_or(taken, g.equal(positions, found[-1]))
    return g.concat(found, axis) if k > 1 else found[0]
