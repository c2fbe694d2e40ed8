"""Schedules that are interrupted at any function that they call, as by Ctrl-C."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from tests.unit.scheduling import Log, Worker, hosted, inline, log, worker
from webnn_py import Timeline
from webnn_py.ordering import schedule as interrupted
from webnn_py.ordering.operation import Operation
from webnn_py.ordering.schedule import Schedule

__all__ = ["hosted", "inline", "log", "worker"]
FILE = interrupted.__file__


class Interrupt:
    """Interrupts the n-th call of a function of schedules.

    Args:
        number: Which one, from 0.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self.came = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == FILE:
            self.came = self._left == 0
            self._left -= 1
            if self.came:
                sys.settrace(None)
                raise KeyboardInterrupt


def submit(schedule: Schedule, operation: Operation, interrupt: Interrupt) -> None:
    """Submit it and interrupt that."""
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        schedule.submit(operation)
    except KeyboardInterrupt:
        assert interrupt.came
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("kind", ["inline", "hosted"])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("number", range(30))
def test_work_goes_on_after_an_interrupt(
    request: pytest.FixtureRequest, worker: Worker, log: Log, kind: str, waits: bool, number: int
) -> None:
    schedule: Schedule = request.getfixturevalue(kind)
    met = Timeline(1)
    interrupt = Interrupt(number)
    submit(schedule, log.operation("a", *[met(wait=1)] * waits), interrupt)
    schedule.submit(log.operation("b"))
    worker.work()
    done = Timeline()
    schedule.submit(log.operation("c", done(signal=1)))
    worker.work()
    assert schedule.settle() == []
    assert [line for line in log.lines if line in "bc"] == ["b", "c"]
    assert log.lines.count("a") <= 1
    assert interrupt.came or log.lines[0] == "a"
    assert not schedule.users(next(iter(log.operation("d").writes)).region)
