"""Schedules: order, parking, hand-over to the worker, failures, withdrawal, the end."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

from tests.unit.scheduling import LONG, Log, Worker, hosted, inline, log, threads, worker
from webnn_py import ContextLostError, OperationError, Timeline, TimelinePoint
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Executor, Operation
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of

__all__ = ["hosted", "inline", "log", "threads", "worker"]


# Order


def test_work_runs_in_order_on_the_calling_thread(inline: Schedule, log: Log) -> None:
    for name in "abc":
        inline.submit(log.operation(name))
        assert log.lines[-1] == name
    assert log.lines == ["a", "b", "c"]


def test_what_others_may_change_is_kept_unless_it_was_read(
    inline: Schedule, hosted: Schedule, log: Log
) -> None:
    kept: list[str] = []

    def operation(name: str, *sync: TimelinePoint, **more: Any) -> Operation:
        return log.operation(name, *sync, keep=functools.partial(kept.append, name), **more)

    assert inline.is_free
    inline.submit(operation("at once"))
    assert kept == []
    inline.submit(operation("parked", Timeline()(wait=1)))
    inline.submit(operation("slow", slow=True, writes=()))
    assert not inline.is_free
    inline.submit(operation("behind it", writes=()))
    hosted.submit(operation("on the worker"))
    assert kept == ["parked", "slow", "behind it", "on the worker"]


def test_work_runs_in_order_on_the_worker(hosted: Schedule, worker: Worker, log: Log) -> None:
    for name in "abc":
        hosted.submit(log.operation(name))
    assert log.lines == []
    worker.work()
    assert log.lines == ["a", "b", "c"]


def test_the_worker_lets_others_have_their_turn(hosted: Schedule, worker: Worker, log: Log) -> None:
    for name in "abc":
        hosted.submit(log.operation(name))
    worker(functools.partial(log.lines.append, "build"))
    worker.work()
    assert log.lines == ["a", "build", "b", "c"]


def test_slow_work_goes_to_the_worker_and_what_follows_goes_after_it(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    inline.submit(log.operation("a"))
    inline.submit(log.operation("slow", slow=True))
    inline.submit(log.operation("b"))
    assert log.lines == ["a"]
    worker.work()
    assert log.lines == ["a", "slow", "b"]
    inline.submit(log.operation("c"))
    assert log.lines[-1] == "c"


def test_a_thread_does_its_own_work_and_leaves_that_of_others_to_the_worker(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    def run() -> None:  # meanwhile another thread submits
        inline.submit(log.operation("other"))
        log.lines.append("mine")

    inline.submit(Operation(run, pytest.fail))
    assert log.lines == ["mine"]
    worker.work()
    assert log.lines == ["mine", "other"]


# Waiting


def test_work_is_parked_until_its_waits_are_met(inline: Schedule, worker: Worker, log: Log) -> None:
    a, b = Timeline(), Timeline()
    inline.submit(log.operation("first", a(wait=1), b(wait=1)))
    inline.submit(log.operation("second"))
    assert log.lines == ["parked"]
    a.signal(1)
    worker.work()
    assert "first" not in log.lines
    b.signal(1)
    worker.work()
    assert log.lines[-2:] == ["first", "second"]


def test_a_wait_that_is_met_does_not_park(inline: Schedule, log: Log) -> None:
    timeline = Timeline(3)
    inline.submit(log.operation("a", timeline(wait=3)))
    inline.submit(log.operation("b", timeline(wait=-5)))
    assert log.lines == ["a", "b"]


def test_the_thread_that_signals_runs_nothing(hosted: Schedule, worker: Worker, log: Log) -> None:
    timeline = Timeline()
    hosted.submit(log.operation("a", timeline(wait=1)))
    worker.work()
    timeline.signal(1)
    assert log.lines == []
    worker.work()
    assert log.lines == ["a"]


def test_the_queue_keeps_its_own_order_without_parking(inline: Schedule, log: Log) -> None:
    timeline = Timeline()
    inline.submit(log.operation("a", timeline(signal=1)))
    inline.submit(log.operation("b", timeline(wait=1, signal=2)))
    assert log.lines == ["a", "b"]
    assert timeline.value == 0


def test_work_on_host_memory_waits_for_work_that_is_done(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    timeline = Timeline()
    inline.submit(log.operation("a", timeline(signal=1)))
    inline.submit(log.operation("b", timeline(wait=1), host=True))
    assert log.lines == ["a", "parked"]
    state_of(timeline).complete(1)
    worker.work()
    assert log.lines == ["a", "parked", "b"]


def test_work_signals_when_it_is_done(hosted: Schedule, worker: Worker, log: Log) -> None:
    a, b = Timeline(), Timeline()
    hosted.submit(log.operation("a", a(signal=3), b(signal=4)))
    assert (a.value, b.value) == (0, 0)
    worker.work()
    assert (a.value, b.value) == (3, 4)


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_is_resumed_first_does_not_signal_before_earlier_work(
    worker: Worker, log: Log, is_behind: bool
) -> None:
    """Or before earlier work behind what is not resumed yet."""
    done, go = Timeline(), Timeline()
    signalled: list[tuple[str, int]] = []

    def signal(operation: Operation) -> None:
        for timeline, value in operation.signals:
            timeline.complete(value, operation)
            signalled.append((operation.title, done.value))

    schedule = Schedule(Executor(worker, signal))
    if is_behind:
        schedule.submit(log.operation("before", go(wait=1)))
    waits = () if is_behind else (go(wait=1),)
    schedule.submit(log.operation("first", *waits, done(signal=1)))
    schedule.submit(log.operation("second", go(wait=2), done(signal=2), writes=()))
    worker.work()
    go.signal(2)
    worker.tasks.reverse()
    worker.work()
    assert log.lines == ["before"] * is_behind + ["first", "second"]
    assert signalled == [("first", 1), ("second", 2)]


def test_new_work_does_not_signal_before_earlier_work_that_can_run(
    worker: Worker, log: Log
) -> None:
    done, go = Timeline(), Timeline()
    schedule = Schedule(Executor(worker))
    schedule.submit(log.operation("first", go(wait=1), done(signal=1)))
    worker.work()
    schedule.submit(log.operation("new", done(signal=2), writes=()))
    go.signal(1)
    worker.work()
    assert log.lines == ["first", "new"]


def test_two_schedules_join_on_a_timeline(worker: Worker, log: Log) -> None:
    one, two = Schedule(Executor(worker)), Schedule(Executor(worker))
    a, b = Timeline(), Timeline()
    two.submit(log.operation("second", a(wait=1), b(signal=1)))
    one.submit(log.operation("third", b(wait=1)))
    Schedule(Executor(worker)).submit(log.operation("first", a(signal=1)))
    worker.work()
    assert log.lines == ["first", "second", "third"]


# Failures


def test_failed_work_does_not_stop_what_follows(inline: Schedule, log: Log) -> None:
    inline.submit(log.operation("a", raises=ValueError("boom")))
    inline.submit(log.operation("b"))
    assert log.lines == ["a", "a failed", "b"]
    assert str(log.errors["a"]) == "boom"


def test_what_waits_for_failed_work_fails_and_says_why(
    hosted: Schedule, worker: Worker, log: Log
) -> None:
    a, b = Timeline(), Timeline()
    other = Schedule(Executor(worker))
    other.submit(log.operation("second", a(wait=1), b(signal=1)))
    hosted.submit(log.operation("first", a(signal=1), raises=ValueError("boom")))
    other.submit(log.operation("third", b(wait=1)))
    other.submit(log.operation("fourth"))
    worker.work()
    assert log.lines[-1] == "fourth"
    assert "second" not in log.lines
    assert "third" not in log.lines
    for name in ("second", "third"):
        assert isinstance(log.errors[name], OperationError)
        assert "failed: boom, so that timeline" in str(log.errors[name])


def test_one_failed_wait_is_enough(inline: Schedule, worker: Worker, log: Log) -> None:
    never, broken = Timeline(), Timeline()
    inline.submit(log.operation("a", never(wait=1), broken(wait=1)))
    assert log.lines == ["parked"]
    state_of(broken).fail(1, ValueError("boom"))
    worker.work()
    assert log.lines[-1] == "a failed"
    inline.submit(log.operation("b", never(wait=1), broken(wait=1)))
    assert log.lines[-1] == "b failed"


def test_a_signal_that_cannot_be_given_is_a_failure(worker: Worker, log: Log) -> None:
    def refuse(operation: Operation) -> None:
        raise OperationError("no fence")

    timeline = Timeline()
    schedule = Schedule(Executor(worker, refuse, inline=True))
    schedule.submit(log.operation("a", timeline(signal=1)))
    assert log.lines == ["a"]
    with pytest.raises(OperationError, match="no fence"):
        timeline.wait_sync(1)


def test_an_interrupt_reaches_the_user_and_stops_only_its_own_work(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    with pytest.raises(KeyboardInterrupt):
        inline.submit(log.operation("a", raises=KeyboardInterrupt()))
    assert isinstance(log.errors["a"], OperationError)
    inline.submit(log.operation("b"))
    worker.work()
    assert log.lines == ["a", "a failed", "b"]


# Withdrawal


def test_withdrawn_work_is_not_done_and_what_follows_goes_on(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    never, after = Timeline(), Timeline()
    first = log.operation("first", never(wait=1), after(signal=1))
    inline.submit(first)
    inline.submit(log.operation("second"))
    waiting = len(state_of(never)._waiters)
    inline.withdraw(first)
    worker.work()
    assert log.lines == ["parked", "first failed", "second"]
    assert waiting == 1
    assert state_of(never)._waiters == []
    with pytest.raises(OperationError, match="cancelled before it began"):
        after.wait_sync(1)


def test_work_behind_parked_work_can_be_withdrawn(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    timeline = Timeline()
    inline.submit(log.operation("first", timeline(wait=1)))
    second = log.operation("second")
    inline.submit(second)
    inline.withdraw(second)
    timeline.signal(1)
    worker.work()
    assert log.lines == ["parked", "second failed", "first"]


def test_work_that_has_begun_is_not_withdrawn(inline: Schedule, log: Log) -> None:
    operation = log.operation("a")
    inline.submit(operation)
    inline.withdraw(operation)
    assert log.lines == ["a"]


# Settling


def test_settling_waits_for_what_runs_on_another_thread(threads: Any) -> None:
    schedule = Schedule(Executor(threads()))
    go, done = threading.Event(), threading.Event()

    def run() -> None:
        go.wait(LONG)
        done.set()

    schedule.submit(Operation(run, pytest.fail))
    threading.Timer(0.05, go.set).start()
    assert schedule.settle() == []
    assert done.is_set()


def test_settling_tells_what_is_left(inline: Schedule, log: Log) -> None:
    timeline = Timeline()
    parked, behind = log.operation("a", timeline(wait=1)), log.operation("b")
    inline.submit(parked)
    inline.submit(behind)
    assert inline.settle() == [parked, behind]


def test_settling_runs_what_the_worker_has_not_come_to(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    timeline = Timeline()
    inline.submit(log.operation("a", timeline(wait=1)))
    inline.submit(log.operation("b"))
    timeline.signal(1)
    assert inline.settle() == []
    assert log.lines == ["parked", "a", "b"]
    worker.work()
    assert log.lines == ["parked", "a", "b"]


def test_a_schedule_knows_what_its_work_uses(inline: Schedule, worker: Worker, log: Log) -> None:
    timeline, used, unused = Timeline(), Region(7, 0, 4), Region(7, 4, 8)
    operation = log.operation("a", timeline(wait=1), reads=(used,))
    inline.submit(operation)
    assert inline.users(used) == [operation]
    assert inline.users(unused) == []
    timeline.signal(1)
    worker.work()
    assert inline.users(used) == []


# The end


def test_closing_fails_what_has_not_run_and_refuses_what_comes(
    inline: Schedule, worker: Worker, log: Log
) -> None:
    before, after = Timeline(), Timeline()
    inline.submit(log.operation("a", before(wait=1)))
    inline.submit(log.operation("b", after(signal=1)))
    inline.close(ContextLostError("it is gone"))
    inline.close(ContextLostError("it is gone again"))
    assert log.lines == ["parked", "a failed", "b failed"]
    for name in "ab":
        assert isinstance(log.errors[name], ContextLostError)
        assert str(log.errors[name]) == "it is gone"
    assert log.errors["a"] is not log.errors["b"]
    with pytest.raises(OperationError, match="it is gone"):
        after.wait_sync(1)
    assert state_of(before)._waiters == []
    before.signal(1)
    worker.work()
    with pytest.raises(ContextLostError, match="it is gone"):
        inline.submit(log.operation("c"))
    assert inline.settle() == []
    assert log.lines == ["parked", "a failed", "b failed"]


def test_closing_while_work_runs_lets_it_end(threads: Any, log: Log) -> None:
    schedule = Schedule(Executor(threads()))
    begun, go, timeline = threading.Event(), threading.Event(), Timeline()

    def run() -> None:
        begun.set()
        go.wait(LONG)

    schedule.submit(Operation(run, pytest.fail, (timeline(signal=1),)))
    schedule.submit(log.operation("next"))
    assert begun.wait(LONG)
    schedule.close(ContextLostError("gone"))
    assert log.lines == ["next failed"]
    go.set()
    timeline.wait_sync(1, timeout=LONG)
