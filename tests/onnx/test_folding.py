"""What is computed at import is computed as any graph is."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx.models import model
from tests.processes import run_alone
from webnn_py import DataError, MLContext, MLExecution
from webnn_py.onnx import load

DATA = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def folded(cpu: MLContext, node: Any, weights: dict[str, Any], opset: int = 21) -> Any:
    """What a node makes of constants."""
    graph = load(model([node], {}, ["y"], weights, opset), cpu)
    return MLExecution(cpu).compute(graph, {})["y"]


@pytest.mark.parametrize("data_type", [np.float32, np.int64])
@pytest.mark.parametrize(
    ("operator", "opset", "more", "attributes", "expected"),
    [
        ("Concat", 13, [DATA], {"axis": -1}, np.concatenate([DATA, DATA], -1)),
        ("Expand", 13, [np.array([4, 1, 1])], {}, np.broadcast_to(DATA, (4, 2, 3))),
        ("Squeeze", 11, [], {}, DATA[0]),
        ("Squeeze", 11, [], {"axes": [0]}, DATA[0]),
        ("Squeeze", 13, [np.array([-3])], {}, DATA[0]),
        ("Transpose", 13, [], {}, DATA.T),
        ("Transpose", 13, [], {"perm": [1, 2, 0]}, DATA.transpose(1, 2, 0)),
        ("Unsqueeze", 11, [], {"axes": [0, 4]}, DATA[None, ..., None]),
        ("Unsqueeze", 13, [np.array([-1, 0])], {}, DATA[None, ..., None]),
        ("Gather", 13, [np.array([2, -3])], {"axis": 2}, DATA[..., [2, 0]]),
        ("GatherElements", 13, [np.array([[[1, 0, -1]]])], {"axis": 1}, [[[3, 1, 5]]]),
        ("Slice", 13, [np.array([2]), np.array([0]), np.array([2])], {}, DATA[..., 2:0:1]),
        ("Slice", 13, [*map(np.array, ([2], [-9], [2], [-1]))], {}, DATA[..., ::-1]),
        ("Tile", 13, [np.array([1, 1, 2])], {}, np.tile(DATA, (1, 1, 2))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("other", ["", "double", "int16", "bfloat16"])
def test_moves(
    cpu: MLContext,
    operator: str,
    opset: int,
    more: list[Any],
    attributes: dict[str, Any],
    expected: Any,
    data_type: Any,
    other: str,
) -> None:
    """Of types that WebNN lacks, too, as long as something casts the result."""
    name = other or np.dtype(data_type).name.replace("32", "")
    elem = TensorProto.DataType.Value(name.upper())
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    arrays = [(one.astype(dtype) if one is DATA else one) for one in (DATA, *more)]
    weights = {f"x{i}": one for i, one in enumerate(arrays)}
    nodes = [
        helper.make_node(operator, list(weights), ["moved"], **attributes),
        helper.make_node("Shape", ["moved"], ["shape"]),
        helper.make_node("Cast", ["moved"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["cast1", "sizes"], ["y"], axis=0),
        helper.make_node("Reshape", ["cast", "flat"], ["cast1"]),
    ]
    nodes[-1], nodes[-2] = nodes[-2], nodes[-1]
    weights["flat"] = np.array([-1])
    graph = load(model(nodes, {}, ["y"], weights, opset), cpu)
    wanted = np.asarray(expected)
    got = MLExecution(cpu).compute(graph, {})["y"]
    np.testing.assert_array_equal(got, [*wanted.reshape(-1), *wanted.shape])


def folds_alone() -> None:
    from webnn_py import ml

    sizes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    with ml.create_context_sync() as context:
        load(model(sizes, {"x": [2, 3, 4]}, ["y"], weights), context)
    assert "onnx.reference" not in sys.modules


def test_arithmetic_on_shapes_needs_no_reference_of_onnx() -> None:
    run_alone(folds_alone)


INDEX = [3, -4, 1 << 34, 1 << 40, -(1 << 40)]


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("element", [np.float32, np.int64, np.float64])
def test_constant_indices_out_of_range_are_refused_at_once(
    cpu: MLContext, index: int, element: Any
) -> None:
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=2)
    weights = {"x": DATA.astype(element), "i": np.full((1, 2, 1), index)}
    with pytest.raises(DataError, match=rf"index {index} is not one of 3 elements"):
        folded(cpu, node, weights)


@pytest.mark.parametrize("index", INDEX)
def test_targets_of_a_loss_out_of_range_are_refused_at_once(cpu: MLContext, index: int) -> None:
    node = helper.make_node("NegativeLogLikelihoodLoss", ["x", "i"], ["y"])
    weights = {"x": DATA[0], "i": np.array([index, 0])}
    with pytest.raises(DataError, match=rf"index {index} is not one of 3 elements"):
        folded(cpu, node, weights)


NUMBERS = [300.7, -300.7, 3e9, -3e9, 1e19, -1e19, np.inf, -np.inf, np.nan, -0.5, 127.9]


def _own(name: str) -> str:
    return "float32" if name == "float" else name


@pytest.mark.parametrize(
    ("operator", "numbers", "expected"),
    [
        ("ReduceMean", [60000, 60000], 60000),
        ("ReduceL2", [300, 400], 500),
        ("ReduceLogSum", [60000, 60000], np.log(120000)),
        ("ReduceLogSumExp", [60, 60], 60 + np.log(2)),
    ],
)
def test_reductions_of_float16_overflow_only_in_their_results(
    cpu: MLContext, operator: str, numbers: list[float], expected: float
) -> None:
    node = helper.make_node(operator, ["x"], ["y"], keepdims=0)
    assert folded(cpu, node, {"x": np.array(numbers, np.float16)}) == np.float16(expected)


@pytest.mark.parametrize("data_type", [np.int32, np.uint32])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceSumSquare", "ReduceProd", "ReduceL1"])
def test_reductions_keep_their_type(
    cpu: MLContext, operator: str, data_type: type[np.generic]
) -> None:
    node = helper.make_node(operator, ["x0"], ["y"], keepdims=0)
    assert folded(cpu, node, {"x0": np.full(3, 2, data_type)}, 18).dtype == data_type


def test_tensors_without_elements_have_products_and_parts(cpu: MLContext) -> None:
    nodes = [
        helper.make_node("ReduceProd", ["nothing"], ["one"], keepdims=1),
        helper.make_node("Slice", ["two", "first", "first"], ["empty"]),
        helper.make_node("Concat", ["empty", "one", "two"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {
        "nothing": np.empty(0, np.int64),
        "two": np.array([1, 2]),
        "first": np.array([0]),
    }
    graph = load(model(nodes, {"x": [2]}, ["y"], weights, opset=17), cpu)
    assert graph.outputs["y"].shape == (1, 1, 2)


@pytest.mark.parametrize("size", [8, 300])
@pytest.mark.parametrize("elem", [TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT16])
def test_weights_of_other_types_are_cast_whatever_their_size(
    cpu: MLContext, elem: int, size: int
) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    weights = np.arange(size * size).reshape(size, size).astype(dtype)
    nodes = [
        helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    made = model(nodes, {"x": [1, size]}, ["y"], {"w": weights})
    x = np.eye(1, size, 1, dtype=np.float32)
    found = MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"]
    np.testing.assert_array_equal(found[0], weights[1].astype(np.float32))
