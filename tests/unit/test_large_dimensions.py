"""Dimension expressions too large to calculate with: an error at once, wherever they come from."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.test_dimensions import MOST, n, named
from webnn_py import MLContext, MLGraphBuilder, ValidationError

MAX_DEPTH = 8
"""How deeply divisions may stand in each other."""
TOO_LARGE = r"the dimension is too large an expression"


def sizes(count: int, prefix: str = "s") -> list[Any]:
    return [named(f"{prefix}{i}", 1, MOST) for i in range(count)]


def squared(times: int, count: int = 8) -> Any:
    made = sum(sizes(count))
    for _ in range(times):
        made = made * made
    return made


def nested(depth: int) -> Any:
    made, others = n, sizes(depth)
    for other in others:
        made = (made + other) // 3 * 2 + 1
    return made


LARGE: list[Callable[[], Any]] = [
    lambda: squared(4),
    lambda: math.prod([n] * 11),
    lambda: n**30,
    lambda: math.prod(sizes(11)),
    lambda: sum(sizes(80)) * sum(sizes(80, "t")),
    lambda: sum(sizes(600)),
    lambda: nested(MAX_DEPTH + 1),
    lambda: (n**10) // (n + sum(sizes(20))),
    lambda: (n // sum(sizes(30))) * (n // sum(sizes(30, "t"))),
    lambda: (sum(sizes(400)) + n // 7) ** 2 % 5,
    lambda: n * 2**62 * 2,
    lambda: n * 10**5000,
    lambda: max(n, squared(4)),
    lambda: divmod(squared(3), n),
]


@pytest.mark.parametrize("make", LARGE)
def test_what_is_too_large_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValidationError, match=TOO_LARGE) as caught:
        make()
    text = str(caught.value)
    assert re.search(r"give dimensions=\{('\w+': …(, )?)+\} with sizes", text)
    assert len(text) < 500


SLOW: list[Callable[[], Any]] = [
    lambda: sum(sizes(500)) >= sum(sizes(10)) * 2,
    lambda: bool(sum(sizes(250)) - sum(sizes(250, "t"))),
    lambda: sum(sizes(300)) // (sizes(1)[0] + n),
    lambda: sum(sizes(250)) // sum(sizes(250, "t")),
    lambda: str(nested(MAX_DEPTH)),
    lambda: nested(MAX_DEPTH) >= nested(MAX_DEPTH - 1),
    lambda: n**9 >= n**8 + 1,
    lambda: (n + 1) ** 8 - n**8 >= n**7,
    lambda: (n // 7 + n // 11 + n // 13) ** 2 >= n,
    lambda: nested(MAX_DEPTH) % 7 // 5,
]


@pytest.mark.parametrize("make", SLOW)
def test_what_is_large_is_answered_or_refused(make: Callable[[], Any]) -> None:
    with contextlib.suppress(ValidationError):
        make()


def test_what_models_have_is_not_refused() -> None:
    made = math.prod([n, *sizes(7)])
    assert made.evaluate({"n": 2, **{f"s{i}": 2 for i in range(7)}}) == 2**8
    assert sum(sizes(300)).bounds == (300, 300 * MOST)
    assert nested(MAX_DEPTH).evaluate({"n": 100, **{f"s{i}": 1 for i in range(MAX_DEPTH)}}) > 0


def test_a_builder_refuses_it(cpu: MLContext) -> None:
    b = MLGraphBuilder(cpu)
    names = list("abcdefgh")
    x = b.input("x", "float32", names)
    d: Any = sum(x.shape)
    with pytest.raises(ValidationError, match=TOO_LARGE):
        d * d * d * d * d
    with pytest.raises(ValidationError, match=rf"concat.*{TOO_LARGE}"):
        b.concat([b.input(f"x{i}", "float32", [f"n{i}", "k"]) for i in range(520)], 0)


def test_sizes_out_of_range_are_refused(cpu: MLContext) -> None:
    b = MLGraphBuilder(cpu)
    x = b.input("x", "float32", ["n", "m"])
    graph = b.build_sync({"y": b.reshape(x, [x.shape[0] * x.shape[1]])})
    with pytest.raises(ValidationError, match="sizes: n: got 4611686018427387904"):
        graph.output_shapes({"n": 2**62, "m": 2**62})
