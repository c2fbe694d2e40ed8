"""The engine that runs graphs by OpenVINO: what it holds, and what is not left to it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.processes import run_alone
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml

pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="openvino")


def run(graph: MLGraph, context: MLContext, **inputs: Any) -> dict[str, Any]:
    return MLExecution(context).compute(graph, inputs)


def test_wide_integers_are_not_left_to_it(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    x = b.input("x", "int64", [2])
    graph = b.build_sync({"y": b.add(x, x)})
    assert "# engine openvino" not in str(graph)
    values = np.array([2**40 + 1, 2**53 + 1])
    assert run(graph, context, x=values)["y"].tolist() == (2 * values).tolist()


def test_results_that_follow_from_no_input(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    x, seven = b.input("x", "float32", [2]), b.constant(7.0, "float32")
    graph = b.build_sync({"y": b.identity(seven), "z": b.add(x, seven), "w": b.abs(seven)})
    for value in (1, 2):
        made = run(graph, context, x=np.full(2, value, np.float32))
        assert made["y"] == made["w"] == 7
        assert made["z"].tolist() == [value + 7] * 2


def test_inputs_may_be_read_only(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    graph = b.build_sync({"y": b.neg(b.input("x", "float32", [2]))})
    x = np.ones(2, np.float32)
    x.flags.writeable = False
    assert run(graph, context, x=x)["y"].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("window", "padding", "strides", "shape", "layout"),
    [
        ((1, 1), [1, 1, 1, 0], [1, 2], (1, 2, 4, 4), "nchw"),
        ((3, 3), [0, 0, 1, 0], [1, 2], (1, 1, 7, 3), "nchw"),
        ((3, 3), [0, 0, 1, 0], [1, 2], (1, 7, 3, 1), "nhwc"),
    ],
)
def test_convolutions_that_it_mistakes(
    context: MLContext, window: Any, padding: Any, strides: Any, shape: Any, layout: Any
) -> None:
    rng = np.random.default_rng(0)
    channels = shape[layout.index("c")]
    first, second = (rng.normal(size=(channels, channels, *w)) for w in ((1, 1), window))
    x = rng.normal(size=shape).astype(np.float32)
    results = []
    for engine in (context, ml.create_context_sync(engine="reference")):
        b = MLGraphBuilder(engine)
        y = b.input("x", "float32", shape)
        y = b.conv2d(y, b.constant(first.astype(np.float32)), input_layout=layout)
        filter = b.constant(second.astype(np.float32))
        options: Any = {"padding": padding, "strides": strides, "input_layout": layout}
        graph = b.build_sync({"y": b.conv2d(y, filter, **options)})
        results.append(run(graph, engine, x=x)["y"])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def scalars_behind_products() -> None:
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    one = ml.create_context_sync(engine="openvino")
    for product in ("matmul", "gemm"):
        for shape in ([], [1]):
            b = MLGraphBuilder(one)
            made = getattr(b, product)(b.input("x", "float32", [1, 3]), b.constant(x.T.copy()))
            scalar = b.reshape(b.reshape(b.abs(made), shape), [])
            graph = b.build_sync({"y": scalar, "z": b.expand(scalar, [2])})
            results = run(graph, one, x=x)
            assert results["y"] == 5
            assert results["z"].tolist() == [5, 5]
    b = MLGraphBuilder(one)
    scale = b.matmul(b.input("x", "float32", [1, 3]), b.constant(x.T.copy()))
    zero = b.constant(np.zeros((1, 1), np.uint8))
    q = b.quantize_linear(b.input("y", "float32", [2, 2]), scale, zero)
    y = np.full((2, 2), 10, np.float32)
    assert run(b.build_sync({"q": q}), one, x=x, y=y)["q"].tolist() == [[2, 2], [2, 2]]


def test_scalars_behind_products() -> None:
    """OpenVINO would end the process."""
    run_alone(scalars_behind_products)


def windows_in_the_padding() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
    results = []
    for name in ("openvino", "reference"):
        one = ml.create_context_sync(engine=name)
        b = MLGraphBuilder(one)
        filter = b.constant(np.arange(9, dtype=np.float32).reshape(3, 1, 3, 1))
        bias = b.constant(np.ones(3, np.float32))
        options: Any = {"padding": [1, 0, 0, 1], "strides": [2, 1], "bias": bias}
        y = b.conv2d(b.input("x", "float32", x.shape), filter, **options)
        results.append(run(b.build_sync({"y": y}), one, x=x)["y"].tolist())
    assert results[0] == results[1]


def test_windows_in_the_padding() -> None:
    """OpenVINO would read what is not there."""
    run_alone(windows_in_the_padding)


def test_importing_it_tells_nobody() -> None:
    code = (
        "import sys, webnn_py; webnn_py.ml.create_context_sync(engine='openvino');"
        "assert 'openvino' in sys.modules; assert 'openvino_telemetry' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
