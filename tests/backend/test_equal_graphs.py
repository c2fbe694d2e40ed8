"""Graphs of equal recipes on one context are compiled once, and still run by themselves."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.held import Compilations
from tests.graphs import awaited, normal
from webnn_py import (
    DataError,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    ml,
)

X = normal(4, 8)
WEIGHTS = normal(8, 8, seed=1)


def network(
    weights: np.ndarray[Any, Any] = WEIGHTS,
    label: str = "",
    constant: str = "",
    low: float = 0.0,
    output: str = "y",
) -> Callable[[MLContext], MLGraph]:
    """A small network whose parts can be changed one at a time."""

    def built(context: MLContext) -> MLGraph:
        b = MLGraphBuilder(context)
        x = b.input("x", "float32", [4, 8])
        product = b.matmul(x, b.constant(weights, name=constant), label=label)
        return b.build_sync({output: b.clamp(product, min_value=low)})

    return built


@pytest.fixture
def compilations(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> Compilations:
    return Compilations(context, monkeypatch)


@pytest.fixture(params=["cpu", "gpu"])
def context(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    with ml.create_context_sync(device_type=request.param) as made:
        yield made


def result(graph: MLGraph) -> np.ndarray[Any, Any]:
    (made,) = awaited(graph, {"x": X}).values()
    return np.asarray(made)


def test_an_equal_graph_is_not_compiled_again(
    context: MLContext, compilations: Compilations
) -> None:
    first, second = network()(context), network(WEIGHTS.copy())(context)
    assert compilations.count == 1
    assert str(first) == str(second)
    expected = np.maximum(X @ WEIGHTS, 0)
    for graph in (first, second):
        np.testing.assert_allclose(result(graph), expected, rtol=1e-5, atol=1e-5)
    first.destroy()
    np.testing.assert_allclose(result(second), expected, rtol=1e-5, atol=1e-5)
    third = network()(context)
    assert compilations.count == 1
    np.testing.assert_allclose(result(third), expected, rtol=1e-5, atol=1e-5)


CHANGED = WEIGHTS.copy()
CHANGED[-1, -1] += 1


@pytest.mark.parametrize(
    "other",
    [
        network(CHANGED),
        network(label="stem"),
        network(constant="w"),
        network(low=-0.0),
        network(low=0.5),
        network(output="z"),
    ],
    ids=["weight", "label", "name of a constant", "sign of zero", "option", "name of an output"],
)
def test_whatever_differs_is_compiled(
    context: MLContext, compilations: Compilations, other: Callable[[MLContext], MLGraph]
) -> None:
    first = network()(context)
    second = other(context)
    assert compilations.count == 2
    assert list(first.outputs) == ["y"]
    np.testing.assert_allclose(result(first), np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)
    assert result(second).shape == (4, 8)


def test_an_entry_lives_as_long_as_its_graphs(
    context: MLContext, compilations: Compilations
) -> None:
    first = network()(context)
    second = network()(context)
    first.destroy()
    second.destroy()
    gc.collect()
    kept = network()(context)
    assert compilations.count == 2
    del kept


def test_inputs_that_became_constants_belong_to_one_graph(gpu: MLContext) -> None:
    def made() -> MLGraph:
        b = MLGraphBuilder(gpu)
        x, w = b.input("x", "float32", [4, 8]), b.input("w", "float32", [8, 8])
        return b.build_sync({"y": b.matmul(x, w)})

    first, second = made(), made()
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(first, {"w": WEIGHTS})
    gpu.submit([encoder.finish()])
    np.testing.assert_allclose(result(first), X @ WEIGHTS, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="'w'"):
        awaited(second, {"x": X})


def test_equal_graphs_of_two_contexts_are_compiled_for_each() -> None:
    with ml.create_context_sync() as one, ml.create_context_sync() as other:
        graphs = network()(one), network()(other)
        for context, graph in zip((one, other), graphs, strict=True):
            computed = MLExecution(context).compute(graph, {"x": X})["y"]
            np.testing.assert_allclose(computed, np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)
