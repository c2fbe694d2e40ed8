"""The queue of computes that are joined: who runs them, and what it finds out once."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.backend.joined import Held, Sizes, alone, assert_alone, computed, inputs, prepared
from tests.internals import session_of
from tests.loops import Run, pause, together
from tests.threads import LONG
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, OperationError, Timeline, ml
from webnn_py.api.batching import batch_queue
from webnn_py.api.batching.batch_queue import BatchQueue
from webnn_py.api.batching.request import Request
from webnn_py.ir import Graph
from webnn_py.ops.batch_axes import BatchAxes, batch_axes


@pytest.fixture
def graph(cpu: MLContext) -> MLGraph:
    return prepared(cpu, 1, 2, 4, 8)


@pytest.fixture
def execution(cpu: MLContext) -> MLAwaitedExecution:
    return MLAwaitedExecution(cpu, batch="batch", max_batch=8)


def test_a_graph_is_examined_once(
    cpu: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, built = prepared(cpu, 4), threading.Event()
    execution = MLAwaitedExecution(cpu, batch="batch", max_batch=4)
    given = [inputs(seed) for seed in range(6)]
    examined: list[Graph] = []

    def examine(recipe: Graph, name: str) -> BatchAxes:
        examined.append(recipe)
        return batch_axes(recipe, name)

    async def release() -> None:
        for _ in range(10):
            await pause()
        built.set()

    async def all_of_them() -> None:
        for result, each in zip(await computed(execution, graph, given), given, strict=True):
            assert_alone(result, each)

    async def main() -> None:
        session_of(cpu).run_on_builder(lambda: built.wait(60))
        await together([all_of_them, release])

    monkeypatch.setattr("webnn_py.api.batching.batching.batch_axes", examine)
    run(main)
    assert len(examined) == 1


def test_what_runs_alone_does_not_wait_for_builds(own: MLContext, run: Run) -> None:
    graph, built = prepared(own, 1), threading.Event()
    execution = MLAwaitedExecution(own, batch="batch")

    async def main() -> None:
        await execution.compute(graph, inputs(0))  # where rows are joined is known now
        session_of(own).run_on_builder(lambda: built.wait(60))
        results = await execution.compute(graph, inputs(1), sync=[Timeline()(signal=1)])
        built.set()
        assert_alone(results, inputs(1))

    run(main)


@pytest.mark.parametrize(
    ("engine", "given_outputs", "expected"),
    [("onnxruntime", False, True), ("onnxruntime", True, False), ("reference", False, False)],
)
def test_short_runs_are_computed_beside_each_other(
    engine: str,
    given_outputs: bool,
    expected: bool,
    run: Run,
    hold: Callable[[MLContext], Held],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr("webnn_py.api.batching.batch_queue.LONG_RUN_SECONDS", LONG)
    given = [inputs(seed) for seed in range(16)]
    targets = [np.zeros((1, 3, 5), np.float32) for _ in given]
    seen: list[bool] = []
    begun, run_one = threading.Event(), BatchQueue._run

    def noted(
        queue: BatchQueue, requests: Sequence[Request], size: int, beside: bool = False
    ) -> None:
        seen.append(beside)
        if beside:
            begun.set()
        elif expected and seen.count(False) == 3:  # the one before knew that the first was short
            assert begun.wait(LONG)
        run_one(queue, requests, size, beside)

    async def one(number: int) -> None:
        out = {"y": targets[number]} if given_outputs else None
        assert_alone(await execution.compute(graph, given[number], out), given[number])

    async def main() -> None:
        await execution.compute(graph, given[0])  # where rows are joined is known now
        seen.clear()
        monkeypatch.setattr(BatchQueue, "_run", noted)
        held = hold(context)

        async def release() -> None:
            await pause()
            held.release()

        await together([*(functools.partial(one, n) for n in range(len(given))), release])

    with ml.create_context_sync(device_type="cpu", engine=engine) as context:
        graph = prepared(context, 1, 2, 4)
        execution = MLAwaitedExecution(context, batch="batch", max_batch=4)
        run(main)
    assert any(seen) == expected


def test_short_runs_are_parts_of_what_waits(
    run: Run, runs: Sizes, hold: Callable[[MLContext], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr("webnn_py.api.batching.batch_queue.LONG_RUN_SECONDS", LONG)
    # No smaller sizes are tried.
    monkeypatch.setattr("webnn_py.api.batching.batch_size_policy.RUNS_OF_A_TRIAL", 100)
    given = [inputs(seed) for seed in range(64)]
    wanted = [alone(each)["y"] for each in given]

    async def main() -> None:
        for _ in range(4):  # that runs are short is learnt, and executables made for one thread
            runs.clear()
            found = await computed(execution, graph, given, hold(context))
            for results, right in zip(found, wanted, strict=True):
                np.testing.assert_allclose(results["y"], right, rtol=1e-4, atol=1e-6)
            session_of(context).run_on_builder(lambda: None).wait(LONG)

    with ml.create_context_sync(device_type="cpu", engine="onnxruntime") as context:
        graph = prepared(context, 1, 2, 4, 8, 16, 32, 64)
        execution = MLAwaitedExecution(context, batch="batch", max_batch=64)
        run(main)
    assert runs == [(32, 32)] * 2


def test_a_run_beside_that_finds_no_size_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = object.__new__(BatchQueue)
    queue._lock, queue._stalled, queue._beside = threading.RLock(), 0, True

    def none_is_compiled() -> tuple[list[Request], int]:
        queue._stalled += 1
        return [], 0

    monkeypatch.setattr(queue, "_take", none_is_compiled)
    monkeypatch.setattr(queue, "_can_be_full", lambda: True)
    monkeypatch.setattr(queue, "_consider", lambda: None)
    monkeypatch.setattr(queue, "_run", None)
    queue._run_beside()
    assert (queue._stalled, queue._beside) == (0, False)


def test_an_engine_that_fails_fails_one(
    cpu: MLContext,
    run: Run,
    hold: Callable[[MLContext], Held],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = prepared(cpu, 1, 4)
    execution = MLAwaitedExecution(cpu, batch="batch", max_batch=4)
    given = [inputs(seed) for seed in range(4)]
    given[2]["x"][0, 0, 0] = 1e9
    of = BatchQueue._executable

    class Failing:
        def __init__(self, executable: Any) -> None:
            self._executable = executable

        def start(self, arrays: Any, outputs: Any) -> Any:
            if any((array == 1e9).any() for array in arrays):
                raise OperationError("the engine failed")
            return self._executable.start(arrays, outputs)

    failed: list[int] = []

    async def one(number: int) -> None:
        try:
            assert_alone(await execution.compute(graph, given[number]), given[number])
        except OperationError:
            failed.append(number)

    async def main() -> None:
        await execution.compute(graph, given[0])
        monkeypatch.setattr(BatchQueue, "_executable", lambda *given: Failing(of(*given)))
        held = hold(cpu)

        async def release() -> None:
            await pause()
            held.release()

        await together([*(functools.partial(one, number) for number in range(4)), release])

    run(main)
    assert failed == [2]


def test_others_are_computed_elsewhere(
    graph: MLGraph,
    execution: MLAwaitedExecution,
    run: Run,
    joined_threads: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_queue, "MAX_LOOP_SECONDS", 0)

    async def main() -> None:
        for _ in range(3):
            await execution.compute(graph, inputs(0))

    run(main)
    assert joined_threads == [(False, 1)] * 3


def test_an_interrupt_ends_the_loop(
    graph: MLGraph,
    execution: MLAwaitedExecution,
    joined_threads: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what else waits is computed nevertheless, where the loop goes on."""
    loop, run = asyncio.new_event_loop(), BatchQueue._run

    def interrupted(*given: Any, **options: Any) -> None:
        monkeypatch.setattr(BatchQueue, "_run", run)
        raise KeyboardInterrupt

    async def begin() -> list[asyncio.Task[Any]]:
        await execution.compute(graph, inputs(0))
        monkeypatch.setattr(BatchQueue, "_run", interrupted)
        return [asyncio.ensure_future(execution.compute(graph, inputs(n))) for n in range(2)]

    first, second = loop.run_until_complete(begin())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(second)
    assert_alone(loop.run_until_complete(asyncio.wait_for(second, LONG)), inputs(1))
    with pytest.raises(KeyboardInterrupt):
        first.result()
    loop.close()
