"""Reductions of integers that WebNN has for floats alone, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.accuracy import ENGINES, computed
from tests.conftest import context_of
from tests.onnx.models import model
from tests.onnx.own_operators import by_onnx_runtime
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

SIGNED = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
LARGE = {np.int32: (1 << 31) - 1, np.int64: (1 << 63) - 1}
AXES: list[tuple[list[int] | None, dict[str, int]]] = [
    (None, {"keepdims": 0}),
    ([1], {"keepdims": 0}),
    ([-1, 0], {"keepdims": 1}),
    ([], {"noop_with_empty_axes": 1}),
    ([], {}),
]


def made(operator: str, x: Any, axes: list[int] | None, attributes: dict[str, int]) -> Any:
    names = ["x"] if axes is None else ["x", "axes"]
    node = helper.make_node(operator, names, ["y"], **attributes)
    weights = {} if axes is None else {"axes": np.asarray(axes, np.int64)}
    elem = int(helper.np_dtype_to_tensor_dtype(x.dtype))
    whole = model([node], {"x": x.shape}, ["y"], weights, opset=18, elem=elem)
    whole.ir_version = 8
    return whole


def compare(context: MLContext, operator: str, x: Any, axes: Any, attributes: Any) -> None:
    whole = made(operator, x, axes, attributes)
    expected = by_onnx_runtime(whole, {"x": x})["y"]
    got = MLExecution(context).compute(load(whole, context), {"x": x})["y"]
    is_far = (operator == "ReduceL2") & (np.abs(expected.astype(float)) > 3e9)

    np.testing.assert_allclose(got[is_far], expected[is_far], rtol=2e-7)  # squares exceed int64
    np.testing.assert_array_equal(got[~is_far], expected[~is_far])
    assert (got.dtype, got.shape) == (x.dtype, expected.shape)


@pytest.mark.parametrize("operator", SIGNED)
@pytest.mark.parametrize("data_type", [np.int32, np.int64])
@pytest.mark.parametrize(("axes", "attributes"), AXES)
def test_signed_integers(
    cpu: MLContext, operator: str, data_type: Any, axes: Any, attributes: Any
) -> None:
    rng = np.random.default_rng(0)
    for end in (3, 100, 50_000, 1 << 30):
        x = rng.integers(-end, end, (4, 5, 3), endpoint=True).astype(data_type)
        compare(cpu, operator, x, axes, attributes)
        compare(cpu, operator, np.abs(x), axes, attributes)


@pytest.mark.parametrize("data_type", [np.uint32, np.uint64])
@pytest.mark.parametrize(("axes", "attributes"), AXES)
def test_logarithms_of_unsigned_exponentials(
    cpu: MLContext, data_type: Any, axes: Any, attributes: Any
) -> None:
    """ONNX Runtime's float32 may be just below a whole number, which ours is."""
    x = np.random.default_rng(0).integers(0, 80, (4, 5, 3)).astype(data_type)
    whole = made("ReduceLogSumExp", x, axes, attributes)
    expected = by_onnx_runtime(whole, {"x": x})["y"]
    got = MLExecution(cpu).compute(load(whole, cpu), {"x": x})["y"]
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert np.isin(got - expected, (0, 1)).all()
    wide = x.astype(np.longdouble)
    used = tuple(axes or ()) if axes or "noop_with_empty_axes" in attributes else None
    exact = np.log(np.exp(wide).sum(used, keepdims=got.ndim == 3)) if used != () else wide
    np.testing.assert_array_equal(got, exact.astype(data_type))


@pytest.mark.parametrize("data_type", [np.uint32, np.uint64])
def test_unsigned_integers_that_onnx_runtime_refuses(cpu: MLContext, data_type: Any) -> None:
    most = int(np.iinfo(data_type).max)
    x = np.array([[most, most], [3, 4], [0, 0], [7, 8]], data_type)
    for operator, expected in {
        "ReduceMean": [most, 3, 0, 7],
        "ReduceL2": [most, 5, 0, 10],
        "ReduceLogSum": [22 if most < 1 << 32 else 45, 1, 0, 2],
    }.items():
        whole = made(operator, x, [1], {"keepdims": 0})
        got = MLExecution(cpu).compute(load(whole, cpu), {"x": x})["y"]
        assert got.tolist()[1:] == expected[1:], operator
        assert got[0] >= expected[0] * 0.95, operator


@pytest.mark.parametrize("operator", SIGNED)
@pytest.mark.parametrize("data_type", LARGE)
def test_the_largest_integers(cpu: MLContext, operator: str, data_type: Any) -> None:
    most = LARGE[data_type]
    for row in (
        [most, most],
        [-most - 1] * 2,
        [most, 1],
        [most] * 21,
        [0, 0],
        [1, -3],
        [46341] * 2,
    ):
        if operator == "ReduceLogSumExp" and min(row) < -most:
            continue  # the difference overflows there
        compare(cpu, operator, np.array(row, data_type), [0], {"keepdims": 0})


@pytest.mark.parametrize("number", [485165195, 485165196, 1318815734, 1318815735, 1, 2, 3, 7, 8])
def test_logarithms_next_to_whole_ones(cpu: MLContext, number: int) -> None:
    compare(cpu, "ReduceLogSum", np.array([number, 0], np.int64), [0], {"keepdims": 0})


@pytest.mark.parametrize("root", [4095, 46340, 65535, 16777217, 2147483646])
def test_roots_next_to_squares(cpu: MLContext, root: int) -> None:
    for more in (0, 1, 2):
        x = np.array([root, more], np.int64)
        compare(cpu, "ReduceL2", x, [0], {"keepdims": 0})


@pytest.mark.parametrize("operator", SIGNED)
@pytest.mark.parametrize("name", ENGINES)
def test_on_every_engine(request: pytest.FixtureRequest, operator: str, name: str) -> None:
    x = np.random.default_rng(1).integers(-1000, 1000, (3, 40)).astype(np.int32)
    whole = made(operator, np.abs(x), [1], {"keepdims": 1})
    expected = by_onnx_runtime(whole, {"x": np.abs(x)})["y"]
    with context_of(request, ENGINES[name]) as context:
        got = computed(context, load(whole, context), np.abs(x))
    np.testing.assert_array_equal(got, expected)
