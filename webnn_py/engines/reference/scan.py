"""arg_max, arg_min, arg_top_k and cumulative_sum in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.engines.reference.parts import TILE_ELEMENTS, by_rows, parts

Array = np.ndarray[Any, Any]


def arg_max(input: Array, axis: int, keep_dimensions: bool, output_data_type: str) -> Array:
    """Return the position of the greatest element."""
    found = np.asarray(np.argmax(input, axis))
    return np.expand_dims(found, axis) if keep_dimensions else found


def arg_min(input: Array, axis: int, keep_dimensions: bool, output_data_type: str) -> Array:
    """Return the position of the least element."""
    found = np.asarray(np.argmin(input, axis))
    return np.expand_dims(found, axis) if keep_dimensions else found


def arg_top_k(input: Array, axis: int, k: int, largest: bool) -> Array:
    """Return the positions of the k greatest or least elements by a stable sort."""

    def rows(part: Array) -> Array:
        order = np.argsort(np.flip(part, axis) if largest else part, axis, kind="stable")
        if largest:
            order = input.shape[axis] - 1 - np.flip(order, axis)
        return np.take(order, range(k), axis)

    return by_rows(rows, [input], [axis])


def cumulative_sum(input: Array, axis: int, exclusive: bool, reversed: bool) -> Array:
    """Compute running sums."""

    def rows(part: Array) -> Array:
        values = part.astype(np.float64) if part.dtype.kind == "f" else part
        values = np.flip(values, axis) if reversed else values
        if exclusive:
            rest = np.take(values, range(values.shape[axis] - 1), axis=axis)
            zeros = np.zeros_like(np.take(values, [0], axis=axis))
            values = np.concatenate([zeros, rest], axis=axis)
        sums = _running_sums(values, axis)
        return np.flip(sums, axis) if reversed else sums

    return by_rows(rows, [input], [axis], input.dtype)


def _running_sums(values: Array, axis: int) -> Array:
    """Compute running sums part by part; each part begins with the sum of the parts before."""
    if values.size <= TILE_ELEMENTS:
        return np.cumsum(values, axis=axis, dtype=values.dtype)
    sums = np.empty_like(values)
    others = [dimension for dimension in range(values.ndim) if dimension != axis]
    before: Array | None = None
    for place in parts(values.shape, others):
        part = values[place].copy()
        first = np.take(part, [0], axis=axis)
        if before is not None:
            np.put_along_axis(part, np.zeros_like(first, np.int64), first + before, axis)
        part = np.cumsum(part, axis=axis, dtype=values.dtype)
        sums[place] = part
        before = np.take(part, [-1], axis=axis)
    return sums
