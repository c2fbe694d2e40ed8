"""Thread-parallel work on large memory: NumPy and drivers release the GIL meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from webnn_py.core import gil_yield

T = TypeVar("T")

MAX_THREADS = 8
"""Most threads; memory is no faster for more."""
MIN_PARALLEL_BYTES = 1 << 24
"""Smallest work, in bytes of memory, that takes longer than starting threads."""


def parallel_map(
    works: Sequence[Callable[[], T]], size: int, threads: int = MAX_THREADS
) -> list[T]:
    """Call functions on several threads and return their results in order.

    Args:
        works: The functions.
        size: Bytes of memory that all of them process.
        threads: Number of threads at most.

    Raises:
        Exception: The error of the first function that fails, after all have ended.
    """
    threads = min(threads, len(works), os.cpu_count() or 1)
    if threads <= 1 or size < MIN_PARALLEL_BYTES:
        return [work() for work in works]
    with ThreadPoolExecutor(
        threads, thread_name_prefix="webnn-memory", initializer=gil_yield.enable
    ) as pool:
        return list(pool.map(lambda work: work(), works))
