"""Allocation of new arrays, aligned to cache lines, and copies on several threads."""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from webnn_py.core.errors import OperationError
from webnn_py.core.parallel_map import MAX_THREADS, MIN_PARALLEL_BYTES, parallel_map
from webnn_py.ir import Array, Shape

OutputSpecs = Collection[tuple[Shape, np.dtype[Any]]]
"""Shapes and data types, in the order of a graph's outputs."""
ALIGNMENT = 64
"""Bytes of a cache line, which the widest stores fill; XLA needs this alignment to avoid a copy."""
MIN_ALIGNED_BYTES = 1 << 14
"""Smallest array for which alignment pays; smaller ones are allocated as fast as possible."""
HUGE_PAGE_BYTES = 1 << 21
"""Bytes of a huge page; one thread should write all of it."""
MIN_FAULTED_BYTES = 2 * MIN_PARALLEL_BYTES
"""Smallest array for whose pages threads are started ahead."""


def new_array(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array.

    Raises:
        OperationError: There is no memory for it.
    """
    if math.prod(shape) * dtype.itemsize >= MIN_ALIGNED_BYTES:
        return aligned_array(np.empty, shape, dtype)
    return _allocate(np.empty, shape, dtype)


def aligned_array(
    make: Callable[..., Array],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    alignment: int = ALIGNMENT,
) -> Array:
    """Return an array that begins at a multiple of `alignment` bytes.

    Args:
        make: `np.empty` or `np.zeros`.
        shape: Its shape.
        dtype: Its data type.
        alignment: Bytes.

    Raises:
        OperationError: There is no memory for it.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = _allocate(make, (size + alignment,), np.dtype(np.uint8))
    begin = -raw.__array_interface__["data"][0] % alignment
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _allocate(make: Callable[..., Array], shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    try:
        return make(shape, dtype)
    except MemoryError as error:
        raise OperationError(f"allocating {dtype}{list(shape)}: {error}") from error


def copy_array(target: Array, source: Array) -> None:
    """Copy an array into another one of the same shape and data type."""
    size = source.nbytes
    contiguous = target.flags.c_contiguous and source.flags.c_contiguous
    if size < MIN_PARALLEL_BYTES or not contiguous:
        np.copyto(target, source)
        return
    to, origin = (array.reshape(-1).view(np.uint8) for array in (target, source))
    works = [functools.partial(np.copyto, to[part], origin[part]) for part in _parts(size)]
    parallel_map(works, size)


def _parts(size: int) -> list[slice]:
    """Return a part of so many bytes for each thread, in whole huge pages."""
    step = -(-size // (MAX_THREADS * HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES
    return [slice(at, min(at + step, size)) for at in range(0, size, step)]


def fault_in(array: Array) -> None:
    """Have a new contiguous array's pages made, which takes as long as filling them.

    Whoever waits for contents should call it meanwhile. Small arrays are left as they are.
    """
    size = array.nbytes
    if size < MIN_FAULTED_BYTES:
        return
    memory = array.reshape(-1).view(np.uint8)
    works = [functools.partial(memory[part][:: mmap.PAGESIZE].fill, 0) for part in _parts(size)]
    parallel_map(works, size)
