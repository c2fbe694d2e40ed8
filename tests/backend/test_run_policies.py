"""Awaited runs mean the same, whichever thread records, submits, watches and reads them back.

`RunPolicy` decides by what was measured; here each context is made to decide in one way.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.tensors import adding, tensor
from tests.graphs import ONES, TWOS, build, doubling, normal
from tests.loops import Run, limited, pause, together, under_asyncio
from tests.threads import in_threads
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    OperationError,
)

TURNS = 5
"""Runs after which each way of running is taken: the next one is recorded from the second on."""


async def compute(graph: MLGraph, context: MLContext, number: float = 1) -> None:
    y = (await MLAwaitedExecution(context).compute(graph, {"x": ONES * number}))["y"]
    np.testing.assert_array_equal(y, TWOS * number)


async def repeated(context: MLContext) -> MLGraph:
    """Return a graph that has run often enough."""
    graph = doubling(context)
    for number in range(TURNS):
        await compute(graph, context, number)
    return graph


def test_one_after_the_other(policed: MLContext, run: Run) -> None:
    async def main() -> None:
        await repeated(policed)

    run(main)


def test_many_at_once(policed: MLContext, run: Run) -> None:
    async def main() -> None:
        graphs = [await repeated(policed) for _ in range(2)]
        for _ in range(2):
            each = (functools.partial(compute, graphs[n % 2], policed, n) for n in range(40))
            await together(each)

    run(main)


def test_loops_of_two_threads(policed: MLContext) -> None:
    graph = doubling(policed)

    async def main(first: int) -> None:
        for number in range(first, first + 40):
            await compute(graph, policed, number)

    in_threads(*(functools.partial(under_asyncio, functools.partial(main, n)) for n in (0, 100)))


def test_inputs_changed_after_the_call(policed: MLContext) -> None:
    execution, memory = MLAwaitedExecution(policed), ONES.copy()

    async def main() -> None:
        graph, calls = await repeated(policed), []
        for number in range(4):
            memory[:] = number
            calls.append(execution.compute(graph, {"x": memory}))
        memory[:] = -1
        for number, call in reversed(list(enumerate(calls))):
            np.testing.assert_array_equal((await call)["y"], TWOS * number)

    under_asyncio(main)


def test_tensors_and_buffers_of_the_user(policed: MLContext) -> None:
    """In the order of the calls: what was dispatched before is computed before."""
    execution, k, y = MLAwaitedExecution(policed), tensor(policed, TWOS), tensor(policed)

    async def main() -> None:
        doubles, adds = await repeated(policed), adding(policed)
        for number in range(TURNS):
            policed.dispatch(doubles, {"x": k}, {"y": y})
            results = await execution.compute(adds, {"x": ONES * number, "k": y})
            np.testing.assert_array_equal(results["y"], ONES * (number + 4))
            x, made = buffer_of(policed.device, ONES), empty_buffer(policed.device, 24)
            await execution.compute(doubles, {"x": x}, {"y": made})
            x.destroy()
            np.testing.assert_array_equal(read(made, (2, 3)), TWOS)
            await compute(doubles, policed, number)

    under_asyncio(main)


def _reversing(b: MLGraphBuilder) -> dict[str, MLOperand]:
    """Enough kernels for several submissions; every second product turns the columns back."""
    h = b.input("x", "float32", ["n", 8])
    swap = np.ascontiguousarray(np.eye(8, dtype=np.float32)[::-1])
    for _ in range(101):
        h = b.matmul(h, b.constant(swap))
    return {"y": h}


def test_many_kernels_and_sizes_in_turn(policed: MLContext) -> None:
    graph, execution = build(policed, _reversing), MLAwaitedExecution(policed)

    async def main() -> None:
        for number in range(3 * TURNS):
            x = normal(number % 3 + 1, 8, seed=number)
            y = (await execution.compute(graph, {"x": x}))["y"]
            np.testing.assert_array_equal(y, x[:, ::-1])

    under_asyncio(main)


def test_runs_that_are_cancelled_or_never_awaited(policed: MLContext, run: Run) -> None:
    """More of them than may be in flight: what each has taken is given back."""

    async def main() -> None:
        graph = await repeated(policed)
        for number in range(8):
            MLAwaitedExecution(policed).compute(graph, {"x": ONES}).close()
            await limited(functools.partial(compute, graph, policed, number), 0)
            await compute(graph, policed, number)

    run(main)


def test_results_go_with_who_has_them(policed: MLContext) -> None:
    async def main() -> None:
        graph = await repeated(policed)
        results = await MLAwaitedExecution(policed).compute(graph, {"x": ONES})
        gone.append(weakref.ref(results["y"]))
        del results
        await compute(graph, policed)  # the threads have let go of the run before

    gone: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        for _ in range(3):
            under_asyncio(main)
            assert gone.pop()() is None
    finally:
        gc.enable()


def test_a_submission_that_the_device_refuses(
    policed: MLContext, run: Run, refusing: Callable[[MLContext], Any]
) -> None:
    async def main() -> None:
        graph = await repeated(policed)
        for _ in range(4):  # more than may be in flight
            with (
                refusing(policed),
                pytest.raises(OperationError, match="submitting a graph: the device refused: no"),
            ):
                await compute(graph, policed)
        await compute(graph, policed)

    run(main)


@pytest.mark.parametrize("when", ["before the call", "before the await", "while it waits"])
def test_a_device_that_is_destroyed(policed: MLContext, when: str) -> None:
    execution = MLAwaitedExecution(policed)

    async def main() -> None:
        graph = await repeated(policed)
        if when == "before the call":
            policed.device.destroy()
        call = execution.compute(graph, {"x": ONES})
        if when == "before the await":
            policed.device.destroy()
        task = asyncio.ensure_future(call)
        if when == "while it waits":
            await pause()
        policed.device.destroy()
        try:
            np.testing.assert_array_equal((await task)["y"], TWOS)
            assert when == "while it waits"  # or it was over by then
        except ContextLostError:
            pass
        with pytest.raises(ContextLostError):
            await execution.compute(graph, {"x": ONES})

    under_asyncio(main)
