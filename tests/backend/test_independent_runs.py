"""Awaited computes that need no order: many at once, on several threads, and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.host_runs import Gate, before_results, helped, set_policy, short
from tests.graphs import ONES, TWOS, doubling
from tests.loops import Run, cancel_after, limited, pause, together
from tests.threads import LONG, in_threads
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    OperationError,
)

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.fixture
def context() -> Iterator[MLContext]:
    """Of an engine that leaves the interpreter to others, with one helper."""
    with helped() as made:
        yield made


def computing(graph: MLGraph, context: MLContext, number: float) -> Callable[[], Any]:
    async def compute() -> None:
        found = await MLAwaitedExecution(context).compute(graph, {"x": ONES * number})
        np.testing.assert_array_equal(found["y"], TWOS * number)

    return compute


def test_many_at_once_each_get_their_own(context: MLContext, run: Run) -> None:
    graph = doubling(context)
    run(lambda: together([computing(graph, context, number) for number in range(200)]))


def test_another_thread_helps(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run alone waits for one of another thread."""
    threads: set[int] = set()
    both = threading.Event()

    def meet() -> None:
        threads.add(threading.get_ident())
        if len(threads) == 2:
            both.set()
        assert both.wait(LONG)

    other = doubling(context)
    graph = short(doubling(context), meet, monkeypatch)
    gate = Gate(other, monkeypatch)

    async def many() -> None:
        await gate.reached()
        await together([release, *(computing(graph, context, number) for number in range(40))])

    async def release() -> None:
        for _ in range(3):
            await pause()
        gate.go.set()

    run(lambda: together([computing(other, context, 1), many]))
    assert len(threads) >= 2  # one that has nothing to do may end, and another begin


def test_nobody_helps_with_long_runs(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> None:
        raise AssertionError("it takes all cores alone")

    graph = short(doubling(context), never, monkeypatch)
    set_policy(context, long_run_seconds=0.0)
    run(lambda: together([computing(graph, context, number) for number in range(40)]))


def test_who_is_cancelled_does_not_run(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = doubling(context, "first"), doubling(context, "second")
    gate = Gate(first, monkeypatch)
    ran: list[Any] = []
    before_results(second, lambda: ran.append(None), monkeypatch)

    async def main() -> None:
        async def release() -> None:
            await gate.reached()
            await cancel_after(computing(second, context, 1), pause)
            gate.go.set()

        await together([computing(first, context, 1), release])
        await computing(first, context, 2)()

    run(main)
    assert not ran


def test_what_waits_fails_with_its_context(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = doubling(context)
    gate = Gate(graph, monkeypatch)
    failed: list[BaseException] = []

    async def failing() -> None:
        await gate.reached()
        try:
            await computing(graph, context, 1)()
        except ContextLostError as error:
            failed.append(error)

    async def release() -> None:
        await gate.reached()
        for _ in range(3):
            await pause()
        context.destroy()
        gate.go.set()

    run(lambda: together([computing(graph, context, 2), release, failing, failing]))
    assert len(failed) == 2


def test_what_waits_fails_before_what_runs_ends(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = doubling(context)
    gate = Gate(graph, monkeypatch)

    async def failing() -> None:
        await gate.reached()
        with pytest.raises(ContextLostError):
            await computing(graph, context, 1)()

    async def main() -> None:
        async def destroy() -> None:
            await gate.reached()
            await pause(0.02)
            context.destroy()

        async def waiting() -> None:
            assert await limited(lambda: together([failing, failing, destroy]), LONG / 4)
            gate.go.set()

        await together([computing(graph, context, 2), waiting])

    run(main)


def test_one_that_fails_fails_alone(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = doubling(context, "good"), doubling(context, "bad")

    def fail() -> None:
        raise OperationError("no")

    before_results(bad, fail, monkeypatch)

    async def failing() -> None:
        with pytest.raises(OperationError, match="no"):
            await computing(bad, context, 1)()

    run(lambda: together([failing, computing(good, context, 1), failing]))


def test_loops_of_several_threads(context: MLContext) -> None:
    graph = doubling(context)

    async def main() -> None:
        await together([computing(graph, context, number) for number in range(50)])

    in_threads(*[lambda: asyncio.run(main())] * 3)
