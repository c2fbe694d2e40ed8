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

Held = Mapping[Hashable, int]
"""Bytes of memory, by whatever tells its pieces apart."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much is kept; what was used last is so anyhow.

    Attributes:
        most: How many.
        most_bytes: Bytes of memory, None for no limit; what all that is kept shares does not count.
    """

    most: int = 512
    most_bytes: int | None = 1 << 30


def _nothing(made: object) -> Held:
    return {}


class _Made(Completion[T]):
    """What is made for a key.

    Attributes:
        maker: The thread that makes it.
    """

    __slots__ = ("maker",)

    def __init__(self) -> None:
        super().__init__()
        self.maker = threading.get_ident()


class RecentlyUsed(Generic[T]):
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
        room: Room,
        held: Callable[[T], Held] = _nothing,
        then: Callable[[RecentlyUsed[T], Any, T], None] | None = None,
    ) -> None:
        self._make = make
        self._room = room
        self._held = held
        self._then = then
        self._made: dict[Hashable, _Made[T]] = {}  # the one used last is the last one
        self._latest: tuple[Hashable, T] | None = None
        self._memory = _Memory()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T:
        """What belongs to a key.

        An error in making it is everyone's who waits for it; who asks later has it made anew.
        """
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        mine: _Made[T] | None = None
        try:
            with self._lock:
                made = self._made.pop(key, None)
                if made is None:
                    made = mine = _Made()
                self._made[key] = made
            if mine is not None:
                self._fill(key, mine)
        except BaseException as error:  # an interrupt may come before `_fill` begins
            if mine is not None:
                self._refuse(key, mine, error)
            raise
        if made.maker == threading.get_ident() and not made.done:
            raise InvalidStateError(
                "a finalizer or signal handler asked for what this thread was in the midst of"
                " compiling; hand that to another thread, or do it later"
            )
        result = made.wait()
        with self._lock:
            if self._made.get(key) is made:
                self._latest = key, result
        return result

    def find(self, key: Hashable) -> T | None:
        """What belongs to a key if it is there: nothing is made or waited for."""
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            found = self._made.get(key)
            if found is None or not found.done:
                return None
            self._made[key] = self._made.pop(key)
            self._latest = key, found.wait()
            return self._latest[1]

    def replace(self, key: Hashable, before: T, made: T) -> None:
        """Have something else for a key, if it is there and still has what it had before."""
        done: _Made[T] = _Made()
        done.set_result(made)
        held = self._held(made)
        with self._lock:
            if key not in self._memory or self._made[key].wait() is not before:
                return
            self._made[key] = done
            self._memory.drop(key)
            self._memory.add(key, held)
            if self._latest is not None and self._latest[0] == key:
                self._latest = None
            self._make_room()

    def _fill(self, key: Hashable, made: _Made[T]) -> None:
        result = self._make(key)
        made.set_result(result)
        with self._lock:
            self._memory.add(key, self._held(result))
            self._make_room()
        if self._then is not None:
            self._then(self, key, result)

    def _refuse(self, key: Hashable, made: _Made[T], error: BaseException) -> None:
        """It is not made, unless it was before the error."""
        with self._lock:
            if not made.done and self._made.get(key) is made:
                del self._made[key]
        made.set_exception(error)

    def _make_room(self) -> None:
        """Drop what was used first until the rest fits."""
        room, memory = self._room, self._memory
        there = [key for key in self._made if key in memory]
        for place, key in enumerate(there):
            kept = len(there) - place
            is_small = room.most_bytes is None or memory.own_bytes() <= room.most_bytes
            if kept <= room.most and (is_small or kept == 1):
                break
            del self._made[key]
            memory.drop(key)
        if self._latest is not None and self._latest[0] not in self._made:
            self._latest = None


class _Memory:
    """The memory of several things, and which pieces all of them have."""

    def __init__(self) -> None:
        self._held: dict[Hashable, Held] = {}
        self._users: Counter[Hashable] = Counter()
        self._sizes: dict[Hashable, int] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def add(self, key: Hashable, held: Held) -> None:
        """Count one more."""
        self._held[key] = held
        self._users.update(held.keys())
        self._sizes.update(held)

    def drop(self, key: Hashable) -> None:
        """Count one less."""
        for piece in self._held.pop(key):
            self._users[piece] -= 1
            if not self._users[piece]:
                del self._users[piece], self._sizes[piece]

    def own_bytes(self) -> int:
        """The bytes of what not all of them have."""
        everyone = len(self._held)
        return sum(self._sizes[piece] for piece, users in self._users.items() if users < everyone)
