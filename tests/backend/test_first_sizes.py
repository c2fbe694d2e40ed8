"""On hardware, what the first sizes run by serves others; they get kernels of their own later."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from tests.backend.attending import FAR, MET, WEIGHTS, WIDTH, Later, attending, check
from tests.graphs import awaited, normal
from tests.internals import engine_of, prepared_for, prepared_sizes, session_of
from webnn_py import MLContext, MLGraphBuilder, ml
from webnn_py.api import shape_specialization as prepared
from webnn_py.api.graph_compiler import GraphCompiler
from webnn_py.api.shape_specialization import Prepared, Sizes
from webnn_py.engines.device import ForSizes
from webnn_py.engines.webgpu.compiler.shape_generic import CompiledAlike
from webnn_py.engines.webgpu.runtime.engine import WebGPUEngine
from webnn_py.ir import Graph


@pytest.fixture(autouse=True)
def as_on_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebGPUEngine, "compiles_ahead", True)


def test_what_the_first_sizes_run_by_serves_others(
    gpu: MLContext, later: Later, traces: list[int], pipelines: list[str]
) -> None:
    graph = attending(gpu)
    check(graph, MET[0])
    pipelines.clear()
    for length in (MET[1], 9, 82, FAR):
        check(graph, length)
    assert traces == [MET[0]]
    assert pipelines == []
    assert len(later) == 4  # two for the first, for 9 and the one that is far


def test_the_first_sizes_get_kernels_of_their_own(
    gpu: MLContext, later: Later, traces: list[int]
) -> None:
    graph = attending(gpu)
    check(graph, MET[0])
    first = prepared_for(graph, length=MET[0])
    for work in later:
        work()
    assert traces == [MET[0]]
    own = prepared_for(graph, length=MET[0])
    assert own is not first
    assert own.improve is None
    check(graph, MET[0])


def test_kernels_of_their_own_are_no_use_of_sizes(
    gpu: MLContext, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stays compiled is what was used last."""
    with ml.create_context_sync(gpu.device, max_prepared_sizes=2) as context:
        graph = attending(context)
        made = prepared_sizes(graph, monkeypatch)
        for length in MET:
            check(graph, length)
        for work in [*later]:
            work()
        for length in (FAR, MET[1]):
            check(graph, length)
    assert made == [(MET[0],), (MET[1],), (FAR,)]


def test_memory_goes_while_kernels_of_their_own_are_compiled(
    gpu: MLContext, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If other sizes have taken their room."""
    gone: list[bool] = []
    plain = prepared._OnDevice._by_themselves

    def meanwhile(self: prepared._OnDevice, sizes: Sizes) -> Prepared:
        if dict(sizes)["length"] == MET[0] and not gone:
            gone.append(False)
            graph.prepare_sync({"length": MET[1]})
            gc.collect()
            gone.append(there() is None)
        return plain(self, sizes)

    with ml.create_context_sync(gpu.device, max_prepared_sizes=1) as context:
        graph = attending(context)
        monkeypatch.setattr(prepared._OnDevice, "_by_themselves", meanwhile)
        check(graph, MET[0])
        there = weakref.ref(prepared_for(graph, length=MET[0]).executable)
        for work in [*later]:
            work()
    assert gone == [False, True]


def test_the_first_sizes_that_are_prepared_have_kernels_of_their_own(
    gpu: MLContext, later: Later, traces: list[int], pipelines: list[str]
) -> None:
    """What serves others is compiled behind them."""
    graph = attending(gpu)
    graph.prepare_sync({"length": MET[0]})
    first = prepared_for(graph, length=MET[0])
    assert traces == []
    later.popleft()()
    assert traces == [MET[0]]
    assert not later
    pipelines.clear()
    for length in (*MET, 9, 82, FAR):
        check(graph, length)
    assert traces == [MET[0]]
    assert pipelines == []
    assert prepared_for(graph, length=MET[0]) is first


@pytest.mark.parametrize("prepared", [False, True])
def test_sizes_are_compiled_for_one_by_one_where_passes_know_too_little(
    gpu: MLContext,
    later: Later,
    traces: list[int],
    monkeypatch: pytest.MonkeyPatch,
    prepared: bool,
) -> None:
    optimize = GraphCompiler.optimize

    def refused(self: GraphCompiler, recipe: Graph, *rest: object) -> Graph:
        if recipe.open_sizes:
            raise ValueError("not known")
        return optimize(self, recipe, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphCompiler, "optimize", refused)
    graph = attending(gpu)
    for length in (*MET, FAR):
        if prepared:
            graph.prepare_sync({"length": length})
        check(graph, length)
        while later:
            later.popleft()()
        assert prepared_for(graph, length=length).improve is None
    assert traces == []


def test_several_are_compiled_for_behind_one(
    gpu: MLContext, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for requests that are computed together behind the first one."""
    made: list[dict[str, int]] = []
    trace = CompiledAlike.__init__

    def noted(self: CompiledAlike, graph: object, sizes: dict[str, int], *rest: object) -> None:
        made.append(dict(sizes))
        trace(self, graph, sizes, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CompiledAlike, "__init__", noted)
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", ["batch", "length", WIDTH])
    graph = b.build_sync({"y": b.softmax(b.matmul(x, b.constant(WEIGHTS)), 1)})

    def compute(batch: int, length: int) -> None:
        x = normal(batch, length, WIDTH, seed=batch * length)
        raised = np.exp(x @ WEIGHTS)
        y = raised / raised.sum(1, keepdims=True)
        np.testing.assert_allclose(awaited(graph, {"x": x})["y"], y, rtol=1e-3, atol=1e-5)

    expected = [{"batch": 1, "length": 12}, {"batch": 4, "length": 12}]
    compute(1, 12)
    assert made == expected[:1]
    later.popleft()()
    assert made == expected
    for batch, length in ((1, 90), (2, 12), (16, 5), (3, 90), (8, 2)):
        compute(batch, length)
    assert made == expected


def test_nothing_is_compiled_ahead_that_is_there(
    gpu: MLContext, later: Later, traces: list[int]
) -> None:
    """Others may come before it begins: what is made for them may do for the first, or not."""
    for other, made in ((MET[1], [MET[1]]), (1, [1, MET[0]])):
        graph = attending(gpu)
        graph.prepare_sync({"length": MET[0]})
        check(graph, other)
        assert traces == [other]
        for work in (later.popleft(), *later):
            work()
        assert traces == made
        check(graph, MET[0] + 1)
        assert traces == made
        traces.clear()
        later.clear()


def test_only_hardware_compiles_ahead(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    engine = engine_of(gpu)
    assert engine.compiles_ahead == engine.gpu.hardware


def test_memory_goes_with_the_graph_that_was_compiled_ahead(
    gpu: MLContext, later: Later, for_sizes: list[weakref.ref[ForSizes]]
) -> None:
    """Before that begins, and behind it."""
    gc.disable()
    try:
        for done in (False, True):
            graph = attending(gpu)
            check(graph, MET[0])
            if done:
                later.popleft()()
            del graph
            later.clear()
            assert for_sizes.pop()() is None
    finally:
        gc.enable()


def test_a_graph_that_is_dropped_is_not_compiled_ahead(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch, traces: list[int]
) -> None:
    """Its turn comes behind another's."""
    goes, done = threading.Event(), threading.Event()
    session_of(gpu).improve(goes.wait, lambda: False)  # type: ignore[arg-type]
    graph = attending(gpu)
    graph.prepare_sync({"length": MET[0]})
    graph.destroy()
    session_of(gpu).improve(done.set, lambda: False)
    goes.set()
    assert done.wait(30)
    assert traces == []
