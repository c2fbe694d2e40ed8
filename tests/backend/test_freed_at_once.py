"""What is dropped or destroyed gives its memory back at once, not when the collector comes."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer, read
from tests.backend.kept import buffers_of, constants_of, threads_of, weights_of
from tests.graphs import awaited, normal
from tests.threads import LONG
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLProgram,
    Timeline,
    ml,
)


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


def assert_gone(things: Sequence[weakref.ref[Any]]) -> None:
    """Nothing keeps them but what threads of the context are at the end of."""
    end = time.monotonic() + LONG
    while left := [one for one in things if one() is not None]:
        assert time.monotonic() < end, left
        time.sleep(1e-3)


def test_weights_of_a_graph_that_is_dropped(context: MLContext) -> None:
    graph = network(context)
    awaited(graph, {"x": normal(1, 4, 8, 8)})
    weights = weights_of(graph)
    assert all(one() is not None for one in weights)
    del graph
    assert_gone(weights)


def test_weights_of_a_graph_that_is_destroyed(context: MLContext) -> None:
    graph = network(context)
    weights = weights_of(graph)
    graph.destroy()
    assert_gone(weights)


def test_constants_of_a_graph_that_is_destroyed(gpu: MLContext) -> None:
    graph, encoder, x = network(gpu), MLCommandEncoder(gpu), normal(1, 4, 8, 8)
    y = [empty_buffer(gpu.device, 4 * 12 * 64) for _ in range(2)]
    encoder.initialize_graph(graph, {"x": x})
    encoder.dispatch(graph, {}, {"y": y[0]})
    gpu.submit([encoder.finish()])
    constants = constants_of(graph)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, {}, {"y": y[1]})
    graph.destroy()
    gpu.submit([encoder.finish()])
    np.testing.assert_array_equal(read(y[0]), read(y[1]))
    del encoder
    assert_gone(constants)


def test_graphs_over_buffers_that_outlive_them(gpu: MLContext) -> None:
    x, y = (empty_buffer(gpu.device, 16) for _ in range(2))
    counts = []
    for _ in range(4):
        b = MLGraphBuilder(gpu)
        graph = b.build_sync({"y": b.relu(b.input("x", "float32", [4]))})
        encoder = MLCommandEncoder(gpu)
        encoder.dispatch(graph, {"x": x}, {"y": y})
        gpu.submit([encoder.finish()])
        graph.destroy()
        del b, graph, encoder
        counts.append(weakref.getweakrefcount(x))  # such as of what is to be done at its end
    assert counts[-1] == counts[0]


def test_a_saved_graph_that_is_loaded_and_dropped(context: MLContext, tmp_path: Path) -> None:
    network(context).save(tmp_path / "graph")
    graph = context.load_graph_sync(tmp_path / "graph")
    weights = weights_of(graph)
    del graph
    assert_gone(weights)


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
    assert_gone(weights)


# Contexts


def use(context: MLContext, folder: Path) -> list[Any]:
    """What a user may still have when the context is destroyed."""
    graph, x = network(context), normal(1, 4, 8, 8)
    given = context.create_tensor_sync("float32", x.shape, writable=True)
    made = context.create_tensor_sync("float32", [12, 64], readable=True)
    context.write_tensor(given, x)
    context.dispatch(graph, {"x": given}, {"y": made})
    context.read_tensor_sync(made)
    awaited(graph, {"x": x})
    ended, never = Timeline(), Timeline()
    context.dispatch(graph, {"x": given}, {"y": made}, sync=[ended(signal=1)])
    ended.wait_sync(1)
    context.dispatch(graph, {"x": given}, {"y": made}, sync=[never(wait=1)])
    left = [graph, given, made, MLAwaitedExecution(context)]
    return left if context.device is None else left + record(context, graph, folder)


def record(context: MLContext, graph: MLGraph, folder: Path) -> list[Any]:
    """What there is on a GPU alone."""
    outputs = {"y": context.create_tensor_sync("float32", [12, 64])}
    encoder, bound = MLCommandEncoder(context), network(context)
    encoder.initialize_graph(bound, {"x": normal(1, 4, 8, 8)})
    encoder.dispatch(bound, {}, outputs)
    context.submit([encoder.finish()])
    job = context.slice_dispatch(graph, {"x": normal(1, 4, 8, 8)}, outputs)
    MLCommandEncoder(context).dispatch_slice(job, budget_ms=1e-6)
    graph.compile_to(folder / "program")
    program = context.load_program_sync(folder / "program")
    program.run_sync({"x": normal(1, 4, 8, 8)})
    return [bound, outputs, job, program]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_context_that_is_destroyed(
    kind: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue(kind)
    with ml.create_context_sync(device_type=kind) as context:
        left = use(context, tmp_path)
    things = [threads_of(context)]
    if kind == "gpu":
        things += [weakref.ref(context.device), weakref.ref(context.device.queue)]
    del context, left
    assert_gone(things)


def test_a_context_that_is_dropped(gpu: MLContext) -> None:
    context = ml.create_context_sync(device_type="gpu")
    graph = network(context)
    awaited(graph, {"x": normal(1, 4, 8, 8)})
    things = [threads_of(context), weakref.ref(context.device)]
    del context, graph
    assert_gone(things)


def test_what_the_user_still_has_of_a_context(gpu: MLContext, tmp_path: Path) -> None:
    buffers = [weakref.ref(made) for made in buffers_of(gpu.device)]
    with ml.create_context_sync(gpu.device) as context:
        left = use(context, tmp_path)
        made = [weakref.ref(one) for one in buffers_of(gpu.device)]
    assert len(made) > len(buffers) + 10
    known = {id(one()) for one in buffers}
    assert_gone([one for one in made if id(one()) not in known])
    graph, *_, program = left
    graph.save(tmp_path / "kept")
    for kept in (graph, program):
        assert str(kept)
        assert repr(kept)
