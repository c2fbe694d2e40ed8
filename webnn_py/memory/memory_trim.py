"""Return of unused heap memory and mapped pages to the system."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Collection, Iterable

from webnn_py.ir import Array
from webnn_py.memory.mmap_lookup import mappings_of

MIN_TRIMMED_BYTES = 1 << 24
"""Smallest weights, in bytes, for which trimming is worth its milliseconds."""


def trim_memory(weights: Collection[Array]) -> None:
    """Return memory to the system after passes have read weights, or a library has copied them.

    Passes free copies, of which the C library keeps much. A library reorders most weights, so the
    mapped originals are rarely read again.
    """
    if sum(array.nbytes for array in weights) >= MIN_TRIMMED_BYTES:
        _drop_pages(weights)
        _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # only glibc has malloc_trim
        return lambda padding: None
    return found


def _drop_pages(arrays: Iterable[Array]) -> None:
    """Drop the pages of arrays in mapped files; the next access reads them again."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for mapping in mappings_of(arrays):
        mapping.madvise(mmap.MADV_DONTNEED)
