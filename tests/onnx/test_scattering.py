"""Scattering that combines what meets at one place, of an open number of indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

REDUCTIONS = ["add", "mul", "max", "min"]
SIZES = [{"n": 4, "e": 9}, {"n": 2, "e": 1}, {"n": 7, "e": 7}]


def scattering(kind: str, shapes: dict[str, list[Any]], elem: int, **attributes: Any) -> Any:
    values = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "indices" else elem, s)
        for n, s in shapes.items()
    ]
    node = helper.make_node(kind, list(shapes), ["y"], **attributes)
    output = helper.make_tensor_value_info("y", elem, None)
    graph = helper.make_graph([node], "g", values, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(context: MLContext, model: Any, limits: Any, dtype: type = np.float32) -> None:
    """The same as ONNX Runtime's, for several sizes; indices count from the end at times."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    graph = load(model, context)
    for sizes in SIZES:
        rng = np.random.default_rng(sizes["e"])
        given = {}
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            shape = [d.dim_value or sizes[d.dim_param] for d in dims]
            if value.name == "indices":
                high = np.asarray([sizes.get(one, one) for one in limits])
                given["indices"] = rng.integers(-high, high, shape)
            else:
                given[value.name] = rng.integers(-3, 4, shape).astype(dtype)
        (wanted,) = session.run(None, given)
        np.testing.assert_array_equal(MLExecution(context).compute(graph, given)["y"], wanted)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elements(cpu: MLContext, reduction: str) -> None:
    one = {"x": ["n"], "indices": ["e"], "updates": ["e"]}
    rows = {"x": ["n", 5], "indices": ["e", 3], "updates": ["e", 3]}
    columns = {"x": [5, "n"], "indices": [5, "e"], "updates": [5, "e"]}
    for shapes, axis in ((one, 0), (rows, 0), (columns, -1)):
        model = scattering(
            "ScatterElements", shapes, TensorProto.FLOAT, axis=axis, reduction=reduction
        )
        check(cpu, model, ["n"])
    model = scattering("ScatterElements", rows, TensorProto.INT64, axis=0, reduction=reduction)
    check(cpu, model, ["n"], np.int64)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_slices(cpu: MLContext, reduction: str) -> None:
    rows = {"x": ["n", 3, 2], "indices": ["e", 1], "updates": ["e", 3, 2]}
    pairs = {"x": ["n", 3, 2], "indices": [2, "e", 2], "updates": [2, "e", 2]}
    for shapes, limits in ((rows, ["n"]), (pairs, ["n", 3])):
        model = scattering("ScatterND", shapes, TensorProto.FLOAT, reduction=reduction)
        check(cpu, model, limits)


def test_infinities_stay_where_they_belong(cpu: MLContext) -> None:
    shapes: dict[str, list[Any]] = {"x": [3], "indices": ["e"], "updates": ["e"]}
    graph = load(scattering("ScatterElements", shapes, TensorProto.FLOAT, reduction="add"), cpu)
    given = {"x": np.zeros(3, np.float32), "indices": np.asarray([0, 2, 2])}
    given["updates"] = np.asarray([np.inf, 1, 2], np.float32)
    assert MLExecution(cpu).compute(graph, given)["y"].tolist() == [np.inf, 0, 3]
