"""New arrays, where processors write them fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from webnn_py.core.errors import OperationError
from webnn_py.ir import Array, Shape

OutputSpecs = Collection[tuple[Shape, np.dtype[Any]]]
"""Shapes and data types, in the order of a graph's outputs."""
ALIGNMENT = 64
"""Bytes: a line of the cache, which the widest stores fill, and what XLA asks for not to copy."""
MIN_ALIGNED_BYTES = 1 << 14
"""Bytes from which on that pays; what is smaller is made as fast as can be."""


def new_array(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array that holds anything.

    Raises:
        OperationError: There is no memory for it.
    """
    if math.prod(shape) * dtype.itemsize >= MIN_ALIGNED_BYTES:
        return aligned_array(np.empty, shape, dtype)
    return _made(np.empty, shape, dtype)


def aligned_array(
    make: Callable[..., Array],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    alignment: int = ALIGNMENT,
) -> Array:
    """An array that begins where a line of the cache does, or a page.

    Args:
        make: `np.empty` or `np.zeros`.
        shape: Its shape.
        dtype: Its data type.
        alignment: Bytes.

    Raises:
        OperationError: There is no memory for it.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = _made(make, (size + alignment,), np.dtype(np.uint8))
    begin = -raw.__array_interface__["data"][0] % alignment
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _made(make: Callable[..., Array], shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    try:
        return make(shape, dtype)
    except MemoryError as error:
        raise OperationError(f"allocating {dtype}{list(shape)}: {error}") from error
