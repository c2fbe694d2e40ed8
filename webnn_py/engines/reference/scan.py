"""arg_max, arg_min, the first of a sorted axis and running sums in NumPy."""

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


def arg_top_k(input: Array, axis: int, k: int, largest: bool) -> Array:
    """Positions of the greatest elements, or of the least; the greatest are the last of all."""
    order = np.argsort(np.flip(input, axis) if largest else input, axis, kind="stable")
    if largest:
        order = input.shape[axis] - 1 - np.flip(order, axis)
    return np.take(order, range(k), axis)


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
