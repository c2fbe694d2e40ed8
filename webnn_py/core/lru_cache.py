"""What was made for keys, kept for those used last, up to a number and to a sum of bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from webnn_py.core.completion import Completion
from webnn_py.core.errors import InvalidStateError

T = TypeVar("T")

MemoryUse = Mapping[Hashable, int]
"""Bytes of memory, by whatever tells its pieces apart."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much is kept; what was used last is so anyhow.

    Attributes:
        most: How many.
        most_bytes: Bytes of memory, None for no limit; what all that is kept shares does not count.
    """

    max_entries: int = 512
    max_bytes: int | None = 1 << 30


def _nothing(entry: object) -> MemoryUse:
    return {}


class _Entry(Completion[T]):
    """What is made for a key.

    Attributes:
        maker: The thread that makes it.
    """

    __slots__ = ("maker",)

    def __init__(self) -> None:
        super().__init__()
        self.maker = threading.get_ident()


class LRUCache(Generic[T]):
    """What was made for a key, kept for the keys used last; made once, whoever asks meanwhile.

    Args:
        make: Makes it.
        room: How much is kept; what is being made does not count.
        held: The memory that goes with it, asked once.
        then: Told what was made for a key, and of this object, which may have something else then.
    """

    def __init__(
        self,
        make: Callable[[Any], T],
        limits: CacheLimits,
        memory_use: Callable[[T], MemoryUse] = _nothing,
        on_created: Callable[[LRUCache[T], Any, T], None] | None = None,
    ) -> None:
        self._make = make
        self._limits = limits
        self._memory_use = memory_use
        self._on_created = on_created
        self._entries: dict[Hashable, _Entry[T]] = {}  # the one used last is the last one
        self._latest: tuple[Hashable, T] | None = None
        self._memory = _SharedMemory()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T:
        """What belongs to a key.

        An error in making it is everyone's who waits for it; who asks later has it made anew.
        """
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        mine: _Entry[T] | None = None
        try:
            with self._lock:
                entry = self._entries.pop(key, None)
                if entry is None:
                    entry = mine = _Entry()
                self._entries[key] = entry
            if mine is not None:
                self._fill(key, mine)
        except BaseException as error:  # an interrupt may come before `_fill` begins
            if mine is not None:
                self._refuse(key, mine, error)
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
        """What belongs to a key if it is there: nothing is made or waited for."""
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

    def replace(self, key: Hashable, before: T, entry: T) -> None:
        """Have something else for a key, if it is there and still has what it had before."""
        done: _Entry[T] = _Entry()
        done.set_result(entry)
        memory_use = self._memory_use(entry)
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

    def _refuse(self, key: Hashable, entry: _Entry[T], error: BaseException) -> None:
        """It is not made, unless it was before the error."""
        with self._lock:
            if not entry.done and self._entries.get(key) is entry:
                del self._entries[key]
        entry.set_exception(error)

    def _evict(self) -> None:
        """Drop what was used first until the rest fits."""
        limits, memory = self._limits, self._memory
        there = [key for key in self._entries if key in memory]
        for place, key in enumerate(there):
            kept = len(there) - place
            is_small = limits.max_bytes is None or memory.own_bytes() <= limits.max_bytes
            if kept <= limits.max_entries and (is_small or kept == 1):
                break
            del self._entries[key]
            memory.drop(key)
        if self._latest is not None and self._latest[0] not in self._entries:
            self._latest = None


class _SharedMemory:
    """The memory of several things, and which pieces all of them have."""

    def __init__(self) -> None:
        self._memory_use: dict[Hashable, MemoryUse] = {}
        self._users: Counter[Hashable] = Counter()
        self._sizes: dict[Hashable, int] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._memory_use

    def add(self, key: Hashable, memory_use: MemoryUse) -> None:
        """Count one more."""
        self._memory_use[key] = memory_use
        self._users.update(memory_use.keys())
        self._sizes.update(memory_use)

    def drop(self, key: Hashable) -> None:
        """Count one less."""
        for piece in self._memory_use.pop(key):
            self._users[piece] -= 1
            if not self._users[piece]:
                del self._users[piece], self._sizes[piece]

    def own_bytes(self) -> int:
        """The bytes of what not all of them have."""
        everyone = len(self._memory_use)
        return sum(self._sizes[piece] for piece, users in self._users.items() if users < everyone)
