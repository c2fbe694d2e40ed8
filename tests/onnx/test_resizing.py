"""Resize as WebNN's own interpolation where it is that, else as a product; against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import MLExecution, ml
from webnn_py.onnx import load

ENGINES = ["reference", "onnxruntime", "openvino"]
LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
TORCH = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"}
FLOOR = {**NEAREST, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
CASES: dict[str, tuple[list[Any], list[float], dict[str, Any], bool]] = {
    "larger": ([1, 2, 5, 4], [1, 1, 3, 2], LINEAR, True),
    "smaller": ([1, 2, 6, 8], [1, 1, 0.5, 0.25], LINEAR, True),
    "one of the axes": ([1, 2, 6, 8], [1, 1, 1, 2], TORCH, True),
    "channels last": ([1, 6, 8, 2], [1, 2, 2, 1], LINEAR, True),
    "open, larger": (["n", 2, "h", "w"], [1, 1, 2, 2], TORCH, True),
    "to a single one": ([1, 2, 4, 4], [1, 1, 0.25, 0.25], TORCH, False),
    "between the sizes": ([1, 2, 5, 5], [1, 1, 1.5, 1.5], LINEAR, False),
    "repeated": ([1, 2, 5, 4], [1, 1, 3, 2], FLOOR, True),
    "repeated, half a pixel inside": ([1, 2, 5, 4], [1, 1, 1, 2], NEAREST, True),
    "repeated, channels last": ([1, 5, 4, 2], [1, 2, 2, 1], FLOOR, True),
    "repeated, open": (["n", 2, "h", "w"], [1, 1, 2, 2], FLOOR, True),
    "the nearest": ([1, 2, 5, 4], [1, 1, 1.5, 1.5], FLOOR, False),
    "the nearest, rounded down": (
        [1, 2, 5, 4],
        [1, 1, 2, 2],
        {**NEAREST, "nearest_mode": "floor"},
        False,
    ),
    "one axis scaled to the size it has": ([1, 2, 3, 4], [1, 1, 1.25, 2], LINEAR, False),
    "one axis scaled to it, the nearest": ([1, 2, 3, 4], [1, 1, 1.25, 2], FLOOR, False),
    "corners": ([1, 2, 5, 4], [1, 1, 2, 2], CORNERS, False),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str, engine: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip(engine if engine != "reference" else "onnx")
    shape, scales, options, is_own = CASES[name]
    weights = {"scales": np.asarray(scales, np.float32)}
    resize = onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **options)
    made = model([resize], {"x": shape}, ["y"], weights, opset=19)
    made.ir_version = 9
    session = onnxruntime.InferenceSession(made.SerializeToString())
    sizes = [size if isinstance(size, int) else 3 for size in shape]
    x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    (wanted,) = session.run(None, {"x": x})
    with ml.create_context_sync(device_type="cpu", engine=engine) as context:
        graph = load(made, context)
        assert ("resample2d" in str(graph)) is is_own
        found = MLExecution(context).compute(graph, {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_open_sizes_are_resized_as_fixed_ones(mode: str, kind: str) -> None:
    options = {"mode": mode, "coordinate_transformation_mode": kind}
    resize = onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **options)
    weights = {"scales": np.asarray([1, 1, 0.5, 0.7], np.float32)}  # lengths are no whole numbers
    x = np.random.default_rng(0).normal(size=[1, 2, 3, 5]).astype(np.float32)
    found: list[Any] = []
    onnxruntime = pytest.importorskip("onnxruntime")
    made = model([resize], {"x": ["n", 2, "h", "w"]}, ["y"], weights, opset=19)
    made.ir_version = 9
    if kind != "align_corners":  # where ONNX's own tests, not ONNX Runtime, round no lengths
        session = onnxruntime.InferenceSession(made.SerializeToString())
        found += session.run(None, {"x": x})
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        for shape in (["n", 2, "h", "w"], list(x.shape)):
            graph = load(model([resize], {"x": shape}, ["y"], weights, opset=19), context)
            found.append(MLExecution(context).compute(graph, {"x": x})["y"])
    for one in found:
        np.testing.assert_allclose(one, found[-1], rtol=1e-5, atol=1e-6)
