"""What is dropped or destroyed gives its memory back at once, not when the collector comes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import awaited, normal
from tests.internals import executable_of, recipe_of
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLProgram


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def network(context: MLContext) -> MLGraph:
    """One that many passes and kernels have a part in."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [1, 4, 8, 8])
    w, h = b.constant(normal(6, 4, 3, 3)), b.constant(normal(6))
    y = b.batch_normalization(b.conv2d(x, w, padding=[1, 1, 1, 1]), h, b.exp(h))
    joined = b.concat([b.relu(y), b.gelu(b.transpose(y, permutation=[0, 1, 3, 2]))], 1)
    return b.build_sync({"y": b.softmax(b.reshape(joined, [12, 64]), 1)})


def weights_of(graph: MLGraph) -> list[weakref.ref[Any]]:
    """The constants as they were given, and as they are run."""
    executable = executable_of(graph)
    run = getattr(executable, "compiled", executable)
    graphs = [recipe_of(graph), *([run.graph] if hasattr(run, "graph") else [])]
    return [weakref.ref(array) for made in graphs for array in made.constants.values()]


def test_weights_of_a_graph_that_is_dropped(context: MLContext) -> None:
    graph = network(context)
    awaited(graph, {"x": normal(1, 4, 8, 8)})
    weights = weights_of(graph)
    assert all(one() is not None for one in weights)
    del graph
    assert not any(one() is not None for one in weights)


def test_weights_of_a_graph_that_is_destroyed(context: MLContext) -> None:
    graph = network(context)
    weights = weights_of(graph)
    graph.destroy()
    assert not any(one() is not None for one in weights)


def test_a_saved_graph_that_is_loaded_and_dropped(context: MLContext, tmp_path: Path) -> None:
    network(context).save(tmp_path / "graph")
    graph = context.load_graph_sync(tmp_path / "graph")
    weights = weights_of(graph)
    del graph
    assert not any(one() is not None for one in weights)


def test_weights_of_a_program(gpu: MLContext) -> None:
    graph, program = network(gpu), MLProgram(gpu)
    weights = weights_of(graph)
    x = program.argument("x", "float32", [1, 4, 8, 8])
    sequence = program.sequence()
    sequence.dispatch(graph, {"x": x}, {"y": program.buffer("float32", [12, 64])})
    program.append(sequence)
    program.compile_sync()
    program.run_sync({"x": np.zeros((1, 4, 8, 8), np.float32)})
    del graph, sequence, x, program
    assert not any(one() is not None for one in weights)
