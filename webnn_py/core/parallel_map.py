"""Work on much memory by several threads: NumPy and drivers let go of the interpreter meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from webnn_py.core import gil_yield

T = TypeVar("T")

MAX_THREADS = 8
"""Memory is no faster for more."""
MIN_PARALLEL_BYTES = 1 << 24
"""Bytes from which on it takes longer than to begin threads."""


def parallel_map(
    works: Sequence[Callable[[], T]], size: int, threads: int = MAX_THREADS
) -> list[T]:
    """What functions return, in their order.

    Args:
        works: What to do.
        size: Bytes that all of it handles.
        threads: How many to do it on, at most.

    Raises:
        Exception: What the first function raises that fails; the others end before.
    """
    threads = min(threads, len(works), os.cpu_count() or 1)
    if threads <= 1 or size < MIN_PARALLEL_BYTES:
        return [work() for work in works]
    with ThreadPoolExecutor(
        threads, thread_name_prefix="webnn-memory", initializer=gil_yield.enable
    ) as pool:
        return list(pool.map(lambda work: work(), works))
