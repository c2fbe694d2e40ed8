"""Nodes that change nothing go; what changes one bit stays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.public import WHOLE_BYTES
from tests.unit.passes.listings import (
    Built,
    Record,
    assert_keeps,
    assert_prints,
    nodes,
    operators,
)
from webnn_py import MLGraphBuilder, MLOperand

STAGE = "simplify"


def test_a_chain_of_nothing() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.identity(b.exp(x))
        y = b.cast(b.reshape(y, [2, 3]), "float32")
        y = b.slice(b.expand(y, [2, 3]), [0, 0], [2, 3])
        y = b.pad(b.tile(y, [1, 1]), [0, 0], [0, 0])
        (y,) = b.split(b.concat([y], 1), 1)
        y = b.clamp(b.transpose(y, permutation=[0, 1]))
        return b.reverse(b.sin(y), axes=[])

    built = Built(body)
    assert len(nodes(built.before(STAGE))) == 14
    assert_prints(
        built.after(STAGE),
        """
        graph(%x: float32[2,3]) {
          %0: float32[2,3] = exp(%x)
          %1: float32[2,3] = sin(%0)
          return y=%1
        }
        """,
    )


def test_what_is_reshaped_there_and_back_is_not() -> None:
    """As between convolutions of one dimension, which are those of two, parted and joined again."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        one, other = (b.reshape(b.reverse(x, axes=axes), [2, 12]) for axes in ([1], [2]))
        joined = b.mul(b.relu(b.add(one, other)), b.constant(np.asarray(3, np.float32)))
        return b.reverse(b.reshape(b.mul(joined, b.sigmoid(joined)), [2, 3, 4]), axes=[0])

    assert_prints(
        Built(body, [2, 3, 4]).after(STAGE),
        """
        graph(%x: float32[2,3,4]) {
          %c0: float32[] constant = 3.0
          %0: float32[2,3,4] = reverse(%x, axes=[1])
          %1: float32[2,3,4] = reverse(%x, axes=[2])
          %2: float32[2,3,4] = add(%0, %1)
          %3: float32[2,3,4] = relu(%2)
          %4: float32[2,3,4] = mul(%3, %c0)
          %5: float32[2,3,4] = sigmoid(%4)
          %6: float32[2,3,4] = mul(%4, %5)
          %7: float32[2,3,4] = reverse(%6, axes=[0])
          return y=%7
        }
        """,
    )


def test_what_is_reshaped_for_good_is_computed_behind_it() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        flat = b.reshape(x, [6])
        back = b.reshape(b.add(flat, b.constant(np.ones(6, np.float32))), [2, 3])
        return b.concat([b.relu(flat), b.reshape(back, [6])], 0)

    left = operators(Built(body).after(STAGE))
    assert left == ["reshape", "add", "relu", "concat"]


def test_two_shapes_and_permutations_become_one() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        flat = b.reshape(b.reshape(b.exp(x), [6, 4]), [24])
        wide = b.expand(b.expand(b.reshape(flat, [1, 24]), [2, 1, 24]), [5, 2, 1, 24])
        cubes = b.reshape(wide, [10, 2, 3, 4])
        turned = b.transpose(b.transpose(cubes, permutation=[0, 2, 3, 1]), permutation=[0, 3, 2, 1])
        return b.exp(turned)

    built = Built(body, [2, 3, 4])
    assert_prints(
        built.after(STAGE),
        """
        graph(%x: float32[2,3,4]) {
          %0: float32[2,3,4] = exp(%x)
          %1: float32[1,24] = reshape(%0, new_shape=[1, 24])
          %2: float32[5,2,1,24] = expand(%1, new_shape=[5, 2, 1, 24])
          %3: float32[10,2,3,4] = reshape(%2, new_shape=[10, 2, 3, 4])
          %4: float32[10,2,4,3] = transpose(%3, permutation=[0, 1, 3, 2])
          %5: float32[10,2,4,3] = exp(%4)
          return y=%5
        }
        """,
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (lambda b, x: b.transpose(b.transpose(x, permutation=[2, 0, 1]), permutation=[1, 2, 0]), 0),
        (lambda b, x: b.reshape(b.reshape(x, [3, 4]), [1, 3, 4]), 0),
        (lambda b, x: b.reshape(b.transpose(b.reshape(x, [3, 1, 4])), [1, 4, 3]), 3),
        (lambda b, x: b.transpose(x, permutation=[0, 2, 1]), 1),
        (lambda b, x: b.transpose(b.reshape(x, [12, 1, 1]), permutation=[0, 2, 1]), 1),
        (lambda b, x: b.reverse(x, axes=[0]), 0),
        (lambda b, x: b.reverse(x, axes=[0, 1]), 1),
        (lambda b, x: b.slice(x, [0, 0, 0], [1, 3, 3]), 1),
        (lambda b, x: b.pad(x, [0, 0, 0], [0, 0, 1]), 1),
        (lambda b, x: b.concat([x, x], 0), 1),
        (lambda b, x: b.neg(b.neg(x)), 0),
        (lambda b, x: b.neg(b.neg(b.neg(x))), 1),
        (lambda b, x: b.relu(b.relu(b.relu(x))), 1),
        (lambda b, x: b.floor(b.ceil(b.ceil(x))), 2),
        (lambda b, x: b.abs(b.neg(b.abs(x))), 3),
    ],
)
def test_how_many_nodes_are_left(body: Record, left: int) -> None:
    built = Built(lambda b, x: b.exp(body(b, b.sin(x))), [1, 3, 4])
    assert len(nodes(built.after(STAGE))) == left + 2


