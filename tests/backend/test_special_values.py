"""NaN, infinities, zeros, the least and the greatest numbers give what the reference gives.

What is left open (D43): subnormal floats may count as zero, and zeros may have either sign.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.backend.compared import (
    ELEMENTWISE,
    ROUNDINGS,
    applied,
    assert_like_reference,
    compute,
    declared,
)
from tests.graphs import awaited, build
from tests.property.drawing import Array, Call, Tensor
from tests.property.strategies import calls
from tests.public import OPERANDS, OPERATORS, limits_of
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand, MLOperandDataType

pytestmark = pytest.mark.kernels

NAN, INF = np.nan, np.inf
FLOATS = [NAN, INF, -INF, 0.0, -0.0, 1, -1, 0.5, -2.5, 7, -8, 127.5, 300, -129, 65504, -65504]
MORE_FLOATS = {
    "float32": [
        *(1e-45, -1e-40, 2**-126, -(2**-126), 3.4028235e38, -3.4028235e38, 16777217, 1e30),
        *(2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 88.5, 89, -88, -104, 1e-3),
    ],
    "float16": [2**-24, -(2**-24), 2**-14, 2047, 11, 11.5, -9.5, -17, 1e-3],
}
SCALARS = (0.0, INF, NAN)
NUMBERS = {"alpha": (0.0, -2.0, 1e39), "beta": (0.5, 1e39)}
"""Of options; those that no float32 holds are infinite."""


def values(data_type: str) -> Array:
    """Special values of a data type."""
    if "float" in data_type:
        return np.array([*FLOATS, *MORE_FLOATS[data_type]], data_type)
    low, high = map(int, limits_of(data_type))
    some = {low, low + 1, -8, -3, -2, -1, 0, 1, 2, 3, 7, 31, 32, 33, 63, 64, high // 2, high - 1}
    return np.array(sorted(v for v in {*some, high} if low <= v <= high), data_type)


def options(op: Any) -> Iterator[dict[str, Any]]:
    """Defaults, and special values of each option by its name or annotation."""
    if op.name == "clamp":
        for low, high in ((None, None), (1, None), (None, 2), (0, 6)):
            yield {"min_value": low, "max_value": high}
        return
    hints = typing.get_type_hints(op.infer, include_extras=True)
    names = [
        n for n in op.signature.parameters if n not in op.limits and n not in ("self", "label")
    ]
    if not any(op.signature.parameters[n].default is inspect.Parameter.empty for n in names):
        yield {}
    for name in names:
        choices: tuple[Any, ...] = NUMBERS.get(name, ())
        if hints[name] == MLOperandDataType:
            choices = op.operand_types("output")
        assert choices, f"say which values option {name!r} of {op.name} is to be tried with"
        yield from ({name: choice} for choice in choices)


def operands(op: Any, data_type: str) -> dict[str, Array]:
    """Special values for each operand, each of one with each of the other."""
    special = values(data_type)
    if op.name == "where":
        flags = np.arange(special.size, dtype=np.uint8) % 3
        return {"condition": flags, "true_value": special, "false_value": special[::-1].copy()}
    names = list(op.limits)
    return {name: special.reshape([-1, *[1] * i]) for i, name in enumerate(names)}


class Table:
    """Applications of one operator, as the outputs of one graph."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.inputs: dict[str, Array] = {}
        self._outputs: list[tuple[list[str | Array], dict[str, Any]]] = []

    def add(self, given: list[str | Array], **options: Any) -> None:
        """One more application: to inputs by their names, and to constants."""
        self._outputs.append((given, options))

    def __call__(self, builder: MLGraphBuilder) -> dict[str, MLOperand]:
        made = {
            name: builder.input(name, str(array.dtype), array.shape)
            for name, array in self.inputs.items()
        }
        outputs: dict[str, MLOperand] = {}
        for parts, options in self._outputs:
            members = [made[x] if isinstance(x, str) else builder.constant(x) for x in parts]
            key = f"{len(outputs)}: {parts}, {options}"
            outputs[key] = getattr(builder, self.op.name)(*members, **options)
        return outputs


def table(op: Any) -> Table:
    """Every data type and option; operands given twice, and as numbers that are known."""
    made = Table(op)
    first = "true_value" if op.name == "where" else next(iter(op.limits))
    for data_type in op.operand_types(first):
        arrays = {f"{n} {data_type}": a for n, a in operands(op, data_type).items()}
        made.inputs |= arrays
        names: list[str | Array] = list(arrays)
        for chosen in options(op):
            made.add(names, **chosen)
        if len(names) == 2 and data_type == "float32":
            made.add([names[0], names[0]])
            for number, side in itertools.product(SCALARS, (0, 1)):
                known: list[str | Array] = [names[0], names[0]]
                known[side] = np.array(number, data_type)
                made.add(known)
    return made


def flushed(array: Array) -> Array:
    """Subnormal floats as zeros."""
    if array.dtype.kind != "f":
        return array
    return np.where(
        np.abs(array) < np.finfo(array.dtype).tiny, np.copysign(0, array), array
    ).astype(array.dtype)


