"""Operators that are made of several, at the ends of their ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

ELEMENTS = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "float16": 10}
INF = np.inf


def computed(context: MLContext, operator: str, *operands: Any, **attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(operands))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    inputs = dict(zip(names, operands, strict=True))
    shapes = {name: x.shape for name, x in inputs.items()}
    elem = ELEMENTS[operands[0].dtype.name]
    made = model([node], shapes, ["y"], elem=elem)
    return MLExecution(context).compute(load(made, context), inputs)["y"]


def test_celu_of_a_negative_alpha(cpu: MLContext) -> None:
    x = np.asarray([-2, -0.5, 0, 1, 100], np.float32)
    wanted = np.maximum(x, 0) + np.minimum(-1.5 * (np.exp(x / -1.5) - 1), 0)
    np.testing.assert_allclose(computed(cpu, "Celu", x, alpha=-1.5), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "numbers", "attributes", "wanted"),
    [
        (np.uint8, [0, 1, 2, 200], {"lambd": 1.0}, [0, 0, 2, 200]),
        (np.uint8, [0, 1, 2, 200], {"lambd": 1.0, "bias": 2.0}, [0, 0, 0, 198]),
        (np.int8, [-4, -1, 0, 3], {"lambd": 0.5, "bias": 1.5}, [-2, 0, 0, 1]),
    ],
)
def test_shrink_of_integers(
    cpu: MLContext, dtype: Any, numbers: list[int], attributes: Any, wanted: list[int]
) -> None:
    assert computed(cpu, "Shrink", np.asarray(numbers, dtype), **attributes).tolist() == wanted


def test_a_remainder_by_infinity(cpu: MLContext) -> None:
    a, b = np.asarray([1, -3, 5.5, INF], np.float32), np.asarray([INF, -INF, 2, 2], np.float32)
    made = computed(cpu, "Mod", a, b, fmod=1)
    np.testing.assert_array_equal(made, np.asarray([1, -3, 1.5, np.nan], np.float32))


@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 1e38), (np.float16, 6e4)])
def test_large_numbers_in_inverse_hyperbolic_functions(
    cpu: MLContext, dtype: Any, large: float
) -> None:
    x = np.asarray([large, 300, 1, INF], dtype)
    for numbers in (x, -x, np.asarray([0, 0.5, 2], dtype)):
        made = computed(cpu, "Asinh", numbers)
        np.testing.assert_allclose(made, np.arcsinh(numbers), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(computed(cpu, "Acosh", x), np.arccosh(x), rtol=2e-3, atol=1e-6)
    assert np.isnan(computed(cpu, "Acosh", np.asarray([-300, -large, 0], dtype))).all()


def test_the_mean_and_variance_of_halves(cpu: MLContext) -> None:
    x = np.asarray([[[[7, 7]], [[1, 3]]]], np.float16)
    for axes, wanted in (([0, 2, 3], [0, 0, -1, 1]), ([-1], [0, 0, -1, 1]), ([1], [1, 1, -1, -1])):
        made = computed(cpu, "MeanVarianceNormalization", x, axes=axes)
        assert made.reshape(-1).tolist() == wanted
