"""Poolings that round up where that makes no more windows; against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
CASES: dict[str, tuple[list[Any], dict[str, Any], bool]] = {
    "steps of one": ([1, 2, 7, 6], WINDOW, True),
    "steps of one, open": ([1, 2, "h", "w"], WINDOW, True),
    "nothing to round": ([1, 2, 7, 5], {**WINDOW, "strides": [2, 2]}, True),
    "a window more": ([1, 2, 6, 5], {**WINDOW, "strides": [2, 2]}, False),
    "a window more, open": ([1, 2, "h", 5], {**WINDOW, "strides": [2, 2]}, False),
}


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("name", CASES)
def test_rounded_up(cpu: MLContext, name: str, operator: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    shape, options, is_plain = CASES[name]
    made = model([make_node(operator, ["x"], ["y"], **options)], {"x": shape}, ["y"], opset=19)
    made.ir_version = 9
    sizes = [size if isinstance(size, int) else 6 for size in shape]
    x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    graph = load(made, cpu)
    assert ("pad(" not in str(graph)) is is_plain
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    found = MLExecution(cpu).compute(graph, {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