def agrees(got: Array, wanted: Array) -> Array:
    """Where two results are one, but for rounding, subnormals and the sign of zero."""
    if got.dtype.kind != "f":
        return np.asarray(got == wanted)
    info = np.finfo(got.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        bound = ROUNDINGS[got.dtype.name] * float(info.eps) * np.abs(wanted.astype(np.float64))
        near = np.abs(got.astype(np.float64) - wanted) <= bound + 1.01 * float(info.tiny)
    return np.asarray(near | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_operator(each_device: MLContext, reference: MLContext, name: str) -> None:
    what = table(declared(name))
    graph = build(reference, what)
    wanted = MLExecution(reference).compute(graph, what.inputs)
    small = {name: flushed(array) for name, array in what.inputs.items()}
    without = MLExecution(reference).compute(graph, small)
    found = awaited(build(each_device, what), what.inputs)
    wrong: dict[str, Any] = {}
    for key, got in found.items():
        same = agrees(got, wanted[key]) | agrees(got, without[key])
        if not same.all():
            wrong[key] = [
                (tuple(at), got[tuple(at)], wanted[key][tuple(at)]) for at in np.argwhere(~same)[:5]
            ]
    assert not wrong


def sprinkled(call: Call, seed: int) -> Call:
    """The call with special floats in some places.

    Not in the filters of convolutions, as padding times infinity is left open, nor where positive
    numbers are asked for.
    """
    rng = np.random.default_rng(seed)
    kept = ("filter", "scale") if call.op.family in ("convolution", "quantization") else ()

    def changed(tensor: Tensor) -> Tensor:
        array = tensor.array.copy()
        places = rng.random(array.shape) < 0.15
        array[places] = rng.choice([NAN, INF, -INF, 0.0], int(places.sum()))
        # No constant: a driver drops what is multiplied by a matrix of one zero.
        return Tensor(tensor.data_type, array, False)

    def each(name: str, given: Any) -> Any:
        if isinstance(given, list):
            return [each(name, member) for member in given]
        return changed(given) if given.array.dtype.kind == "f" and name not in kept else given

    members: Mapping[str, Any] = {n: each(n, given) for n, given in call.operands.items()}
    return dataclasses.replace(call, operands=members)


OTHERS = sorted(
    name
    for name in OPERATORS
    if name not in ELEMENTWISE
    and "float32" in next(iter(OPERANDS[name].values()))
    and name != "arg_top_k"  # which puts NaN anywhere
)


@pytest.mark.parametrize("name", OTHERS)
@settings(
    max_examples=3,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_other_operator(
    gpu: MLContext, reference: MLContext, name: str, data: st.DataObject, seed: int
) -> None:
    call = sprinkled(data.draw(calls(name)), seed)
    integers = 1 if name in ("resample2d", "quantize_linear") else 0
    assert_like_reference(gpu, reference, call, integers)


AXES: dict[str, Any] = {"axis": 3, "axes": [2, 3], "window_dimensions": [2, 2]}
LINES = sorted(
    name
    for name, op in zip(OPERATORS, map(declared, OPERATORS), strict=True)
    if op.family in ("reduction", "scan", "pooling", "normalization")
    and name != "arg_top_k"  # which puts NaN anywhere
    and all(op.signature.parameters[n].default is None for n in list(op.limits)[1:])
)
"""Operators of one operand, over its last axes."""


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", LINES)
def test_lines_of_numbers_and_others(
    gpu: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    x = np.arange(8 * 16).reshape(8, 16) % 7 - 3.0
    for line, special in zip(x, ([NAN], [INF], [-INF], [INF, -INF], [NAN, NAN, INF]), strict=False):
        line[5 : 5 + len(special)] = special
    x[6:] = [[-INF], [INF]]
    op = declared(name)
    options = {n: v for n, v in AXES.items() if n in op.signature.parameters}
    call = applied(name, {"input": x.reshape(1, -1, 4, 4).astype(data_type)}, **options)
    assert_like_reference(gpu, reference, call)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("options", [{"axes": [1]}, {"axes": []}, {"axes": [0, 1]}], ids=str)
def test_log_sum_exp(
    each_device: MLContext, reference: MLContext, data_type: str, options: dict[str, Any]
) -> None:
    rows = [[100, 100], [-200, -200], [-INF, -INF], [INF, 1], [INF, -INF], [NAN, 1], [-INF, 3]]
    more = [[INF, NAN], [6e4, 6e4], [-6e4, 0], [11, -11]]
    for part in ([*rows, *more], rows[:2], rows[:3]):
        operand = {"input": np.array(part, data_type)}
        call = applied("reduce_log_sum_exp", operand, **options)
        assert_like_reference(each_device, reference, call)


def test_log_sum_exp_of_large_and_small_numbers(each_device: MLContext) -> None:
    x = np.array([[100, 100], [-200, -200]], np.float32)
    (result,) = compute(each_device, applied("reduce_log_sum_exp", {"input": x}, axes=[1]))
    np.testing.assert_allclose(result, [100 + np.log(2), -200 + np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("name", ["gemm", "linear", "elu", "leaky_relu", "hard_sigmoid"])
def test_options_are_cast_to_the_data_type(reference: MLContext, name: str) -> None:
    """What the data type cannot hold is infinite, and infinity times zero is no number."""
    zeros = np.zeros((1, 1), np.float32)
    given = {"a": zeros, "b": zeros} if name == "gemm" else {"input": zeros}
    (result,) = compute(reference, applied(name, given, alpha=1e39))
    assert np.isnan(result[0, 0]) or name == "leaky_relu"  # zero is not below zero
    builder = MLGraphBuilder(reference)
    members = [builder.input(n, "float16", [1, 1]) for n in given]
    graph = builder.build_sync({"y": getattr(builder, name)(*members, alpha=0.1)})
    assert "0.0999755859375" in str(graph)
