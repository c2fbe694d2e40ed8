"""Graphs copied, pickled, and sent to other processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import tracemalloc

import numpy as np
import pytest

from tests.processes import run_alone
from tests.saved import Array, assert_same, built, computed
from webnn_py import (
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    NotSupportedError,
    Timeline,
    ValidationError,
    ml,
)


def test_a_copy_takes_no_memory_for_its_constants(cpu: MLContext) -> None:
    b = MLGraphBuilder(cpu)
    x = b.input("x", "float32", [1 << 20])
    graph = b.build_sync({"y": b.add(x, b.constant(np.ones(1 << 20, np.float32)))})
    tracemalloc.start()
    try:
        made = [copy.copy(graph), copy.deepcopy(graph)]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(made[0]) == str(made[1]) == str(graph)


def test_copies_are_graphs_of_their_own(cpu: MLContext) -> None:
    graph = built(cpu)
    for made in (copy.copy(graph), copy.deepcopy(graph), copy.deepcopy({"in": [graph]})["in"][0]):
        assert made is not graph
        assert_same(made, graph)
        made.destroy()
    computed(graph, cpu)
    graph.destroy()
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidStateError, match="destroyed"):
            make(graph)


def test_a_pickled_graph_arrives_in_the_default_context(cpu: MLContext) -> None:
    graph = built(cpu)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        made = pickle.loads(pickle.dumps(graph, protocol))
        assert_same(made, graph)
        computed(made, ml.default_context)
    data = pickle.dumps(graph)
    first = ml.default_context
    assert first is ml.default_context
    assert first.device_type == "cpu"
    ml.default_context = cpu
    try:
        assert ml.default_context is cpu
        computed(pickle.loads(data), cpu)
    finally:
        ml.default_context = None  # type: ignore[assignment]
    assert ml.default_context is first
    first.destroy()
    assert ml.default_context is not first
    computed(pickle.loads(data), ml.default_context)
    with pytest.raises(ValidationError, match="expected an MLContext"):
        ml.default_context = "cpu"  # type: ignore[assignment]


def doubled(graph: MLGraph) -> tuple[dict[str, Array], MLGraph]:
    """What another process makes of a graph that it is sent."""
    return computed(graph, ml.default_context), graph


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_graphs_are_sent_to_other_processes_and_back(method: str) -> None:
    run_alone(globals()[f"send_by_{method}"])


def send(method: str) -> None:
    with ml.create_context_sync(engine="reference") as cpu:
        graph = built(cpu)
        computed(pickle.loads(pickle.dumps(graph)), ml.default_context)  # one before the fork
        with multiprocessing.get_context(method).Pool(1) as pool:
            results, returned = pool.apply(doubled, (graph,))
        for name, array in computed(graph, cpu).items():
            assert results[name].tobytes() == array.tobytes()
        assert_same(returned, graph)


def send_by_spawn() -> None:
    send("spawn")


def send_by_fork() -> None:
    send("fork")


def send_by_forkserver() -> None:
    send("forkserver")


def test_what_belongs_to_a_process_is_neither_copied_nor_pickled(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    things = [
        cpu,
        builder,
        builder.input("x", "float32", [2]),
        cpu.create_tensor_sync("float32", [2]),
        MLExecution(cpu),
        MLAwaitedExecution(cpu),
        Timeline(),
    ]
    for thing in things:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotSupportedError, match=f"{type(thing).__name__} can be neither"):
                make(thing)
