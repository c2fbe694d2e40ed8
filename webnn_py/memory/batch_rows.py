"""Concatenation of arrays along a batch axis, and the split of results into the parts' rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from webnn_py.ir import Array, Shape

MAX_JOINED_BYTES = 1 << 20
"""Largest result copied without NumPy, which releases the GIL for each array: taking it back from a
busy event loop can cost milliseconds.
"""


def join_rows(
    parts: Sequence[Array], axis: int, shape: Shape, size: int, counts: list[int]
) -> Array:
    """Concatenate arrays along an axis; repeat the last row up to the size of the result.

    Args:
        parts: Arrays of one data type, with one shape except along the axis.
        axis: The axis.
        shape: Shape of the result.
        size: Rows of the result along the axis.
        counts: Rows of each part.
    """
    first, last = parts[0], parts[-1]
    if first.shape == shape:
        return first
    missing = size - sum(counts)
    if missing:
        row = shape[axis] // size
        parts = [*parts, *[_slice(last, axis, last.shape[axis] - row, row)] * missing]
    if axis == 0 and math.prod(shape) * last.itemsize <= MAX_JOINED_BYTES:
        return np.ndarray(shape, last.dtype, b"".join([part.data for part in parts]))
    return np.concatenate(parts, axis, out=np.empty(shape, last.dtype))


def split_rows(array: Array, axis: int, size: int, counts: list[int]) -> Iterable[Array]:
    """Return views of each part's rows in the result of `join_rows` or of a run on it."""
    row = array.shape[axis] // size
    if axis == 0 and min(counts) == max(counts):  # the common case, and fast
        length = counts[0] * row
        return array[: length * len(counts)].reshape(len(counts), length, *array.shape[1:])
    ends = itertools.accumulate(counts)
    return [
        _slice(array, axis, (end - n) * row, n * row) for n, end in zip(counts, ends, strict=True)
    ]


def _slice(array: Array, axis: int, begin: int, count: int) -> Array:
    """Return a view of `count` indices along an axis."""
    return array[(slice(None),) * axis + (slice(begin, begin + count),)]
