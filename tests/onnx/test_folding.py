"""What is computed at import: moves by NumPy are what ONNX's reference makes of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx.models import model
from tests.processes import run_alone
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import folding, load

DATA = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
PAIR = np.array([-1, 0], np.int64)


@pytest.mark.parametrize(
    ("operator", "opset", "arrays", "attributes"),
    [
        ("Concat", 13, [DATA, DATA], {"axis": -1}),
        ("Expand", 13, [DATA, np.array([4, 1, 1], np.int64)], {}),
        ("Expand", 13, [DATA, np.array([3], np.int64)], {}),
        ("Identity", 13, [DATA], {}),
        ("Squeeze", 11, [DATA], {}),
        ("Squeeze", 11, [DATA], {"axes": [0]}),
        ("Squeeze", 13, [DATA, np.array([-3], np.int64)], {}),
        ("Transpose", 13, [DATA], {}),
        ("Transpose", 13, [DATA], {"perm": [1, 2, 0]}),
        ("Unsqueeze", 11, [DATA], {"axes": [0, 4]}),
        ("Unsqueeze", 13, [DATA, PAIR], {}),
    ],
)
def test_moves(
    operator: str,
    opset: int,
    arrays: list[Any],
    attributes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    (made,) = folding.fold(node, arrays, {"": opset})
    monkeypatch.setattr(folding, "MOVED", {})
    (expected,) = folding.fold(node, arrays, {"": opset})
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("axes", [[3], [0, 0]])
def test_moves_that_are_not_valid_are_left_to_the_reference(axes: list[int]) -> None:
    node = helper.make_node("Squeeze", ["x", "axes"], ["y"])
    with pytest.raises(ValueError, match=r"axis|axes|squeeze"):
        folding.fold(node, [DATA, np.array(axes, np.int64)], {"": 13})


def moves_alone() -> None:
    node = helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0])
    folding.fold(node, [DATA], {"": 11})
    assert "onnx.reference" not in sys.modules


def test_moves_need_no_reference() -> None:
    run_alone(moves_alone)


@pytest.mark.parametrize("data_type", [np.int32, np.uint32])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceSumSquare", "ReduceProd", "ReduceL1"])
def test_reductions_keep_their_type(operator: str, data_type: type[np.generic]) -> None:
    node = helper.make_node(operator, ["x0"], ["y"], keepdims=0)
    (made,) = folding.fold(node, [np.full(3, 2, data_type)], {"": 18})
    assert made.dtype == data_type


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
