"""Runs that keep no place in a context's order, as nothing was held back when they began.

Work that is submitted later and uses the same memory waits for their end. What such runs share with
each other they use in the order in which they begin.
"""

from __future__ import annotations

import threading

from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Operation
from webnn_py.ordering.timeline import Timeline, TimelinePoint


class Unordered:
    """Those of one context."""

    def __init__(self) -> None:
        self._runs: dict[Operation, Timeline | None] = {}  # what waits for it looks at
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: Operation) -> None:
        """A run begins, or is about to."""
        with self._lock:
            self._runs[run] = None

    def end(self, run: Operation) -> None:
        """It is done, or will not be done; harmless twice."""
        with self._lock:
            timeline = self._runs.pop(run, None)
        if timeline is not None:
            timeline.signal(1)

    def users(self, region: Region) -> list[Operation]:
        """The runs that use a region."""
        with self._lock:
            return [run for run in self._runs if run.uses(region)]

    def waits(self, operation: Operation) -> tuple[TimelinePoint, ...]:
        """What work waits for, as it shares memory with runs."""
        found = []
        with self._lock:
            for run, timeline in self._runs.items():
                if not _shares(operation, run):
                    continue
                if timeline is None:
                    timeline = self._runs[run] = Timeline(label=run.title)
                found.append(timeline(wait=1))
        return tuple(found)


def _shares(operation: Operation, run: Operation) -> bool:
    """Whether one writes what the other one uses."""
    return any(run.uses(memory.region) for memory in operation.writes) or any(
        run.uses(memory.region, writing=True) for memory in operation.reads
    )
