"""What becomes of a timeline when work that was to signal it fails: messages and causes.

Which waits fail, and what makes a failure good, is held against a model in
tests/property/test_schedules.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.graphs import doubling
from tests.loops import Run, pause, together
from webnn_py import ContextLostError, MLContext, OperationError, Timeline, TimelinePoint, ml

SOON = 5.0
Park = Callable[..., MLContext]


@pytest.fixture
def park() -> Iterator[Park]:
    """Dispatches work on a context of its own, where it stays until that is destroyed."""
    contexts: list[MLContext] = []

    def parked(*sync: TimelinePoint) -> MLContext:
        context = ml.create_context_sync(engine="reference")
        contexts.append(context)
        x, y = (context.create_tensor_sync("float32", [2, 3]) for _ in range(2))
        context.dispatch(doubling(context), {"x": x}, {"y": y}, sync=[Timeline()(wait=1), *sync])
        return context

    yield parked
    for context in contexts:
        context.destroy()


def test_a_failure_reaches_who_comes_later(park: Park) -> None:
    timeline = Timeline()
    park(timeline(signal=2)).destroy()
    for value in (1, 2, 3):
        with pytest.raises(OperationError, match=rf"waiting for {value}: .* failed: ") as caught:
            timeline.wait_sync(value)
        assert isinstance(caught.value.__cause__, ContextLostError)
    assert timeline.value == 0
    timeline.wait_sync(0)


def test_each_waiter_gets_an_error_of_its_own(park: Park) -> None:
    timeline = Timeline()
    park(timeline(signal=1)).destroy()
    errors = []
    for _ in range(2):
        with pytest.raises(OperationError) as caught:
            timeline.wait_sync(1)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].root is errors[1].root


def test_a_failure_reaches_who_waits(park: Park, run: Run) -> None:
    timeline = Timeline()
    context = park(timeline(signal=1))

    async def wait(value: int) -> None:
        with pytest.raises(OperationError, match="failed"):
            await timeline.wait_async(value)

    async def fail() -> None:
        await pause(0.01)
        context.destroy()

    run(lambda: together([lambda: wait(1), lambda: wait(9), fail]))


def test_an_earlier_failure_takes_over(park: Park) -> None:
    timeline = Timeline()
    first, second = park(timeline(signal=1)), park(timeline(signal=2))
    second.destroy()
    with pytest.raises(OperationError, match="does not reach 2"):
        timeline.wait_sync(2)
    first.destroy()
    with pytest.raises(OperationError, match="does not reach 1"):
        timeline.wait_sync(2)


def test_work_that_signals_the_same_value_takes_the_place_of_what_failed(
    cpu: MLContext, park: Park
) -> None:
    timeline, go = Timeline(), Timeline()
    x, y = (cpu.create_tensor_sync("float32", [2, 3]) for _ in range(2))
    sync = [go(wait=1), timeline(signal=2)]
    cpu.dispatch(doubling(cpu), {"x": x}, {"y": y}, sync=sync)
    park(timeline(signal=2)).destroy()
    with pytest.raises(TimeoutError):
        timeline.wait_sync(2, timeout=0)
    go.signal(1)
    timeline.wait_sync(2, SOON)


def test_the_host_can_signal_past_a_failure(park: Park) -> None:
    timeline = Timeline()
    park(timeline(signal=4)).destroy()
    timeline.signal(2)
    timeline.wait_sync(2)
    with pytest.raises(OperationError):
        timeline.wait_sync(4)
    timeline.signal(4)
    timeline.wait_sync(4)


def test_a_chain_of_failures_tells_of_the_first_only(park: Park) -> None:
    timelines = [Timeline() for _ in range(20)]
    first = park(timelines[0](signal=1))
    for before, after in itertools.pairwise(timelines):
        park(before(wait=1), after(signal=1))
    first.destroy()
    with pytest.raises(OperationError) as caught:
        timelines[-1].wait_sync(1, SOON)
    assert str(caught.value).count("failed") == 1
    assert isinstance(caught.value.__cause__, ContextLostError)
