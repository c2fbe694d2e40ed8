"""What work does with timelines: points, and the `sync=` that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from webnn_py import Timeline, TimelinePoint, ValidationError
from webnn_py.ordering.timeline import MAX_VALUE, points


def test_points_hold_what_was_asked_for() -> None:
    timeline = Timeline()
    assert timeline(wait=1) == TimelinePoint(timeline, 1, None)
    assert timeline(signal=MAX_VALUE) == TimelinePoint(timeline, None, MAX_VALUE)
    assert timeline(wait=-9, signal=1) == TimelinePoint(timeline, 0, 1)


@pytest.mark.parametrize("given", [{}, {"wait": 2, "signal": 2}, {"wait": 2, "signal": 1}])
def test_points_that_make_no_sense_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Timeline()(**given)


def test_sync_is_a_list_of_points_or_one() -> None:
    a, b = Timeline(), Timeline()
    assert points(()) == ()
    assert points(a(wait=1)) == (a(wait=1),)
    assert points(iter([a(wait=1), b(signal=2)])) == (a(wait=1), b(signal=2))
    assert points([a(wait=1), a(signal=2)]) == (a(wait=1), a(signal=2))


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
def test_what_is_no_sync_is_refused(make: Callable[[Timeline, Timeline], Any]) -> None:
    with pytest.raises(ValidationError, match="sync"):
        points(make(Timeline(), Timeline()))


def test_a_signal_that_raises_nothing_is_named() -> None:
    timeline = Timeline(7)
    for value in (7, 3):
        with pytest.raises(ValidationError, match=rf"is at 7, so that signal {value} "):
            points([timeline(signal=value)])
    assert points([timeline(signal=8)]) == (timeline(signal=8),)
