"""How much host memory queued work may keep: who waits for room, and who must not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.threads import LONG
from tests.unit.scheduling import Log, Worker, hosted, log, threads, worker
from webnn_py import ContextLostError, Timeline
from webnn_py.memory.overlap import Region
from webnn_py.ordering.backlog import MAX_KEPT_BYTES
from webnn_py.ordering.operation import Executor, Operation
from webnn_py.ordering.schedule import Schedule

__all__ = ["hosted", "log", "threads", "worker"]

ELSEWHERE = Region(2, 0, 8)


class Gate:
    """Work that runs until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def operation(self, **more: Any) -> Operation:
        def run() -> None:
            self.begun.set()
            assert self.go.wait(LONG)

        return Operation(run, pytest.fail, **more)


class Writer:
    """A thread that waits for room."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._thread = threading.Thread(target=schedule.wait_for_room, daemon=True)
        self._thread.start()

    def waits(self) -> None:
        """Wait until it waits."""
        while not self._schedule._waiters:
            assert self._thread.is_alive()

    def ends(self) -> None:
        self._thread.join(LONG)
        assert not self._thread.is_alive()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go.set()


@pytest.fixture(params=[1, 3])
def schedule(request: pytest.FixtureRequest, threads: Callable[[], Any]) -> Schedule:
    """On one thread, or on several that run at once."""
    workers = [threads() for _ in range(request.param)]
    turn = iter(range(10**9))
    return Schedule(
        Executor(lambda run: workers[next(turn) % len(workers)](run), width=len(workers))
    )


def test_there_is_room_up_to_the_bound(schedule: Schedule, gate: Gate) -> None:
    schedule.submit(gate.operation(kept_bytes=MAX_KEPT_BYTES))
    schedule.wait_for_room()


def test_who_finds_no_room_waits_for_what_runs(schedule: Schedule, gate: Gate) -> None:
    schedule.submit(gate.operation(kept_bytes=MAX_KEPT_BYTES + 1))
    writer = Writer(schedule)
    writer.waits()
    schedule.wait_for_room(0.001)  # for so long and no longer
    writer.waits()
    gate.go.set()
    writer.ends()


def test_what_stands_behind_running_work_is_waited_for(schedule: Schedule, gate: Gate) -> None:
    schedule.submit(gate.operation(writes=[ELSEWHERE]))
    second = Gate()
    schedule.submit(second.operation(writes=[ELSEWHERE], kept_bytes=MAX_KEPT_BYTES + 1))
    writer = Writer(schedule)
    writer.waits()
    gate.go.set()
    assert second.begun.wait(LONG)
    writer.waits()
    second.go.set()
    writer.ends()


def test_what_is_parked_is_not_waited_for(hosted: Schedule, worker: Worker, log: Log) -> None:
    """Nor what stands behind it: its timeline may wait for the thread that would wait here."""
    go = Timeline()
    hosted.submit(log.operation("a", go(wait=1), kept_bytes=MAX_KEPT_BYTES))
    hosted.submit(log.operation("b", kept_bytes=MAX_KEPT_BYTES))
    worker.work()
    hosted.wait_for_room()
    hosted.submit(log.operation("c", writes=(ELSEWHERE,)))  # about to run
    hosted.wait_for_room()
    go.signal(1)
    worker.work()
    assert log.lines == ["c", "a", "b"]


def test_what_is_released_counts_again(
    hosted: Schedule, worker: Worker, log: Log, gate: Gate
) -> None:
    go = Timeline()
    hosted.submit(log.operation("a", go(wait=1), kept_bytes=2 * MAX_KEPT_BYTES))
    worker.work()
    hosted.wait_for_room()
    hosted.submit(log.operation("b", writes=(ELSEWHERE,), kept_bytes=1))
    hosted.wait_for_room()
    go.signal(1)
    writer = threading.Thread(target=hosted.wait_for_room, daemon=True)
    worker.work()
    writer.start()
    writer.join(LONG)
    assert not writer.is_alive()
    assert hosted._backlog._bytes == 0


def test_who_waits_finds_out_what_is_parked_meanwhile(schedule: Schedule, gate: Gate) -> None:
    """The work that keeps the memory was about to run, and then found to wait for a timeline."""
    go, ended = Timeline(), threading.Event()
    blockers = [Gate() for _ in range(schedule._executor.width)]
    for index, blocker in enumerate(blockers):
        schedule.submit(blocker.operation(writes=[Region(3, index, index + 1)]))
    schedule.submit(Operation(ended.set, pytest.fail, (go(wait=1),), kept_bytes=MAX_KEPT_BYTES + 1))
    writer = Writer(schedule)
    writer.waits()
    schedule.submit(gate.operation(writes=[ELSEWHERE]))
    for blocker in blockers:
        blocker.go.set()
    assert gate.begun.wait(LONG)  # it goes on to run
    writer.ends()
    go.signal(1)
    gate.go.set()
    assert ended.wait(LONG)


def test_who_waits_is_let_go_with_the_context(schedule: Schedule, gate: Gate) -> None:
    schedule.submit(gate.operation(kept_bytes=MAX_KEPT_BYTES + 1))
    writer = Writer(schedule)
    writer.waits()
    schedule.close(ContextLostError("gone"))
    writer.ends()


def test_withdrawn_work_keeps_nothing(hosted: Schedule, worker: Worker, log: Log) -> None:
    operation = log.operation("a", kept_bytes=5)
    hosted.submit(operation)
    hosted.withdraw(operation)
    worker.work()
    assert hosted._backlog._bytes == 0
    assert log.lines == ["a failed"]
