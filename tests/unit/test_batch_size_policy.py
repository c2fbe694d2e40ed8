"""The sizes of joined runs, and which of them full runs have."""

from __future__ import annotations

import pytest

from webnn_py.api.batching.batch_size_policy import (
    MIN_PART_ROWS,
    PARTS,
    RUNS_UNTIL_A_TRIAL,
    BatchSizePolicy,
    run_sizes,
)


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
    policy = BatchSizePolicy(sorted(seconds))
    for _ in range(20):
        policy.ran(policy.best, seconds[policy.best])
    return policy.best


def test_the_largest_size_is_best_where_runs_cost_something_themselves() -> None:
    assert settled({8: 9, 16: 17, 32: 33}) == 32


def test_a_smaller_size_is_best_where_it_is_much_quicker_a_row() -> None:
    assert settled({4: 1, 8: 9, 16: 15, 32: 66, 64: 80}) == 16


def test_a_larger_size_is_best_where_it_is_nearly_as_quick_a_row() -> None:
    assert settled({8: 8, 16: 17, 32: 38, 64: 90}) == 32


def test_small_sizes_are_not_tried() -> None:
    assert settled({1: 1, 2: 3, 4: 9}) == 4


def test_one_slow_run_decides_nothing() -> None:
    policy = BatchSizePolicy([8, 16])
    for seconds in (1000, 17, 9, 9):
        policy.ran(policy.best, seconds)
    assert policy.best == 16


def test_all_sizes_are_tried_again() -> None:
    policy = BatchSizePolicy([16, 32])
    for seconds in (1000, 1000, 16, 16):
        policy.ran(policy.best, seconds)
    assert policy.best == 16
    for _ in range(RUNS_UNTIL_A_TRIAL):
        policy.ran(policy.best, 20)
    assert policy.best == 32


def test_a_size_that_cannot_be_compiled_is_left_out() -> None:
    policy = BatchSizePolicy([8, 16])
    policy.drop(16)
    policy.drop(16)
    assert policy.best == 8


def divided(rows: int, is_short: bool = True, has_alone: bool = True) -> int:
    """Rows of a run at most, where so many are there."""
    policy = BatchSizePolicy(run_sizes(1, 64))
    policy.is_short, policy.has_alone = is_short, has_alone
    policy.sees(rows)
    return policy.most


@pytest.mark.parametrize(
    ("rows", "most"), [(8, 64), (PARTS * MIN_PART_ROWS, 64), (18, 9), (64, 32), (512, 64)]
)
def test_short_runs_are_parts_of_what_is_there(rows: int, most: int) -> None:
    assert divided(rows) == most


def test_runs_are_whole_that_are_long_or_need_all_threads() -> None:
    assert divided(48, is_short=False) == divided(48, has_alone=False) == 64


def test_what_was_there_is_forgotten_slowly() -> None:
    policy = BatchSizePolicy([1, 64])
    policy.is_short = True
    policy.sees(64)
    policy.sees(0)
    assert policy.crowded
    for _ in range(32):
        policy.sees(1)
    assert not policy.crowded
