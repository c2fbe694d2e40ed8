"""Sparse tensors of a model are constants with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import DataError, MLContext, MLExecution
from webnn_py.onnx import load

DENSE = np.asarray([[0, 2, 0], [0, 0, -3]], np.float32)


def sparse(places: Any, values: Any, dims: Sequence[int]) -> onnx.SparseTensorProto:
    contents = onnx.numpy_helper.from_array(np.asarray(values, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.asarray(places, np.int64))
    return onnx.helper.make_sparse_tensor(contents, indices, list(dims))


def sum_of(tensor: onnx.SparseTensorProto, is_node: bool) -> onnx.ModelProto:
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    if is_node:
        node = onnx.helper.make_node("Constant", [], ["w"], sparse_value=tensor)
        return model([node, add], {"x": [2, 3]}, ["y"])
    made = model([add], {"x": [2, 3]}, ["y"])
    made.graph.sparse_initializer.append(tensor)
    return made


@pytest.mark.parametrize("is_node", [False, True])
@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]], ids=["flat", "by dimension"])
def test_sparse_tensors(cpu: MLContext, places: Any, is_node: bool) -> None:
    graph = load(sum_of(sparse(places, [2, -3], [2, 3]), is_node), cpu)
    found = MLExecution(cpu).compute(graph, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], 1 + DENSE)


@pytest.mark.parametrize(
    ("places", "dims", "told"),
    [
        ([1, 6], [2, 3], "an index lies outside"),
        ([[0, 1], [1, 3]], [2, 3], "an index lies outside"),
        ([[0, -1], [1, 2]], [2, 3], "an index lies outside"),
        ([1, 2, 3], [2, 3], "do not fit its 2 values"),
        ([[0], [1]], [2, 3], "do not fit its 2 values"),
        ([1, 5], [2**20, 2**20], "over 2147483647 elements"),
    ],
)
def test_damaged_ones(cpu: MLContext, places: Any, dims: list[int], told: str) -> None:
    with pytest.raises(DataError, match=told):
        load(sum_of(sparse(places, [2, -3], dims), False), cpu)


def test_a_sparse_initializer_is_an_input_s_default(cpu: MLContext) -> None:
    made = sum_of(sparse([1, 5], [2, -3], [2, 3]), is_node=False)
    made.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [2, 3]))
    graph = load(made, cpu)
    assert list(graph.inputs) == ["x"]
    found = MLExecution(cpu).compute(graph, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], 1 + DENSE)


def test_sparse_initializers_of_branches(cpu: MLContext) -> None:
    branches = {}
    for name, operator in (("then_branch", "Add"), ("else_branch", "Sub")):
        inner = model([onnx.helper.make_node(operator, ["x", "w"], ["z"])], {}, ["z"]).graph
        inner.sparse_initializer.append(sparse([1, 5], [2, -3], [2, 3]))
        branches[name] = inner
    made = model([onnx.helper.make_node("If", ["c"], ["y"], **branches)], {"x": [2, 3]}, ["y"])
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(False), "c"))
    found = MLExecution(cpu).compute(load(made, cpu), {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], 1 - DENSE)


def test_large_ones_that_hold_one_value_of_a_hundred(cpu: MLContext) -> None:
    count = 1 << 23
    places = np.arange(0, count, 100)
    tensor = sparse(places, np.ones(len(places)), [1, count])
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    made = model([add], {"x": [1]}, ["y"])
    made.graph.sparse_initializer.append(tensor)
    found = MLExecution(cpu).compute(load(made, cpu), {"x": np.zeros(1, np.float32)})["y"]
    assert found.shape == (1, count)
    np.testing.assert_array_equal(np.flatnonzero(found), places)
