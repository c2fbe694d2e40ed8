"""Random numbers of a model come in as noise, which an input holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

SHAPE = [3, 4]


def graph_of(cpu: MLContext, operator: str, like: bool, **attributes: Any) -> Any:
    inputs = ["x"] if like else []
    node = onnx.helper.make_node(operator, inputs, ["y"], name="draw", **attributes)
    return load(model([node], {"x": ["n", 4]} if like else {}, ["y"], {}, opset=17), cpu)


@pytest.mark.parametrize("like", [True, False])
@pytest.mark.parametrize("kind", ["Normal", "Uniform"])
def test_noise_is_scaled_and_moved(cpu: MLContext, kind: str, like: bool) -> None:
    given = {"mean": 2.0, "scale": 3.0} if kind == "Normal" else {"low": 2.0, "high": 5.0}
    options: dict[str, Any] = given if like else given | {"shape": SHAPE}
    graph = graph_of(cpu, f"Random{kind}{'Like' if like else ''}", like, **options)
    noise = np.random.default_rng(1).random(SHAPE, np.float32)
    inputs = {"draw:noise": noise}
    if like:
        inputs["x"] = np.zeros(SHAPE, np.float32)
    found = MLExecution(cpu).compute(graph, {name: inputs[name] for name in graph.inputs})
    np.testing.assert_allclose(found["y"], noise * 3 + 2, rtol=1e-6)


def test_samples_follow_the_probabilities(cpu: MLContext) -> None:
    graph = graph_of(cpu, "Multinomial", True, sample_size=1000, dtype=onnx.TensorProto.INT64)
    chances = np.array([[0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.0, 0.5]], np.float32)
    noise = (np.arange(1000, dtype=np.float32) / 1000 + 0.0005)[np.newaxis].repeat(2, 0)
    with np.errstate(divide="ignore"):
        inputs = {"x": np.log(chances) + 7, "draw:noise": noise.astype(np.float32)}
    found = MLExecution(cpu).compute(graph, inputs)["y"]
    assert found.dtype == np.int64
    counts = np.array([np.bincount(row, minlength=4) for row in found])
    np.testing.assert_allclose(counts, chances * 1000, atol=1)
