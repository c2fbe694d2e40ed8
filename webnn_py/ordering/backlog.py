"""How much host memory the work of a context keeps that is not done yet."""

from __future__ import annotations

from collections.abc import Iterable

from webnn_py.ordering.operation import Operation, ParkedOperation

MAX_KEPT_BYTES = 64 << 20
"""Bytes that work may keep before new work has to wait; what is parked does not count."""


class Backlog:
    """Work that keeps host memory, and whether there is room for more of it.

    What is parked does not count: it may wait for the very thread that would wait for it. How much
    that is, is found out anew (`measure`) only where there seems to be no room.
    """

    def __init__(self) -> None:
        self._works: dict[Operation, None] = {}
        self._bytes = 0
        self._most = MAX_KEPT_BYTES

    @property
    def has_room(self) -> bool:
        """Whether new work need not wait."""
        return self._bytes <= self._most

    def add(self, operation: Operation) -> None:
        """It is submitted."""
        self._works[operation] = None
        self._bytes += operation.kept_bytes

    def remove(self, operation: Operation) -> None:
        """It is done, or will not be; harmless twice."""
        if operation in self._works:
            del self._works[operation]
            self._bytes -= operation.kept_bytes
            if self._bytes <= MAX_KEPT_BYTES:
                self._most = MAX_KEPT_BYTES

    def measure(self, held: Iterable[ParkedOperation]) -> None:
        """Find out how much is parked now, of all work that is held."""
        parked = _parked(held)
        self._most = MAX_KEPT_BYTES + sum(
            operation.kept_bytes for operation in self._works if operation.held in parked
        )


def _parked(held: Iterable[ParkedOperation]) -> set[ParkedOperation]:
    """What waits for a timeline, or behind what does."""
    pending = [one for one in held if one.waiting]
    found = set(pending)
    while pending:
        new = [other for other in pending.pop().followers if other not in found]
        found.update(new)
        pending += new
    return found
