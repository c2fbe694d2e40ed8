"""Resampling in NumPy, with coordinates in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.engines.reference.parts import by_rows
from webnn_py.ops.resampling import resampled

Array = np.ndarray[Any, Any]


def _nearest(x: Array, size: int, axis: int) -> Array:
    """Take the element with the nearest centre, the earlier of two at one distance."""
    old = x.shape[axis]
    # ceil((2i + 1) * old / (2 * size) - 1) combines the half-pixel offsets of both grids.
    numerators = (2 * np.arange(size, dtype=np.int64) + 1) * old
    places = -(-numerators // (2 * size)) - 1
    return np.asarray(np.take(x, np.clip(places, 0, old - 1), axis=axis))


def _linear(x: Array, size: int, axis: int) -> Array:
    """Interpolate between the two elements around each centre."""
    old = x.shape[axis]
    unit = 2 * size
    numerators = (2 * np.arange(size, dtype=np.int64) + 1) * old - size
    clamped = np.clip(numerators, 0, (old - 1) * unit)
    low = clamped // unit
    shape = [size if i == axis else 1 for i in range(x.ndim)]
    share = ((clamped % unit) / unit).reshape(shape)
    below = np.take(x, low, axis=axis)
    above = np.take(x, np.minimum(low + 1, old - 1), axis=axis)
    # An infinite neighbour with share 0 must not turn the result into NaN.
    return np.asarray(np.where(share == 0, below, below * (1 - share) + above * share))


def resample2d(
    input: Array,
    mode: str,
    scales: Sequence[float],
    sizes: Sequence[int] | None,
    axes: Sequence[int],
) -> Array:
    """Resize two axes."""
    shape = resampled(input.shape, scales, sizes, axes)
    if mode == "nearest-neighbor":
        output = input
        for axis in axes:
            output = _nearest(output, shape[axis], axis)
        return output

    def images(part: Array) -> Array:
        output = part.astype(np.float64)
        for axis in sorted(axes, reverse=True):
            output = _linear(output, shape[axis], axis)
        return output if input.dtype.kind == "f" else np.rint(output)

    return by_rows(images, [input], axes, input.dtype if input.dtype.kind == "f" else None)
