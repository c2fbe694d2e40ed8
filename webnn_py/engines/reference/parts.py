"""Large arrays computed part by part.

NumPy gives the interpreter to other threads while it computes, but not while it frees temporaries,
which takes milliseconds for each 100 MB, nor in some functions. So each part is small, and between
two of them the thread offers the interpreter.
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
"""About what temporaries of windows take."""

TILE = 1 << 17
"""Elements of a part, about: of float64 they stay in a core's cache."""


def parts(shape: Sequence[int], whole: Collection[int] = ()) -> Iterator[Place]:
    """Places of parts of about `TILE` elements, which make up all of a shape.

    Args:
        shape: The shape.
        whole: Dimensions that are not divided.
    """
    places: list[builtins.slice] = [slice(None)] * len(shape)

    def divide(dimension: int, size: int) -> Iterator[Place]:
        while dimension < len(shape) and (dimension in whole or shape[dimension] == 1):
            dimension += 1
        if size <= TILE or dimension == len(shape):
            checkpoint()
            yield tuple(places)
            return
        rest = size // shape[dimension]
        step = max(1, TILE // rest)
        for start in range(0, shape[dimension], step):
            places[dimension] = slice(start, start + step)
            yield from divide(dimension + 1, rest * min(step, shape[dimension] - start))
        places[dimension] = slice(None)

    return divide(0, math.prod(shape))


def elementwise(function: Callable[..., Array], arrays: Sequence[Array], dtype: Any) -> Array:
    """What a function computes of each element, in a data type; operands are broadcast."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if math.prod(shape) <= TILE:
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
    """What a function computes of arrays that are alike but along some axes, which it has whole.

    Args:
        function: Takes parts of them.
        arrays: The arrays.
        axes: Along which they are not divided; the result may be longer or shorter there.
        dtype: Of the result; that of the first part if not given.
    """
    shape = arrays[0].shape
    if math.prod(shape) <= TILE:
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
