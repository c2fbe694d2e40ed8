"""Of those that keep something for the next time, the ones that were used last do so."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class CacheOwner(Protocol):
    """Keeps something that costs memory."""

    def release(self) -> None:
        """Keep nothing; called from any thread."""


class LRUOwners:
    """Keepers, of which those that were used last go on; they are not kept alive.

    Args:
        most: How many.
    """

    def __init__(self, max_owners: int) -> None:
        self._max_owners = max_owners
        self._owners: weakref.WeakKeyDictionary[CacheOwner, None] = weakref.WeakKeyDictionary()
        self._latest: weakref.ref[CacheOwner] | None = None
        self._lock = threading.Lock()

    def use(self, owner: CacheOwner) -> None:
        """Told that one keeps something, or is used."""
        if self._latest is not None and self._latest() is owner:
            return
        with self._lock:
            self._owners.pop(owner, None)
            self._owners[owner] = None
            self._latest = weakref.ref(owner)
            others = list(self._owners)[: -self._max_owners]
            for other in others:
                del self._owners[other]
        for other in others:
            other.release()
