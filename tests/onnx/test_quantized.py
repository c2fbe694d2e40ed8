"""ONNX Runtime's own quantized operators, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import MLContext, MLError, MLExecution, ml
from webnn_py.onnx import load, to_onnx

ELEMS = {"uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8}
IMAGES = [2, 3, 4, 5]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sum": ("QLinearAdd", {}),
    "product": ("QLinearMul", {}),
    "sigmoid": ("QLinearSigmoid", {}),
    "leaky": ("QLinearLeakyRelu", {"alpha": 0.2}),
    "softmax": ("QLinearSoftmax", {"axis": -1, "opset": 13}),
    "global average": ("QLinearGlobalAveragePool", {}),
    "global average, channels last": ("QLinearGlobalAveragePool", {"channels_last": 1}),
    "average": ("QLinearAveragePool", {"kernel_shape": [2, 2], "pads": [1, 0, 1, 0]}),
    "concat": ("QLinearConcat", {"axis": 1}),
}


def own(node: onnx.NodeProto, shape: list[Any], elem: int, weights: Any) -> onnx.ModelProto:
    made = model([node], {"x": shape}, ["y"], weights, opset=17, elem=elem)
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made.ir_version = 8
    return made


def check(cpu: MLContext, made: onnx.ModelProto, x: Any, atol: float = 0) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    found = MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"]
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=0, atol=atol)


@pytest.mark.parametrize("data_type", ELEMS)
@pytest.mark.parametrize("name", CASES)
def test_between_8_bit_ends(cpu: MLContext, name: str, data_type: str) -> None:
    operator, options = CASES[name]
    rng = np.random.default_rng(4)
    other = rng.integers(0, 127, [5]).astype(data_type)
    weights = {
        "xs": np.float32(0.05),
        "xz": np.asarray(3, data_type),
        "o": rng.integers(0, 127, IMAGES).astype(data_type) if name == "concat" else other,
        "os": np.float32(0.03),
        "oz": np.asarray(5, data_type),
        "ys": np.float32(0.07 if "soft" not in name and name != "sigmoid" else 1 / 256),
        "yz": np.asarray(2, data_type),
    }
    inputs = [
        "x",
        "xs",
        "xz",
        *(["o", "os", "oz"] if name in ("sum", "product") else []),
        "ys",
        "yz",
    ]
    if name == "concat":
        inputs = ["ys", "yz", "x", "xs", "xz", "o", "os", "oz"]
    node = onnx.helper.make_node(operator, inputs, ["y"], domain="com.microsoft", **options)
    x = rng.integers(np.iinfo(data_type).min, np.iinfo(data_type).max, IMAGES).astype(data_type)
    check(cpu, own(node, IMAGES, ELEMS[data_type], weights), x, atol=1)


@pytest.mark.parametrize("is_quantized", [True, False])
@pytest.mark.parametrize("turned", [0, 1])
def test_matrices(cpu: MLContext, turned: int, is_quantized: bool) -> None:
    rng = np.random.default_rng(5)
    b = rng.integers(-90, 90, [6, 4]).astype(np.int8)
    weights: dict[str, Any] = {
        "xs": np.float32(0.05),
        "xz": np.uint8(100),
        "b": b.T.copy() if turned else b,
        "bs": rng.uniform(0.01, 0.05, 4).astype(np.float32),
        "bz": np.zeros(4, np.int8),
        "c": rng.integers(-900, 900, 4).astype(np.int32),
    }
    ends = {"ys": np.float32(0.2), "yz": np.uint8(120)} if is_quantized else {}
    node = onnx.helper.make_node(
        "QGemm",
        ["x", *weights, *ends],
        ["y"],
        domain="com.microsoft",
        transB=turned,
        alpha=1.0,
    )
    x = rng.integers(0, 255, [3, 6]).astype(np.uint8)
    check(cpu, own(node, [3, 6], ELEMS["uint8"], weights | ends), x, 0 if is_quantized else 1e-4)


def test_products_of_open_depth(cpu: MLContext) -> None:
    rng = np.random.default_rng(6)
    scale, zero = np.float32(0.1), np.uint8(7)
    weights = {"s": scale, "z": zero, "t": np.float32(40)}
    turn = onnx.helper.make_node("Transpose", ["x"], ["xt"])
    inputs = ["xt", "s", "z", "x", "s", "z", "t", "z"]
    exact = onnx.helper.make_node("MatMulInteger", ["xt", "x", "z", "z"], ["y"])
    rounded = onnx.helper.make_node("QLinearMatMul", inputs, ["y"])
    x = rng.integers(0, 255, [300, 4]).astype(np.uint8)
    for node in (exact, rounded):
        made = model([turn, node], {"x": ["n", 4]}, ["y"], weights, elem=ELEMS["uint8"])
        made.ir_version = 8
        check(cpu, made, x)


@pytest.mark.parametrize(
    ("name", "params"),
    [("Relu", []), ("LeakyRelu", [0.3]), ("Clip", [-1.0, 2.0]), ("HardSigmoid", [0.3, 0.4])],
)
def test_convolutions_that_end_in_an_activation(
    cpu: MLContext, name: str, params: list[float]
) -> None:
    rng = np.random.default_rng(7)
    weights = {"w": rng.normal(size=[4, 3, 2, 2]).astype(np.float32), "b": np.ones(4, np.float32)}
    options: dict[str, Any] = {"activation": name, "pads": [1, 0, 0, 1]}
    if params:
        options["activation_params"] = params
    node = onnx.helper.make_node(
        "FusedConv", ["x", "w", "b"], ["y"], domain="com.microsoft", **options
    )
    x = rng.normal(size=IMAGES).astype(np.float32)
    check(cpu, own(node, IMAGES, onnx.TensorProto.FLOAT, weights), x, 1e-5)


@pytest.mark.parametrize(("name", "alpha"), [("Relu", 0.0), ("LeakyRelu", 0.3), ("Tanh", 0.0)])
def test_products_that_end_in_an_activation(cpu: MLContext, name: str, alpha: float) -> None:
    rng = np.random.default_rng(8)
    weights = {"w": rng.normal(size=[5, 4]).astype(np.float32), "b": np.ones(5, np.float32)}
    options: dict[str, Any] = {"activation": name, "transB": 1, "alpha": 0.5}
    if alpha:
        options["activation_alpha"] = alpha
    node = onnx.helper.make_node(
        "FusedGemm", ["x", "w", "b"], ["y"], domain="com.microsoft", **options
    )
    x = rng.normal(size=[3, 4]).astype(np.float32)
    check(cpu, own(node, [3, 4], onnx.TensorProto.FLOAT, weights), x, 1e-5)


@pytest.mark.parametrize(
    ("name", "params"), [("Clip", [1.0]), ("HardSigmoid", [0.2]), ("Elu", [1])]
)
def test_activations_that_lack_numbers_or_are_unknown_are_refused(
    cpu: MLContext, name: str, params: list[float]
) -> None:
    weights = {"w": np.ones([4, 3, 2, 2], np.float32)}
    node = onnx.helper.make_node(
        "FusedConv",
        ["x", "w"],
        ["y"],
        domain="com.microsoft",
        activation=name,
        activation_params=[float(one) for one in params],
    )
    with pytest.raises(MLError, match=f"FusedConv.*{name}"):
        load(own(node, IMAGES, onnx.TensorProto.FLOAT, weights), cpu)


def test_integer_products_stay_one_operator() -> None:
    """Of deep matrices, whose multiplied elements or float copies would take much memory."""
    rng = np.random.default_rng(5)
    weights = {"w": rng.integers(-128, 128, (2048, 64)).astype(np.int8), "z": np.uint8(7)}
    node = onnx.helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])
    made = own(node, [3, 2048], ELEMS["uint8"], weights)
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    with ml.create_context_sync(engine="onnxruntime") as context:
        graph = load(made, context)
        assert str(graph).count(" = matmul_integer(") == 1
        assert " = matmul(" not in str(graph)
        x = rng.integers(0, 256, (3, 2048)).astype(np.uint8)
        found = MLExecution(context).compute(graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, (x.astype(int) - 7) @ weights["w"].astype(int))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 4])
def test_packed_products_and_root_mean_squares_stay_one_operator(bits: int, level: int) -> None:
    rng = np.random.default_rng(6)
    weights = {
        "g": rng.uniform(0.5, 2, 64).astype(np.float32),
        "w": rng.integers(0, 256, (24, 2, 32 * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, 48).astype(np.float32),
        "z": rng.integers(0, 256, 24 * 2 * bits // 8).astype(np.uint8),
    }
    options = {"K": 64, "N": 24, "bits": bits, "block_size": 32, "accuracy_level": level}
    nodes = [
        onnx.helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["h"]),
        onnx.helper.make_node(
            "MatMulNBits", ["h", "w", "s", "z"], ["y"], domain="com.microsoft", **options
        ),
    ]
    made = own(nodes[0], [3, 64], onnx.TensorProto.FLOAT, weights)
    made.graph.node.append(nodes[1])
    x = rng.normal(size=(3, 64)).astype(np.float32)
    with ml.create_context_sync(engine="onnxruntime") as context:
        listing = str(load(made, context))
        assert " = rms_normalization(" in listing
        assert " = matmul_packed(" in listing
        check(context, made, x, atol=1e-5)
    pytest.importorskip("openvino")
    with ml.create_context_sync(engine="openvino") as context:
        assert "engine reference" not in str(load(made, context))
    with ml.create_context_sync(engine="reference") as context:
        # ONNX Runtime quantizes x at this level; the weights are up to 2^bits steps.
        check(context, made, x, atol=1e-3 if level == 0 else 2**bits / 100)


def test_a_dynamically_quantized_product_stays_what_onnx_runtime_fuses(cpu: MLContext) -> None:
    """Scale and zero point go from one operator to the other as they are."""
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-127, 127, (8, 6)).astype(np.int8),
        "w_scale": np.float32(0.02),
        "w_zero": np.int8(0),
        "bias": rng.normal(size=6).astype(np.float32),
    }
    node = onnx.helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"]),
        node("MatMulInteger", ["codes", "w", "zero", "w_zero"], ["total"]),
        node("Cast", ["total"], ["wide"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["scale", "w_scale"], ["factor"]),
        node("Mul", ["wide", "factor"], ["product"]),
        node("Add", ["product", "bias"], ["y"]),
    ]
    made = model(nodes, {"x": ["n", 8]}, ["y"], weights, opset=17)
    graph = load(made, cpu)
    written = [one.op_type for one in to_onnx(graph).graph.node]
    assert sorted(written) == sorted(one.op_type for one in nodes)
    x = rng.normal(size=(5, 8)).astype(np.float32)
    made.ir_version = 8
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(MLExecution(cpu).compute(graph, {"x": x})["y"], wanted, rtol=1e-5)
