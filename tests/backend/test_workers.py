"""CPU contexts of several threads: what runs at once, and what keeps its order."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.held import before_each_run
from tests.backend.tensors import LONG, ONES, adding, tensor
from tests.graphs import assert_awaits, assert_works, doubling
from tests.loops import Run, cancel_after, pause
from tests.processes import run_alone
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)


@pytest.fixture
def wide() -> Iterator[MLContext]:
    """A context of two threads."""
    with ml.create_context_sync(device_type="cpu", workers=2) as context:
        yield context


def gated(context: MLContext, patch: pytest.MonkeyPatch) -> tuple[MLGraph, Any, Any]:
    """A graph whose runs wait, the event that they have begun, and the one that lets them go on."""
    begun, go = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        assert go.wait(LONG)

    return before_each_run(doubling(context, "gated"), act, patch), begun, go


@pytest.fixture
def meeting(wide: MLContext, monkeypatch: pytest.MonkeyPatch) -> MLGraph:
    """A graph of which two runs end only if both run at once."""
    barrier = threading.Barrier(2)
    return before_each_run(doubling(wide), lambda: barrier.wait(LONG) and None, monkeypatch)


# What runs at once


def test_independent_dispatches_run_at_once(wide: MLContext, meeting: MLGraph) -> None:
    x = tensor(wide, ONES)  # both read it
    results = [tensor(wide), tensor(wide)]
    for y in results:
        wide.dispatch(meeting, {"x": x}, {"y": y})
    for y in results:
        np.testing.assert_array_equal(wide.read_tensor_sync(y), ONES * 2)


@pytest.mark.parametrize("given", ["nothing", "arrays", "tensors", "timelines"])
def test_independent_awaited_runs_run_at_once(
    wide: MLContext, meeting: MLGraph, given: str
) -> None:
    execution = MLAwaitedExecution(wide)
    make = {"arrays": lambda: np.empty_like(ONES), "tensors": lambda: tensor(wide)}
    done = [Timeline(), Timeline()]

    async def one(number: int) -> Any:
        outputs = {"y": make[given]()} if given in make else None
        sync = [done[number](signal=1)] if given == "timelines" else []
        found = await execution.compute(meeting, {"x": ONES * number}, outputs, sync)
        return await wide.read_tensor_async(found["y"]) if given == "tensors" else found["y"]

    async def main() -> Any:
        return await asyncio.gather(one(0), one(1))

    for number, found in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(found, ONES * 2 * number)


def test_what_is_released_together_runs_at_once(wide: MLContext, meeting: MLGraph) -> None:
    go, results = Timeline(), [tensor(wide), tensor(wide)]
    for y in results:
        wide.dispatch(meeting, {"x": tensor(wide, ONES)}, {"y": y}, [go(wait=1)])
    wide.flush()
    go.signal(1)
    for y in results:
        np.testing.assert_array_equal(wide.read_tensor_sync(y), ONES * 2)


# What keeps its order


def test_work_that_shares_memory_waits(wide: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, begun, go = gated(wide, monkeypatch)
    add = adding(wide)
    a, b, c, d = (tensor(wide, ONES * n) for n in (1, 2, 3, 4))
    wide.dispatch(graph, {"x": a}, {"y": b})
    assert begun.wait(LONG)
    wide.write_tensor(a, ONES * 10)
    wide.dispatch(add, {"x": a, "k": b}, {"y": c})
    wide.write_tensor(b, ONES * 20)
    wide.dispatch(doubling(wide), {"x": tensor(wide, ONES)}, {"y": d})
    np.testing.assert_array_equal(wide.read_tensor_sync(d), ONES * 2)
    go.set()
    for made, value in ((a, 10), (b, 20), (c, 12)):
        np.testing.assert_array_equal(wide.read_tensor_sync(made), ONES * value)


def test_signals_of_one_timeline_keep_their_order(
    wide: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for 2 counts on what signals 1, too."""
    graph, begun, go = gated(wide, monkeypatch)
    timeline, y = Timeline(), tensor(wide)
    wide.dispatch(graph, {"x": tensor(wide, ONES)}, {"y": tensor(wide)}, [timeline(signal=1)])
    wide.dispatch(doubling(wide), {"x": tensor(wide, ONES)}, {"y": y}, [timeline(signal=2)])
    assert begun.wait(LONG)
    np.testing.assert_array_equal(wide.read_tensor_sync(y), ONES * 2)
    assert timeline.value == 0
    go.set()
    timeline.wait_sync(2, timeout=LONG)
    wide.flush()


