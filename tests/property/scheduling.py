"""A model of contexts and timelines that does one thing after the other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter, deque
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
    """A value, the lowest signal that failed, and the signals still to come."""

    value: int = 0
    limit: int | None = None
    expected: Counter[int] = field(default_factory=Counter)

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
        if value > self.value and (self.limit is None or value < self.limit):
            self.limit = value


Points = list[tuple[ModelTimeline, int]]


@dataclass(eq=False)
class ModelOperation:
    """One piece of work, and what of it can be seen."""

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

    def can_run(self) -> bool:
        if any(timeline.doomed(value) for timeline, value in self.waits):
            return True
        return all(timeline.reached(value) for timeline, value in self.waits)

    def run(self) -> None:
        doomed = any(timeline.doomed(value) for timeline, value in self.waits)
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
    """Work in order, and work apart."""

    def __init__(self) -> None:
        self.waiting: deque[ModelOperation] = deque()
        self.apart: list[ModelOperation] = []

    def submit(self, operation: ModelOperation, apart: bool) -> None:
        for timeline, value in operation.signals:
            timeline.expected[value] += 1
        (self.apart if apart else self.waiting).append(operation)

    def uses(self, tensor: ModelTensor) -> bool:
        return any(tensor in [*work.reads, *work.writes] for work in self.waiting)

    def withdraw(self, operation: ModelOperation) -> None:
        for work in (self.waiting, self.apart):
            if operation in work:
                work.remove(operation)
                operation.end("cancelled")

    def end(self) -> None:
        for operation in [*self.waiting, *self.apart]:
            operation.end("lost")
        self.waiting.clear()
        self.apart.clear()

    def step(self) -> bool:
        """Run what can run; whether anything did."""
        ran = False
        while self.waiting and self.waiting[0].can_run():
            self.waiting.popleft().run()
            ran = True
        for operation in [work for work in self.apart if work.can_run()]:
            self.apart.remove(operation)
            operation.run()
            ran = True
        return ran


def simulate(contexts: Sequence[ModelContext]) -> None:
    """Until nothing can run any more."""
    while sum(context.step() for context in contexts):
        pass
