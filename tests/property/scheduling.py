"""A model of contexts and timelines that does one thing after the other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from webnn_py import ContextLostError, MLTensor, OperationError, Timeline

Array = np.ndarray[Any, Any]


class Loop:
    """An event loop on a thread of its own, started when it is first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, work: Coroutine[Any, Any, Any]) -> Awaited:
        """Begin to await `work`, up to where it first waits."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return Awaited(self._loop, work)


LOOP = Loop()


class Awaited:
    """A task on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        begun: concurrent.futures.Future[None] = concurrent.futures.Future()

        def begin() -> None:
            self._task = loop.create_task(work)
            # A program that is given up half-way asks for no results.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
            # The task takes its first step before this callback.
            loop.call_soon(begun.set_result, None)

        loop.call_soon_threadsafe(begin)
        begun.result(20)

    def result(self, timeout: float) -> Any:
        async def wait() -> Any:
            assert self._task is not None
            await asyncio.wait([self._task], timeout=timeout)
            return self._task.result()

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(2 * timeout)

    def cancel(self, timeout: float) -> None:
        async def cancel() -> None:
            assert self._task is not None
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout)
            assert self._task.cancelled()

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(2 * timeout)


@dataclass(eq=False)
class ModelTensor:
    """What a tensor holds; None if it was never made."""

    value: Array | None


@dataclass(eq=False)
class ModelTimeline:
    """A value, the signals that failed, and those still to come."""

    value: int = 0
    failed: set[int] = field(default_factory=set)
    expected: Counter[int] = field(default_factory=Counter)

    @property
    def limit(self) -> int | None:
        """The lowest signal that failed."""
        return min(self.failed, default=None)

    def signal(self, value: int) -> None:
        """By the host, past failures too."""
        self.value = value
        self.failed = {failed for failed in self.failed if failed > value}

    def expect(self, value: int) -> None:
        """Work was accepted that is to signal a value."""
        self.expected[value] += 1
        self.failed.discard(value)

    def reached(self, value: int) -> bool:
        return self.value >= value

    def doomed(self, value: int) -> bool:
        if self.limit is None or self.reached(value):
            return False
        return value >= self.limit or not any(
            value <= expected < self.limit for expected in self.expected.elements()
        )

    def complete(self, value: int) -> None:
        self.expected[value] -= 1
        if self.limit is None or value < self.limit:
            self.value = max(self.value, value)

    def fail(self, value: int) -> None:
        self.expected[value] -= 1
        if value > self.value and not self.expected[value]:
            self.failed.add(value)

    def counts(self, value: int) -> bool:
        """Whether work that signals a value will raise it."""
        return value > self.value and (self.limit is None or value < self.limit)


Points = list[tuple[ModelTimeline, int]]


@dataclass(eq=False)
class ModelOperation:
    """One piece of work, and what of it can be seen.

    `before` is what shares a tensor with it and comes first; `doomed` says that it can never run;
    `uses` is read, made or not; `placed` says that it was looked at.
    """

    effect: Callable[[], list[Array]]
    reads: list[ModelTensor] = field(default_factory=list)
    writes: list[ModelTensor] = field(default_factory=list)
    waits: Points = field(default_factory=list)
    signals: Points = field(default_factory=list)
    probe: Timeline | None = None
    awaited: Awaited | None = None
    out: Array | None = None
    outcome: str | None = None
    result: Array | None = None
    before: set[ModelOperation] = field(default_factory=set)
    doomed: bool = False
    uses: list[ModelTensor] = field(default_factory=list)
    everything: bool = False
    placed: bool = False

    def unmet(self) -> Points:
        """What it is known to wait for, and may still be reached."""
        if (
            self.doomed
            or not self.placed
            or any(timeline.doomed(value) for timeline, value in self.waits)
        ):
            return []
        return [(timeline, value) for timeline, value in self.waits if not timeline.reached(value)]

    def can_run(self) -> bool:
        return not self.before and not self.unmet()

    def shares(self, other: ModelOperation) -> bool:
        """Whether one writes a tensor that the other uses."""
        mine, its = ({*work.reads, *work.uses, *work.writes} for work in (self, other))
        return bool(
            (self.everything and (its or other.everything))
            or (other.everything and mine)
            or set(self.writes) & its
            or set(other.writes) & mine
        )

    def run(self) -> None:
        doomed = self.doomed or any(timeline.doomed(value) for timeline, value in self.waits)
        if doomed or any(tensor.value is None for tensor in self.reads):
            self.end("failed")
            return
        (self.result,) = self.effect()
        self.outcome = "done"
        for tensor in self.writes:
            tensor.value = self.result
        for timeline, value in self.signals:
            timeline.complete(value)

    def end(self, outcome: str) -> None:
        """It is not done."""
        self.outcome = outcome
        if outcome != "cancelled":
            for tensor in self.writes:
                tensor.value = None
        for timeline, value in self.signals:
            timeline.fail(value)

    def check(self, timeout: float) -> None:
        """That the real work ended, or will soon, as that of the model did."""
        if self.probe is not None:
            if self.outcome == "done":
                self.probe.wait_sync(1, timeout)
            else:
                with pytest.raises(OperationError):
                    self.probe.wait_sync(1, timeout)
        if self.awaited is None:
            return
        if self.outcome == "done":
            found = self.awaited.result(timeout)
            found = found["y"] if isinstance(found, dict) else found
            if not isinstance(found, MLTensor):
                np.testing.assert_array_equal(found, self.result)
        elif self.outcome != "cancelled":
            error = ContextLostError if self.outcome == "lost" else OperationError
            with pytest.raises(error):
                self.awaited.result(timeout)
        if self.out is not None:
            wanted = self.result if self.outcome == "done" else np.full_like(self.out, -77)
            np.testing.assert_array_equal(self.out, wanted)


