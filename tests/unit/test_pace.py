"""The sizes of joined runs, and which of them full runs have."""

from __future__ import annotations

import pytest

from webnn_py.api.pace import LOOK_AGAIN, Pace, run_sizes


@pytest.mark.parametrize(
    ("low", "high", "sizes"),
    [
        (1, 1, [1]),
        (1, 32, [1, 2, 4, 8, 16, 32]),
        (1, 48, [1, 2, 4, 8, 16, 32, 48]),
        (3, 9, [3, 4, 8, 9]),
        (5, 5, [5]),
    ],
)
def test_sizes_are_powers_of_two_and_both_ends(low: int, high: int, sizes: list[int]) -> None:
    assert run_sizes(low, high) == sizes


def settled(seconds: dict[int, float]) -> int:
    """The best size, where runs of each take so long."""
    pace = Pace(sorted(seconds))
    for _ in range(20):
        pace.ran(pace.best, seconds[pace.best])
    return pace.best


def test_the_largest_size_is_best_where_runs_cost_something_themselves() -> None:
    assert settled({8: 9, 16: 17, 32: 33}) == 32


def test_a_smaller_size_is_best_where_it_is_quicker_a_row() -> None:
    assert settled({4: 1, 8: 9, 16: 15, 32: 33, 64: 80}) == 16


def test_small_sizes_are_not_tried() -> None:
    assert settled({1: 1, 2: 3, 4: 9}) == 4


def test_what_was_slow_once_is_measured_again() -> None:
    pace = Pace([16, 32])
    pace.ran(32, 100)
    pace.ran(16, 16)
    assert pace.best == 16
    for _ in range(LOOK_AGAIN):
        pace.ran(pace.best, pace.best)
    pace.ran(32, 30)
    assert pace.best == 32
