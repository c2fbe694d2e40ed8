"""Awaited runs of many kernels are submitted in pieces, and nobody comes between these.

Not runs for other sizes of an open dimension either, which compute in the same buffers.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from tests.graphs import normal
from webnn_py import MLAwaitedExecution, MLCommandEncoder, MLContext, MLGraph, MLGraphBuilder, ml

SIZE = 24
LAYERS = 40
X = normal(SIZE, SIZE)


def chain(context: MLContext, rows: int | str = SIZE) -> MLGraph:
    """Products, one kernel each: a value that another run overwrites shows in the result."""
    b = MLGraphBuilder(context, dimensions={rows: (2, 256)} if isinstance(rows, str) else {})
    x = b.input("x", "float32", [rows, SIZE])
    h = x
    for seed in range(LAYERS):
        rotation, _ = np.linalg.qr(normal(SIZE, SIZE, seed=seed))
        h = b.matmul(h, b.constant(np.ascontiguousarray(rotation, np.float32)))
    return b.build_sync({"y": h})


@pytest.fixture
def fresh() -> Any:
    with ml.create_context_sync(device_type="gpu") as context:
        yield context


def prepared(context: MLContext, rows: int) -> MLGraph:
    """With an open dimension: compiled for these rows, too, if they are not SIZE."""
    if rows == SIZE:
        return chain(context)
    graph = chain(context, "rows")
    for number in (9, 10, rows, SIZE):  # the first ones by themselves
        graph.prepare_sync({"rows": number})
    return graph


@pytest.mark.parametrize("rows", [SIZE, SIZE - 9, SIZE + 9], ids=["same", "fewer", "more"])
@pytest.mark.parametrize("mode", ["dispatch", "encoder", "slices", "profile", "awaited"])
def test_runs_of_one_graph_in_other_threads_and_modes(
    fresh: MLContext, mode: str, rows: int
) -> None:
    graph, other = prepared(fresh, rows), normal(rows, SIZE)
    inputs = [X * (1 + i) for i in range(24)]
    expected = [x.astype(np.float64) for x in inputs]
    for seed in range(LAYERS):
        rotation, _ = np.linalg.qr(normal(SIZE, SIZE, seed=seed))
        expected = [x @ rotation for x in expected]
    started, stop = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def disturb() -> None:
        y = fresh.create_tensor_sync("float32", [rows, SIZE], readable=True)
        x = fresh.create_tensor_sync("float32", [rows, SIZE], writable=True)
        fresh.write_tensor(x, other)
        try:
            while not stop.is_set():
                for _ in range(8):
                    once(x, y)
                    started.set()
                fresh.read_tensor_sync(y)  # else a busy machine queues minutes of work
        except BaseException as error:
            failed.append(error)
            started.set()

    def once(x: Any, y: Any) -> None:
        if mode == "dispatch":
            fresh.dispatch(graph, {"x": x}, {"y": y})
            fresh.flush()
        elif mode == "profile":
            graph.profile({"x": other}, runs=1)
        elif mode == "awaited":
            asyncio.run(compute(other))
        elif mode == "encoder":
            encoder = MLCommandEncoder(fresh)
            encoder.dispatch(graph, {"x": x}, {"y": y})
            fresh.device.queue.submit([encoder.finish()])
        else:
            job, done = fresh.slice_dispatch(graph, {"x": other}, {"y": y}), False
            while not done:
                encoder = MLCommandEncoder(fresh)
                done = encoder.dispatch_slice(job, budget_ms=0.02)
                fresh.device.queue.submit([encoder.finish()])

    async def compute(x: Any) -> Any:
        return (await MLAwaitedExecution(fresh).compute(graph, {"x": x}))["y"]

    async def main() -> list[Any]:
        return await asyncio.gather(*map(compute, inputs))

    thread = threading.Thread(target=disturb)
    thread.start()
    started.wait()
    results = asyncio.run(main())
    stop.set()
    thread.join()
    assert not failed
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
