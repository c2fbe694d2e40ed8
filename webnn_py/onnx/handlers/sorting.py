"""The greatest and least elements in order: WebNN has no sorting, so by comparisons of pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, span
from webnn_py.core.dtypes import DTYPES
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.reduction import lowest
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, refuse

FEW = 3
"""So many are found one after the other."""
LEAST_BLOCK = 128
"""Elements of which each is compared with each; longer rows are parted into such blocks."""
MOST_PAIRS = 1 << 26
"""Comparisons at once: each takes some bytes."""
MOST_ROUNDS = 256
"""Elements that are found one after the other, in rows of open length."""


def _top(g: Emitter, x: Tensor, count: int, axis: int, largest: int) -> Any:
    """The k extremes in order, the first of equals before the others, and their places."""
    at = x.axis(axis)
    size = x.shape[at]
    if not 0 <= count <= span(size)[1]:
        raise BrokenModelError(f"its k is {count}, of {size} elements")
    if not count:
        refuse("WebNN has no tensors without elements")
    if count <= FEW or is_dimension(size):
        if count > MOST_ROUNDS:
            refuse(
                f"WebNN has no sorting: of a row of open length ({size}) k = {count} is too many to"
                " find one by one; give its size with dimensions="
            )
        return _one_by_one(g, x, count, at, largest)
    order = [i for i in range(x.rank) if i != at] + [at]
    moved = x if at == x.rank - 1 else g.transpose(x, permutation=order)
    outer = list(moved.shape[:-1])
    rows = math.prod(outer)
    block = max(LEAST_BLOCK, 1 << (2 * count - 1).bit_length())
    pairs = span(rows)[0] * size * min(size, block)
    if pairs > MOST_PAIRS:
        refuse(f"WebNN has no sorting: k = {count} of {size} elements takes {pairs} comparisons")
    found = _ranked(g, g.reshape(moved, [rows, size]), None, count, largest, block)
    back = [order.index(i) for i in range(x.rank)]
    made = [g.reshape(one, [*outer, count]) for one in found]
    return made if at == x.rank - 1 else [g.transpose(one, permutation=back) for one in made]


def _worst(x: Tensor, largest: int) -> Any:
    info = DTYPES[x.data_type]
    return lowest(x) if largest else (np.inf if info.kind == "f" else info.max)


def _ranked(g: Emitter, x: Any, places: Any, count: int, largest: int, block: int) -> list[Any]:
    """The k extremes of each row: those of each block, then of these, until one block is left.

    An element's rank is how many of its block come before it: those beyond it, and equals on its
    left. What fills the last block comes after all others.
    """
    rows, size = x.shape
    blocks = -(-size // block)
    if size <= 2 * block:
        return _sorted(g, x, places, count, largest)
    fill = blocks * block - size
    if places is None:
        places = g.expand(g.array(np.arange(size)[None]), [rows, size])
    if fill:
        x = g.pad(x, [0, 0], [0, fill], value=_worst(x, largest))
        places = g.pad(places, [0, 0], [0, fill])
    x, places = (g.reshape(one, [rows * blocks, block]) for one in (x, places))
    best = _sorted(g, x, places, count, largest)
    x, places = (g.reshape(one, [rows, blocks * count]) for one in best)
    return _ranked(g, x, places, count, largest, block)


def _sorted(g: Emitter, x: Any, places: Any, count: int, largest: int) -> list[Any]:
    rows, size = x.shape
    each, other = g.reshape(x, [rows, size, 1]), g.reshape(x, [rows, 1, size])
    left = g.array(np.tri(size, k=-1, dtype=np.bool_)[None])
    beyond = (g.greater if largest else g.lesser)(other, each)
    before = g.logical_or(beyond, g.logical_and(g.equal(other, each), left))
    rank = g.reduce_sum(g.to(before, "int32"), axes=[2])
    numbers = g.expand(g.array(np.arange(size)[None]), [rows, size])
    order = g.scatter_elements(numbers, rank, numbers, axis=1)
    first = order if count == size else g.slice(order, [0, 0], [rows, count])
    values = g.gather_elements(x, first, axis=1)
    return [values, first if places is None else g.gather_elements(places, first, axis=1)]


def _one_by_one(g: Emitter, x: Tensor, count: int, at: int, largest: int) -> Any:
    """The k extremes, one after the other: each one found is put out of the way."""
    find = "arg_max" if largest else "arg_min"
    worst = _worst(x, largest)
    places = g.places(x.shape[at], at, x.rank)
    taken: Any = None
    values, indices = [], []
    left: Any = x
    big = g.size(x.shape[at])
    for _ in range(count):
        if taken is None:
            best = getattr(g, find)(left, at, keep_dimensions=True, output_data_type="int64")
        else:
            # Of what is not taken: the extreme value, and the first free place that has it.
            reduce = g.reduce_max if largest else g.reduce_min
            extreme = reduce(left, axes=[at], keep_dimensions=True)
            fits = g.logical_and(g.equal(left, extreme), g.logical_not(taken))
            best = g.reduce_min(g.where(fits, places, big), axes=[at], keep_dimensions=True)
        values.append(g.gather_elements(x, best, axis=at))
        indices.append(best)
        here = g.equal(places, best)
        taken = here if taken is None else g.logical_or(taken, here)
        left = g.where(here, g.constant(worst, x), left)
    if count == 1:
        return [values[0], indices[0]]
    return [g.concat(values, at), g.concat(indices, at)]


@handles("TopK", since=10)
def top_k(
    g: Emitter, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> Any:
    """The k greatest or least elements along an axis, in order, and their places."""
    return _top(g, x, k.integers("k")[0], axis, largest)


@handles("TopK")
def top_k_1(g: Emitter, x: Tensor, *, k: int, axis: int = -1) -> Any:
    """Before opset 10."""
    return _top(g, x, k, axis, 1)
