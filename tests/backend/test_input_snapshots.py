"""Host inputs of an awaited compute are read before the call returns."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.held import Held
from tests.backend.tensors import adding, tensor
from tests.graphs import ONES, doubling
from tests.loops import Run, cancel_after, pause, together, under_asyncio
from webnn_py import DataError, MLAwaitedExecution, MLContext, MLGraphBuilder, Timeline

MANY = 40
"""More than run on a GPU context at once."""
LARGE = 1 << 22
"""Elements of an input that takes long to copy."""
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
    memory = np.ones(LARGE, np.float32)
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
    x = np.ones((100, 1000), np.float32)
    builder = MLGraphBuilder(context)
    graph = builder.build_sync({"y": builder.reduce_sum(builder.input("x", "float32", x.shape))})
    execution = MLAwaitedExecution(context)
    most: list[int] = []

    async def compute() -> None:
        await execution.compute(graph, {"x": x})

    async def several() -> None:
        """Compute more often than runs were recorded ahead, whose inputs are in mapped memory."""
        await together([compute] * MANY)

    async def waiting() -> None:
        for _ in range(3):
            await pause()
        most.append(tracemalloc.get_traced_memory()[1])

    async def main() -> None:
        await compute()
        held = Held(context)
        gc.collect()
        tracemalloc.start()
        try:
            await cancel_after(several, waiting)
            gc.collect()
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            held.release()
        assert left < x.nbytes < most[0]

    run(main)
