"""Contexts that go on after an interrupt, and after the system had no room for a thread."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.graphs import build
from tests.interrupts import Interrupt, interrupted, is_call
from tests.threads import LONG, in_threads
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, OperationError, Timeline, ml

X = np.arange(-4, 4, dtype=np.float32)


@pytest.fixture
def context() -> Iterator[MLContext]:
    """One that has no threads yet."""
    with ml.create_context_sync(device_type="cpu", engine="reference") as made:
        yield made


@pytest.fixture
def graph(context: MLContext) -> MLGraph:
    return build(context, lambda b: {"y": b.relu(b.input("x", "float32", [8]))})


def full(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def dispatch(context: MLContext, graph: MLGraph) -> None:
    x, y = (
        context.create_tensor_sync("float32", [8], readable=True, writable=True) for _ in range(2)
    )
    done = Timeline()
    context.write_tensor(x, X)
    context.dispatch(graph, {"x": x}, {"y": y}, sync=[done(signal=1)])
    done.wait_sync(1, timeout=LONG)
    np.testing.assert_array_equal(context.read_tensor_sync(y), np.maximum(X, 0))


def compute(context: MLContext, graph: MLGraph) -> None:
    async def run() -> None:
        # Not `wait_for`, whose task an interrupt may keep from ever beginning.
        async with asyncio.timeout(LONG):
            results = await MLAwaitedExecution(context).compute(graph, {"x": X})
        np.testing.assert_array_equal(results["y"], np.maximum(X, 0))

    asyncio.run(run())


@pytest.mark.parametrize("work", [dispatch, compute])
def test_work_goes_on_once_there_is_room(
    context: MLContext,
    graph: MLGraph,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[MLContext, MLGraph], None],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(OperationError, match="no thread can be begun: can't start new thread"):
            work(context, graph)
    work(context, graph)


# A coroutine that is interrupted as it begins counts as never awaited.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_computes_go_on_after_an_interrupt(context: MLContext, graph: MLGraph) -> None:
    def interrupt_each() -> None:
        compute(context, graph)
        number, came = 0, True
        while came:
            interrupt = Interrupt(functools.partial(is_call, number))
            interrupted(functools.partial(compute, context, graph), interrupt)
            came = interrupt.came
            number += 1
            compute(context, graph)

    in_threads(interrupt_each)
    gc.collect()  # or another test is told of the coroutines
