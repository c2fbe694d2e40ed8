"""arg_max, arg_min and running sums in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def arg_max(input: Array, axis: int, keep_dimensions: bool, output_data_type: str) -> Array:
    """Position of the greatest element."""
    found = np.asarray(np.argmax(input, axis))
    return np.expand_dims(found, axis) if keep_dimensions else found


def arg_min(input: Array, axis: int, keep_dimensions: bool, output_data_type: str) -> Array:
    """Position of the least element."""
    found = np.asarray(np.argmin(input, axis))
    return np.expand_dims(found, axis) if keep_dimensions else found


def cumulative_sum(input: Array, axis: int, exclusive: bool, reversed: bool) -> Array:
    """Running sums."""
    values = input.astype(np.float64) if input.dtype.kind == "f" else input
    values = np.flip(values, axis) if reversed else values
    if exclusive:
        kept = np.take(values, range(values.shape[axis] - 1), axis=axis)
        zeros = np.zeros_like(np.take(values, [0], axis=axis))
        values = np.concatenate([zeros, kept], axis=axis)
    sums = np.cumsum(values, axis=axis, dtype=values.dtype)
    return np.flip(sums, axis) if reversed else sums
