"""What becomes certain only later: that work can never run, or that it can after all."""

from __future__ import annotations

import functools

import pytest

from tests.unit.scheduling import Log, Worker, hosted, log, worker
from webnn_py import ContextLostError, OperationError, Timeline
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Executor
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of

__all__ = ["hosted", "log", "worker"]

A, B, C = (Region(index, 0, 8) for index in (11, 12, 13))


@pytest.mark.parametrize("end", ["withdrawn", "destroyed", "failed", "signalled by the host"])
def test_a_cycle_that_other_work_could_have_broken(
    hosted: Schedule, worker: Worker, log: Log, end: str
) -> None:
    t, u, go = Timeline(label="t"), Timeline(label="u"), Timeline(label="go")
    other = Schedule(Executor(worker))
    hosted.submit(log.operation("x", t(wait=1), u(signal=1), writes=(A,)))
    rescue = log.operation("rescue", go(wait=1), t(signal=2), writes=(C,))
    other.submit(rescue)
    hosted.submit(log.operation("y", u(wait=1), t(signal=1), writes=(B,)))
    worker.work()
    assert not log.lines
    ends = {
        "withdrawn": functools.partial(other.withdraw, rescue),
        "destroyed": functools.partial(other.close, ContextLostError("gone")),
        "failed": functools.partial(state_of(go).fail, 1, ValueError("boom")),
        "signalled by the host": functools.partial(t.signal, 1),
    }
    ends[end]()
    worker.work()
    if end == "signalled by the host":
        assert log.lines == ["x", "y"]
        return
    assert set(log.lines) == {"rescue failed", "x failed", "y failed"}
    for name in "xy":
        assert "this can never run" in str(log.errors[name])
        for part in ("timeline 't' to reach 1", "timeline 'u' to reach 1"):
            assert part in str(log.errors[name])
    with pytest.raises(OperationError, match="timeline 't'"):
        t.wait_sync(1)


def test_a_cycle_through_memory_that_other_work_could_have_broken(
    hosted: Schedule, worker: Worker, log: Log
) -> None:
    t, go = Timeline(label="t"), Timeline()
    hosted.submit(log.operation("first", go(wait=1), writes=(A, B)))
    hosted.submit(log.operation("x", t(wait=2), writes=(A,)))
    rescue = log.operation("rescue", go(wait=1), t(signal=3), writes=(C,))
    hosted.submit(rescue)
    worker.work()
    hosted.withdraw(rescue)
    worker.work()
    hosted.submit(log.operation("y", t(signal=2), writes=(A,)))  # comes before x
    worker.work()
    go.signal(1)
    worker.work()
    assert log.lines == ["rescue failed", "first", "y", "x"]


def test_each_failure_counts_until_it_is_made_good() -> None:
    timeline = Timeline()
    state = state_of(timeline)
    for value in (3, 5):
        state.expect(value)
        state.fail(value, ValueError(f"boom {value}"))
    state.expect(3)
    state.expect(6)
    state.complete(3)
    state.complete(6)
    assert timeline.value == 3
    with pytest.raises(OperationError, match="boom 5"):
        timeline.wait_sync(4)
    timeline.signal(5)
    assert state.failure(6) is None


def test_readers_behind_overtaken_work_keep_their_place(
    hosted: Schedule, worker: Worker, log: Log
) -> None:
    """What overtakes goes before the work that waits for it, and before all that follows that."""
    t, u, v = Timeline(), Timeline(), Timeline()
    hosted.submit(log.operation("write", t(wait=1), writes=(A,)))
    hosted.submit(log.operation("read", u(wait=1), reads=(A,), writes=()))
    hosted.submit(log.operation("signal", v(wait=1), t(signal=1), reads=(A,), writes=()))
    hosted.submit(log.operation("again", writes=(A,)))
    worker.work()
    v.signal(1)
    worker.work()
    assert log.lines == ["signal", "write"]
    u.signal(1)
    worker.work()
    assert log.lines == ["signal", "write", "read", "again"]
