"""A bounded number of awaited runs under way at once."""

from __future__ import annotations

import threading
from collections import deque

from webnn_py.ordering.schedule import Run


class Slots:
    """Begins work when there is room, in the order in which it came; blocks nobody.

    Args:
        count: How much may be under way at once.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Run] = deque()
        self._beginning = False
        self._lock = threading.Lock()

    def take(self, begin: Run) -> None:
        """Call `begin` now or later; `give` is to follow when the work is done."""
        with self._lock:
            self._waiting.append(begin)
        self._begin()

    def give(self) -> None:
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
