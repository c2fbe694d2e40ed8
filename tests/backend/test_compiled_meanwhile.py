"""Sizes far from others run at once by their kernels, while better ones are compiled."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.backend.attending import FAR, MET, WIDTH, Later, attending, check, met
from tests.graphs import normal
from tests.internals import prepared_for, taken_for
from tests.processes import run_alone
from webnn_py import MLContext, ml
from webnn_py.api.session import Session
from webnn_py.core.gil_yield import is_in_background
from webnn_py.engines.device import ForSizes
from webnn_py.engines.webgpu.compiler.shape_generic import CompiledAlike
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.engine import WebGPUEngine


@pytest.fixture(autouse=True)
def when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are compiled for when they come, on hardware, too."""
    monkeypatch.setattr(WebGPUEngine, "compiles_ahead", False)


@pytest.mark.parametrize("device", ["gpu", "plain", "hardware"])
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
        if is_in_background():
            begun.set()
            assert goes.wait(30)
        return make_all(self, *given)

    monkeypatch.setattr(PipelineCache, "get_all", held)
    check(graph, FAR)
    assert begun.wait(30)
    check(graph, FAR + 2)
    assert prepared_for(graph, length=FAR + 2).improve is not None
    goes.set()


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
