"""A bound on how much is under way at once."""

from __future__ import annotations

import threading
from collections import deque

from webnn_py.ordering.operation import Run


class NonBlockingSemaphore:
    """A semaphore that calls back, in the order of asking, instead of blocking who asks.

    Args:
        count: How much may be under way at once.
    """

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._waiting: deque[Run] = deque()
        self._beginning = False
        self._lock = threading.Lock()

    def acquire(self, begin: Run) -> None:
        """Call `begin` now or when there is room; `release` is to follow when its work is done."""
        with self._lock:
            self._waiting.append(begin)
        self._begin()

    @property
    def under_way(self) -> int:
        """How much has begun and is not done."""
        return self._count - self._free

    def release(self) -> None:
        """Work is done: there is room for more."""
        with self._lock:
            self._free += 1
        self._begin()

    def _begin(self) -> None:
        # One thread at a time, so that work that is done at once does not call this ever deeper.
        while True:
            with self._lock:
                if self._beginning or not self._waiting or not self._free:
                    return
                self._free -= 1
                self._beginning = True
                begin = self._waiting.popleft()
            try:
                begin()
            finally:
                with self._lock:
                    self._beginning = False
