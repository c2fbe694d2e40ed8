"""Arrays joined along an axis, and their rows: what lies at some places of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from webnn_py.ir import Array, Shape

MAX_JOINED_BYTES = 1 << 20
"""Bytes that are copied in less time than it takes to have the interpreter again: NumPy gives it
away for each array, and an event loop that is busy takes it for milliseconds."""


def join_rows(
    parts: Sequence[Array], axis: int, shape: Shape, size: int, counts: list[int]
) -> Array:
    """Arrays one behind the other, with copies of the last row up to a shape.

    Args:
        parts: Of one data type, and one shape but for the axis.
        axis: Along which they are joined.
        shape: Of the result.
        size: How many rows that has along the axis.
        counts: How many each part has.
    """
    first, last = parts[0], parts[-1]
    if first.shape == shape:
        return first
    missing = size - sum(counts)
    if missing:
        row = shape[axis] // size
        parts = [*parts, *[_places(last, axis, last.shape[axis] - row, row)] * missing]
    if axis == 0 and math.prod(shape) * last.itemsize <= MAX_JOINED_BYTES:
        return np.ndarray(shape, last.dtype, b"".join([part.data for part in parts]))
    return np.concatenate(parts, axis, out=np.empty(shape, last.dtype))


def split_rows(array: Array, axis: int, size: int, counts: list[int]) -> Iterable[Array]:
    """Views of what `join_rows` made, or what follows from it: the rows of each part."""
    row = array.shape[axis] // size
    if axis == 0 and min(counts) == max(counts):  # mostly they are, and this is quick
        places = counts[0] * row
        return array[: places * len(counts)].reshape(len(counts), places, *array.shape[1:])
    ends = itertools.accumulate(counts)
    return [
        _places(array, axis, (end - n) * row, n * row) for n, end in zip(counts, ends, strict=True)
    ]


def _places(array: Array, axis: int, begin: int, count: int) -> Array:
    """A view of some places along an axis."""
    return array[(slice(None),) * axis + (slice(begin, begin + count),)]
