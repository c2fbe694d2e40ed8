"""Declared expressions: how they are read, typed, and written for each data type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.compiler.declared import DEVICES, written
from webnn_py.engines.webgpu.compiler.code import wgsl
from webnn_py.engines.webgpu.compiler.code.expressions import Scope, adapted, express, template
from webnn_py.engines.webgpu.compiler.code.wgsl import (
    COMPARISONS,
    Binary,
    Call,
    Expression,
    Number,
    Operand,
    Unary,
)
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ops.declare import REGISTRY

FLOAT = storage_of("float32", Features())
LEAST = DEVICES["with none"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", REGISTRY)
def test_declarations_can_be_written_for_every_data_type(name: str, device: str) -> None:
    op = REGISTRY[name]
    made = written(name, DEVICES[device])
    assert bool(made) == (op.wgsl is not None or op.reduce is not None)
    for text in made:
        wgsl.parse(text)


@pytest.mark.parametrize(
    ("text", "data_type", "message"),
    [
        ("{a} +", "float32", "cannot be read from its end on"),
        ("{a} ? {b}", "float32", r"cannot be read from '\? \{b\}' on"),
        ("max({a}, {b}", "float32", "cannot be read"),
        ("{a} {b}", "float32", r"cannot be read from '\{b\}' on"),
        ("{a}.x", "float32", r"'\{a\}\.x' may not stand in a declaration"),
        ("sinh({a})", "float32", "no function 'sinh' of 1 arguments"),
        ("max({a})", "float32", "no function 'max' of 1 arguments"),
        ("wn_scaled({a})", "float32", r"wn_scaled takes \(f32, f32\), got \(float32\)"),
        ("wn_exp({a} < {b})", "float32", r"wn_exp takes \(f32\), got \(bool\)"),
        ("wn_pair_neg({a})", "int64", "no function 'wn_pair_neg' of 1 arguments"),
        ("wn_exp({a})", "int32", "wn_exp is for floats, not for int32"),
        ("sqrt({a})", "int32", "sqrt is for floats, not for int32"),
        ("wn_flag({a})", "uint32", r"wn_flag takes \(bool\), got \(uint32\)"),
        ("-({a})", "uint8", "neg is not for uint8"),
        ("{a} + 1.0", "int32", r"'\+' joins int32 and float32"),
        ("select({a}, {b}, {a})", "float32", "'select' takes a comparison, got float32"),
        ("{a} && {b}", "float32", "'&&' takes a comparison, got float32"),
        ("({a} < {b}) < ({b} < {a})", "float32", "< is not for bool"),
        ("abs({a} < {b})", "float32", "abs is not for bool"),
        ("1 + 2", "float32", r"the numbers at '\+' have no type"),
        ("{a} % {b}", "int64", "% is not there for pairs of words"),
    ],
)
def test_what_cannot_be_written_is_told(text: str, data_type: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as told:
        adapted(text, storage_of(data_type, LEAST))
    assert repr(text) in str(told.value)


@pytest.mark.parametrize(
    ("text", "data_type", "made"),
    [
        ("{a} + {b}", "float32", "{a} + {b}"),
        ("({b}+{a})", "int64", "wn_pair_add({b}, {a})"),
        ("{a} - {b} * {b}", "uint64", "wn_pair_sub({a}, wn_pair_mul({b}, {b}))"),
        ("( {a} )/{b}", "uint64", "wn_pair_div_u({a}, {b})"),
        ("{a} + 1", "int64", "wn_pair_add({a}, vec2<u32>(1u, 0u))"),
        ("max({a}, {T}(0))", "int64", "wn_pair_max_i({a}, vec2<u32>(0u, 0u))"),
        ("wn_flag({a} <= {b})", "int64", "wn_flag(!wn_pair_less_i({b}, {a}))"),
        ("select({a}, {b}, {a} > {b})", "int64", "select({a}, {b}, wn_pair_less_i({b}, {a}))"),
        ("clamp({a}, 0, 6)", "float32", "wn_held({a}, 0.0f, 6.0f)"),
        ("abs({a})", "uint64", "{a}"),
        ("wn_pow({b}, {a})", "int32", "wn_pow_i32({b}, {a})"),
        ("wn_pow({b}, {a})", "uint64", "wn_pair_pow_u({b}, {a})"),
        ("wn_above({a}, {b})", "int32", "{a} > {b}"),
        ("wn_above({a}, {b})", "float32", "wn_above({a}, {b})"),
        ("max( {b},{a} )", "float32", "wn_max({b}, {a})"),
        ("({a}) == {b}", "float32", "wn_equal({a}, {b})"),
        ("{a} / {b}", "float32", "wn_div({a}, {b})"),
        ("{a} / 6.0", "float32", "{a} / 6.0"),
        ("wn_scaled({a}, 2)", "float32", "wn_scaled({a}, 2.0f)"),
        ("wn_scaled({a}, 2)", "int32", "{a} * i32(2)"),
        ("1.0 / {a}", "float32", "1.0 / {a}"),
        ("3.0 / {a}", "float32", "wn_div(3.0, {a})"),
        ("{a} - {a}", "float32", "{a} - wn_settled({a})"),
        ("{a} * ({b} + {a})", "uint8", "({a} * (({b} + {a}) & 0xffu)) & 0xffu"),
        ("max({a}, {b})", "int8", "max({a}, {b})"),
        ("-{a}", "int8", "extractBits(wn_neg_i32({a}), 0u, 8u)"),
        ("-({a} + {b})", "int32", "wn_neg_i32({a} + {b})"),
        ("abs({a})", "int32", "wn_abs_i32({a})"),
        ("abs({a})", "uint32", "{a}"),
        ("-{a}", "float32", "-({a})"),
        ("wn_flag({a} < {b} || {b} < 3)", "uint8", "wn_flag({a} < {b} || {b} < 3u)"),
    ],
)
def test_expressions_by_type(text: str, data_type: str, made: str) -> None:
    assert adapted(text, storage_of(data_type, LEAST)) == made


@pytest.mark.parametrize(
    ("text", "known", "made"),
    [
        ("{a} * {b}", {"a": 0.0}, "wn_scaled({b}, {a})"),
        ("({b} * {a})", {"a": 0.0}, "wn_scaled({b}, {a})"),
        ("{a} / {b}", {"a": 0.0}, "wn_scaled(1.0 / {b}, {a})"),
        ("{a} / {b}", {"b": 0.0}, "{a} * bitcast<f32>(bitcast<u32>({b}) | 0x7f800000u)"),
        ("{a} / {b}", {"b": math.inf}, "wn_scaled({a}, 0.0)"),
        ("{a} / {n}", {"n": 5}, "{a} / {n}"),
        ("{a} / {n}", {"n": 1e38}, "wn_div({a}, {n})"),
    ],
)
def test_numbers_known_at_build(text: str, known: Mapping[str, float], made: str) -> None:
    assert template(text, Scope(FLOAT, known=tuple(known.items()))) == made


@pytest.mark.parametrize(
    ("text", "data_type", "known", "made"),
    [
        ("{a} - {b}", "int32", {"a": 0}, "wn_neg_i32({b})"),
        ("{a} - {b}", "int32", {"b": 0}, "{a} - {b}"),
        ("{a} - {b}", "uint32", {"a": 0}, "wn_neg_u32({b})"),
        ("{a} - {b}", "uint8", {"a": 0}, "wn_neg_u32({b}) & 0xffu"),
        ("{a} - {b}", "int64", {"a": 0}, "wn_neg_i64({b})"),
        ("{a} * {b}", "int32", {"a": -1}, "wn_neg_i32({b})"),
        ("{a} * {b}", "uint32", {"b": 2**32 - 1}, "wn_neg_u32({a})"),
        ("{a} * {b}", "uint64", {"b": 2**64 - 1}, "wn_neg_u64({a})"),
        ("{a} / {b}", "int32", {"b": -1}, "wn_neg_i32({a})"),
        ("{a} / {b}", "int32", {"a": -1}, "{a} / {b}"),
        ("wn_scaled({a}, {b})", "int32", {"b": -1}, "wn_neg_i32({a})"),
    ],
)
def test_known_numbers_that_negate_integers(
    text: str, data_type: str, known: Mapping[str, float], made: str
) -> None:
    scope = Scope(storage_of(data_type, Features()), known=tuple(known.items()))
    assert template(text, scope) == made


def test_a_result_is_of_the_type_that_is_wanted() -> None:
    flag = storage_of("uint8", LEAST)
    assert template("wn_flag({a} > 1)", Scope(FLOAT, flag)) == "wn_flag({a} > 1.0f)"
    assert template("1", Scope(FLOAT, flag)) == "1u"
    with pytest.raises(ValueError, match="is of bool, and its result of uint8"):
        template("{a} > 1", Scope(FLOAT, flag))


def test_one_operand_given_twice() -> None:
    twice = Scope(FLOAT, same=(("b", "a"),))
    assert template("({a}) - {b}", twice) == "{a} - wn_settled({a})"
    assert template("{b} / {a}", twice) == "wn_div({a}, wn_settled({a}))"


@pytest.mark.parametrize(
    ("absent", "made"),
    [
        ((), "wn_min(wn_max({x}, {low}), {high})"),
        (("low",), "wn_min({x}, {high})"),
        (("high",), "wn_max({x}, {low})"),
        (("low", "high"), "{x}"),
    ],
)
def test_bounds_not_given(absent: tuple[str, ...], made: str) -> None:
    text = "min(max({x}, {low}), {high})"
    assert template(text, Scope(FLOAT, absent=absent)) == made


def test_names_are_filled_in() -> None:
    assert express("{a} + {b}", FLOAT, a="x[3]", b="-2.0f") == "x[3] + -2.0f"


# Trees of all forms

NAMES = {"a": -7, "b": 3, "c": 2**62 + 5}
leaves = st.sampled_from([Operand(name) for name in NAMES]) | st.integers(0, 99).map(
    lambda number: Number(str(number))
)


def joined(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return (
        st.builds(Binary, st.sampled_from("+-*"), inner, inner)
        | st.builds(Unary, st.just("-"), inner)
        | st.builds(Call, st.sampled_from(["max", "min"]), st.tuples(inner, inner))
        | st.builds(Call, st.just("abs"), st.tuples(inner))
    )


numbers: st.SearchStrategy[Expression] = st.recursive(leaves, joined, max_leaves=12)
comparisons = st.builds(Binary, st.sampled_from(sorted(COMPARISONS)), numbers, numbers)
logical: st.SearchStrategy[Expression] = st.recursive(
    comparisons,
    lambda inner: (
        st.builds(Binary, st.sampled_from(["&&", "||", "!="]), inner, inner)
        | st.builds(Unary, st.just("!"), inner)
    ),
    max_leaves=4,
)


@given(numbers | logical)
def test_what_is_written_is_read_as_the_same(expression: Expression) -> None:
    assert wgsl.parse(wgsl.written(expression)) == expression


def signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


MEANING: dict[str, Any] = {
    "+": lambda a, b: signed(a + b),
    "-": lambda a, b: signed(a - b),
    "*": lambda a, b: signed(a * b),
    "neg": lambda a: signed(-a),
    "abs": lambda a: signed(abs(a)),
    "max": max,
    "min": min,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&&": lambda a, b: a and b,
    "||": lambda a, b: a or b,
}
PAIRS: dict[str, Any] = {
    "wn_pair_add": MEANING["+"],
    "wn_pair_sub": MEANING["-"],
    "wn_pair_mul": MEANING["*"],
    "wn_pair_neg": MEANING["neg"],
    "wn_pair_abs": MEANING["abs"],
    "wn_pair_max_i": max,
    "wn_pair_min_i": min,
    "wn_pair_less_i": MEANING["<"],
    "all": bool,
    "any": bool,
    "vec2<u32>": lambda low, high: signed(low + 2**32 * high),
}


def meant(expression: Expression, functions: Mapping[str, Any]) -> Any:
    """The value of an expression in 64 bits, by what its functions mean."""
    match expression:
        case Operand(name):
            return NAMES[name]
        case Number(text):
            return int(text.removesuffix("u"))
        case Unary("!", value):
            return not meant(value, functions)
        case Unary(_, value):
            return functions["neg"](meant(value, functions))
        case Binary(operator, left, right):
            return MEANING[operator](meant(left, functions), meant(right, functions))
        case Call(function, arguments):
            return functions[function](*(meant(part, functions) for part in arguments))
    raise AssertionError(expression)


@given(numbers | comparisons)
def test_pairs_mean_the_same_however_it_is_spelled(expression: Expression) -> None:
    try:
        pairs = wgsl.parse(adapted(wgsl.written(expression), storage_of("int64", LEAST)))
    except ValueError as error:
        if "have no type" not in str(error):
            raise
        hypothesis.reject()
    operators = {part.operator for part in parts(pairs) if isinstance(part, Binary)}
    assert operators <= {"==", "!="}
    assert meant(pairs, PAIRS) == meant(expression, MEANING)


def parts(expression: Expression) -> Iterator[Expression]:
    yield expression
    match expression:
        case Unary(_, value):
            yield from parts(value)
        case Binary(_, left, right):
            yield from (*parts(left), *parts(right))
        case Call(_, arguments):
            for argument in arguments:
                yield from parts(argument)
