"""What is compiled while runs go on: for sizes far from others, by whose kernels they run at once,
and for sizes that may come behind the first ones."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import awaited, normal
from tests.internals import engine_of, prepared_for, session_of, taken_for
from tests.processes import run_alone
from webnn_py import MLContext, MLGraph, MLGraphBuilder, ml
from webnn_py.api.session import Session
from webnn_py.core.cooperation import in_background
from webnn_py.engines.device import ForSizes
from webnn_py.engines.webgpu.compiler.compiled_alike import CompiledAlike
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache, PipelineKey
from webnn_py.engines.webgpu.runtime.engine import WebGPUEngine

WIDTH = 16
WEIGHTS = normal(WIDTH, WIDTH, seed=1)
MET = 80, 85
"""The first has kernels of its own, which serve no others. The second divides by nothing."""
FAR = 181
Later = deque[Callable[[], None]]


@pytest.fixture(autouse=True)
def when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are compiled for when they come, on hardware, too."""
    monkeypatch.setattr(WebGPUEngine, "compiles_ahead", False)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch, when_they_come: None) -> None:
    """And before, as on hardware."""
    monkeypatch.setattr(WebGPUEngine, "compiles_ahead", True)


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pipelines that are made, in order."""
    made: list[str] = []
    make = PipelineCache._make

    def noted(self: PipelineCache, name: str, key: PipelineKey) -> Any:
        made.append(name)
        return make(self, name, key)

    monkeypatch.setattr(PipelineCache, "_make", noted)
    return made


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """What would be done on a thread of its own, and is not."""
    works: Later = deque()
    monkeypatch.setattr(Session, "improve", lambda self, work, needless: works.append(work))
    return works


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each trace, in order."""
    made: list[int] = []
    trace = CompiledAlike.__init__

    def noted(self: CompiledAlike, graph: object, sizes: dict[str, int], *rest: object) -> None:
        made.append(sizes["length"])
        trace(self, graph, sizes, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CompiledAlike, "__init__", noted)
    return made


@pytest.fixture
def for_sizes(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[ForSizes]]:
    """What compiles each graph, as long as it is there."""
    made: list[weakref.ref[ForSizes]] = []
    make = WebGPUEngine.for_sizes

    def noted(self: WebGPUEngine) -> ForSizes:
        one = make(self)
        made.append(weakref.ref(one))
        return one

    monkeypatch.setattr(WebGPUEngine, "for_sizes", noted)
    return made


def attending(context: MLContext) -> MLGraph:
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [2, "length", WIDTH])
    keys = b.matmul(x, b.constant(WEIGHTS))
    scores = b.softmax(b.matmul(keys, b.transpose(x, permutation=[0, 2, 1])), 2)
    return b.build_sync({"y": b.layer_normalization(b.matmul(scores, x), axes=[2])})


def met(context: MLContext) -> MLGraph:
    """With sizes that it was compiled for."""
    graph = attending(context)
    for length in MET:
        check(graph, length)
    return graph


