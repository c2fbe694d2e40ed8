"""Storms of threads and schedules."""

from __future__ import annotations

import functools
import random
import threading
from typing import Any

import pytest

from tests.threads import in_threads
from tests.unit.scheduling import LONG, Log, Worker, hosted, log, threads, worker
from webnn_py import MLError, Timeline
from webnn_py.ordering.operation import Executor, Operation, ParkedOperation
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of

__all__ = ["hosted", "log", "threads", "worker"]


# Storms


@pytest.mark.parametrize("is_inline", [True, False])
def test_many_threads_lose_nothing_and_keep_their_own_order(threads: Any, is_inline: bool) -> None:
    schedule = Schedule(Executor(threads(), inline=is_inline))
    ran: list[tuple[int, int]] = []
    inside = threading.Lock()

    def run(thread: int, turn: int) -> None:
        assert inside.acquire(blocking=False), "two operations ran at once"
        ran.append((thread, turn))
        inside.release()

    def submit(thread: int) -> None:
        for turn in range(300):
            work = functools.partial(run, thread, turn)
            schedule.submit(Operation(work, pytest.fail, slow=turn % 7 == 0))

    in_threads(*[functools.partial(submit, index) for index in range(6)])
    assert schedule.settle() == []
    assert len(ran) == 6 * 300
    for index in range(6):
        assert [turn for thread, turn in ran if thread == index] == list(range(300))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_on_many_schedules_end(threads: Any, seed: int) -> None:
    """Every operation of a random acyclic program runs or fails, whatever threads do."""
    chance = random.Random(seed)
    timelines = [Timeline() for _ in range(4)]
    schedules = [Schedule(Executor(threads(), inline=chance.random() < 0.5)) for _ in range(3)]
    programs: list[list[Operation]] = [[] for _ in schedules]
    ended, count = threading.Semaphore(0), 150
    errors: list[BaseException] = []
    values = [0] * len(timelines)

    def end(error: BaseException | None = None) -> None:
        if error is not None:
            errors.append(error)
        ended.release()

    def refuse() -> None:
        raise ValueError("boom")

    failing = chance.random() < 0.5
    for _ in range(count):
        # Waits are for what operations made before signal, so that there is an order.
        sync = [
            timeline(wait=chance.randint(0, value))
            for timeline, value in zip(timelines, values, strict=True)
            if chance.random() < 0.3
        ]
        if chance.random() < 0.6:
            index = chance.randrange(len(timelines))
            values[index] += chance.randint(1, 3)
            sync.append(timelines[index](signal=values[index]))
        fails = failing and chance.random() < 0.02
        run = refuse if fails else end
        slow = chance.random() < 0.3
        chance.choice(programs).append(Operation(run, end, tuple(sync), slow=slow))

    def submit(schedule: Schedule, program: list[Operation]) -> None:
        for operation in program:
            schedule.submit(operation)

    users = [
        threading.Thread(target=submit, args=pair) for pair in zip(schedules, programs, strict=True)
    ]
    for user in users:
        user.start()
    for _ in range(count):
        assert ended.acquire(timeout=LONG)
    for user in users:
        user.join(LONG)
    assert not ended.acquire(blocking=False), "something ended twice"
    assert all(isinstance(error, (ValueError, MLError)) for error in errors)
    if not failing:
        assert not errors
        for timeline, value in zip(timelines, values, strict=True):
            timeline.wait_sync(value, timeout=LONG)
    assert all(state_of(timeline)._waiters == [] for timeline in timelines)


def test_a_long_chain_is_not_looked_through_for_each_work_that_is_new(
    hosted: Schedule, worker: Worker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work of two timelines takes turns, each time submitted the wrong way round."""
    looks = 0
    must_wait = ParkedOperation.must_wait

    def counting(held: ParkedOperation) -> bool:
        nonlocal looks
        looks += 1
        return must_wait(held)

    monkeypatch.setattr(ParkedOperation, "must_wait", counting)
    ping, pong = Timeline(), Timeline()
    count = 100
    for turn in range(1, count + 1):
        hosted.submit(log.operation(f"{turn} b", ping(wait=turn), pong(signal=turn + 1)))
        hosted.submit(log.operation(f"{turn} a", pong(wait=turn), ping(signal=turn)))
    worker.work()
    assert looks < 20 * count
    pong.signal(1)
    worker.work()
    assert log.lines == [f"{turn} {letter}" for turn in range(1, count + 1) for letter in "ab"]
