"""Traced numbers are as numbers are, and what is asked of them says for which sizes."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.trees import Tree, trees
from tests.property.trees import calculated as evaluated
from webnn_py.core.shape_tracing import (
    MARK,
    Trace,
    calculated,
    is_traced,
    marks_in,
    number_in,
    with_sampled_marks,
)
from webnn_py.core.traced_queries import (
    can_defer,
    divides,
    highest,
    is_zero,
    may_leave_remainder,
    sampled,
    with_sampled,
)

Sizes = Mapping[str, int]
NAMES = ["a", "b"]
CALCULATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.truediv,
    lambda one, other: divmod(one, other)[1],
    lambda one, other: max(one, other, 3),
    lambda one, other: one if one < other else -other,
    lambda one, other: abs(one - other),
    lambda one, other: math.ceil(one / 2) if one >= other else math.floor(other / 3),
    lambda one, other: one**2 if one != 7 else other,
    lambda one, other: 5 if one else other,
    lambda one, other: sum(range(int(one % 4))) + other,
]


def drawn_sizes() -> st.SearchStrategy[Sizes]:
    return st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})


@given(
    tree=trees(-3, NAMES, CALCULATIONS, most=8),
    first=drawn_sizes(),
    others=st.lists(drawn_sizes(), min_size=6, max_size=6),
)
def test_what_is_calculated_for_other_sizes_is_what_they_give(
    tree: Tree, first: Sizes, others: list[Sizes]
) -> None:
    with Trace(first) as trace:
        try:
            made = evaluated(tree, trace.sizes)
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                evaluated(tree, first)
            return
    numbers_at = trace.calculate(marks_in((made,)))
    found = numbers_at(first)
    assert found is not None
    assert calculated(made, found[0]) == evaluated(tree, first)
    for sizes in others:
        found = numbers_at(sizes)
        if found is not None:
            assert calculated(made, found[0]) == evaluated(tree, sizes)


def estimates(ask: Callable[[Any], object], most: int = 20) -> dict[int, int]:
    """How many estimates are not theirs, by sizes that meet what is asked of 6."""
    with Trace({"n": 6}) as trace:
        ask(trace.sizes["n"])
    numbers_at = trace.calculate([])
    found = {n: numbers_at({"n": n}) for n in range(1, most + 1)}
    return {n: numbers[1] for n, numbers in found.items() if numbers is not None}


def conditions(ask: Callable[[Any], object]) -> list[int]:
    """For which sizes up to 20 it holds what was asked of 6, estimates, too."""
    return [n for n, far in estimates(ask).items() if not far]


@pytest.mark.parametrize(
    ("ask", "held"),
    [
        (lambda n: n + 1, range(1, 21)),
        (lambda n: n < 9, range(1, 9)),
        (lambda n: n > 9, range(1, 10)),
        (lambda n: n == 6, [6]),
        (lambda n: n == 7, [n for n in range(1, 21) if n != 7]),
        (lambda n: n % 4 == 0, [n for n in range(1, 21) if n % 4]),
        (lambda n: bool(n % 3), range(3, 21, 3)),
        (lambda n: [*range(n)], [6]),
        (lambda n: int(n // 4), range(4, 8)),
        (lambda n: int(n / 4), [6]),
        (float, [6]),
        (lambda n: f"{n:>3}", [6]),
        (lambda n: f"{n}", range(1, 21)),
        (lambda n: 100 // (n - 9) < 0, range(1, 9)),
        (sampled, range(3, 13)),
        (lambda n: sampled(n // 2), range(3, 13)),
        (lambda n: sampled(n - 5), range(5, 10)),
        (lambda n: sampled(n - 9), range(3, 13)),
        (lambda n: with_sampled_marks(f"{n}u, {n * 2}u"), range(3, 13)),
        (lambda n: n * 6 % 3, range(1, 21)),
        (lambda n: n * 6 % 4 == 0, range(2, 21, 2)),
        (lambda n: may_leave_remainder(n * 6, 4), range(1, 21)),
        (lambda n: divides(3, n), range(3, 21, 3)),
        (lambda n: divides(4, n), [n for n in range(1, 21) if n % 4]),
        (lambda n: divides(3, n * 12), range(1, 21)),
        (lambda n: is_zero((n - 1) // 4), range(5, 21)),
        (lambda n: is_zero(n // 7), range(1, 7)),
        (lambda n: highest(n), range(1, 9)),
        (lambda n: highest(17), range(1, 21)),
        (lambda n: number_in(f"{n}") > 8, range(1, 9)),
        (lambda n: n < np.float64(8.5), range(1, 9)),
        (lambda n: n * math.inf > 0, range(1, 21)),
        (lambda n: {n: 1}[n], range(1, 21)),
        (lambda n: (n, 3) == (n, 4), range(1, 21)),
    ],
)
def test_what_is_asked_is_a_condition(ask: Callable[[Any], object], held: Iterable[int]) -> None:
    assert conditions(ask) == [*held]


def test_sizes_that_are_far_may_do_with_estimates() -> None:
    found = estimates(sampled, 400)
    assert [*found] == [*range(1, 385)]
    assert [n for n, far in found.items() if not far] == [*range(3, 13)]
    both = estimates(lambda n: (sampled(n * n), n < 9))
    assert [*both] == [*range(1, 9)]
    assert (both[6], both[2]) == (0, 2)  # it is a third, and its square a ninth
    assert estimates(lambda n: n < 9).keys() == {*range(1, 9)}


def test_what_leaves_no_remainder_may_do_with_what_allows_for_one() -> None:
    found = estimates(lambda n: divides(4, n))
    assert [*found] == [*range(1, 21)]
    assert [n for n, far in found.items() if far] == [*range(4, 21, 4)]


def test_who_waits_may_have_the_best_later() -> None:
    for waits in (False, True):
        with Trace({"n": 6}, for_any=waits) as trace:
            n = trace.sizes["n"]
            assert can_defer(3, n) is waits
            assert not can_defer(3, 4)
        found = trace.calculate([])({"n": 6})
        assert found is not None
        assert found[1] == waits


def test_estimates_are_of_the_sizes_that_are_traced() -> None:
    with Trace({"n": 6}) as trace:
        assert sampled(trace.sizes["n"]) == 6
        assert sampled(7) == 7
        assert highest(trace.sizes["n"]) == 8
        assert number_in(str(trace.sizes["n"])) is trace.sizes["n"]
        assert number_in("17") == 17
        assert with_sampled_marks(f"{trace.sizes['n'] + 1}u 3u") == "7u 3u"


@given(tree=trees(-3, NAMES, CALCULATIONS, most=8), samples=st.lists(drawn_sizes(), min_size=6))
def test_a_divisor_is_one_for_all_sizes(tree: Tree, samples: list[Sizes]) -> None:
    first, *others = samples
    with Trace(first) as trace:
        try:
            made = evaluated(tree, trace.sizes)
        except ZeroDivisionError:
            return
    if is_traced(made) and made.divisor > 1:
        numbers_at = trace.calculate(marks_in((made,)))
        for sizes in others:
            if (found := numbers_at(sizes)) is not None:
                assert found[0][made.mark] % made.divisor == 0


def test_a_remainder_is_left_unless_there_is_none_for_any_size() -> None:
    with Trace({"a": 8, "b": 5}) as trace:
        a, b = trace.sizes["a"], trace.sizes["b"]
        assert may_leave_remainder(a, 4)
        assert not may_leave_remainder(a * 4, 4)
        assert not may_leave_remainder(a * 6 * b * 2, 12)
        assert not may_leave_remainder(16 * a - b * 24, 8)
        assert may_leave_remainder(16 * a + 4, 8)
        assert not may_leave_remainder(16 * a + 4, 4)
        assert (may_leave_remainder(12, 8), may_leave_remainder(12, 4)) == (True, False)


@dataclass(frozen=True)
class Problem:
    m: Any
    n: Any


def test_fields_are_sampled() -> None:
    plain = Problem(3, 4)
    assert with_sampled(plain, "m", "n") is plain
    with Trace({"n": 6}) as trace:
        n = trace.sizes["n"]
        assert with_sampled(Problem(3, n), "m", "n") == Problem(3, 6)
        assert with_sampled(Problem(n, n), "n").m is n


def test_a_number_is_of_one_mark_however_often_it_is_calculated() -> None:
    with Trace({"n": 6}) as trace:
        n = trace.sizes["n"]
        assert n * 2 + 1 is n * 2 + 1
        assert n + 0 is n
        assert 0 + n is n
        assert n * 1 is n
        assert 1 * n is n
        assert (n * 0, 0 * n) == (0, 0)
        assert not is_traced(n * 0)
        assert MARK.fullmatch(f"{n}")
        assert str(n) != str(n + 1)
    with Trace({"n": 6}) as other:
        assert str(other.sizes["n"]) != str(n)


def test_nothing_is_asked_behind_a_trace() -> None:
    with Trace({"n": 6}) as trace:
        n = trace.sizes["n"]
    with pytest.raises(AssertionError, match="after its trace"):
        bool(n)


def test_traces_are_of_their_threads() -> None:
    found: list[int] = []

    def trace(size: int) -> None:
        with Trace({"n": size}) as made:
            barrier.wait()
            found.append(int(number_in(str(made.sizes["n"]))))

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=trace, args=[size]) for size in (3, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [3, 30]


def test_other_types_are_refused_as_by_numbers() -> None:
    with Trace({"n": 6}) as trace:
        n = trace.sizes["n"]
        for calculation in (operator.add, operator.floordiv, operator.lt):
            with pytest.raises(TypeError):
                calculation(n, "3")
            with pytest.raises(TypeError):
                calculation("3", n)
        assert n != "3"
