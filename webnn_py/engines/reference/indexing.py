"""Gathering and scattering in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.engines.reference.parts import by_rows

Array = np.ndarray[Any, Any]


def _inside(indices: Array, size: int) -> Array:
    """Count negative indices from the end, then clamp all to the dimension."""
    signed = indices.astype(np.int64)
    return np.clip(np.where(signed < 0, signed + size, signed), 0, size - 1)


def _coordinates(indices: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(_inside(indices[..., i], shape[i]) for i in range(indices.shape[-1]))


def gather(input: Array, indices: Array, axis: int) -> Array:
    """Gather slices at indices along an axis."""
    return np.take(input, _inside(indices, input.shape[axis]), axis=axis)


def gather_elements(input: Array, indices: Array, axis: int) -> Array:
    """Gather elements at indices along an axis."""

    def rows(places: Array, part: Array) -> Array:
        taken: Array = np.take_along_axis(part, _inside(places, input.shape[axis]), axis=axis)
        return taken

    return by_rows(rows, [indices, input], [axis])


def gather_nd(input: Array, indices: Array) -> Array:
    """Gather slices at coordinates."""
    return np.asarray(input[_coordinates(indices, input.shape)])


def scatter_elements(input: Array, indices: Array, updates: Array, axis: int) -> Array:
    """Write elements at indices along an axis."""

    def rows(places: Array, part: Array, put: Array) -> Array:
        output = part.copy()
        np.put_along_axis(output, _inside(places, input.shape[axis]), put, axis=axis)
        return output

    return by_rows(rows, [indices, input, updates], [axis])


def scatter_nd(input: Array, indices: Array, updates: Array) -> Array:
    """Write slices at coordinates."""
    output = input.copy()
    output[_coordinates(indices, input.shape)] = updates
    return output


def scatter_rows(
    cache: Array, rows: Array, starts: Array, axis: int, output: Array | None = None
) -> Array:
    """Write the rows of each batch from its start on; drop those outside of the cache.

    `output` is where the cache is already; else it is copied.
    """
    output = cache.copy() if output is None else output
    size, count = output.shape[axis], rows.shape[axis]
    for one, start in enumerate(np.broadcast_to(starts, len(output)).tolist()):
        first, last = max(start, 0), min(start + count, size)
        if first < last:
            target = np.moveaxis(output[one], axis - 1, 0)
            target[first:last] = np.moveaxis(rows[one], axis - 1, 0)[first - start : last - start]
    return output
