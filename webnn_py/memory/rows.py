"""Arrays joined along an axis, and their rows: what lies at some places of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from webnn_py.ir import Array, Shape

QUICK = 1 << 20
"""Bytes that are copied in less time than it takes to have the interpreter again: NumPy gives it
away for each array, and an event loop that is busy takes it for milliseconds."""


def joined(parts: Sequence[Array], axis: int, shape: Shape, row: int) -> Array:
    """Arrays one behind the other, with copies of the last row up to a shape.

    Args:
        parts: Of one data type, and one shape but for the axis.
        axis: Along which they are joined.
        shape: Of the result.
        row: How many places along the axis make a row.
    """
    if parts[0].shape == shape:
        return parts[0]
    missing = shape[axis] - sum(part.shape[axis] for part in parts)
    last = places(parts[-1], axis, parts[-1].shape[axis] - row, row)
    whole = [*parts, *[last] * (missing // row)]
    if axis == 0 and math.prod(shape) * last.itemsize <= QUICK:
        return np.ndarray(shape, last.dtype, b"".join(part.data for part in whole))
    return np.concatenate(whole, axis, out=np.empty(shape, last.dtype))


def places(array: Array, axis: int, begin: int, count: int) -> Array:
    """A view of some places along an axis."""
    if axis == 0:
        return array[begin : begin + count]
    return array[(slice(None),) * axis + (slice(begin, begin + count),)]
