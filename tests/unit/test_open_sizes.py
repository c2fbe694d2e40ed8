"""What follows from sizes and bounds: why sizes differ, and which shapes and sizes there are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.test_dimensions import m, n, named
from webnn_py import DataError, ValidationError
from webnn_py.core.dim_constraints import find_bounds, find_equal_pairs, find_multiple
from webnn_py.core.dimensions import check_divides, fixed, undecided
from webnn_py.core.open_dims import likely_sizes, solve
from webnn_py.core.polynomials import Symbol
from webnn_py.core.undecided_dims import record_questions


def test_what_must_be_known_says_so() -> None:
    assert fixed(3, "axis") == 3
    with pytest.raises(ValidationError, match=r"steps: `n` is open, expected a number"):
        fixed(n, "steps")
    check_divides(4, 8 * n, "no")
    check_divides(n, n * m, "no")
    for size in (2 * n + 1, 4 * n + 2, 6):
        with pytest.raises(ValidationError, match=r"^no$"):
            check_divides(4, size, "no")
    with pytest.raises(ValidationError, match=r"whether `2\*n % 4 == 0` is not known"):
        check_divides(4, 2 * n, "no")


@pytest.mark.parametrize(
    ("got", "expected", "told"),
    [
        (n, 8, "; whether `n == 8` is not known .*; give dimensions={'n': 8}"),
        (8, n, "; whether `8 == n` is not known .*; give dimensions={'n': 8}"),
        (n, m, "; whether `n == m` is not known .*; give both one name"),
        ((4, n), (4, m), "; whether `n == m` is not known .*; give both one name"),
        (2 * n, m, r"; whether `2\*n == m` is not known .*'m': …, 'n': ….*"),
        (m, 65, ""),
        (2 * n + 1, 2 * n, ""),
        (2 * n, 7, ""),
        (2 * n * m, 4 * n + 1, ""),
        (3 * n - 1, 8, ".*; give dimensions={'n': 3}"),
        (9 - n, 8, ".*; give dimensions={'n': 1}"),
        ((n + 1) // 2, 8, r".*; give dimensions={'n': \(15, 16\)}"),
        ((n, 3), (m, 4), ""),
        ((n,), (n, m), ""),
        (3, 4, ""),
    ],
)
def test_why_sizes_are_not_equal(got: object, expected: object, told: str) -> None:
    assert re.fullmatch(told, undecided(got, expected))


def test_sizes_follow_from_shapes() -> None:
    inputs = {"a": (m, 3, n), "b": (2 * n + 1, n), "c": (4,)}
    assert solve(inputs, {"a": [2, 3, 5], "b": [11, 5], "c": (4,)}) == {"m": 2, "n": 5}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"b": (7, 4)}, r"input 'b' of shape \[7, 4\]: dimension n is 4, expected 3, as n is 3 by"
                        r" the array of shape \[2, 3\]"),
        ({"b": (6, 3)}, r"dimension 2\*n \+ 1 is 6, expected 7, as n is 3 by the array"),
        ({"a": (65, 3)}, r"the array of shape \[65, 3\]: dimension m is 65, expected 2\.\.64"),
        ({"a": (2, 0)}, r"dimension n is 0, expected 1\.\."),
        ({"a": (2, 3, 1)}, r"the array of shape \[2, 3, 1\]: expected rank 2, of \[m, n\]"),
        ({"c": (5,)}, r"input 'c' of shape \[5\]: dimension 0 is 5, expected 4$"),
    ],
)  # fmt: skip
def test_shapes_that_contradict_each_other(given: dict[str, Any], told: str) -> None:
    inputs = {"a": (m, n), "b": (2 * n + 1, n), "c": (4,)}
    shapes = {"a": (2, 3), "b": (7, 3), "c": (4,)} | given
    with pytest.raises(DataError, match=told):
        solve(inputs, shapes, {"a": "the array"})


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"batch": 3, "length": 7}, [{"batch": 3, "length": 7}]),
        ({"batch": 1, "length": 7}, [{"batch": 1, "length": 7}, {"batch": 4, "length": 7}]),
        ({"batch": 1, "length": 1}, [{"batch": 4, "length": 2}]),
        ({"batch": 0, "length": 1}, [{"batch": 0, "length": 1}, {"batch": 0, "length": 2}]),
    ],
)
def test_sizes_to_come(first: dict[str, int], expected: list[dict[str, int]]) -> None:
    """Several for one, within its bounds: what serves one serves no others."""
    symbols = {"batch": Symbol("batch", 0, 9), "length": Symbol("length", 1, 2)}
    assert likely_sizes(symbols, first) == expected


def test_of_one_that_is_always_one_there_are_no_several() -> None:
    symbols = {"batch": Symbol("batch", 1, 1)}
    assert likely_sizes(symbols, {"batch": 1}) == []


def many(prefix: str) -> Any:
    return sum(named(f"{prefix}{i}", 1, 9) for i in range(250))


def test_hints_for_importers_are_not_looked_for_among_many_sizes() -> None:
    with record_questions() as asked:
        undecided(many("s"), many("t"))
    (question,) = asked
    assert (find_bounds(question), find_multiple(question), find_equal_pairs(question)) == (
        None,
        None,
        [],
    )
