"""Joined runs that take but a moment: an event loop computes them, and nobody waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.backend.joined import assert_alone, computed, inputs, prepared
from tests.loops import Run, cancel_after, pause, together
from tests.threads import LONG
from webnn_py import MLAwaitedExecution, MLContext, MLGraph

Threads = list[tuple[bool, int]]


@pytest.fixture
def graph(cpu: MLContext) -> MLGraph:
    return prepared(cpu, 1, 2, 4, 8)


@pytest.fixture
def execution(cpu: MLContext) -> MLAwaitedExecution:
    return MLAwaitedExecution(cpu, batch="batch", max_batch=8)


def test_they_are_computed_where_they_are_awaited(
    graph: MLGraph, execution: MLAwaitedExecution, run: Run, joined_threads: Threads
) -> None:
    given = [inputs(seed) for seed in range(6)]

    async def main() -> None:
        await execution.compute(graph, given[0])
        assert joined_threads.pop()[0] is False  # nothing was known of it
        for each in given[:2]:
            assert_alone(await execution.compute(graph, each), each)
        for result, each in zip(await computed(execution, graph, given), given, strict=True):
            assert_alone(result, each)

    run(main)
    assert joined_threads == [(True, 1), (True, 1), (True, 6)]


def test_who_was_to_compute_them_is_cancelled(
    graph: MLGraph, execution: MLAwaitedExecution, run: Run, joined_threads: Threads
) -> None:
    given = [inputs(seed) for seed in range(4)]
    results: dict[int, Any] = {}

    async def one(number: int) -> None:
        results[number] = await execution.compute(graph, given[number])

    async def main() -> None:
        await one(0)
        joined_threads.clear()
        await together(
            [lambda: cancel_after(lambda: one(1), pause), lambda: one(2), lambda: one(3)]
        )

    run(main)
    assert sorted(results) == [0, 2, 3]
    for number, result in results.items():
        assert_alone(result, given[number])


def test_a_loop_at_rest_keeps_no_other_waiting(
    graph: MLGraph, execution: MLAwaitedExecution, joined_threads: Threads
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
    assert joined_threads == [(False, 1), (False, 2)]


def test_results_are_copies(graph: MLGraph, execution: MLAwaitedExecution, run: Run) -> None:
    target = np.zeros((1, 3, 5), np.float32)

    async def main() -> None:
        for seed in range(3):
            result = await execution.compute(graph, inputs(seed), {"y": target})
            assert result["y"] is target
            assert_alone(result, inputs(seed))

    run(main)
