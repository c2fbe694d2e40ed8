"""What passes make of an open graph is taken for further sizes, where that is not much more."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.graphs import normal
from tests.internals import engine_of, recipe_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.ir import Graph
from webnn_py.ops.replay import fix
from webnn_py.passes import OpenPasses

Run = Callable[[Graph], Graph]


@pytest.fixture
def graph(cpu: MLContext) -> Graph:
    b = MLGraphBuilder(cpu)
    x = b.input("x", "float32", ["batch", 4])
    return recipe_of(b.build_sync({"y": b.relu(b.matmul(x, b.constant(normal(4, 4))))}))


class Passes:
    """Notes for which graphs it is run."""

    def __init__(self, run: Run = lambda graph: graph) -> None:
        self.open: list[bool] = []
        self._run = run

    def __call__(self, graph: Graph) -> Graph:
        self.open.append(bool(graph.open_sizes))
        return self._run(graph)


def at(passes: OpenPasses, batch: int, run: Run) -> str:
    return str(passes.at({"batch": batch}, run))


def test_they_run_for_the_first_sizes_and_for_all(graph: Graph) -> None:
    run = Passes()
    passes = OpenPasses(graph, run)
    for batch in (3, 3, 5, 7, 1, 3):
        assert at(passes, batch, run) == str(fix(graph, {"batch": batch}))
    assert run.open == [False, False, True]


def without_relu(graph: Graph) -> Graph:
    """What a pass may do that knows more of numbers than of open dimensions."""
    if graph.open_sizes:
        return graph
    *others, relu = graph.nodes
    return graph.replace(nodes=others, outputs=[("y", *relu.operands)])


def refused(graph: Graph) -> Graph:
    if graph.open_sizes:
        raise ValueError("not known")
    return graph


@pytest.mark.parametrize("one", [without_relu, refused])
def test_they_run_for_each_where_they_make_more_of_the_open_graph(graph: Graph, one: Run) -> None:
    run = Passes(one)
    passes = OpenPasses(graph, run)
    for batch in (3, 5, 7, 9):
        assert at(passes, batch, run) == str(one(fix(graph, {"batch": batch})))
    assert run.open == [False, True, False, False, False]


def test_they_may_run_for_all_behind_the_first_sizes(graph: Graph) -> None:
    run = Passes()
    passes = OpenPasses(graph, run)
    at(passes, 3, run)
    passes.decide()
    opened = passes.opened
    assert opened is not None
    at(passes, 5, run)
    passes.decide()
    assert passes.opened is opened
    assert run.open == [False, True]


def test_they_may_run_for_all_before(graph: Graph) -> None:
    run = Passes()
    passes = OpenPasses(graph, run)
    passes.decide()
    for batch in (3, 5, 3):
        assert at(passes, batch, run) == str(fix(graph, {"batch": batch}))
    assert run.open == [True]


def test_what_they_make_of_all_is_left_once_it_is_known_to_be_far_more(graph: Graph) -> None:
    run = Passes(without_relu)
    passes = OpenPasses(graph, run)
    passes.decide()
    assert at(passes, 3, run) == str(fix(graph, {"batch": 3}))
    for batch in (3, 5):
        fixed = fix(graph, {"batch": batch})
        assert str(passes.alone({"batch": batch}, run)) == str(without_relu(fixed))
        assert passes.opened is None
        assert at(passes, batch, run) == str(without_relu(fixed))
    assert run.open == [True, False, False, False, False]


def test_a_thread_that_runs_them_is_not_waited_for(graph: Graph) -> None:
    """What it makes is left then."""
    begun, goes = threading.Event(), threading.Event()

    def held(graph: Graph) -> Graph:
        if graph.open_sizes and threading.current_thread() is thread:
            begun.set()
            assert goes.wait(30)
        return graph

    passes = OpenPasses(graph, held)
    thread = threading.Thread(target=passes.decide)
    at(passes, 3, held)
    thread.start()
    assert begun.wait(30)
    assert at(passes, 5, held) == str(fix(graph, {"batch": 5}))
    opened = passes.opened
    goes.set()
    thread.join()
    assert passes.opened is opened is not None


def test_a_graph_on_a_device_is_optimized_twice(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    from webnn_py.api.graph_compiler import GraphCompiler

    runs: list[bool] = []
    optimize = GraphCompiler.optimize

    def noted(self: GraphCompiler, recipe: Graph, *rest: object) -> Graph:
        runs.append(bool(recipe.open_sizes))
        return optimize(self, recipe, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphCompiler, "optimize", noted)
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", ["length", 8])

    def normalized(h: MLOperand) -> MLOperand:
        return b.layer_normalization(b.gelu(b.matmul(h, b.constant(normal(8, 8)))), axes=[1])

    graph = b.build_sync({"y": normalized(normalized(x))})
    for length in (3, 5, 7, 8):
        graph.prepare_sync({"length": length})
    # Hardware compiles for the first sizes by themselves, too, on another thread.
    assert runs[:2] == [False, True]
    assert len(runs) == 2 or engine_of(gpu).gpu.hardware
