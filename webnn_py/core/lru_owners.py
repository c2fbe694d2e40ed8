"""Of those that keep something for the next time, the ones that were used last do so."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Keeper(Protocol):
    """Keeps something that costs memory."""

    def let_go(self) -> None:
        """Keep nothing; called from any thread."""


class LastUsed:
    """Keepers, of which those that were used last go on; they are not kept alive.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keepers: weakref.WeakKeyDictionary[Keeper, None] = weakref.WeakKeyDictionary()
        self._latest: weakref.ref[Keeper] | None = None
        self._lock = threading.Lock()

    def use(self, keeper: Keeper) -> None:
        """Told that one keeps something, or is used."""
        if self._latest is not None and self._latest() is keeper:
            return
        with self._lock:
            self._keepers.pop(keeper, None)
            self._keepers[keeper] = None
            self._latest = weakref.ref(keeper)
            others = list(self._keepers)[: -self._most]
            for other in others:
                del self._keepers[other]
        for other in others:
            other.let_go()