def test_a_failure_stops_what_signals_more(
    wide: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one thread: what signals 2 has run by then, but was submitted later."""
    begun, go = threading.Event(), threading.Event()
    timeline, y, x = Timeline(), tensor(wide), tensor(wide, ONES)

    def refuse() -> None:
        begun.set()
        assert go.wait(LONG)
        raise ValueError("boom")

    graph = before_each_run(doubling(wide, "refused"), refuse, monkeypatch)
    wide.dispatch(graph, {"x": x}, {"y": tensor(wide)}, [timeline(signal=1)])
    wide.dispatch(doubling(wide), {"x": x}, {"y": y}, [timeline(signal=2)])
    assert begun.wait(LONG)
    np.testing.assert_array_equal(wide.read_tensor_sync(y), ONES * 2)
    go.set()
    for value in (1, 2):
        with pytest.raises(OperationError, match="boom"):
            timeline.wait_sync(value, timeout=LONG)
    assert timeline.value == 0


def test_what_is_parked_is_overtaken_by_signals(wide: MLContext) -> None:
    go, timeline = Timeline(), Timeline()
    sync = [go(wait=1), timeline(signal=1)]
    wide.dispatch(doubling(wide), {"x": tensor(wide)}, {"y": tensor(wide)}, sync)
    wide.dispatch(doubling(wide), {"x": tensor(wide)}, {"y": tensor(wide)}, [timeline(signal=2)])
    timeline.wait_sync(2, timeout=LONG)
    go.signal(1)


# Its end


def test_what_runs_when_the_context_is_destroyed_comes_to_its_end(
    wide: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, begun, go = gated(wide, monkeypatch)
    first, second = Timeline(), Timeline()
    x, y = tensor(wide, ONES), tensor(wide)
    wide.dispatch(graph, {"x": x}, {"y": y}, [first(signal=1)])
    wide.dispatch(doubling(wide), {"x": y}, {"y": x}, [second(signal=1)])
    assert begun.wait(LONG)
    wide.destroy()
    with pytest.raises(OperationError, match="destroy"):
        second.wait_sync(1, timeout=LONG)
    go.set()
    first.wait_sync(1, timeout=LONG)
    with pytest.raises(ContextLostError):
        wide.dispatch(graph, {"x": x}, {"y": y})


@pytest.mark.parametrize("workers", [1, 2])
def test_cancelling_what_has_begun_keeps_what_it_signals(
    workers: int, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    go_on, signalled = Timeline(), Timeline()
    with ml.create_context_sync(device_type="cpu", workers=workers) as context:
        graph, begun, go = gated(context, monkeypatch)
        target = np.zeros_like(ONES)

        async def compute() -> None:
            sync = [go_on(wait=1), signalled(signal=1)]
            await MLAwaitedExecution(context).compute(graph, {"x": ONES}, {"y": target}, sync)

        async def cancelled() -> None:
            await pause()
            go_on.signal(1)
            while not begun.is_set():
                await pause(0.001)
            threading.Timer(0.02, go.set).start()

        run(lambda: cancel_after(compute, cancelled))
        signalled.wait_sync(1, timeout=LONG)
        np.testing.assert_array_equal(target, ONES * 2)


# How it is asked for


@pytest.mark.parametrize("workers", [0, -1, 2.5, True, "4", None, float("inf")])
def test_the_number_of_workers_is_checked(workers: Any) -> None:
    with pytest.raises(ValidationError, match="option 'workers'"):
        ml.create_context_sync(device_type="cpu", workers=workers)


@pytest.mark.parametrize("options", [{"device_type": "gpu"}, {"accelerated": True}])
def test_only_cpu_contexts_have_workers(options: Any) -> None:
    with pytest.raises(ValidationError, match=r"option 'workers': got 4.*device's queue"):
        ml.create_context_sync(workers=4, **options)


def test_workers_of_a_context_that_is_made_awaited(run: Run) -> None:
    async def main() -> None:
        context = await ml.create_context_async(workers=3)
        assert context.device_type == "cpu"
        with pytest.raises(ValidationError, match="option 'workers'"):
            await ml.create_context_async(workers=0)
        context.destroy()

    run(main)
    with ml.create_context_sync(workers=3) as context:
        assert_works(context)
        assert_awaits(context)


def compute_after_the_main_thread() -> None:
    """A thread that Python waits for, as that of a server, goes on when the main thread ends."""
    contexts = [ml.create_context_sync(device_type=kind) for kind in ("cpu", "gpu")]

    def work() -> None:
        threading.main_thread().join()
        try:
            for context in contexts * 25:
                assert_awaits(context)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=work).start()


def test_threads_may_outlive_the_main_thread() -> None:
    run_alone(compute_after_the_main_thread)
