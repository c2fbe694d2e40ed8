"""Timeline: values only rise, waits come before or after signals, failures reach who waits."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import pytest

from tests.loops import Run, cancel_after, pause, together
from tests.threads import in_threads
from webnn_py import (
    InvalidStateError,
    MLError,
    Timeline,
    ValidationError,
    WaitTimeoutError,
)

MAX_VALUE = 2**64 - 1
SOON = 5.0


# Values and points


def test_a_timeline_begins_at_zero_or_at_the_given_value() -> None:
    assert Timeline().value == 0
    assert Timeline(7).value == 7
    assert repr(Timeline(7, label="a")) == "<Timeline 'a' at 7>"


@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True, MAX_VALUE + 1, float("nan"), [1]])
def test_what_is_no_value_is_refused(value: Any) -> None:
    timeline = Timeline()
    with pytest.raises(ValidationError):
        Timeline(value)
    with pytest.raises(ValidationError):
        timeline.signal(value)
    if value is not None:
        with pytest.raises(ValidationError):
            timeline(signal=value)
    assert timeline.value == 0


@pytest.mark.parametrize("value", [1.5, "1", True, MAX_VALUE + 1, [1]])
def test_what_cannot_be_waited_for_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        Timeline()(wait=value)
    with pytest.raises(ValidationError):
        Timeline().wait_sync(value)
    with pytest.raises(ValidationError):
        Timeline().wait_sync(1, timeout="soon")  # type: ignore[arg-type]


def test_values_only_rise() -> None:
    timeline = Timeline()
    timeline.signal(5)
    for value in (5, 4, 0):
        with pytest.raises(ValidationError, match="not above"):
            timeline.signal(value)
    timeline.signal(MAX_VALUE)
    assert timeline.value == MAX_VALUE


def test_of_two_threads_that_signal_one_value_one_is_refused() -> None:
    timeline = Timeline()
    refused: list[MLError] = []
    barrier = threading.Barrier(4)

    def signal() -> None:
        for value in range(1, 200):
            barrier.wait(SOON)
            try:
                timeline.signal(value)
            except ValidationError as error:
                refused.append(error)

    in_threads(*[signal] * 4)
    assert timeline.value == 199
    assert len(refused) == 3 * 199


# Waiting


def test_a_value_that_is_reached_is_waited_for_no_more() -> None:
    timeline = Timeline(3)
    for value in (-1, 0, 2, 3):
        timeline.wait_sync(value, timeout=0)


def test_wait_sync_wakes_when_another_thread_signals() -> None:
    timeline = Timeline()
    threads = [threading.Thread(target=timeline.wait_sync, args=(n, SOON)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for value in range(1, 9):
        timeline.signal(value)
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


def test_wait_sync_gives_up_in_time() -> None:
    timeline = Timeline(3)
    begun = time.perf_counter()
    for _ in range(20):
        with pytest.raises(WaitTimeoutError, match=r"at 3 after 0\.01 s, not yet at 5"):
            timeline.wait_sync(5, timeout=0.01)
    assert 0.15 < time.perf_counter() - begun < SOON
    with pytest.raises(TimeoutError):
        timeline.wait_sync(5, timeout=0)
    timeline.signal(5)
    timeline.wait_sync(5, timeout=0)


def test_a_wait_that_takes_too_long_is_an_ml_error() -> None:
    with pytest.raises(MLError) as caught:
        Timeline().wait_sync(1, timeout=0)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("timeout", [1e300, float("inf"), 10**400, 1e-300, -1, -float("inf")])
def test_timeouts_may_be_of_any_size(timeout: float) -> None:
    reached = threading.Timer(0.01, (timeline := Timeline()).signal, [1])
    if timeout < 1:
        with pytest.raises(WaitTimeoutError):
            timeline.wait_sync(1, timeout)
    reached.start()
    timeline.wait_sync(1, timeout if timeout > 1 else SOON)
    reached.join()


def test_wait_sync_refuses_to_block_an_event_loop(run: Run) -> None:
    timeline = Timeline(3)

    async def main() -> None:
        timeline.wait_sync(3)
        with pytest.raises(InvalidStateError, match="wait_async"):
            timeline.wait_sync(4)

    run(main)


def test_wait_async_lets_the_loop_run(run: Run) -> None:
    timeline = Timeline()
    order: list[str] = []

    async def wait(value: int) -> None:
        await timeline.wait_async(value)
        order.append(f"met {value}")

    async def signal() -> None:
        await pause(0.01)
        order.append("signal")
        timeline.signal(2)

    async def main() -> None:
        await timeline.wait_async(0)
        await together([lambda: wait(1), lambda: wait(2), signal])

    run(main)
    assert order[0] == "signal"
    assert sorted(order[1:]) == ["met 1", "met 2"]


def test_wait_async_wakes_when_another_thread_signals(run: Run) -> None:
    timeline = Timeline()
    thread = threading.Timer(0.02, timeline.signal, [1])

    async def main() -> None:
        thread.start()
        await timeline.wait_async(1)

    run(main)
    thread.join()


def test_after_a_cancelled_wait_others_wait(run: Run) -> None:
    timeline = Timeline()

    async def main() -> None:
        await cancel_after(lambda: timeline.wait_async(1), lambda: pause(0.01))
        timeline.signal(1)
        await timeline.wait_async(1)

    run(main)


def test_no_wakeup_is_lost_between_threads() -> None:
    timeline = Timeline()
    count, rounds = 8, 300

    def follow(index: int) -> None:
        for turn in range(rounds):
            mine = turn * count + index
            timeline.wait_sync(mine, timeout=SOON)
            timeline.signal(mine + 1)

    in_threads(*[functools.partial(follow, index) for index in range(count)])
    assert timeline.value == count * rounds
