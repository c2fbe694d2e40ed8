"""Products of quantized operands become products of integers, wherever the scales allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import webnn_py.onnx
from tests.internals import recipe_of
from tests.unit.passes.internal_listings import (
    TARGET,
    Record,
    after,
    assert_keeps,
    nodes,
    recorded,
    results,
)
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.ir import Graph
from webnn_py.passes.multiply_integers import multiply_integers
from webnn_py.passes.target import Target

Array = np.ndarray[Any, Any]
ROWS = (6, 8)
IMAGE = (2, 8, 5, 6)


def drawn(*shape: int, data_type: str = "int8", low: int = -128) -> Array:
    return np.random.default_rng(sum(shape)).integers(low, low + 256, shape).astype(data_type)


def dequantized(
    b: MLGraphBuilder, codes: MLOperand, scale: Array, zero: int | Array = 0
) -> MLOperand:
    zeros = np.broadcast_to(np.asarray(zero, codes.data_type), scale.shape)
    return b.dequantize_linear(codes, b.constant(scale), b.constant(np.ascontiguousarray(zeros)))


def by_channel(shape: tuple[int, ...], axis: int) -> Array:
    """Powers of two, so that no product rounds."""
    scale = 0.5 ** (np.arange(shape[axis]) % 5)
    return scale.reshape([-1 if i == axis else 1 for i in range(len(shape))]).astype(np.float32)


def one(rank: int, number: float = 0.25) -> Array:
    return np.full([1] * rank, number, np.float32)


def multiplied(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    w = drawn(8, 5)
    left = dequantized(b, x, by_channel(ROWS, 0), 7)
    return b.matmul(left, dequantized(b, b.constant(w), by_channel(w.shape, 1), 3))


def by_gemm(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    w, c = drawn(5, 8), np.arange(5, dtype=np.float32)
    right = dequantized(b, b.constant(w), by_channel(w.shape, 0))
    left = dequantized(b, x, one(2), 7)
    return b.gemm(left, right, c=b.constant(c), alpha=0.5, beta=2.0, b_transpose=True)


def convolved(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    w = drawn(4, 8, 3, 3)
    filters = dequantized(b, b.constant(w), by_channel(w.shape, 0))
    bias = b.constant(np.arange(4, dtype=np.float32))
    return b.conv2d(dequantized(b, x, one(4), 7), filters, bias=bias, padding=[1, 1, 0, 2])


def of_halves(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    w, half = drawn(8, 5, low=-4) % 4, np.float16
    left = dequantized(b, x, one(2, 2.0**-7).astype(half))
    return b.matmul(left, dequantized(b, b.constant(w), one(2).astype(half)))


def transposed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    w = dequantized(b, b.constant(drawn(5, 8)), one(2))
    return b.matmul(dequantized(b, x, one(2)), b.transpose(w))


CASES: list[tuple[Record, tuple[int, ...], str]] = [
    (multiplied, ROWS, "matmul_integer"),
    (by_gemm, ROWS, "matmul_integer"),
    (of_halves, ROWS, "matmul_integer"),
    (transposed, ROWS, "matmul_integer"),
    (convolved, IMAGE, "conv2d_integer"),
]


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize(("record", "shape", "operator"), CASES)
def test_quantized_products(
    record: Record, shape: tuple[int, ...], operator: str, data_type: str
) -> None:
    graph = recorded(record, shape, data_type)
    made = after(multiply_integers, graph)
    assert sum(f"= {operator}(" in line for line in nodes(made)) == 1
    assert not any("= dequantize_linear(" in line for line in nodes(made))
    x = drawn(*shape, data_type=data_type, low=0 if data_type == "uint8" else -128)
    np.testing.assert_array_equal(results(made, x)[0], results(graph, x)[0])


def test_unsigned_weights_become_signed() -> None:
    w = drawn(8, 5, data_type="uint8", low=0)

    def record(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.matmul(dequantized(b, x, one(2)), dequantized(b, b.constant(w), one(2), 128))

    made = after(multiply_integers, recorded(record, ROWS, "int8"))
    (stored,) = (array for array in made.constants.values() if array.shape == w.shape)
    np.testing.assert_array_equal(stored, w.astype(np.int16) - 128)
    assert stored.dtype == np.int8


def along_depth(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    left = dequantized(b, x, by_channel(ROWS, 1))
    return b.matmul(left, dequantized(b, b.constant(drawn(8, 5)), one(2)))


def of_floats(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.matmul(dequantized(b, x, one(2)), b.constant(np.ones((8, 5), np.float32)))


@pytest.mark.parametrize("record", [along_depth, of_floats])
def test_other_products_stay(record: Record) -> None:
    assert_keeps(multiply_integers, recorded(record, ROWS, "int8"))


def test_products_stay_where_the_engine_has_no_kernel() -> None:
    graph = recorded(multiplied, ROWS, "int8")
    assert multiply_integers(graph, Target(lambda node: False, TARGET.evaluate)) is graph


def quantized_model(operator: str, inputs: dict[str, Any], x: Array) -> Graph:
    """The graph of a model of one operator whose input "x" is no constant."""
    node = helper.make_node(
        operator, [name if array is not None else "" for name, array in inputs.items()], ["y"]
    )
    constants = [
        numpy_helper.from_array(np.array(array), name)
        for name, array in inputs.items()
        if name != "x"
    ]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [helper.make_tensor_value_info("x", kind, x.shape)]
    result = [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)]
    graph = helper.make_graph([node], "one", ends, result, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        return recipe_of(webnn_py.onnx.load(model, context))


def qlinear_conv() -> tuple[str, dict[str, Any]]:
    w = drawn(4, 8, 3, 3)
    return "QLinearConv", {
        "x": drawn(*IMAGE, data_type="uint8", low=0),
        "x_scale": np.float32(0.25),
        "x_zero_point": np.uint8(9),
        "w": w,
        "w_scale": by_channel((4,), 0),
        "w_zero_point": np.zeros(4, np.int8),
        "y_scale": np.float32(16),
        "y_zero_point": np.uint8(100),
        "b": np.arange(4, dtype=np.int32),
    }


def qlinear_matmul() -> tuple[str, dict[str, Any]]:
    return "QLinearMatMul", {
        "x": drawn(*ROWS, data_type="uint8", low=0),
        "a_scale": np.float32(0.25),
        "a_zero_point": np.uint8(9),
        "b": drawn(8, 5),
        "b_scale": np.float32(0.5),
        "b_zero_point": np.int8(2),
        "y_scale": np.float32(16),
        "y_zero_point": np.uint8(100),
    }


def conv_integer() -> tuple[str, dict[str, Any]]:
    return "ConvInteger", {
        "x": drawn(*IMAGE, data_type="uint8", low=0),
        "w": drawn(4, 8, 3, 3, data_type="uint8", low=0),
        "x_zero_point": np.uint8(9),
        "w_zero_point": np.uint8(128),
    }


@pytest.mark.parametrize("model", [qlinear_conv, qlinear_matmul, conv_integer])
def test_imported_operators(model: Callable[[], tuple[str, dict[str, Any]]]) -> None:
    operator, inputs = model()
    graph = quantized_model(operator, inputs, inputs["x"])
    made = after(multiply_integers, graph)
    assert sum("_integer(" in line for line in nodes(made)) == 1
    assert not any(f"= {name}(" in line for line in nodes(made) for name in ("conv2d", "matmul"))
    x = inputs["x"]
    np.testing.assert_array_equal(results(made, x)[0], results(graph, x)[0])
