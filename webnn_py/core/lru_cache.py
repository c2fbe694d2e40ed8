"""LRU cache with single flight, and an LRU set of the objects that own caches."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from webnn_py.core.completion import Completion
from webnn_py.core.errors import InvalidStateError

T = TypeVar("T")

MemoryUse = Mapping[Hashable, int]
"""Bytes by the identity of each piece of memory, which several entries may share."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of an LRU cache; the most recently used entry stays in any case.

    Attributes:
        max_entries: Number of entries.
        max_bytes: Bytes of memory, None for no limit. Memory that all entries share does not count.
    """

    max_entries: int = 512
    max_bytes: int | None = 1 << 30


def _no_memory(entry: object) -> MemoryUse:
    return {}


class _Entry(Completion[T]):
    """Entry of the cache, pending while its maker computes it.

    Attributes:
        maker: Identity of the thread that computes it.
    """

    __slots__ = ("maker",)

    def __init__(self) -> None:
        super().__init__()
        self.maker = threading.get_ident()


class LRUCache(Generic[T]):
    """LRU cache that computes a missing entry once, while other callers wait for it.

    Args:
        make: Computes the value of a key.
        limits: Size limits; pending entries do not count.
        memory_use: Returns the memory of a value; called once for each value.
        on_created: Called with this cache, the key and the new value.
    """

    def __init__(
        self,
        make: Callable[[Any], T],
        limits: CacheLimits,
        memory_use: Callable[[T], MemoryUse] = _no_memory,
        on_created: Callable[[LRUCache[T], Any, T], None] | None = None,
    ) -> None:
        self._make = make
        self._limits = limits
        self._memory_use = memory_use
        self._on_created = on_created
        self._entries: dict[Hashable, _Entry[T]] = {}  # the most recently used entry is last
        self._latest: tuple[Hashable, T] | None = None
        self._memory = _SharedMemory()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T:
        """Return the value of a key, computing it if it is missing.

        All callers that wait for a computation get its error; a later call computes again.
        """
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        own: _Entry[T] | None = None
        try:
            with self._lock:
                entry = self._entries.pop(key, None)
                if entry is None:
                    entry = own = _Entry()
                self._entries[key] = entry
            if own is not None:
                self._fill(key, own)
        except BaseException as error:  # an interrupt may come before `_fill` begins
            if own is not None:
                self._fail(key, own, error)
            raise
        if entry.maker == threading.get_ident() and not entry.done:
            raise InvalidStateError(
                "a finalizer or signal handler asked for what this thread was in the midst of"
                " compiling; hand that to another thread, or do it later"
            )
        result = entry.wait()
        with self._lock:
            if self._entries.get(key) is entry:
                self._latest = key, result
        return result

    def find(self, key: Hashable) -> T | None:
        """Return the value of a key if present; computes and waits for nothing."""
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            found = self._entries.get(key)
            if found is None or not found.done:
                return None
            self._entries[key] = self._entries.pop(key)
            self._latest = key, found.wait()
            return self._latest[1]

    def holds(self, key: Hashable, value: T) -> bool:
        """Whether the value of a key is still `value`; to ask is no use of it."""
        with self._lock:
            return key in self._memory and self._entries[key].wait() is value

    def replace(self, key: Hashable, before: T, value: T) -> None:
        """Replace the value of a key if it is still `before`."""
        done: _Entry[T] = _Entry()
        done.set_result(value)
        memory_use = self._memory_use(value)
        with self._lock:
            if key not in self._memory or self._entries[key].wait() is not before:
                return
            self._entries[key] = done
            self._memory.drop(key)
            self._memory.add(key, memory_use)
            if self._latest is not None and self._latest[0] == key:
                self._latest = None
            self._evict()

    def _fill(self, key: Hashable, entry: _Entry[T]) -> None:
        result = self._make(key)
        entry.set_result(result)
        with self._lock:
            self._memory.add(key, self._memory_use(result))
            self._evict()
        if self._on_created is not None:
            self._on_created(self, key, result)

    def _fail(self, key: Hashable, entry: _Entry[T], error: BaseException) -> None:
        """Remove a pending entry and fail its waiters; a filled entry stays."""
        with self._lock:
            if not entry.done and self._entries.get(key) is entry:
                del self._entries[key]
        entry.set_exception(error)

    def _evict(self) -> None:
        """Evict the least recently used entries until the limits hold."""
        limits, memory = self._limits, self._memory
        filled = [key for key in self._entries if key in memory]
        for index, key in enumerate(filled):
            count = len(filled) - index
            is_small = limits.max_bytes is None or memory.own_bytes() <= limits.max_bytes
            if count <= limits.max_entries and (is_small or count == 1):
                break
            del self._entries[key]
            memory.drop(key)
        if self._latest is not None and self._latest[0] not in self._entries:
            self._latest = None


class _SharedMemory:
    """Memory of several entries, with the pieces that entries share."""

    def __init__(self) -> None:
        self._memory_use: dict[Hashable, MemoryUse] = {}
        self._users: Counter[Hashable] = Counter()
        self._sizes: dict[Hashable, int] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._memory_use

    def add(self, key: Hashable, memory_use: MemoryUse) -> None:
        """Add the memory of one entry."""
        self._memory_use[key] = memory_use
        self._users.update(memory_use.keys())
        self._sizes.update(memory_use)

    def drop(self, key: Hashable) -> None:
        """Remove the memory of one entry."""
        for piece in self._memory_use.pop(key):
            self._users[piece] -= 1
            if not self._users[piece]:
                del self._users[piece], self._sizes[piece]

    def own_bytes(self) -> int:
        """Return the bytes of all pieces that not every entry shares."""
        entries = len(self._memory_use)
        return sum(self._sizes[piece] for piece, users in self._users.items() if users < entries)


class CacheOwner(Protocol):
    """Object with a cache that costs memory."""

    def release(self) -> None:
        """Empty the cache; called from any thread."""


class LRUOwners:
    """LRU set of weakly referenced cache owners.

    Args:
        max_owners: Number of owners that may keep their caches; the others release them.
    """

    def __init__(self, max_owners: int) -> None:
        self._max_owners = max_owners
        self._owners: weakref.WeakKeyDictionary[CacheOwner, None] = weakref.WeakKeyDictionary()
        self._latest: weakref.ref[CacheOwner] | None = None
        self._lock = threading.Lock()

    def use(self, owner: CacheOwner) -> None:
        """Mark an owner as used; release the least recently used ones above the limit."""
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
