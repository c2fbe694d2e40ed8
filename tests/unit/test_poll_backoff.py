"""What is expected of waits, by those before."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from webnn_py.engines.webgpu.runtime.devices.run_policy import RunPolicy
from webnn_py.engines.webgpu.runtime.devices.staging import Ending
from webnn_py.engines.webgpu.runtime.poll_backoff import (
    MIN_LATENCY_SECONDS,
    NEAR_SECONDS,
    LatencyEstimate,
    pause,
)
from webnn_py.engines.webgpu.runtime.prerecord import RunPrerecorder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def waited(
    estimate: LatencyEstimate, clock: list[float], seconds: float, late: bool = False
) -> None:
    is_over = late
    mapping: Any = SimpleNamespace(look=lambda: is_over)
    ending = Ending(mapping, estimate, time.monotonic())
    clock[0] += seconds
    is_over = ending.look() or True
    assert ending.look()


def test_shorter_waits_count_at_once_and_longer_ones_in_part(clock: list[float]) -> None:
    estimate = LatencyEstimate()
    for seconds, expected in ((0.08, 0.08), (0.16, 0.09), (0.02, 0.02)):
        waited(estimate, clock, seconds)
        assert estimate.seconds == pytest.approx(expected)


def test_what_was_interrupted_counts_so_much_at_most(clock: list[float]) -> None:
    policy = RunPolicy()
    source: Any = SimpleNamespace(gpu=SimpleNamespace(policy=policy))
    whole = RunPrerecorder(source).whole_latency
    for seconds in (1e-4, 10.0, 10.0):
        waited(whole, clock, seconds)
    assert 1e-4 < whole.seconds < policy.tiny_run_seconds
    for _ in range(4):
        waited(whole, clock, 10.0)
    assert whole.seconds > policy.tiny_run_seconds


def test_an_end_that_was_seen_late_is_looked_for_sooner(clock: list[float]) -> None:
    estimate = LatencyEstimate()
    waited(estimate, clock, 0.01)
    waited(estimate, clock, 0.01, late=True)
    assert estimate.seconds == pytest.approx(0.01 - NEAR_SECONDS / 4)


def test_it_stays_known(clock: list[float]) -> None:
    estimate = LatencyEstimate()
    waited(estimate, clock, 1e-6, late=True)
    assert estimate.seconds == MIN_LATENCY_SECONDS


@pytest.mark.parametrize(("late", "longest"), [(3e-4, 1.5e-4), (2e-3, 1e-3), (1.0, 2e-3)])
def test_pauses_behind_the_expected_end_grow_with_the_delay(
    monkeypatch: pytest.MonkeyPatch, late: float, longest: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    pause(0.05 + late, 0.05)
    assert slept == [pytest.approx(longest)]
