"""Copies of arrays, on several threads where they are large."""

from __future__ import annotations

import functools

import numpy as np

from webnn_py.core.parallel_map import MAX_THREADS, MIN_PARALLEL_BYTES, parallel_map
from webnn_py.ir import Array

HUGE_PAGE_BYTES = 1 << 21
"""Bytes of a huge page; one thread should write all of it."""


def copy(target: Array, source: Array) -> None:
    """Copy an array into another one of the same shape and data type."""
    size = source.nbytes
    contiguous = target.flags.c_contiguous and source.flags.c_contiguous
    if size < MIN_PARALLEL_BYTES or not contiguous:
        np.copyto(target, source)
        return
    to, origin = (array.reshape(-1).view(np.uint8) for array in (target, source))
    step = -(-size // (MAX_THREADS * HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES
    works = [
        functools.partial(np.copyto, to[at : at + step], origin[at : at + step])
        for at in range(0, size, step)
    ]
    parallel_map(works, size)
