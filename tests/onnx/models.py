"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
Node = tuple[Any, ...]


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    weights: Mapping[str, Any] | None = None,
    opset: int = 21,
    elem: int = FLOAT,
) -> onnx.ModelProto:
    """A model of nodes, its inputs of one element type."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, elem, list(shape)) for n, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def small_network() -> onnx.ModelProto:
    """A convolution, pooling, a reshape by shape arithmetic, and a product."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "b": np.zeros(4, np.float32),
        "zero": np.asarray(0, np.int64),
        "rest": np.asarray([-1], np.int64),
        "first": np.asarray([0], np.int64),
        "m": rng.normal(size=(64, 5)).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="stem", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="act"),
        node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["p"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "first"], ["n1"]),
        node("Concat", ["n1", "rest"], ["to"], axis=0),
        node("Reshape", ["p", "to"], ["f"], name="flat"),
        node("MatMul", ["f", "m"], ["y"], name="head"),
    ]
    return model(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights)
