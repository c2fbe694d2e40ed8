"""Operators that are made of several, at the ends of their ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.onnx.models import model
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError
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


@pytest.mark.parametrize(
    ("of", "to"),
    [("int8", "uint8"), ("uint32", "int32"), ("int64", "uint64"), ("bool", "uint8")],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_bits_of_integers_as_others(cpu: MLContext, of: str, to: str, is_known: bool) -> None:
    dtype = np.dtype(of)
    x = np.frombuffer(bytes([0, 1, 127, 128, 254, 255, 3, 200]), dtype)
    x = np.asarray([False, True]) if of == "bool" else x
    elem, other = (helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (of, to))
    cast = helper.make_node("BitCast", ["x"], ["y"], to=other)
    given = {} if is_known else {"x": x.shape}
    made = model([cast], given, ["y"], {"x": x} if is_known else {}, opset=26, elem=elem)
    inputs = {} if is_known else {"x": x.view(np.uint8) if of == "bool" else x}
    found = MLExecution(cpu).compute(load(made, cpu), inputs)["y"]
    assert (found.dtype.name, found.tolist()) == (to, x.view(to).tolist())


def test_bits_of_floats_as_others_are_known_ones_alone(cpu: MLContext) -> None:
    x = np.asarray([1, -2], np.float32)
    cast = helper.make_node("BitCast", ["x"], ["y"], to=ELEMENTS["int32"])
    known = load(model([cast], {}, ["y"], {"x": x}, opset=26), cpu)
    assert MLExecution(cpu).compute(known, {})["y"].tolist() == x.view(np.int32).tolist()
    with pytest.raises(NotSupportedError, match="the bits of one data type for another"):
        load(model([cast], {"x": [2]}, ["y"], opset=26), cpu)
    cast.attribute[0].i = ELEMENTS["int8"]
    with pytest.raises(DataError, match="float32 and int8 have not the same number of bits"):
        load(model([cast], {"x": [2]}, ["y"], opset=26), cpu)
