"""What work does with timelines: points, and the `sync=` that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, TWOS, doubling
from webnn_py import MLContext, Timeline, TimelinePoint, ValidationError

MAX_VALUE = 2**64 - 1


def test_points_hold_what_was_asked_for() -> None:
    timeline = Timeline()
    assert timeline(wait=1) == TimelinePoint(timeline, 1, None)
    assert timeline(signal=MAX_VALUE) == TimelinePoint(timeline, None, MAX_VALUE)
    assert timeline(wait=-9, signal=1) == TimelinePoint(timeline, 0, 1)


@pytest.mark.parametrize("given", [{}, {"wait": 2, "signal": 2}, {"wait": 2, "signal": 1}])
def test_points_that_make_no_sense_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Timeline()(**given)


def dispatched(context: MLContext, sync: Any) -> None:
    """Dispatch y = x + x with a `sync=`, and look at the result."""
    graph = doubling(context)
    x = context.create_tensor_sync("float32", [2, 3], writable=True)
    y = context.create_tensor_sync("float32", [2, 3], readable=True)
    context.write_tensor(x, ONES)
    context.dispatch(graph, {"x": x}, {"y": y}, sync=sync)
    np.testing.assert_array_equal(context.read_tensor_sync(y), TWOS)


def test_sync_is_a_list_of_points_or_one(cpu: MLContext) -> None:
    a, b = Timeline(1), Timeline()
    dispatched(cpu, ())
    dispatched(cpu, a(wait=1))
    dispatched(cpu, iter([a(wait=1), b(signal=2)]))
    dispatched(cpu, [a(wait=1), a(signal=2)])
    a.wait_sync(2, 5)
    b.wait_sync(2, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: 5,
        lambda a, b: None,
        lambda a, b: a,
        lambda a, b: [a],
        lambda a, b: [a(wait=1), None],
        lambda a, b: "ab",
        lambda a, b: a(signal=1) if a.signal(1) is None else None,
        lambda a, b: [b(wait=1), a(signal=4)] if a.signal(9) is None else None,
        lambda a, b: [TimelinePoint(a, "1", None)],
        lambda a, b: [TimelinePoint(5, 1, None)],
        lambda a, b: [TimelinePoint(a, None, 2**70)],
        lambda a, b: [a(signal=1), b(wait=1), a(wait=1)],
        lambda a, b: [a(wait=3), a(signal=9), a(signal=3)],
    ],
)
def test_what_is_no_sync_is_refused(
    cpu: MLContext, make: Callable[[Timeline, Timeline], Any]
) -> None:
    with pytest.raises(ValidationError, match="sync"):
        dispatched(cpu, make(Timeline(), Timeline()))


def test_a_signal_that_raises_nothing_is_named(cpu: MLContext) -> None:
    timeline = Timeline(7)
    for value in (7, 3):
        with pytest.raises(ValidationError, match=rf"is at 7, so that signal {value} "):
            dispatched(cpu, [timeline(signal=value)])
    dispatched(cpu, [timeline(signal=8)])
