"""What tests of schedules share: a worker that runs when told, a log, and fixtures of both."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from webnn_py import TimelinePoint
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Executor, Operation, Run
from webnn_py.ordering.schedule import Schedule

LONG = 20.0
SHARED = Region(1, 0, 8)
"""Memory that all work writes of which nothing else is said."""
QUEUE = type("Queue", (), {})()


class Worker:
    """A context's worker, driven by the test."""

    def __init__(self) -> None:
        self.tasks: deque[Run] = deque()

    def __call__(self, run: Run) -> None:
        self.tasks.append(run)

    def work(self) -> None:
        while self.tasks:
            self.tasks.popleft()()


class Log:
    """What happened, in order; makes operations that write into it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: dict[str, BaseException] = {}

    def operation(
        self, name: str, *sync: TimelinePoint, raises: BaseException | None = None, **more: Any
    ) -> Operation:
        def run() -> None:
            self.lines.append(name)
            if raises is not None:
                raise raises

        def fail(error: BaseException) -> None:
            self.lines.append(f"{name} failed")
            self.errors[name] = error

        return Operation(run, fail, sync, **{"writes": (SHARED,), "title": name} | more)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def inline(worker: Worker, log: Log) -> Schedule:
    """Runs on the calling thread, as a device's queue does; keeps its promises when told to."""

    def signal(operation: Operation) -> None:
        for timeline, value in operation.signals:
            timeline.promise(value, QUEUE)

    parked = functools.partial(log.lines.append, "parked")
    return Schedule(Executor(worker, signal, parked, QUEUE, inline=True))


@pytest.fixture
def hosted(worker: Worker) -> Schedule:
    """Runs on the worker, as a CPU context does."""
    return Schedule(Executor(worker))


@pytest.fixture
def threads() -> Iterator[Callable[[], Run]]:
    """Real workers."""
    executors: list[ThreadPoolExecutor] = []

    def make() -> Any:
        executor = ThreadPoolExecutor(1)
        executors.append(executor)
        return executor.submit

    yield make
    for executor in executors:
        executor.shutdown()
