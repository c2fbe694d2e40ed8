"""MLDimension: expressions of open sizes, and what their bounds decide."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from webnn_py import MLDimension, MLError, MLGraphBuilder, MLOperandDescriptor, ValidationError, ml
from webnn_py.core import dimensions

MOST = 2**31 - 1
REFERENCE = ml.create_context_sync(engine="reference")


def named(name: str, low: int, high: int) -> Any:
    """An open dimension of these bounds."""
    builder = MLGraphBuilder(REFERENCE, dimensions={name: (low, high)})
    return builder.input("x", "float32", [name]).shape[0]


n: Any = named("n", 1, MOST)
m: Any = named("m", 2, 64)
NOT_KNOWN = f"is not known for n in 1..{MOST}"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (2 * n + 1, "2*n + 1"),
        (1 - n, "1 - n"),
        (-n, "-n"),
        (n * m - n, "m*n - n"),
        (n * n, "n*n"),
        ((n + 1) // 2, "(n + 1) // 2"),
        (3 * (n // 2) + 1, "3*(n // 2) + 1"),
        (n // 2 + 1, "n // 2 + 1"),
        (-(-n // 3), "(n + 2) // 3"),
        (n % 8, "n - 8*(n // 8)"),
        (2 * n // 3, "2*n // 3"),
        (7 // n, "7 // n"),
        (7 // (2 * n), "7 // (2*n)"),
        (m // (n + 1), "m // (n + 1)"),
        (n * np.int64(3), "3*n"),
        (np.int32(3) + n, "n + 3"),
        ((n + 2) * (n + 1), "n*n + 3*n + 2"),
    ],
)
def test_expressions_print_as_one_writes_them(made: MLDimension, text: str) -> None:
    assert (str(made), repr(made)) == (text, text)


@pytest.mark.parametrize(
    ("made", "number"),
    [
        (n - n, 0),
        ((n * 64) // n, 64),
        (n * 64 % n, 0),
        ((2 * n + 1) % 2, 1),
        (m // 65, 0),
        (m // 128 + 3, 3),
        (n // (n + 1), 0),
        ((n + 1) // 2 - (n + 1) // 2, 0),
        (divmod(n * 4 + 3, 4)[1], 3),
        (0 * n, 0),
        (n**0, 1),
    ],
)
def test_what_is_one_number_for_all_sizes_is_an_int(made: object, number: int) -> None:
    assert type(made) is int
    assert made == number


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (n + m, m + n),
        ((n + 1) * m, m * n + m),
        ((n * m * 64) // 64, m * n),
        ((n * m) // m, n),
        (64 * (n // 2) // 64, n // 2),
        (n // 2 // 3, n // 6),
        ((n + 4) // 2, n // 2 + 2),
        (6 * n // 4, 3 * n // 2),
        ((n * n - n) // n, n - 1),
        (n // 1, n),
        (n // -2, -n // 2),
        (n % 3, n - n // 3 * 3),
        ((n + m) ** 2, n * n + 2 * n * m + m * m),
        (n ** np.int64(3), n * n * n),
    ],
)
def test_equal_expressions_have_one_form(a: MLDimension, b: MLDimension) -> None:
    assert a == b
    assert hash(a) == hash(b)
    assert str(a) == str(b)


@pytest.mark.parametrize("exponent", [-1, 0.5, 1000, "2"])
def test_powers_that_are_no_dimension(exponent: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        n**exponent


def test_dimensions_are_found_in_lists_and_dictionaries() -> None:
    assert n in (1, m, n)
    assert n not in (1, m, 2 * n)
    assert {n: "n", n + 1: "more", 1: "one"}[1 + n] == "more"
    assert [n, 8] == [n, 8]
    assert n != 1
    assert n != "n"
    assert n != named("n", 1, 8)


@pytest.mark.parametrize(
    "true",
    [
        lambda: n >= 1,
        lambda: n > 0,
        lambda: n <= MOST,
        lambda: n + 1 > n,
        lambda: n * m >= n,
        lambda: n * m - n >= n,
        lambda: 2 * n > n,
        lambda: n // 2 * 2 <= n,
        lambda: n - n // 2 * 2 <= 1,
        lambda: (n + 1) // 2 >= 1,
        lambda: n * n >= n,
        lambda: m < 65,
        lambda: m // 2 >= 1,
        lambda: bool(n),
        lambda: max(n, n + 1) == n + 1,
        lambda: min(2, m) == 2,
        lambda: min(1, n, n * 2) == 1,
        lambda: np.int64(1) <= n,
    ],
)
def test_bounds_decide(true: Callable[[], bool]) -> None:
    assert true()


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: n - 1 >= 8,
         f"whether `n - 1 >= 8` {NOT_KNOWN}; give dimensions={{'n': (9, None)}}"),
        (lambda: n > 8, "give dimensions={'n': (9, None)}"),
        (lambda: operator.lt(8, n), "whether `n > 8`"),
        (lambda: n <= 8, "give dimensions={'n': (1, 8)}"),
        (lambda: m < 10,
         "whether `m < 10` is not known for m in 2..64; give dimensions={'m': (2, 9)}"),
        (lambda: m >= 10, "give dimensions={'m': (10, 64)}"),
        (lambda: n > m, f"for m in 2..64, n in 1..{MOST}; give dimensions={{'n': (65, None)}}"),
        (lambda: n * n <= 2**32, "give dimensions={'n': (1, 65536)}"),
        (lambda: (n - 7) // 3 + 1 >= 1, "give dimensions={'n': (7, None)}"),
        (lambda: 2 * (n // 2) >= n, "give dimensions= with narrower bounds of 'n'"),
        (lambda: 3 * ((n + 2) // 3) > n + 1, "give dimensions={'n': (1, 1)}"),
        (lambda: max(n, m), "whether `m > n`"),
        (lambda: bool(n - 1), f"whether `n - 1 > 0` {NOT_KNOWN}"),
        (lambda: bool(n - 2), "give dimensions={'n': (3, None)}"),
        (lambda: bool(2 - n), "give dimensions={'n': (3, None)}"),
        (lambda: 8 // (n - 1), "whether `n - 1 >= 1`"),
        (lambda: 8 % (n - 1), "give dimensions={'n': (2, None)}"),
    ],
)  # fmt: skip
def test_what_bounds_do_not_decide_is_an_error(ask: Callable[[], object], told: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        ask()


def test_bounds_are_searched_only_for_errors_that_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []
    monkeypatch.setattr(dimensions, "suggest_bounds", lambda of: searched.append(of) or "; a hint")
    builder = MLGraphBuilder(REFERENCE, dimensions={"n": (1, MOST)})
    x = builder.input("x", "float32", ["n"])
    builder.arg_top_k(x, 0, 9)  # whether n has 9 elements is checked when it is known
    with pytest.raises(ValidationError) as raised:
        builder.expand(x, [x.shape[0] // (x.shape[0] - 4)], label="wide")
    assert not searched
    told = str(raised.value)
    assert told.endswith("; a hint; by it something is divided")
    assert [str(one) for one in pickle.loads(pickle.dumps(raised.value)).args] == [told]


@pytest.mark.parametrize("use", [range, int, operator.index, [1, 2].__getitem__, np.zeros])
def test_an_open_dimension_is_no_number(use: Callable[[Any], object]) -> None:
    with pytest.raises(MLError, match=r"dimension n is open.*dimensions=\{'n': …\}"):
        use(n)


def test_true_division_is_an_error() -> None:
    with pytest.raises(ValidationError, match=r"n / 2: .* divide them with //"):
        n / 2
    with pytest.raises(ValidationError, match="divide them with //"):
        2 / n
    with pytest.raises(ZeroDivisionError):
        n // 0
    with pytest.raises(TypeError):
        n + 0.5


def test_the_same_name_with_other_bounds_does_not_mix() -> None:
    other: Any = named("n", 1, 8)
    for mix in (operator.add, operator.mul, operator.floordiv, operator.lt, operator.ge):
        with pytest.raises(ValidationError, match=r"different builders, .* own n: in 1\.\."):
            mix(n, other)
    a, b = (MLGraphBuilder(REFERENCE).input("x", "float32", [-1]).shape[0] for _ in range(2))
    with pytest.raises(ValidationError, match="different builders"):
        a + b


def test_dimensions_are_evaluated_and_tell_of_themselves() -> None:
    made = (n * m + 1) // 3
    assert made.names == ("m", "n")
    assert made.evaluate({"n": 5, "m": 3, "more": 1}) == 5
    assert made.bounds == (1, (64 * MOST + 1) // 3)
    with pytest.raises(
        ValidationError, match=r"dimension \(m\*n \+ 1\) // 3: the size of m is not"
    ):
        made.evaluate({"n": 5})


@pytest.mark.parametrize("made", [n, n * m // 3, (n + 1) // (m + 1) - 2])
def test_copies_are_equal(made: MLDimension) -> None:
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made
        assert hash(again) == hash(made)


def test_shapes_hold_sizes_names_and_dimensions() -> None:
    shape = MLOperandDescriptor("float32", ["n", -1, np.int64(3), m]).shape
    named_n, anonymous, number, kept = shape
    assert (named_n, number, kept) == (n, 3, m)
    assert str(anonymous) == "?"
    for wrong in (["a b"], [""], [-2], [None], [1.5, -1.5], "n", [["n"]], [True]):
        with pytest.raises(ValidationError, match="shape"):
            MLOperandDescriptor("float32", wrong)  # type: ignore[arg-type]


def test_a_builder_gives_names_its_bounds() -> None:
    builder = MLGraphBuilder(REFERENCE, dimensions={"n": (2, 8), "m": 5, "k": (3, None)})
    x = builder.input("x", "float32", ["n", "m", "k", -1, -1, 7])
    a, b, c, d, e, f = x.shape
    assert (b, f) == (5, 7)
    assert [size.bounds for size in (a, c)] == [(2, 8), (3, MOST)]  # type: ignore[union-attr]
    assert [str(size) for size in (a, c, d, e)] == ["n", "k", "?0", "?1"]
    assert builder.input("y", "float32", [n]).shape == (a,)
    small = builder.input("small", "float32", [1])
    with pytest.raises(ValidationError, match=r"dimension n in 1\.\..* has it in 2\.\.8"):
        builder.expand(small, [2 * n])
    with pytest.raises(ValidationError, match=r"has none of this name"):
        builder.expand(small, [named("z", 1, MOST)])
    other = MLGraphBuilder(REFERENCE).input("x", "float32", [-1])
    with pytest.raises(ValidationError, match=r"dimension \?0 .* another builder"):
        builder.expand(small, [other.shape[0]])


@pytest.mark.parametrize(
    "bounds",
    [{"n": 0}, {"n": (0, 4)}, {"n": (5, 4)}, {"n": (1, 2**31)}, {"n": (1,)}, {"n": "x"},
     {"n": None}, {"a-b": 3}, {3: 3}, [("n", 3)], {"n": (1, 2, 3)}, {"n": True}],
)  # fmt: skip
def test_bounds_that_are_none_are_refused(bounds: object) -> None:
    with pytest.raises(ValidationError, match="dimensions"):
        MLGraphBuilder(REFERENCE, dimensions=bounds)  # type: ignore[arg-type]


def test_sizes_are_checked() -> None:
    b = MLGraphBuilder(REFERENCE, dimensions={"batch": (1, 4)})
    graph = b.build_sync({"y": b.relu(b.input("x", "float32", ["batch", "length"]))})
    assert graph.output_shapes({"length": np.int64(9), "batch": 4}) == {"y": (4, 9)}
    for sizes, told in (
        ({"batch": 5, "length": 1}, r"sizes: batch: got 5, expected 1\.\.4"),
        ({"batch": 4}, "the size of length is not given"),
        ({"batch": 4, "length": 1, "lenght": 1}, "'lenght' .* did you mean length"),
        ({"batch": 4, "length": "1"}, "sizes: length"),
        (None, "sizes"),
    ):
        with pytest.raises(ValidationError, match=told):
            graph.output_shapes(sizes)  # type: ignore[arg-type]


def test_what_else_integers_do() -> None:
    assert abs(n) is n
    assert abs(-n) == n
    with pytest.raises(ValidationError, match="whether `n - 5 >= 0` is not known"):
        abs(n - 5)
    assert {math.floor(n), math.ceil(n), math.trunc(n), round(n), round(n, 2)} == {n}
    assert f"{n + 1:>6}|{n}" == " n + 1|n"


@pytest.mark.parametrize("sizes", [None, {"n": "7"}, {"n": None}])
def test_what_an_expression_has_no_value_for(sizes: Any) -> None:
    with pytest.raises(ValidationError, match=r"dimension n \+ 1: got .*expected a number"):
        (n + 1).evaluate(sizes)
