"""Copies of arrays, by several threads where they are large."""

from __future__ import annotations

import functools

import numpy as np

from webnn_py.core.parallel_map import MAX_THREADS, MIN_PARALLEL_BYTES, parallel_map
from webnn_py.ir import Array

HUGE_PAGE_BYTES = 1 << 21
"""Bytes of a huge page, which one thread is to write."""


def copy(target: Array, source: Array) -> None:
    """Copy an array into another one of its shape and data type."""
    size = source.nbytes
    contiguous = target.flags.c_contiguous and source.flags.c_contiguous
    if size < MIN_PARALLEL_BYTES or not contiguous:
        np.copyto(target, source)
        return
    into, given = (array.reshape(-1).view(np.uint8) for array in (target, source))
    step = -(-size // (MAX_THREADS * HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES
    works = [
        functools.partial(np.copyto, into[at : at + step], given[at : at + step])
        for at in range(0, size, step)
    ]
    parallel_map(works, size)
