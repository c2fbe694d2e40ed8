"""Back-pressure: host memory kept by a context's operations that are not done."""

from __future__ import annotations

from collections.abc import Iterable

from webnn_py.ordering.operation import Operation, ParkedOperation

MAX_KEPT_BYTES = 64 << 20
"""Bytes that operations may keep before new ones wait; parked operations do not count."""


class Backlog:
    """Operations that keep host memory, and whether there is room for more.

    Parked operations do not count: they may wait for the very thread that would wait for room.
    Their share is measured (`measure`) only where there seems to be no room.
    """

    def __init__(self) -> None:
        self._works: dict[Operation, None] = {}
        self._bytes = 0
        self._limit = MAX_KEPT_BYTES

    @property
    def has_room(self) -> bool:
        """Whether new work may be submitted without waiting."""
        return self._bytes <= self._limit

    def add(self, operation: Operation) -> None:
        """Count a submitted operation."""
        self._works[operation] = None
        self._bytes += operation.kept_bytes

    def remove(self, operation: Operation) -> None:
        """Stop counting an operation that is done or failed; harmless twice."""
        if operation in self._works:
            del self._works[operation]
            self._bytes -= operation.kept_bytes
            if self._bytes <= MAX_KEPT_BYTES:
                self._limit = MAX_KEPT_BYTES

    def measure(self, parked: Iterable[ParkedOperation]) -> None:
        """Raise the limit by the memory of operations that are parked now."""
        waiting = _waiting_on_timelines(parked)
        self._limit = MAX_KEPT_BYTES + sum(
            operation.kept_bytes for operation in self._works if operation.parked in waiting
        )


def _waiting_on_timelines(parked: Iterable[ParkedOperation]) -> set[ParkedOperation]:
    """Return the operations that wait for a timeline, and their followers."""
    pending = [one for one in parked if one.waiting]
    waiting = set(pending)
    while pending:
        new = [other for other in pending.pop().followers if other not in waiting]
        waiting.update(new)
        pending += new
    return waiting
