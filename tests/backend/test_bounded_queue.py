"""The queue of a CPU context is bounded in bytes."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

from tests.processes import run_alone
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLTensor, Timeline, ml

SIZE = 1 << 16
"""Elements, of 256 KiB."""
TURNS = 1_200
MOST_MEGABYTES = 160
"""By which the process may grow; what is written are 300."""


def peak() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def prepared(context: MLContext) -> tuple[MLGraph, MLTensor, MLTensor]:
    builder = MLGraphBuilder(context)
    x = y = builder.input("x", "float32", [SIZE])
    for _ in range(30):
        y = builder.add(y, x)
    make = context.create_tensor_sync
    tensors = [make("float32", [SIZE], readable=True, writable=True) for _ in range(2)]
    return builder.build_sync({"y": y}), tensors[0], tensors[1]


def write_and_dispatch(context: MLContext, graph: MLGraph, x: MLTensor, y: MLTensor) -> None:
    array, before = np.ones(SIZE, np.float32), peak()
    for turn in range(TURNS):
        array[0] = turn
        context.write_tensor(x, array)
        context.dispatch(graph, {"x": x}, {"y": y})
    assert peak() - before < MOST_MEGABYTES


def on_one_thread(workers: int = 1) -> None:
    with ml.create_context_sync(device_type="cpu", workers=workers) as context:
        graph, x, y = prepared(context)
        write_and_dispatch(context, graph, x, y)
        assert context.read_tensor_sync(y)[0] == 31 * (TURNS - 1)


def on_several_threads() -> None:
    on_one_thread(4)


def on_a_thread_with_an_event_loop() -> None:
    async def main() -> None:
        with ml.create_context_sync(device_type="cpu") as context:
            graph, x, y = prepared(context)
            write_and_dispatch(context, graph, x, y)
            assert (await context.read_tensor_async(y))[0] == 31 * (TURNS - 1)

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is told in KiB on Linux alone")
@pytest.mark.parametrize(
    "work", [on_one_thread, on_several_threads, on_a_thread_with_an_event_loop]
)
def test_many_unread_writes(work: object) -> None:
    run_alone(work)  # type: ignore[arg-type]


def test_writes_behind_parked_work_do_not_wait(cpu: MLContext) -> None:
    """Only this thread can let it go on."""
    graph, x, y = prepared(cpu)
    go, array = Timeline(), np.ones(SIZE, np.float32)
    cpu.dispatch(graph, {"x": x}, {"y": y}, [go(wait=1)])
    for turn in range(400):  # 100 MiB
        array[0] = turn
        cpu.write_tensor(x, array)
    go.signal(1)
    assert cpu.read_tensor_sync(y)[0] == 0
    assert cpu.read_tensor_sync(x)[0] == 399