def check(graph: MLGraph, length: int) -> None:
    """It computes what NumPy does."""
    x = normal(2, length, WIDTH, seed=length)
    scores = x @ WEIGHTS @ x.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    y = weights / weights.sum(2, keepdims=True) @ x
    y = (y - y.mean(2, keepdims=True)) / np.sqrt(y.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(awaited(graph, {"x": x})["y"], y, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["gpu", "plain"])
def test_sizes_that_are_far_run_at_once(
    request: pytest.FixtureRequest, later: Later, traces: list[int], device: str
) -> None:
    graph = met(request.getfixturevalue(device))
    for length in (9, 301, FAR):
        check(graph, length)
    assert traces == [MET[1]]
    assert len(later) == 3
    far = prepared_for(graph, length=FAR)
    for work in later:
        work()
        check(graph, FAR)
    assert set(traces) == {MET[1], 9, 301} | ({FAR} & set(traces))
    near = prepared_for(graph, length=FAR)
    assert far.improve is not None
    assert near.improve is None
    assert near is not far
    for length in (*MET, 9, 281, 301, FAR):
        check(graph, length)
        assert prepared_for(graph, length=length).improve is None


def test_sizes_that_divide_may_come_first(gpu: MLContext, later: Later, traces: list[int]) -> None:
    """Who waits has kernels for any sizes; those for sizes that divide are made meanwhile."""
    with taken_for(gpu.device, kind="cpu") as context:  # whose kernels for this graph differ
        graph = attending(context)
        for length in (80, 84, 85, 86, 88):
            check(graph, length)
        assert traces == [84]
        assert len(later) == 2  # for 84 and 88
        later.popleft()()
        assert traces == [84, 84]
        for length in (80, 84, 85, 88, 92):
            check(graph, length)
        assert prepared_for(graph, length=84).improve is None
        assert prepared_for(graph, length=88).improve is not None
        later.popleft()()
        assert traces == [84, 84]
        assert prepared_for(graph, length=88).improve is None
        assert not later


def test_sizes_that_are_near_are_as_good(gpu: MLContext, later: Later, traces: list[int]) -> None:
    graph = met(gpu)
    for length in range(45, 165, 8):
        check(graph, length)
    assert traces == [MET[1]]
    assert not later


@pytest.mark.parametrize("how", ["prepare", "profile"])
def test_who_asks_for_it_has_it_compiled_now(
    gpu: MLContext, later: Later, traces: list[int], how: str
) -> None:
    graph = met(gpu)
    check(graph, FAR)
    if how == "prepare":
        graph.prepare_sync({"length": FAR})
    else:
        graph.profile({"x": normal(2, FAR, WIDTH)}, runs=1)
    assert traces == [MET[1], FAR]
    near = prepared_for(graph, length=FAR)
    assert near.improve is None
    later.popleft()()
    assert prepared_for(graph, length=FAR) is near
    graph.prepare_sync({"length": FAR + 4})
    assert traces == [MET[1], FAR]
    assert not later


@pytest.mark.parametrize("how", ["destroyed", "dropped", "lost"])
def test_nothing_is_compiled_for_what_nobody_has(later: Later, traces: list[int], how: str) -> None:
    with ml.create_context_sync(device_type="gpu", max_prepared_sizes=1) as context:
        graph = met(context)
        check(graph, FAR)
        if how == "destroyed":
            graph.destroy()
        elif how == "dropped":
            check(graph, MET[1])
        else:
            context.destroy()
        later.popleft()()
    assert traces == [MET[1]]


def test_memory_goes_with_the_graph(
    gpu: MLContext, later: Later, for_sizes: list[weakref.ref[ForSizes]]
) -> None:
    """At once, whatever would still be compiled for it."""
    graph = met(gpu)
    check(graph, FAR)
    kept = [*for_sizes, weakref.ref(prepared_for(graph, length=FAR).executable)]
    assert [ref() is not None for ref in kept] == [True, True]
    gc.disable()
    try:
        del graph
        assert [ref() is not None for ref in kept] == [False, False]
    finally:
        gc.enable()
    later.popleft()()


def test_it_is_compiled_for_on_a_thread_of_its_own(gpu: MLContext, traces: list[int]) -> None:
    """While runs go on; nothing waits for it."""
    graph = met(gpu)
    there = threading.Event()
    for _ in range(200):
        check(graph, FAR)
        if prepared_for(graph, length=FAR).improve is None:
            break
        there.wait(0.02)
    assert prepared_for(graph, length=FAR).improve is None
    assert traces == [MET[1], FAR]


def test_it_is_left_when_the_graph_goes(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch, traces: list[int]
) -> None:
    """At the next checkpoint, after the trace has begun."""
    graph, left, made = met(gpu), threading.Event(), threading.Event()
    improve, trace = Session.improve, CompiledAlike.__init__
    begun, goes = threading.Event(), threading.Event()

    def watched(self: Session, work: Callable[[], None], needless: Callable[[], bool]) -> None:
        def watch() -> None:
            try:
                work()
                made.set()
            finally:
                left.set()

        improve(self, watch, needless)

    def held(self: CompiledAlike, *given: Any) -> None:
        begun.set()
        assert goes.wait(30)
        trace(self, *given)

    monkeypatch.setattr(Session, "improve", watched)
    monkeypatch.setattr(CompiledAlike, "__init__", held)
    check(graph, FAR)
    assert begun.wait(30)
    graph.destroy()
    goes.set()
    assert left.wait(30)
    assert not made.is_set()


def test_kernels_that_are_there_are_not_left_for_better_ones(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the device has not made yet."""
    graph = met(gpu)
    begun, goes = threading.Event(), threading.Event()
    make_all = PipelineCache.get_all

    def held(self: PipelineCache, *given: Any) -> list[Any]:
        if in_background():
            begun.set()
            assert goes.wait(30)
        return make_all(self, *given)

    monkeypatch.setattr(PipelineCache, "get_all", held)
    check(graph, FAR)
    assert begun.wait(30)
    check(graph, FAR + 2)
    assert prepared_for(graph, length=FAR + 2).improve is not None
    goes.set()


def test_other_sizes_are_compiled_for_ahead(
    gpu: MLContext, ahead: None, later: Later, traces: list[int], pipelines: list[str]
) -> None:
    graph = attending(gpu)
    check(graph, MET[0])
    assert traces == []
    later.popleft()()
    assert traces == [MET[0]]
    pipelines.clear()
    for length in (MET[1], 9, 82, FAR):
        check(graph, length)
    assert traces == [MET[0]]
    assert pipelines == []
    assert len(later) == 2  # for 9 and the one that is far


def test_several_are_compiled_for_behind_one(
    gpu: MLContext, ahead: None, later: Later, monkeypatch: pytest.MonkeyPatch
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

    compute(1, 12)
    later.popleft()()
    expected = [{"batch": 1, "length": 12}, {"batch": 4, "length": 12}]
    assert made == expected
    for batch, length in ((1, 90), (2, 12), (16, 5), (3, 90), (8, 2)):
        compute(batch, length)
    assert made == expected


def test_the_first_sizes_run_by_kernels_of_their_own(
    gpu: MLContext, ahead: None, later: Later
) -> None:
    graph = attending(gpu)
    check(graph, MET[0])
    first = prepared_for(graph, length=MET[0])
    later.popleft()()
    check(graph, MET[0])
    assert prepared_for(graph, length=MET[0]) is first


def test_nothing_is_compiled_ahead_that_is_there(
    gpu: MLContext, ahead: None, later: Later, traces: list[int]
) -> None:
    """Others may come before it begins: what is made for them may do for the first, or not."""
    for other, made in ((MET[1], [MET[1]]), (1, [1, MET[0]])):
        graph = attending(gpu)
        check(graph, MET[0])
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
    gpu: MLContext, ahead: None, later: Later, for_sizes: list[weakref.ref[ForSizes]]
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
    gpu: MLContext, ahead: None, monkeypatch: pytest.MonkeyPatch, traces: list[int]
) -> None:
    """Its turn comes behind another's."""
    goes, done = threading.Event(), threading.Event()
    session_of(gpu).improve(goes.wait, lambda: False)  # type: ignore[arg-type]
    graph = attending(gpu)
    check(graph, MET[0])
    graph.destroy()
    session_of(gpu).improve(done.set, lambda: False)
    goes.set()
    assert done.wait(30)
    assert traces == []


def _ends_meanwhile() -> None:
    graph = met(ml.create_context_sync(device_type="gpu"))
    for length in (FAR, 9, 301, 1000):
        check(graph, length)


def test_python_ends_meanwhile() -> None:
    assert not run_alone(_ends_meanwhile)


def test_a_context_is_lost_meanwhile() -> None:
    """Whatever the thread is at then: nobody is told, and a new one works."""
    for delay in (0.0, 0.01, 0.05, 0.2):
        with ml.create_context_sync(device_type="gpu") as context:
            graph = met(context)
            check(graph, FAR)
            threading.Event().wait(delay)
    with ml.create_context_sync(device_type="gpu") as context:
        met(context)
