"""TensorScatter, also around the end of the cache, against ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from webnn_py import MLExecution, ml
from webnn_py.onnx import load

STARTS = {"linear": [2, 4], "circular": [5, 9]}


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino"])
@pytest.mark.parametrize("data_type", ["float32", "int64"])
@pytest.mark.parametrize("has_starts", [False, True])
@pytest.mark.parametrize("mode", STARTS)
def test_tensor_scatter(engine: str, data_type: str, has_starts: bool, mode: str) -> None:
    if engine != "reference":
        pytest.importorskip(engine)
    inputs = {
        "cache": np.arange(72).reshape(2, 3, 6, 2).astype(data_type),
        "rows": -np.arange(24).reshape(2, 3, 2, 2).astype(data_type),
    }
    if has_starts:
        inputs["starts"] = np.array(STARTS[mode])
    node = helper.make_node("TensorScatter", list(inputs), ["y"], axis=2, mode=mode)
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", ends[0].type.tensor_type.elem_type, (2, 3, 6, 2))
    made = helper.make_model(
        helper.make_graph([node], "one", ends, [result]),
        opset_imports=[helper.make_opsetid("", 24)],
    )
    (wanted,) = ReferenceEvaluator(made).run(None, inputs)
    with ml.create_context_sync(engine=engine) as context:
        graph = load(made, context)
        found = MLExecution(context).compute(graph, inputs)["y"]
        if engine == "reference":  # which keeps it whole
            assert " = scatter_rows(" in str(graph)
    np.testing.assert_array_equal(found, wanted)
