"""What is measured on processors and on GPUs: single operators, models, an encoder."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx

from benchmarks.models import ENCODER, LIGHT, model
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.onnx import to_onnx


def built(record: Callable[[MLGraphBuilder], MLOperand]) -> onnx.ModelProto:
    """A graph as a model."""
    with ml.create_context_sync(engine="reference") as context:
        b = MLGraphBuilder(context)
        return to_onnx(b.build_sync({"y": record(b)}))


def floats(b: MLGraphBuilder, *shape: int) -> MLOperand:
    return b.constant(np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32))


OPERATORS: dict[str, Callable[[MLGraphBuilder], MLOperand]] = {
    "relu, 4 floats": lambda b: b.relu(b.input("x", "float32", [4])),
    "softmax 64x1024": lambda b: b.softmax(b.input("x", "float32", [64, 1024]), 1),
    "layer norm 512x768": lambda b: b.layer_normalization(
        b.input("x", "float32", [512, 768]), scale=floats(b, 768), bias=floats(b, 768), axes=[1]
    ),
    "conv 3x3 64, 56x56": lambda b: b.conv2d(
        b.input("x", "float32", [1, 64, 56, 56]), floats(b, 64, 64, 3, 3), padding=[1, 1, 1, 1]
    ),
    "depthwise 3x3 144, 56x56": lambda b: b.conv2d(
        b.input("x", "float32", [1, 144, 56, 56]),
        floats(b, 144, 1, 3, 3),
        padding=[1, 1, 1, 1],
        groups=144,
    ),
    "matmul 1024": lambda b: b.matmul(b.input("x", "float32", [1024, 1024]), floats(b, 1024, 1024)),
}
CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: functools.partial(built, record) for name, record in OPERATORS.items()},
    **{name: functools.partial(model, name) for name in (ENCODER, *LIGHT)},
}
