"""Operators of ONNX Runtime's own domain, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from tests.onnx.own_operators import alone, by_onnx_runtime
from webnn_py import MLContext, MLExecution, NotSupportedError, ml
from webnn_py.onnx import load

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def bytes_of(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


ONE = np.asarray(0.02, np.float32)
ZERO = np.asarray(130, np.uint8)
X = [2, 3, 8]
CASES: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "gelu": ("Gelu", [], 1, {}),
    "gelu of a sum": ("BiasGelu", [floats(8)], 1, {}),
    "fast gelu": ("FastGelu", [floats(8)], 1, {}),
    "fast gelu without bias": ("FastGelu", [], 1, {}),
    "quick gelu": ("QuickGelu", [], 1, {"alpha": 1.5}),
    "product": ("FusedMatMul", [floats(2, 5, 8)], 1, {"transB": 1, "alpha": 0.25}),
    "product turned": ("FusedMatMul", [floats(2, 3, 4)], 1, {"transA": 1}),
    "product of batches": ("FusedMatMul", [floats(3, 8, 4)], 1, {"transBatchA": 1}),
    "skip": ("SkipLayerNormalization", [floats(*X), floats(8), floats(8)], 1, {"epsilon": 1e-5}),
    "skip and its sum": ("SkipLayerNormalization", [floats(*X), floats(8), "", floats(8)], 4, {}),
    "simplified skip": ("SkipSimplifiedLayerNormalization", [floats(*X), floats(8)], 4, {}),
    "triangle": ("Trilu", [], 1, {"upper": 0}),
    "quantized product": ("DynamicQuantizeMatMul", [bytes_of(8, 5), ONE, ZERO, floats(5)], 1, {}),
    "quantized by columns": ("DynamicQuantizeMatMul", [bytes_of(8, 5), np.abs(floats(5))], 1, {}),
}


def only(kind: str, given: list[Any], outputs: int, attributes: dict[str, Any]) -> Any:
    names = ["" if isinstance(one, str) else f"w{i}" for i, one in enumerate(given)]
    made = [f"y{i}" if i in (0, 3) else "" for i in range(outputs)]
    node = onnx.helper.make_node(
        kind, ["x", *names], made, name="n", domain="com.microsoft", **attributes
    )
    weights = {name: one for name, one in zip(names, given, strict=True) if name}
    whole = model([node], {"x": X}, [name for name in made if name], weights, opset=17)
    whole.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    whole.ir_version = 8
    return whole


@pytest.mark.parametrize("name", CASES)
def test_operators_of_onnx_runtime(cpu: MLContext, name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    made = only(*CASES[name])
    session = onnxruntime.InferenceSession(made.SerializeToString())
    x = floats(*X)
    wanted = session.run(None, {"x": x})
    found = MLExecution(cpu).compute(load(made, cpu), {"x": x})
    for output, one in zip(made.graph.output, wanted, strict=True):
        np.testing.assert_allclose(found[output.name], one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_squares_of_float16_do_not_overflow(engine: str) -> None:
    x, skip, gamma = (floats(*shape).astype(np.float16) for shape in (X, X, [8]))
    feeds = {"x0": x * 400, "x1": skip * 400}
    given = [feeds["x0"], feeds["x1"], gamma]
    made, _ = alone("SkipSimplifiedLayerNormalization", given, 1, {}, known=[2])
    wanted = by_onnx_runtime(made, feeds)["y0"]
    with ml.create_context_sync(engine=engine) as context:
        found = MLExecution(context).compute(load(made, context), feeds)["y0"]
    np.testing.assert_allclose(found, wanted, rtol=5e-3, atol=5e-3)


def test_samples_of_a_grid(cpu: MLContext) -> None:
    given = [floats(1, 2, 4, 5), RNG.uniform(-1, 1, [1, 3, 3, 2]).astype(np.float32)]
    made, feeds = alone("GridSample", given, 1, {"padding_mode": "border"})
    found = MLExecution(cpu).compute(load(made, cpu), feeds)["y0"]
    np.testing.assert_allclose(found, by_onnx_runtime(made, feeds)["y0"], rtol=1e-4, atol=1e-5)


def test_products_with_an_activation(cpu: MLContext) -> None:
    """As the product and the activation apart, as ONNX Runtime has no kernel for it on CPUs."""
    onnxruntime = pytest.importorskip("onnxruntime")
    given = [floats(2, 5, 8)]
    options = {"transB": 1, "alpha": 0.25}
    made = only("FusedMatMulActivation", given, 1, {**options, "activation": "Relu"})
    apart = only("FusedMatMul", given, 1, options)
    x = floats(*X)
    (wanted,) = onnxruntime.InferenceSession(apart.SerializeToString()).run(None, {"x": x})
    found = MLExecution(cpu).compute(load(made, cpu), {"x": x})["y0"]
    np.testing.assert_allclose(found, np.maximum(wanted, 0), rtol=1e-4, atol=1e-5)


def test_integers_to_floats(cpu: MLContext) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    weights = {"b": bytes_of(8, 5), "s": ONE, "t": np.abs(floats(5)), "z": ZERO, "o": floats(5)}
    inputs = ["x", "b", "s", "t", "z", "", "o"]
    node = onnx.helper.make_node("MatMulIntegerToFloat", inputs, ["y"], domain="com.microsoft")
    made = model([node], {"x": [3, 8]}, ["y"], weights, opset=17, elem=onnx.TensorProto.UINT8)
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made.ir_version = 8
    x = bytes_of(3, 8)
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    found = MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("per_channel", [False, True])
def test_lstms_of_8_bits(cpu: MLContext, per_channel: bool) -> None:
    """Exactly by the definition; by ONNX Runtime's operator on its engine."""
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    shape = [2, 16] if per_channel else [2]
    given: dict[str, Any] = {"b": rng.normal(size=[2, 32]).astype(np.float32)}
    for name, rows in (("w", 3), ("r", 4)):
        given[name] = rng.integers(-127, 127, [2, rows, 16]).astype(np.int8)
        given[f"{name}_scale"] = rng.uniform(0.005, 0.01, shape).astype(np.float32)
        given[f"{name}_zero"] = np.zeros(shape, np.int8)
    parts = ["w_scale", "w_zero", "r_scale", "r_zero"]
    options = {"hidden_size": 4, "direction": "bidirectional"}
    node = onnx.helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "", *parts],
        ["y"],
        domain="com.microsoft",
        **options,
    )
    made = model([node], {"x": ["n", 2, 3]}, ["y"], given, opset=17)
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    plain = onnx.helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], **options)
    weights = {"b": given["b"]} | {
        name: (given[name] * given[f"{name}_scale"].reshape(2, 1, -1)).swapaxes(1, 2)
        for name in "wr"
    }
    exact = model([plain], {"x": ["n", 2, 3]}, ["y"], weights, opset=17)
    x = rng.normal(size=[5, 2, 3]).astype(np.float32)
    for wanted, engine in ((exact, "reference"), (made, "onnxruntime")):
        context = ml.create_context_sync(engine=engine)
        found = MLExecution(context).compute(load(made, context), {"x": x})["y"]
        wanted.ir_version = 8
        (y,) = onnxruntime.InferenceSession(wanted.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(found, y, atol=1e-5)


def test_zeros_are_quantized_by_a_scale_that_divides(cpu: MLContext) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    node = onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    made = model([node], {"x": [3]}, ["y", "s", "z"])
    made.ir_version = 8
    x = np.zeros(3, np.float32)
    found = MLExecution(cpu).compute(load(made, cpu), {"x": x})
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    for name, one in zip("ysz", wanted, strict=True):
        np.testing.assert_array_equal(found[name], one)


def test_others_say_what_to_take_instead(cpu: MLContext) -> None:
    with pytest.raises(NotSupportedError, match=r"com\.microsoft\.ComplexMul \[n\].*before ONNX"):
        load(only("ComplexMul", [floats(*X)], 1, {}), cpu)
