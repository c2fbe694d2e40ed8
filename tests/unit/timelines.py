"""What tests of timelines share."""

from __future__ import annotations

from webnn_py import Timeline
from webnn_py.ordering.timeline import state_of


class Queue:
    """Identity of a device queue."""


def waiters(timeline: Timeline) -> int:
    return len(state_of(timeline)._waiters)


def resumed(timeline: Timeline, value: int, queue: object = None) -> list[int]:
    """A list that gets `value` when the timeline resumes who waits for it."""
    called: list[int] = []
    assert (
        state_of(timeline).call_when_reached(value, lambda: called.append(value), queue) is not None
    )
    return called
