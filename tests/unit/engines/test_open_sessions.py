"""Sessions of ONNX Runtime for graphs with open dimensions: one for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.networks import encoder
from tests.graphs import normal
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="onnxruntime")


@pytest.fixture(scope="module")
def reference() -> MLContext:
    return ml.create_context_sync(engine="reference")


@pytest.mark.parametrize(("width", "runs"), [(16, 20), (384, 4)])
def test_all_sizes_of_an_encoder_have_one_session(
    context: MLContext, reference: MLContext, sessions: list[Any], width: int, runs: int
) -> None:
    def encoding(where: MLContext) -> MLGraph:
        b = MLGraphBuilder(where, dimensions={"batch": (1, 8), "length": (1, 64)})
        return b.build_sync({"y": encoder(b, "batch", "length", 1, width, 2)})

    graph, wanted = encoding(context), encoding(reference)
    encoding(context).prepare_sync({"batch": 1, "length": 1})  # asks for kernels, too
    sessions.clear()
    for n in range(runs):
        batch, length = 1 + n % 4, 1 + n
        x, mask = normal(batch, length, width, seed=n), normal(batch, length, seed=n)
        got = MLExecution(context).compute(graph, {"x": x, "mask": mask})["y"]
        array = MLExecution(reference).compute(wanted, {"x": x, "mask": mask})["y"]
        np.testing.assert_allclose(got, array, rtol=2e-4, atol=2e-5)
    assert len(sessions) == 1


def test_a_part_that_cannot_stay_open_has_a_session_for_each_size(
    context: MLContext, reference: MLContext, sessions: list[Any]
) -> None:
    def resampling(where: MLContext) -> MLGraph:
        b = MLGraphBuilder(where)
        x = b.input("x", "float32", [1, 1, "n", 3])
        grown = b.resample2d(
            b.relu(x), mode="nearest-neighbor", sizes=[x.shape[2] + 1, 3], axes=[2, 3]
        )
        return b.build_sync({"y": b.exp(grown)})

    graph, wanted = resampling(context), resampling(reference)
    resampling(context).prepare_sync({"n": 1})
    sessions.clear()
    for n in (1, 2, 5):
        x = normal(1, 1, n, 3)
        got = MLExecution(context).compute(graph, {"x": x})["y"]
        array = MLExecution(reference).compute(wanted, {"x": x})["y"]
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)
    assert len(sessions) == 3


@pytest.mark.parametrize("rows", [["length"], ["batch", "length"]])
def test_products_in_a_row_have_one_session_for_any_number_of_rows(
    context: MLContext, reference: MLContext, sessions: list[Any], rows: list[str]
) -> None:
    def perceptron(where: MLContext) -> MLGraph:
        b = MLGraphBuilder(where)
        x = b.input("x", "float32", [*rows, 512])
        wide = b.add(b.matmul(x, b.constant(normal(512, 1024))), b.constant(normal(1024)))
        return b.build_sync({"y": b.matmul(b.gelu(wide), b.constant(normal(1024, 512)))})

    graph, wanted = perceptron(context), perceptron(reference)
    perceptron(context).prepare_sync(dict.fromkeys(rows, 1))  # asks for kernels, too
    sessions.clear()
    for sizes in ((2, 3), (1, 1), (3, 5)):
        x = normal(*sizes[: len(rows)], 512)
        got = MLExecution(context).compute(graph, {"x": x})["y"]
        array = MLExecution(reference).compute(wanted, {"x": x})["y"]
        np.testing.assert_allclose(got, array, rtol=1e-4, atol=1e-6 * np.abs(array).max())
    assert len(sessions) == 1
