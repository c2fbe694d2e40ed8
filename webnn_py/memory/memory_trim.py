"""Memory that the process has and no longer needs, given back to the system."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Collection, Iterable

from webnn_py.ir import Array
from webnn_py.memory.mmap_lookup import mappings_of

MIN_TRIMMED_BYTES = 1 << 24
"""Bytes of weights from which on it is worth the milliseconds that it takes."""


def trim_memory(weights: Collection[Array]) -> None:
    """Give back what is needed no more once passes have read weights, or a library has its own.

    They freed copies, much of which the C library keeps for later; and a library has most weights
    in an order of its own, so that those in mapped files are seldom read again.
    """
    if sum(array.nbytes for array in weights) >= MIN_TRIMMED_BYTES:
        _forget_pages(weights)
        _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # glibc has it, others do not
        return lambda kept: None
    return found


def _forget_pages(arrays: Iterable[Array]) -> None:
    """Let the pages of arrays in mapped files go; who reads them has them read again."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for mapping in mappings_of(arrays):
        mapping.madvise(mmap.MADV_DONTNEED)
