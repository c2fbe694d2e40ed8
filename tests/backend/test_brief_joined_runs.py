"""Joined runs that take but a moment: an event loop computes them, and nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from tests.backend.joined import assert_alone, computed, inputs, prepared
from tests.loops import Run, cancel_after, pause, together
from tests.threads import LONG
from webnn_py import MLAwaitedExecution, MLContext, MLGraph
from webnn_py.api.batching import batch_queue
from webnn_py.api.batching.batch_queue import Line


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of each run: whether it is computed on this thread, and how many computes are joined."""
    found: list[tuple[bool, int]] = []
    run, here = Line._run, threading.get_ident()

    def noted(self: Line, requests: Any, *args: Any, **options: Any) -> None:
        found.append((threading.get_ident() == here, len(requests)))
        run(self, requests, *args, **options)

    monkeypatch.setattr(Line, "_run", noted)
    monkeypatch.setattr(batch_queue, "AT_ONCE", LONG)
    return found


@pytest.fixture
def graph(cpu: MLContext) -> MLGraph:
    return prepared(cpu, 1, 2, 4, 8)


@pytest.fixture
def execution(cpu: MLContext) -> MLAwaitedExecution:
    return MLAwaitedExecution(cpu, batch="batch", max_batch=8)


def test_they_are_computed_where_they_are_awaited(
    graph: MLGraph, execution: MLAwaitedExecution, run: Run, threads: list[tuple[bool, int]]
) -> None:
    given = [inputs(seed) for seed in range(6)]

    async def main() -> None:
        await execution.compute(graph, given[0])
        assert threads.pop()[0] is False  # nothing was known of it
        for each in given[:2]:
            assert_alone(await execution.compute(graph, each), each)
        for result, each in zip(await computed(execution, graph, given), given, strict=True):
            assert_alone(result, each)

    run(main)
    assert threads == [(True, 1), (True, 1), (True, 6)]


def test_others_are_computed_elsewhere(
    graph: MLGraph,
    execution: MLAwaitedExecution,
    run: Run,
    threads: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_queue, "AT_ONCE", 0)

    async def main() -> None:
        for _ in range(3):
            await execution.compute(graph, inputs(0))

    run(main)
    assert threads == [(False, 1)] * 3


def test_who_was_to_compute_them_is_cancelled(
    graph: MLGraph, execution: MLAwaitedExecution, run: Run, threads: list[tuple[bool, int]]
) -> None:
    given = [inputs(seed) for seed in range(4)]
    results: dict[int, Any] = {}

    async def one(number: int) -> None:
        results[number] = await execution.compute(graph, given[number])

    async def main() -> None:
        await one(0)
        threads.clear()
        await together(
            [lambda: cancel_after(lambda: one(1), pause), lambda: one(2), lambda: one(3)]
        )

    run(main)
    assert sorted(results) == [0, 2, 3]
    for number, result in results.items():
        assert_alone(result, given[number])


def test_a_loop_at_rest_keeps_no_other_waiting(
    graph: MLGraph, execution: MLAwaitedExecution, threads: list[tuple[bool, int]]
) -> None:
    given, loop = [inputs(0), inputs(1)], asyncio.new_event_loop()

    async def begin() -> asyncio.Task[Any]:
        await execution.compute(graph, given[0])
        return asyncio.ensure_future(execution.compute(graph, given[0]))

    async def other() -> Any:
        return await asyncio.wait_for(execution.compute(graph, given[1]), LONG)

    first = loop.run_until_complete(begin())  # in whose last turn this has begun, too
    assert_alone(asyncio.run(other()), given[1])
    assert not first.done()
    assert_alone(loop.run_until_complete(first), given[0])
    loop.close()
    assert threads == [(False, 1), (False, 2)]


def test_an_interrupt_ends_the_loop(
    graph: MLGraph,
    execution: MLAwaitedExecution,
    threads: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what else waits is computed nevertheless, where the loop goes on."""
    loop, run = asyncio.new_event_loop(), Line._run

    def interrupted(*given: Any, **options: Any) -> None:
        monkeypatch.setattr(Line, "_run", run)
        raise KeyboardInterrupt

    async def begin() -> list[asyncio.Task[Any]]:
        await execution.compute(graph, inputs(0))
        monkeypatch.setattr(Line, "_run", interrupted)
        return [asyncio.ensure_future(execution.compute(graph, inputs(n))) for n in range(2)]

    first, second = loop.run_until_complete(begin())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(second)
    assert_alone(loop.run_until_complete(asyncio.wait_for(second, LONG)), inputs(1))
    with pytest.raises(KeyboardInterrupt):
        first.result()
    loop.close()


def test_results_are_copies(graph: MLGraph, execution: MLAwaitedExecution, run: Run) -> None:
    target = np.zeros((1, 3, 5), np.float32)

    async def main() -> None:
        for seed in range(3):
            result = await execution.compute(graph, inputs(seed), {"y": target})
            assert result["y"] is target
            assert_alone(result, inputs(seed))

    run(main)
