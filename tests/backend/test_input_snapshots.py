"""Host inputs of an awaited compute are read before the call returns."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import adding, tensor
from tests.graphs import ONES, doubling
from tests.internals import session_of
from tests.loops import Run, cancel_after, pause, under_asyncio
from webnn_py import DataError, MLAwaitedExecution, MLContext, MLGraphBuilder, Timeline
from webnn_py.memory.host_arrays import SLOW_COPY_BYTES

MANY = 40
"""More than run on a GPU context at once."""
Array = np.ndarray[Any, Any]


def strided() -> Array:
    return np.zeros((3, 2), np.float32).T


def part() -> Array:
    return np.zeros((4, 6), np.float32)[1:3, ::2]


class Speaking:
    """A tensor of another library, in memory that it shares."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def as_itself(memory: Array) -> Any:
    return memory


def as_resource(memory: Array) -> Any:
    return {"resource": memory, "dimensions": [2, 3]}


GIVEN: dict[str, tuple[Callable[[], Array], Callable[[Array], Any]]] = {
    "array": (lambda: np.zeros((2, 3), np.float32), as_itself),
    "strided": (strided, as_itself),
    "part": (part, as_itself),
    "resource": (lambda: np.zeros((2, 3), np.float32), as_resource),
    "buffer": (lambda: np.zeros((2, 3), np.float32), memoryview),
    "dlpack": (lambda: np.zeros((2, 3), np.float32), Speaking),
    "unaligned": (
        lambda: np.frombuffer(bytearray(25), np.uint8)[1:].view(np.float32).reshape(2, 3),
        lambda memory: memoryview(memory.view(np.uint8).reshape(-1)),
    ),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_inputs_changed_after_the_call(context: MLContext, kind: str) -> None:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    make, give = GIVEN[kind]
    memory = make()

    async def main() -> list[Any]:
        calls = []
        for i in range(MANY):
            memory[:] = i
            calls.append(execution.compute(graph, {"x": give(memory)}))
        memory[:] = -1
        return await asyncio.gather(*calls)

    results = asyncio.run(main())
    assert [result["y"][0, 0] for result in results] == [2 * i for i in range(MANY)]


def test_large_inputs_changed_after_the_call(context: MLContext) -> None:
    memory = np.ones(SLOW_COPY_BYTES // 4, np.float32)
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", memory.shape)
    graph = builder.build_sync({"y": builder.add(x, x)})

    async def main() -> Any:
        call = MLAwaitedExecution(context).compute(graph, {"x": memory})
        memory[:] = 5
        return await call

    np.testing.assert_array_equal(asyncio.run(main())["y"], np.full(memory.shape, 2, np.float32))


@pytest.mark.parametrize("waiting", [False, True])
def test_inputs_changed_while_tasks_have_begun(context: MLContext, waiting: bool, run: Run) -> None:
    graph, execution, gate = doubling(context), MLAwaitedExecution(context), Timeline()
    sync = [gate(wait=1)] if waiting else []
    memory, found = np.zeros((2, 3), np.float32), {}

    async def compute(i: int) -> None:
        found[i] = (await execution.compute(graph, {"x": memory}, sync=sync))["y"][0, 0]

    async def main() -> None:
        pending = [execution.compute(graph, {"x": memory}, sync=sync)]
        memory[:] = 1
        await pause()
        pending.append(execution.compute(graph, {"x": memory}, sync=sync))
        memory[:] = 9
        if waiting:
            gate.signal(1)
        for i, call in enumerate(pending):
            found[i] = (await call)["y"][0, 0]

    run(main)
    assert found == {0: 0, 1: 2}


def test_inputs_beside_tensors(context: MLContext) -> None:
    """A tensor is read in order, an array at the call."""
    graph, execution = adding(context), MLAwaitedExecution(context)
    x, memory = tensor(context, ONES), ONES.copy()

    async def main() -> None:
        call = execution.compute(graph, {"x": x, "k": memory})
        memory[:] = 100
        context.write_tensor(x, ONES * 7)
        np.testing.assert_array_equal((await call)["y"], ONES * 8)

    under_asyncio(main)


def test_an_error_is_raised_by_the_await(context: MLContext) -> None:
    call = MLAwaitedExecution(context).compute(doubling(context), {"x": ONES[0]})

    async def main() -> None:
        with pytest.raises(DataError, match="input 'x': shape"):
            await call

    under_asyncio(main)


def test_outputs_may_be_inputs(context: MLContext) -> None:
    memory = ONES.copy()

    async def main() -> None:
        await MLAwaitedExecution(context).compute(doubling(context), {"x": memory}, {"y": memory})

    under_asyncio(main)
    np.testing.assert_array_equal(memory, ONES * 2)


def test_a_cancelled_run_that_waits_keeps_no_copies(context: MLContext, run: Run) -> None:
    graph, execution, release = doubling(context), MLAwaitedExecution(context), threading.Event()
    session = session_of(context)
    kept: list[Any] = []

    async def compute() -> None:
        call: Any = execution.compute(graph, {"x": ONES})
        if session.device is not None:
            kept.append(weakref.ref(call.cr_frame.f_locals["run"]._dispatch.uploads[0][1]))
        await call

    async def waiting() -> None:
        of_host = session.independent._waiting
        while not (kept or of_host):
            await pause()
        kept.extend(weakref.ref(request._inputs[0]) for request in of_host)

    async def main() -> None:
        blocker = session.run_on_worker(release.wait)
        try:
            await cancel_after(compute, waiting)
            gc.collect()
            assert kept
            assert [reference() is None for reference in kept] == [True]
        finally:
            release.set()
        await blocker

    run(main)
