"""Computes large arrays part by part, so that other threads get the interpreter in between.

NumPy releases the GIL while it computes, but not in all functions, nor while it frees temporaries,
which takes milliseconds for each 100 MB.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from webnn_py.core.gil_yield import checkpoint

Array = np.ndarray[Any, Any]
Place = tuple[builtins.slice, ...]

TILE_BYTES = 4 << 20
"""Approximate size of the temporary arrays of convolution and pooling."""

TILE_ELEMENTS = 1 << 17
"""Approximate number of elements of a part; as float64 they fit a core's cache."""


def parts(shape: Sequence[int], whole: Collection[int] = ()) -> Iterator[Place]:
    """Yield slices of about TILE_ELEMENTS elements that cover a shape.

    Args:
        shape: The shape.
        whole: Dimensions that are not divided.
    """
    places: list[builtins.slice] = [slice(None)] * len(shape)

    def divide(dimension: int, size: int) -> Iterator[Place]:
        while dimension < len(shape) and (dimension in whole or shape[dimension] == 1):
            dimension += 1
        if size <= TILE_ELEMENTS or dimension == len(shape):
            checkpoint()
            yield tuple(places)
            return
        rest = size // shape[dimension]
        step = max(1, TILE_ELEMENTS // rest)
        for start in range(0, shape[dimension], step):
            places[dimension] = slice(start, start + step)
            yield from divide(dimension + 1, rest * min(step, shape[dimension] - start))
        places[dimension] = slice(None)

    return divide(0, math.prod(shape))


def elementwise(function: Callable[..., Array], arrays: Sequence[Array], dtype: Any) -> Array:
    """Apply an elementwise function to broadcast arrays, part by part."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if math.prod(shape) <= TILE_ELEMENTS:
        return function(*arrays)
    wide = [np.broadcast_to(array, shape) for array in arrays]
    result = np.empty(shape, dtype)
    for place in parts(shape):
        result[place] = function(*(array[place] for array in wide))
    return result


def by_rows(
    function: Callable[..., Array],
    arrays: Sequence[Array],
    axes: Collection[int],
    dtype: Any = None,
) -> Array:
    """Apply a function part by part to arrays that have one shape except along `axes`.

    Args:
        function: Function of parts of the arrays.
        arrays: The arrays.
        axes: Axes that are not divided; the result's size may differ along them.
        dtype: Data type of the result; default: that of the first part.
    """
    shape = arrays[0].shape
    if math.prod(shape) <= TILE_ELEMENTS:
        return function(*arrays)
    result: Array | None = None
    for place in parts(shape, axes):
        part = function(*(array[place] for array in arrays))
        if result is None:
            sizes = [part.shape[i] if i in axes else size for i, size in enumerate(shape)]
            result = np.empty(sizes, part.dtype if dtype is None else dtype)
        result[place] = part
    assert result is not None
    return result
