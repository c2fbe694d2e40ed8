"""Index expressions: simplified, they mean what they mean as they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webnn_py.engines.webgpu.compiler.code.affine import (
    Affine,
    broadcast_map,
    reverse_map,
    slice_map,
    transpose_map,
)
from webnn_py.engines.webgpu.compiler.code.index import LIMIT, Index, constant, symbol
from webnn_py.engines.webgpu.program.pieces import printed

Array = np.ndarray[Any, Any]

SIZES = {"i": LIMIT, "j": 7, "k": 24, "n": 1, "t": 64}
"""Names, and what each is below."""


@dataclass(frozen=True)
class Word:
    """A u32 as WGSL computes with it."""

    value: int

    def __post_init__(self) -> None:
        assert 0 <= self.value < LIMIT, "no u32"

    def __add__(self, other: Word) -> Word:
        return Word((self.value + other.value) % LIMIT)

    def __sub__(self, other: Word) -> Word:
        return Word((self.value - other.value) % LIMIT)

    def __mul__(self, other: Word) -> Word:
        return Word(self.value * other.value % LIMIT)

    def __truediv__(self, other: Word) -> Word:
        return Word(self.value // other.value)

    def __mod__(self, other: Word) -> Word:
        return Word(self.value % other.value)

    def __lt__(self, other: Word) -> bool:
        return self.value < other.value


def wgsl(text: str, values: dict[str, int]) -> int:
    """What WGSL makes of an expression."""
    names: dict[str, Any] = {key: Word(value) for key, value in values.items()}
    names |= {"W": Word, "min": min, "clamp": lambda x, low, high: min(max(x, low), high)}
    result: Word = eval(re.sub(r"\b(\d+)u\b", r"W(\1)", printed(text)), {}, names)
    return result.value


@dataclass(frozen=True)
class Drawn:
    """An expression, and what it is by the rules of whole numbers modulo 2^32."""

    index: Index
    meant: Callable[[dict[str, int]], int]


def _combined(children: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    small = st.integers(1, 40)

    def plus(a: Drawn, b: Drawn) -> Drawn:
        return Drawn(a.index + b.index, lambda v: (a.meant(v) + b.meant(v)) % LIMIT)

    def minus(a: Drawn, b: Drawn) -> Drawn:
        return Drawn(a.index - b.index, lambda v: (a.meant(v) - b.meant(v)) % LIMIT)

    def times(a: Drawn, n: int) -> Drawn:
        return Drawn(a.index * n, lambda v: a.meant(v) * n % LIMIT)

    def over(a: Drawn, n: int) -> Drawn:
        return Drawn(a.index // n, lambda v: a.meant(v) // n)

    def modulo(a: Drawn, n: int) -> Drawn:
        return Drawn(a.index % n, lambda v: a.meant(v) % n)

    def least(a: Drawn, n: int) -> Drawn:
        return Drawn(a.index.min(n), lambda v: min(a.meant(v), n))

    def clamped(a: Drawn, n: int, m: int) -> Drawn:
        return Drawn(a.index.clamp(n, n + m), lambda v: min(max(a.meant(v), n), n + m))

    def taken_apart(a: Drawn, n: int, m: int, k: int) -> Drawn:
        """As the coordinates of a flat index are, and put together again."""
        again = a.index // (n * m) * (k * n * m) + a.index // n % m * (k * n) + a.index % n * k
        return Drawn(
            again,
            lambda v: (
                (
                    a.meant(v) // (n * m) * (k * n * m)
                    + a.meant(v) // n % m * (k * n)
                    + a.meant(v) % n * k
                )
                % LIMIT
            ),
        )

    return st.one_of(
        st.builds(plus, children, children),
        st.builds(minus, children, children),
        *(st.builds(make, children, small) for make in (times, over, modulo, least)),
        st.builds(clamped, children, small, small),
        st.builds(taken_apart, children, small, small, small),
    )


def _named(key: str) -> Drawn:
    return Drawn(symbol(key, SIZES[key]), lambda v: v[key])


def _constant(value: int) -> Drawn:
    return Drawn(constant(value), lambda v: value)


EXPRESSIONS = st.recursive(
    st.one_of(st.sampled_from(sorted(SIZES)).map(_named), st.integers(0, 100).map(_constant)),
    _combined,
    max_leaves=8,
)
VALUES = st.fixed_dictionaries({key: st.integers(0, size - 1) for key, size in SIZES.items()})


@given(EXPRESSIONS, VALUES)
def test_simplified_expressions_mean_the_same(drawn: Drawn, values: dict[str, int]) -> None:
    meant = drawn.meant(values)
    assert wgsl(str(drawn.index), values) == meant
    if drawn.index.low >= 0 and drawn.index.high < LIMIT:
        assert drawn.index.low <= meant <= drawn.index.high


@given(EXPRESSIONS, VALUES)
def test_an_expression_in_parentheses_can_be_an_operand(
    drawn: Drawn, values: dict[str, int]
) -> None:
    meant = drawn.meant(values)
    assert wgsl(f"7u * {drawn.index.enclosed}", values) == 7 * meant % LIMIT


@given(EXPRESSIONS, st.integers(1, 1000), VALUES)
def test_what_is_known_besides_changes_nothing(
    drawn: Drawn, size: int, values: dict[str, int]
) -> None:
    """Where it is true."""
    if drawn.meant(values) < size and drawn.index.low >= 0 and drawn.index.high < LIMIT:
        known = drawn.index.below(size)
        assert wgsl(str(known * 3 // 2), values) == drawn.meant(values) * 3 // 2
        assert wgsl(str(known % 5), values) == drawn.meant(values) % 5


def _moved(draw: Callable[..., Any], array: Array) -> tuple[Array, Affine]:
    """The array with its elements elsewhere, and from where each of them comes."""
    shape, axes = array.shape, range(array.ndim)
    what = draw(st.sampled_from(["transpose", "reverse", "slice", "expand", "reshape"]))
    if what == "transpose":
        order = draw(st.permutations(axes))
        return array.transpose(order), transpose_map(shape, order)
    if what == "reverse":
        chosen = draw(st.lists(st.sampled_from(axes), unique=True))
        return np.flip(array, chosen), reverse_map(shape, chosen)
    if what == "slice":
        starts = [draw(st.integers(0, size - 1)) for size in shape]
        steps = [draw(st.integers(1, 3)) for _ in shape]
        parts = zip(starts, shape, steps, strict=True)
        taken = array[tuple(slice(*part) for part in parts)]
        return taken, slice_map(shape, starts, taken.shape, steps)
    if what == "expand":
        target = (draw(st.integers(1, 3)), *shape)
        return np.broadcast_to(array, target), broadcast_map(shape, target)
    factors = [f for size in shape for f in ((2, size // 2) if size % 2 == 0 else (size,))]
    return array.reshape(factors), Affine((array.size,), (1,))


@given(st.data())
def test_maps_one_after_another_lead_where_elements_lie(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    array = np.arange(math.prod(shape)).reshape(shape)
    views = []
    for _ in range(data.draw(st.integers(1, 4))):
        array, view = _moved(data.draw, array)
        views.append(view)
    place = symbol("i").below(array.size)
    for view in reversed(views):
        place = view.at(place)
    for i, element in enumerate(array.reshape(-1)[:50]):
        assert wgsl(str(place), {"i": i}) == element


i, j, k = symbol("i"), symbol("j", 7), symbol("k", 24)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (i * 1 + 0, "i"),
        (i // 1, "i"),
        (i % 1, "0u"),
        (i * 0, "0u"),
        (i - i, "0u"),
        (symbol("n", 1) * 5 + j, "j"),
        (i.below(8) % 8, "i"),
        (i.below(8) // 8, "0u"),
        (i % 8, "i % 8u"),
        ((k * 7 + j) // 7, "k"),
        ((k * 7 + j) % 7, "j"),
        ((k * 21 + j) // 7, "k * 3u"),
        ((k * 7 + j) // 14, "k / 2u"),
        ((i * 7 + j) // 7, "(i * 7u + j) / 7u"),  # which may wrap around
        (i // 3 // 4, "i / 12u"),
        (i % 12 % 4, "i % 4u"),
        (i % 12 // 4, "i / 4u % 3u"),
        ((k + j) * 4 + j * 4, "k * 4u + j * 8u"),
        (5 - j, "5u - j"),
        (k - j * 2 - 3, "k - j * 2u - 3u"),
        (k - j * 2 + 3, "k + 3u - j * 2u"),
        (k // 6 * 6 + k % 6, "k"),
        (i // 6 * 6 + i % 6, "i"),
        (i // 24 % 5 * 24 + i // 6 % 4 * 6 + j, "i / 6u % 20u * 6u + j"),
        ((k + 3) * 2 + (j + 3) * 2, "(k + j) * 2u + 12u"),
        ((k + j) // 4, "(k + j) / 4u"),
        (k * 3 // 2, "k * 3u / 2u"),
        (k.min(23), "k"),
        (k.min(9) // 10, "0u"),
        ((k + 1).min(9), "min(k + 1u, 9u)"),
        (k.clamp(2, 9) - 2, "clamp(k, 2u, 9u) - 2u"),
        (k.clamp(0, 9), "min(k, 9u)"),
    ],
)
def test_expressions_as_they_are_printed(index: Index, text: str) -> None:
    assert printed(str(index)) == text


def test_numbers_beyond_a_word_wrap_around() -> None:
    assert printed(str(i * LIMIT * 3 + (LIMIT + 2))) == "i * 0u + 2u"
    assert printed(str(i - (LIMIT + 2))) == f"i + {LIMIT - 2}u"


def test_a_name_and_a_number_need_no_parentheses() -> None:
    enclosed = [printed(index.enclosed) for index in (i, constant(3), i + 1)]
    assert enclosed == ["i", "3u", "(i + 1u)"]
    assert printed((i // 2).enclosed) == "(i / 2u)"
