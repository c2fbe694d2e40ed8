"""The first elements of a sorted axis: WebNN has no sorting, so by comparisons of pairs."""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import fixed
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.errors import NotSupportedError
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand

FEW = 3
"""So many are found one after the other."""
LEAST_BLOCK = 128
"""Elements of which each is compared with each; longer rows are parted into such blocks."""
MOST_PAIRS = 1 << 26
"""Comparisons at once: each takes some bytes."""
MOST_ROUNDS = 256
"""Elements that are found one after the other, where comparisons of pairs are too many."""


@decomposition
def arg_top_k(g: GraphBuilder, input: MLOperand, axis: int, k: int, largest: bool) -> MLOperand:
    """By their ranks in rows; few ones, or those of huge rows, one after the other."""
    k = fixed(k, "option 'k'")
    order = [i for i in range(input.rank) if i != axis] + [axis]
    outer, size = [input.shape[i] for i in order[:-1]], input.shape[axis]
    rows = math.prod(outer)
    block = max(LEAST_BLOCK, 1 << (2 * k - 1).bit_length())
    pairs = rows * size * min(size, block)
    if k <= FEW or (pairs > MOST_PAIRS and k <= MOST_ROUNDS):
        return _one_by_one(g, input, axis, k, largest)
    if pairs > MOST_PAIRS:
        raise NotSupportedError(
            f"k = {k} of {size} elements takes {pairs} comparisons, as WebNN has no"
            " sorting; a CPU context has no such limit"
        )
    moved = input if axis == input.rank - 1 else g.transpose(input, permutation=order)
    found = _ranked(g, g.reshape(moved, [rows, size]), None, k, largest, block)
    made = g.reshape(found, [*outer, k])
    back = [order.index(i) for i in range(input.rank)]
    return made if axis == input.rank - 1 else g.transpose(made, permutation=back)


def _worst(x: MLOperand, largest: bool) -> float:
    info = DTYPES[x.data_type]
    if info.kind == "f":
        return -math.inf if largest else math.inf
    return int(info.min if largest else info.max)


def _places(g: GraphBuilder, size: int) -> MLOperand:
    return g.add_constant(np.arange(size)[None], "int64")


def _ranked(
    g: GraphBuilder, x: MLOperand, places: MLOperand | None, k: int, largest: bool, block: int
) -> MLOperand:
    """The k extremes of each row: those of each block, then of these, until one block is left.

    An element's rank is how many of its block come before it: those beyond it, and equals on its
    left. What fills the last block comes after all others.
    """
    rows, size = x.shape
    if size <= 2 * block:
        first = _sorted(g, x, k, largest)
        return first if places is None else g.gather_elements(places, first, axis=1)
    blocks = -(-size // block)
    fill = blocks * block - size
    if places is None:
        places = g.expand(_places(g, size), [rows, size])
    if fill:
        x = g.pad(x, [0, 0], [0, fill], value=_worst(x, largest))
        places = g.pad(places, [0, 0], [0, fill])
    x, places = (g.reshape(one, [rows * blocks, block]) for one in (x, places))
    first = _sorted(g, x, k, largest)
    x, places = (
        g.reshape(g.gather_elements(one, first, axis=1), [rows, blocks * k]) for one in (x, places)
    )
    return _ranked(g, x, places, k, largest, block)


def _sorted(g: GraphBuilder, x: MLOperand, k: int, largest: bool) -> MLOperand:
    """The places of the k extremes of each row, from the ranks of all."""
    rows, size = x.shape
    each, other = g.reshape(x, [rows, size, 1]), g.reshape(x, [rows, 1, size])
    left = g.add_constant(np.tri(size, k=-1, dtype=np.uint8)[None], "uint8")
    beyond = (g.greater if largest else g.lesser)(other, each)
    before = g.logical_or(beyond, g.logical_and(g.equal(other, each), left))
    rank = g.reduce_sum(g.cast(before, "int32"), axes=[2])
    numbers = g.expand(_places(g, size), [rows, size])
    order = g.scatter_elements(numbers, rank, numbers, axis=1)
    return order if k == size else g.slice(order, [0, 0], [rows, k])


def _one_by_one(g: GraphBuilder, x: MLOperand, axis: int, k: int, largest: bool) -> MLOperand:
    """Each one found is put out of the way."""
    find = g.arg_max if largest else g.arg_min
    reduce = g.reduce_max if largest else g.reduce_min
    size = x.shape[axis]
    places = g.reshape(_places(g, size), [size if i == axis else 1 for i in range(x.rank)])
    worst, big = g.constant_of(_worst(x, largest), x), g.constant_of(size, places)
    found = [find(x, axis, keep_dimensions=True, output_data_type="int64")]
    taken, left = g.equal(places, found[0]), x
    for _ in range(k - 1):
        # Of what is not taken: the extreme value, and the first free place that has it.
        left = g.where(g.equal(places, found[-1]), worst, left)
        extreme = reduce(left, axes=[axis], keep_dimensions=True)
        fits = g.logical_and(g.equal(left, extreme), g.logical_not(taken))
        found.append(g.reduce_min(g.where(fits, places, big), axes=[axis], keep_dimensions=True))
        taken = g.logical_or(taken, g.equal(places, found[-1]))
    return g.concat(found, axis) if k > 1 else found[0]