class ModelContext:
    """Work in the order of its tensors, where its timelines demand no other."""

    def __init__(self) -> None:
        self.waiting: list[ModelOperation] = []
        self.ghosts: list[ModelOperation] = []  # cancelled; what is behind them keeps its order

    def submit(self, operation: ModelOperation, everybody: Sequence[ModelContext]) -> None:
        self.accept(operation)
        self.place(operation, everybody)

    def accept(self, operation: ModelOperation) -> None:
        for timeline, value in operation.signals:
            timeline.expect(value)
        self.waiting.append(operation)

    def place(self, operation: ModelOperation, everybody: Sequence[ModelContext]) -> None:
        """Find out what it comes before and after."""
        works = all_of(everybody)
        for other in (*self.waiting, *self.ghosts):
            if other.placed and other.shares(operation):
                if must_wait_for(other, operation, works):
                    other.before.add(operation)
                else:
                    operation.before.add(other)
        operation.placed = True
        if can_never_run(operation, works):
            operation.doomed = True
            for timeline, value in operation.signals:
                timeline.fail(value)
            operation.signals = []

    def uses(self, tensor: ModelTensor) -> bool:
        return any(tensor in [*work.reads, *work.writes] for work in self.waiting)

    def withdraw(self, operation: ModelOperation) -> None:
        if operation in self.waiting:
            self.waiting.remove(operation)
            operation.end("cancelled")
            operation.waits, operation.signals = [], []
            self.ghosts.append(operation)

    def end(self) -> None:
        for operation in self.waiting:
            operation.end("lost")
        self.waiting.clear()
        self.ghosts.clear()

    def step(self) -> bool:
        """Run what can run; whether anything did."""
        able = [work for work in (*self.waiting, *self.ghosts) if work.can_run()]
        for operation in able:
            if operation in self.ghosts:
                self.ghosts.remove(operation)
            else:
                self.waiting.remove(operation)
                operation.run()
            for other in (*self.waiting, *self.ghosts):
                other.before.discard(operation)
        return bool(able)


def all_of(contexts: Sequence[ModelContext]) -> list[ModelOperation]:
    return [work for context in contexts for work in (*context.waiting, *context.ghosts)]


def can_never_run(work: ModelOperation, works: Sequence[ModelOperation]) -> bool:
    """Whether it is part of a cycle that nobody can break."""
    return must_wait_for(work, work, works) and work in stuck(works)


def must_wait_for(
    work: ModelOperation, goal: ModelOperation, works: Sequence[ModelOperation]
) -> bool:
    """Whether work comes after other work: values only rise."""
    seen, pending = {work}, [work]
    while pending:
        one = pending.pop()
        found = set(one.before)
        for timeline, value in one.unmet():
            found |= {other for other in works if signals(other, timeline, 0, value)}
        if goal in found:
            return True
        pending += found - seen
        seen |= found
    return False


def stuck(works: Sequence[ModelOperation]) -> set[ModelOperation]:
    """What can never run: what would signal what it waits for cannot, either."""
    left = set(works)
    while True:
        free = {work for work in left if not _is_stuck(work, left, works)}
        if not free:
            return left
        left -= free


def _is_stuck(
    work: ModelOperation, left: set[ModelOperation], works: Sequence[ModelOperation]
) -> bool:
    if work.before & left:
        return True
    for timeline, value in work.unmet():
        counting = [w for w in works if any(t is timeline and t.counts(v) for t, v in w.signals)]
        enough = {other for other in counting if signals(other, timeline, value, 2**64)}
        if enough <= left and any(
            signals(other, timeline, timeline.value + 1, value) for other in left
        ):
            return True
    return False


def signals(work: ModelOperation, timeline: ModelTimeline, low: int, high: int) -> bool:
    return any(other is timeline and low <= value <= high for other, value in work.signals)


def simulate(contexts: Sequence[ModelContext]) -> None:
    """Until nothing can run any more."""
    while sum(context.step() for context in contexts):
        pass