def test_a_square_turned_is_another_one() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        cyclic = b.transpose(b.transpose(x, permutation=[1, 2, 0]), permutation=[1, 2, 0])
        return b.add(b.transpose(x, permutation=[0, 2, 1]), cyclic)

    lines = nodes(Built(body, [3, 3, 3]).after(STAGE))
    assert "permutation=[2, 0, 1]" in lines[0]
    assert "permutation=[0, 2, 1]" in lines[1]


def _with(op: str, number: float, *, first: bool = False) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        other = b.constant(number, x.data_type)
        made: MLOperand = getattr(b, op)(*([other, x] if first else [x, other]))
        return b.identity(b.max(made, x))

    return body


NEUTRAL = [
    ("add", -0.0, False),
    ("add", -0.0, True),
    ("sub", 0.0, False),
    ("mul", 1.0, False),
    ("mul", 1.0, True),
    ("div", 1.0, False),
]
CHANGING = [
    ("add", 0.0, False),
    ("add", 0.0, True),
    ("sub", -0.0, False),
    ("sub", 0.0, True),
    ("mul", -1.0, False),
    ("mul", 0.0, False),
    ("div", 1.0, True),
    ("pow", 1.0, False),
    ("add", 1e-38, False),
]


@pytest.mark.parametrize(("op", "number", "first"), NEUTRAL)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_neutral_numbers_of_floats(op: str, number: float, first: bool, data_type: str) -> None:
    built = Built(_with(op, number, first=first), [7], data_type)
    assert operators(built.after(STAGE)) == ["max"]
    built.assert_computes(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 6e-8, -1.5], data_type))


@pytest.mark.parametrize(("op", "number", "first"), CHANGING)
def test_numbers_that_change_some_float(op: str, number: float, first: bool) -> None:
    built = Built(_with(op, number, first=first), [7])
    assert operators(built.after(STAGE)) == [op, "max"]


@pytest.mark.parametrize(("op", "number", "first"), [*NEUTRAL, ("add", 0.0, False)])
def test_integers_have_one_zero(op: str, number: float, first: bool) -> None:
    built = Built(_with(op, int(number), first=first), [7], "int32")
    assert operators(built.after(STAGE)) == ["max"]


def test_a_constant_that_broadcasts_the_other_operand_stays() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.mul(b.mul(x, b.constant(np.ones([2, 3], np.float32))), b.constant(NEARLY))

    assert_keeps(STAGE, body, [1, 3])


@pytest.mark.parametrize(
    ("zero", "scale", "left"),
    [(0, 0.5, 1), (1, 0.5, 2), (0, -0.5, 2), (0, 0.0, 2), (0, np.nan, 2)],
)
def test_a_relu_goes_that_saturation_replaces(zero: int, scale: float, left: int) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        number, code = (b.constant(n, kind) for n, kind in ((scale, "float32"), (zero, "uint8")))
        return b.quantize_linear(b.relu(x), b.reshape(number, [1]), b.reshape(code, [1]))

    built = Built(body, [8])
    assert len(nodes(built.after(STAGE))) == left
    built.assert_computes(np.float32([np.nan, np.inf, -np.inf, -0.0, -1e-9, -0.75, 0.25, 200]))


def test_a_relu_with_another_reader_stays() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        y = b.relu(x)
        scale, zero = b.constant(np.float32([0.5])), b.constant(np.uint8([0]))
        return {"codes": b.quantize_linear(y, scale, zero), "y": b.exp(y)}

    assert operators(Built(body, [7]).after(STAGE)) == ["relu", "quantize_linear", "exp"]


NEARLY = np.array([[1, 1, 1], [1, 1, 2]], np.float32)


