"""What shares memory with awaited runs that have no place in the order of their context."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.tensors import ONES, SHAPE, tensor
from tests.graphs import build, doubling
from tests.loops import Run, pause, together
from webnn_py import MLAwaitedExecution, MLCommandEncoder, MLContext, MLOperand, Timeline

Writes = Callable[[np.ndarray[Any, Any]], Coroutine[Any, Any, Any]]


def by_a_run(context: MLContext) -> Writes:
    """A run that is by itself."""
    graph, execution = doubling(context), MLAwaitedExecution(context)
    return lambda whole: execution.compute(graph, {"x": ONES}, {"y": whole})


def by_a_joined_run(context: MLContext) -> Writes:
    """A run that waits for others to join it."""

    def open_doubling(builder: Any) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", ["batch", 3])
        return {"y": builder.add(x, x)}

    graph = build(context, open_doubling)
    execution = MLAwaitedExecution(context, batch="batch", max_delay=0.002)
    return lambda whole: execution.compute(graph, {"x": ONES}, {"y": whole})


@pytest.mark.parametrize("writes", [by_a_run, by_a_joined_run])
def test_a_tensor_is_read_into_an_array_after_runs_that_write_it(
    context: MLContext, run: Run, writes: Callable[[MLContext], Writes]
) -> None:
    write, source = writes(context), tensor(context, ONES * 7)
    arrays = [np.zeros(SHAPE, np.float32) for _ in range(8)]

    async def read_later() -> None:
        await pause()
        for array in arrays:
            await context.read_tensor_async(source, out=array)

    async def main() -> None:
        for _ in range(2):  # the first time a graph is examined or compiled
            await together([*(lambda array=array: write(array) for array in arrays), read_later])

    run(main)
    for array in arrays:
        np.testing.assert_array_equal(array, 7)


def test_a_run_follows_a_joined_one_that_writes_the_same(context: MLContext, run: Run) -> None:
    joined, graph, execution = (
        by_a_joined_run(context),
        doubling(context),
        MLAwaitedExecution(context),
    )
    pool = np.zeros((8, *SHAPE), np.float32)
    whole = pool[2]

    async def later() -> None:
        await pause()
        await execution.compute(graph, {"x": ONES * 4}, {"y": whole})

    async def main() -> None:
        for _ in range(3):  # the first time a graph is examined or compiled
            await together(
                [lambda: joined(whole), *(lambda a=a: joined(a) for a in pool[4:]), later]
            )
            np.testing.assert_array_equal(whole, 8)

    run(main)
    np.testing.assert_array_equal(pool[4:], 2)


def test_parked_work_begins_after_runs_that_write_the_same(gpu: MLContext, run: Run) -> None:
    graph, execution, go = doubling(gpu), MLAwaitedExecution(gpu), Timeline()
    arrays = [np.zeros(SHAPE, np.float32) for _ in range(30)]  # more than are under way at once
    source = tensor(gpu, ONES * 3)

    async def write(array: np.ndarray[Any, Any]) -> None:
        await execution.compute(graph, {"x": ONES}, {"y": array})

    async def late() -> None:
        await pause()
        waits = [go(wait=1)]
        await execution.compute(graph, {"x": source}, {"y": arrays[-1]}, sync=waits)

    async def main() -> None:
        go.signal(1)

    run(lambda: together([*(lambda array=array: write(array) for array in arrays), late, main]))
    np.testing.assert_array_equal(arrays[-1], 6)


@pytest.mark.parametrize("others", [0, 20])
def test_command_buffers_follow_runs_that_use_the_same(
    gpu: MLContext, run: Run, others: int
) -> None:
    graph, execution = doubling(gpu), MLAwaitedExecution(gpu)
    written = empty_buffer(gpu.device, 24)
    source, target = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 24)
    results: list[Any] = []

    async def busy() -> None:
        await execution.compute(graph, {"x": ONES})

    async def write() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": written})

    async def read_source() -> None:
        results.append(await execution.compute(graph, {"x": source}))

    async def submit() -> None:
        await pause()
        encoder = MLCommandEncoder(gpu)
        encoder.dispatch(graph, {"x": written}, {"y": target})
        encoder.dispatch(graph, {"x": ONES * 5}, {"y": source})
        gpu.submit([encoder.finish()])

    run(lambda: together([*[busy] * others, write, read_source, submit]))
    gpu.flush()
    np.testing.assert_array_equal(read(target, SHAPE), 4)
    np.testing.assert_array_equal(results[0]["y"], 2)
    np.testing.assert_array_equal(read(source, SHAPE), 10)
