"""What becomes of a timeline when work that was to signal it fails."""

from __future__ import annotations

import pytest

from tests.loops import Run, pause, together
from tests.unit.timelines import Queue, resumed
from webnn_py import (
    ContextLostError,
    OperationError,
    Timeline,
)
from webnn_py.ordering.timeline import state_of

SOON = 5.0


def test_a_failure_reaches_who_waits_and_who_comes_later() -> None:
    timeline = Timeline()
    state_of(timeline).expect(2)
    waiting = resumed(timeline, 2), resumed(timeline, 9)
    state_of(timeline).fail(2, ValueError("boom"))
    assert waiting == ([2], [9])
    for value in (1, 2, 3):
        with pytest.raises(
            OperationError, match=rf"waiting for {value}: the work .* failed: boom"
        ) as caught:
            timeline.wait_sync(value)
        assert isinstance(caught.value.__cause__, ValueError)
    assert timeline.value == 0
    timeline.wait_sync(0)


def test_each_waiter_gets_an_error_of_its_own() -> None:
    timeline = Timeline()
    state_of(timeline).fail(1, ValueError("boom"))
    errors = []
    for _ in range(2):
        with pytest.raises(OperationError) as caught:
            timeline.wait_sync(1)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].root is errors[1].root


def test_an_awaited_failure_is_raised(run: Run) -> None:
    timeline = Timeline()

    async def wait() -> None:
        with pytest.raises(OperationError, match="boom"):
            await timeline.wait_async(1)

    async def fail() -> None:
        await pause(0.01)
        state_of(timeline).fail(1, ContextLostError("boom"))

    run(lambda: together([wait, wait, fail]))


def test_what_is_still_under_way_below_a_failure_is_waited_for() -> None:
    timeline = Timeline()
    for value in (1, 3, 4):
        state_of(timeline).expect(value)
    low, high = resumed(timeline, 2), resumed(timeline, 4)
    state_of(timeline).fail(4, ValueError("boom"))
    assert low == []
    assert high == [4]
    state_of(timeline).complete(1)
    assert low == []
    state_of(timeline).complete(3)
    assert low == [2]
    assert timeline.value == 3
    timeline.wait_sync(3)


def test_nobody_waits_for_what_nothing_below_a_failure_will_signal() -> None:
    timeline = Timeline()
    for value in (1, 4):
        state_of(timeline).expect(value)
    doomed = resumed(timeline, 2)
    state_of(timeline).fail(4, ValueError("boom"))
    assert doomed == [2]
    with pytest.raises(OperationError, match="boom"):
        timeline.wait_sync(3)


def test_values_do_not_rise_past_a_failure() -> None:
    timeline = Timeline()
    for value in (1, 2, 3):
        state_of(timeline).expect(value)
    state_of(timeline).fail(2, ValueError("boom"))
    state_of(timeline).complete(3)
    assert timeline.value == 0
    state_of(timeline).complete(1)
    assert timeline.value == 1
    for value in (2, 3):
        with pytest.raises(OperationError):
            timeline.wait_sync(value, timeout=SOON)


def test_a_promise_past_a_failure_is_void() -> None:
    timeline, queue = Timeline(), Queue()
    state_of(timeline).expect(2)
    state_of(timeline).expect(3)
    state_of(timeline).fail(2, ValueError("boom"))
    state_of(timeline).promise(3, queue)
    assert not state_of(timeline).reached(3, queue)
    assert state_of(timeline).failure(3) is not None
    state_of(timeline).expect(2)  # it is tried again
    assert not state_of(timeline).reached(3, queue)


def test_an_earlier_failure_takes_over() -> None:
    timeline = Timeline()
    for value in (1, 2):
        state_of(timeline).expect(value)
    state_of(timeline).fail(2, ValueError("second"))
    state_of(timeline).fail(1, ValueError("first"))
    with pytest.raises(OperationError, match="first"):
        timeline.wait_sync(2)


def test_a_failure_of_what_was_reached_otherwise_changes_nothing() -> None:
    timeline = Timeline()
    state_of(timeline).expect(2)
    timeline.signal(5)
    state_of(timeline).fail(2, ValueError("boom"))
    timeline.wait_sync(5)
    timeline.signal(6)
    assert timeline.value == 6


def test_what_failed_can_be_tried_again() -> None:
    timeline = Timeline()
    state_of(timeline).expect(2)
    state_of(timeline).fail(2, ValueError("boom"))
    state_of(timeline).expect(2)
    waiting = resumed(timeline, 2)
    state_of(timeline).complete(2)
    assert waiting == [2]
    assert timeline.value == 2


def test_work_that_signals_the_same_value_takes_the_place_of_what_failed() -> None:
    timeline = Timeline()
    state_of(timeline).expect(2)
    state_of(timeline).expect(2)
    waiting = resumed(timeline, 2)
    state_of(timeline).fail(2, ValueError("boom"))
    assert waiting == []
    state_of(timeline).complete(2)
    assert waiting == [2]


def test_the_host_can_signal_past_a_failure() -> None:
    timeline = Timeline()
    state_of(timeline).expect(4)
    state_of(timeline).fail(4, ValueError("boom"))
    timeline.signal(2)
    timeline.wait_sync(2)
    with pytest.raises(OperationError):
        timeline.wait_sync(4)
    timeline.signal(4)
    timeline.wait_sync(4)
    assert resumed(timeline, 5) == []


def test_a_chain_of_failures_tells_of_the_first_only() -> None:
    error: BaseException = ContextLostError("the context was destroyed")
    for _ in range(50):
        timeline = Timeline()
        state_of(timeline).fail(1, error)
        with pytest.raises(OperationError) as caught:
            timeline.wait_sync(1)
        error = caught.value
    assert str(error).count("failed") == 1
    assert isinstance(error.__cause__, ContextLostError)


# Storms