@pytest.mark.parametrize("first", WHOLE_BYTES)
@pytest.mark.parametrize("between", WHOLE_BYTES)
def test_casts_become_one_only_where_no_number_tells(first: Any, between: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.cast(b.max(x, x), between)
        return {last: b.cast(y, last) for last in WHOLE_BYTES if last != first} | {first: y}

    numbers = _telling(first)
    Built(body, numbers.shape, first).assert_computes(numbers)


def _telling(data_type: str) -> np.ndarray:
    """Numbers around which conversions differ."""
    kind = np.dtype(data_type)
    info: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    edges = {0, 1, 2, 3, 7, 100}
    for bits in (7, 8, 10, 11, 12, 23, 24, 25, 31, 32, 53, 63, 64):
        edges |= {2**bits - 1, 2**bits, 2**bits + 1, 2**bits + 2 ** (bits // 2)}
    edges |= {-edge for edge in edges}
    inside = sorted(edge for edge in edges if int(info.min) <= edge <= int(info.max))
    fractions = [0.5, -0.5, 1.5, 2.9, -2.9, 1e-7, 1e-3] if kind.kind == "f" else []
    return np.array([*inside, *fractions], kind)


@pytest.mark.parametrize(
    ("data_type", "chain", "left"),
    [
        ("float16", ["float32", "float16"], []),
        ("float32", ["float16", "float32"], ["float16", "float32"]),
        ("float32", ["float32", "int32", "int32"], ["int32"]),
        ("int8", ["int32", "float32"], ["float32"]),
        ("int8", ["int32", "int64", "int8"], []),
        ("int32", ["int8", "int32"], ["int8", "int32"]),
        ("int64", ["int32", "uint8"], ["uint8"]),
        ("uint8", ["float32", "int8"], ["float32", "int8"]),
        ("uint8", ["float16", "int32"], ["int32"]),
        ("int32", ["float32", "int32"], ["float32", "int32"]),
        ("float32", ["int32", "uint8"], ["int32", "uint8"]),
    ],
)
def test_chains_of_casts(data_type: str, chain: list[str], left: list[str]) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.max(x, x)
        for to in chain:
            y = b.cast(y, to)  # type: ignore[arg-type]
        return b.min(y, y)

    casts = re.findall(r"cast\(%\d, data_type=(\w+)\)", Built(body, [4], data_type).after(STAGE))
    assert casts == left


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        (
            {"min_value": 0, "max_value": 6},
            {"min_value": 1, "max_value": 9},
            "min_value=1.0, max_value=6.0",
        ),
        ({"min_value": 0}, {"max_value": 6}, "min_value=0.0, max_value=6.0"),
        ({"max_value": 6}, {"min_value": -1}, "min_value=-1.0, max_value=6.0"),
        ({"min_value": 2}, {"min_value": 1}, "min_value=2.0"),
        ({"max_value": 2}, {"max_value": 1}, "max_value=1.0"),
        ({}, {"max_value": 1}, "max_value=1.0"),
        ({"max_value": 1}, {}, "max_value=1.0"),
        ({"min_value": 0.0}, {"min_value": -0.0}, None),
        ({"min_value": -1, "max_value": 0.0}, {"min_value": 0.0}, None),
        ({"min_value": 4}, {"max_value": 3}, None),
        ({"max_value": 3}, {"min_value": 4}, None),
    ],
)
def test_clamps(inner: dict[str, float], outer: dict[str, float], expected: str | None) -> None:
    built = Built(lambda b, x: b.sin(b.clamp(b.clamp(x, **inner), **outer)), [15])
    clamps = re.findall(r"clamp\(%\w+, (.*)\)", built.after(STAGE))
    assert len(clamps) == (2 if expected is None else 1)
    assert expected in (None, clamps[0])
    built.assert_computes(np.array([-np.inf, *np.arange(-2, 11), np.nan], np.float32))


def test_an_output_stays_a_node_s() -> None:
    assert_keeps(STAGE, lambda b, x: b.identity(x))
    assert_keeps(STAGE, lambda b, x: b.neg(b.neg(x)))
    doubled = Built(lambda b, x: b.identity(b.exp(x)))
    assert nodes(doubled.after(STAGE)) == ["%0: float32[2,3] = exp(%x)"]


def test_two_outputs_may_become_one_value() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        made = b.exp(x)
        return {"e": made, "y": b.identity(made)}

    assert Built(body).after(STAGE).endswith("  return e=%0, y=%0\n}")


def test_the_inner_one_stays_for_who_else_reads_it() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        turned = b.transpose(x)
        return b.matmul(b.sin(b.transpose(turned)), turned)

    assert nodes(Built(body).after(STAGE)) == [
        "%0: float32[3,2] = transpose(%x, permutation=[1, 0])",
        "%1: float32[2,3] = sin(%x)",
        "%2: float32[2,2] = matmul(%1, %0)",
    ]
