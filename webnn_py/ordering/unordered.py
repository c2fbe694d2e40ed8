"""Runs that keep no place in a context's order, as nothing was held back when they began.

What comes later and uses the same memory waits for their end, and has a place in the order itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

from webnn_py.memory.overlap import HOST, Region
from webnn_py.ordering.operation import Memory, Operation
from webnn_py.ordering.timeline import Timeline, TimelinePoint


class UnorderedRun:
    """A run that has begun, or is about to.

    Args:
        runs: Those of its context.
        reads: The memory that it reads and others may write.
        writes: The memory that it writes.
        names: Of its outputs.

    Attributes:
        reads, writes: As given.
        over: What waits for its end waits for this, if something does.
        is_plain: It writes arrays that are contiguous, and that is all.
    """

    __slots__ = ("_names", "_runs", "is_plain", "over", "reads", "writes")

    def __init__(
        self,
        runs: UnorderedRuns,
        reads: Sequence[Region],
        writes: Sequence[Region],
        names: Sequence[str],
    ) -> None:
        self._runs = runs
        self.reads, self.writes = reads, writes
        self._names = names
        self.over: Timeline | None = None
        self.is_plain = not reads
        for region in writes:
            if region.owner != HOST or region.array is not None:
                self.is_plain = False

    def uses(self, region: Region, writing: bool = False) -> bool:
        """Whether it reads or writes in a region, or writes."""
        used = self.writes if writing else (*self.reads, *self.writes)
        return any(memory.overlaps(region) for memory in used)

    def shares(self, reads: Sequence[Memory], writes: Sequence[Memory]) -> bool:
        """Whether it writes what others read or write, or reads what they write."""
        return any(self.uses(memory.region) for memory in writes) or any(
            self.uses(memory.region, writing=True) for memory in reads
        )

    def point(self) -> TimelinePoint:
        """Where to wait for its end."""
        if self.over is None:
            self.over = Timeline(label=f"compute of {', '.join(map(repr, self._names))}")
        return self.over(wait=1)

    def end(self) -> None:
        """It is done, or will not be done; harmless twice."""
        self._runs.end(self)


class UnorderedRuns:
    """Those of one context, none of which writes what another one uses."""

    def __init__(self) -> None:
        self._runs: dict[UnorderedRun, None] = {}
        self._special: dict[UnorderedRun, None] = {}  # those that are not plain
        self._begins: list[int] = []  # of what the plain ones write, in order
        self._ends: dict[int, int] = {}  # by begin
        self._lock = threading.RLock()  # a finalizer may end a run

    def __bool__(self) -> bool:
        return bool(self._runs)

    def begin(
        self, reads: Sequence[Region], writes: Sequence[Region], names: Sequence[str]
    ) -> UnorderedRun | None:
        """A run that begins, until its `end`; None if it shares memory with another one."""
        made = UnorderedRun(self, reads, writes, names)
        with self._lock:
            if made.is_plain:
                if self._is_written(writes) or any(run.shares((), writes) for run in self._special):
                    return None
                for region in writes:
                    self._begins.insert(bisect_left(self._begins, region.begin), region.begin)
                    self._ends[region.begin] = region.end
            else:
                if any(run.shares(reads, writes) for run in self._runs):
                    return None
                self._special[made] = None
            self._runs[made] = None
        return made

    def _is_written(self, writes: Sequence[Region]) -> bool:
        """Whether plain runs write in these regions of host memory."""
        begins = self._begins
        for region in writes:
            place = bisect_left(begins, region.begin)
            if place < len(begins) and begins[place] < region.end:
                return True
            if place and self._ends[begins[place - 1]] > region.begin:
                return True
        return False

    def end(self, run: UnorderedRun) -> None:
        """As `UnorderedRun.end`."""
        with self._lock:
            if run not in self._runs:
                return
            del self._runs[run]
            if run.is_plain:
                for region in run.writes:
                    del self._begins[bisect_left(self._begins, region.begin)]
                    del self._ends[region.begin]
            else:
                del self._special[run]
        if run.over is not None:
            run.over.signal(1)

    def users(self, region: Region) -> list[UnorderedRun]:
        """The runs that use a region."""
        with self._lock:
            return [run for run in self._runs if run.uses(region)]

    def waits(self, operation: Operation) -> tuple[TimelinePoint, ...]:
        """What work waits for, as it shares memory with runs."""
        with self._lock:
            return tuple(
                run.point() for run in self._runs if run.shares(operation.reads, operation.writes)
            )
