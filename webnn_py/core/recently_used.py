"""What was made for keys, kept for those used last, up to a number and to a sum of bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from webnn_py.core.completion import Completion

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

    most: int = 16
    most_bytes: int | None = 1 << 30


def _nothing(made: object) -> Held:
    return {}


class RecentlyUsed(Generic[T]):
    """What was made for a key, kept for the keys used last; made once, whoever asks meanwhile.

    Args:
        make: Makes it.
        room: How much is kept; what is being made does not count.
        held: The memory that goes with it.
    """

    def __init__(
        self, make: Callable[[Any], T], room: Room, held: Callable[[T], Held] = _nothing
    ) -> None:
        self._make = make
        self._room = room
        self._held = held
        self._made: dict[Hashable, Completion[T]] = {}  # the one used last is the last one
        self._latest: tuple[Hashable, T] | None = None
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T:
        """What belongs to a key.

        An error in making it is everyone's who waits for it; who asks later has it made anew.
        """
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            found = self._made.pop(key, None)
            made = Completion[T]() if found is None else found
            self._made[key] = made
        if found is None:
            self._fill(key, made)
        result = made.wait()
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
        result = found.wait()
        self._latest = key, result
        return result

    def _fill(self, key: Hashable, made: Completion[T]) -> None:
        try:
            made.set_result(self._make(key))
        except BaseException as error:
            with self._lock:
                del self._made[key]
            made.set_exception(error)
            raise
        with self._lock:
            self._make_room()

    def _make_room(self) -> None:
        """Drop what was used first until the rest fits."""
        room = self._room
        there = {key: made.wait() for key, made in self._made.items() if made.done}
        held = [self._held(made) for made in there.values()]
        kept = min(len(held), room.most)
        if room.most_bytes is not None:
            while kept > 1 and _own_bytes(held[-kept:]) > room.most_bytes:
                kept -= 1
        for key in list(there)[: len(held) - kept]:
            del self._made[key]
        if self._latest is not None and self._latest[0] not in self._made:
            self._latest = None


def _own_bytes(held: list[Held]) -> int:
    """The bytes of what not all of them have."""
    users = Counter(piece for pieces in held for piece in pieces)
    sizes = {piece: size for pieces in held for piece, size in pieces.items()}
    return sum(size for piece, size in sizes.items() if users[piece] < len(held))
