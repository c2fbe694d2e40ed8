"""Runs without a place in a context's order, begun while nothing was parked.

Later operations that share memory with such a run wait for its end through a timeline.
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
        runs: The runs of its context.
        reads: The memory that it reads and others may write.
        writes: The memory that it writes.
        names: Names of its outputs.

    Attributes:
        reads, writes: As the arguments.
        over: Timeline that is raised at its end, if an operation waits for that.
        is_plain: It only writes contiguous host arrays.
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
        """Whether it uses a region, or, if `writing`, whether it writes it."""
        used = self.writes if writing else (*self.reads, *self.writes)
        return any(memory.overlaps(region) for memory in used)

    def shares(self, reads: Sequence[Memory], writes: Sequence[Memory]) -> bool:
        """Whether it conflicts with an operation: one of both writes memory that the other uses."""
        return any(self.uses(memory.region) for memory in writes) or any(
            self.uses(memory.region, writing=True) for memory in reads
        )

    def point(self) -> TimelinePoint:
        """Return the timeline point of its end."""
        if self.over is None:
            self.over = Timeline(label=f"compute of {', '.join(map(repr, self._names))}")
        return self.over(wait=1)

    def end(self) -> None:
        """Mark the run as done or failed; harmless twice."""
        self._runs.end(self)


class UnorderedRuns:
    """The unordered runs of one context; none writes memory that another one uses."""

    def __init__(self) -> None:
        self._runs: dict[UnorderedRun, None] = {}
        self._special: dict[UnorderedRun, None] = {}  # runs that are not plain
        self._begins: list[int] = []  # begins of the regions that plain runs write, sorted
        self._ends: dict[int, int] = {}  # ends of these regions, by begin
        self._lock = threading.RLock()  # a finalizer may end a run

    def __bool__(self) -> bool:
        return bool(self._runs)

    def begin(
        self, reads: Sequence[Region], writes: Sequence[Region], names: Sequence[str]
    ) -> UnorderedRun | None:
        """Begin a run, until its `end`; return None if it shares memory with another one."""
        new = UnorderedRun(self, reads, writes, names)
        with self._lock:
            if new.is_plain:
                if self._is_written(writes) or any(run.shares((), writes) for run in self._special):
                    return None
                for region in writes:
                    self._begins.insert(bisect_left(self._begins, region.begin), region.begin)
                    self._ends[region.begin] = region.end
            else:
                if any(run.shares(reads, writes) for run in self._runs):
                    return None
                self._special[new] = None
            self._runs[new] = None
        return new

    def _is_written(self, writes: Sequence[Region]) -> bool:
        """Whether plain runs write to these regions of host memory."""
        begins = self._begins
        for region in writes:
            place = bisect_left(begins, region.begin)
            if place < len(begins) and begins[place] < region.end:
                return True
            if place and self._ends[begins[place - 1]] > region.begin:
                return True
        return False

    def end(self, run: UnorderedRun) -> None:
        """Do as `UnorderedRun.end`."""
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
        """Return the runs that use a region."""
        with self._lock:
            return [run for run in self._runs if run.uses(region)]

    def waits(self, operation: Operation) -> tuple[TimelinePoint, ...]:
        """Return the points that an operation must wait for, as it shares memory with runs."""
        with self._lock:
            return tuple(
                run.point() for run in self._runs if run.shares(operation.reads, operation.writes)
            )
