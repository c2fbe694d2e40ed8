"""MLAwaitedExecution on both kinds of contexts: results, resources, cancelling."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

from tests.adapters import need_wgpu_native
from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.held import Held, submit_lock, worked
from tests.backend.networks import assert_like, network, network_inputs
from tests.graphs import (
    ONES,
    TWOS,
    awaited,
    build,
    doubling,
    expected,
)
from tests.loops import Run, cancel_after, pause, together, under_asyncio
from tests.threads import LONG, in_threads
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder

# Results


def test_results_are_those_of_the_reference(context: MLContext, run: Run) -> None:
    graph, inputs = build(context, network), network_inputs(0)
    results: dict[str, Any] = {}

    async def main() -> None:
        results.update(await MLAwaitedExecution(context).compute(graph, inputs))

    run(main)
    assert_like(results, expected(network, inputs))


def test_many_at_once_get_their_own_results(context: MLContext, run: Run) -> None:
    graph, execution = build(context, network), MLAwaitedExecution(context)
    found: dict[int, Any] = {}

    async def one(seed: int) -> None:
        found[seed] = await execution.compute(graph, network_inputs(seed))

    run(lambda: together(functools.partial(one, seed) for seed in range(24)))  # more than in flight
    for seed in range(24):
        assert_like(found[seed], expected(network, network_inputs(seed)))


def test_graphs_take_turns_on_one_context(context: MLContext, run: Run) -> None:
    first, second = build(context, network), doubling(context)
    execution = MLAwaitedExecution(context)
    wanted = expected(network, network_inputs(3))

    async def one(number: int) -> None:
        if number % 2:
            assert_like(await execution.compute(first, network_inputs(3)), wanted)
        else:
            results = await execution.compute(second, {"x": ONES * number})
            np.testing.assert_array_equal(results["y"], TWOS * number)

    run(lambda: together(functools.partial(one, number) for number in range(10)))


def test_loops_of_several_threads_share_a_graph(context: MLContext) -> None:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    right: list[int] = []

    async def main(number: int) -> None:
        for n in range(number, number + 20):
            results = await execution.compute(graph, {"x": ONES * n})
            right.append(int((results["y"] == TWOS * n).all()))

    mains = [functools.partial(main, number) for number in (0, 100, 200, 300)]
    in_threads(*[functools.partial(under_asyncio, each) for each in mains])
    assert right == [1] * 80


def test_outputs_given_are_written_and_the_rest_is_made(context: MLContext) -> None:
    graph, inputs = build(context, network), network_inputs(1)
    target = np.zeros((2, 5), np.float32)
    results = awaited(graph, inputs, {"p": target})
    assert results["p"] is target
    assert_like(results, expected(network, inputs))


def test_a_larger_output_keeps_its_rest(context: MLContext) -> None:
    large = np.full(9, -1, np.float32)
    results = awaited(doubling(context), {"x": ONES}, {"y": large})
    assert results["y"] is large
    assert large.tolist() == [2] * 6 + [-1] * 3


def test_a_strided_output_is_written(context: MLContext) -> None:
    whole = np.zeros((3, 4), np.float32)
    awaited(doubling(context), {"x": ONES}, {"y": whole.T[1:3]})
    assert whole.tolist() == [[0, 2, 2, 0]] * 3


def test_inputs_of_many_kinds(context: MLContext) -> None:
    graph = doubling(context)
    values = np.arange(6, dtype=np.float32)
    wanted = (values * 2).reshape(2, 3)
    strided = np.zeros((3, 4), np.float32)
    strided[:, ::2] = values.reshape(2, 3).T
    for given in (
        values.tobytes(),
        memoryview(values),
        strided[:, ::2].T,
        {"resource": values.reshape(2, 3), "dimensions": [2, 3]},
    ):
        np.testing.assert_array_equal(awaited(graph, {"x": given})["y"], wanted)


def test_building_leaves_the_loop_free(context: MLContext, run: Run) -> None:
    wanted = expected(network, network_inputs(2))
    held: list[Held] = []
    order: list[str] = []

    async def building() -> None:
        builder = MLGraphBuilder(context)
        graph = await builder.build_async(network(builder))
        order.append("built")
        results = await MLAwaitedExecution(context).compute(graph, network_inputs(2))
        assert_like(results, wanted)

    async def other() -> None:
        await pause(0.02)
        order.append("other")
        held[0].release()

    async def main() -> None:
        held.append(Held(context, "builder"))  # the build stands behind it
        await together([building, other])

    run(main)
    assert order == ["other", "built"]


# GPU resources


def test_buffers_in_and_out(gpu: MLContext, run: Run) -> None:
    x, y = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 64)
    graph = doubling(gpu)

    async def main() -> None:
        results = await MLAwaitedExecution(gpu).compute(graph, {"x": x}, {"y": y})
        assert results["y"] is y

    run(main)
    assert read(y).tolist() == [2] * 6 + [0] * 10


@pytest.mark.parametrize("offset", [0, 4, 100, 256])
def test_parts_of_buffers(gpu: MLContext, offset: int) -> None:
    data = np.zeros(128, np.float32)
    data[offset // 4 :][:6] = np.arange(6)
    x, y = buffer_of(gpu.device, data), buffer_of(gpu.device, np.full(128, 7, np.float32))
    bound = {"buffer": x, "offset": offset, "size": 24}
    awaited(
        doubling(gpu),
        {"x": {"resource": bound, "dimensions": [2, 3]}},
        {"y": {"buffer": y, "offset": 512 - 24 - offset}},
    )
    written = read(y)
    start = (512 - 24 - offset) // 4
    assert written[start : start + 6].tolist() == [0, 2, 4, 6, 8, 10]
    assert (np.delete(written, range(start, start + 6)) == 7).all()


def test_host_and_device_outputs_of_one_run(gpu: MLContext) -> None:
    inputs = network_inputs(4)
    wanted = expected(network, inputs)
    mean = empty_buffer(gpu.device, 32)
    x = buffer_of(gpu.device, inputs["x"])
    results = awaited(build(gpu, network), inputs | {"x": x}, {"mean": mean})
    assert results["mean"] is mean
    assert_like(results | {"mean": read(mean, (2, 4))}, wanted)


def test_a_buffer_written_in_place(gpu: MLContext) -> None:
    both = buffer_of(gpu.device, np.arange(6, dtype=np.float32))
    awaited(doubling(gpu), {"x": both}, {"y": both})
    assert read(both).tolist() == [0, 2, 4, 6, 8, 10]


# Cancelling


def test_cancelled_before_it_began(context: MLContext, run: Run) -> None:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    target = np.zeros((2, 3), np.float32)

    async def compute() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": target})

    async def main() -> None:
        held = Held(context)
        await cancel_after(compute, pause)
        held.release()
        results = await execution.compute(graph, {"x": ONES})  # stands behind what was cancelled
        np.testing.assert_array_equal(results["y"], TWOS)

    run(main)
    assert not target.any()


def test_cancelled_before_it_was_read_back(gpu: MLContext, run: Run) -> None:
    graph, execution = doubling(gpu), MLAwaitedExecution(gpu)
    target, held = np.zeros((2, 3), np.float32), Held(gpu, "reader")

    async def compute() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": target})

    async def main() -> None:
        await cancel_after(compute, lambda: worked(gpu))  # submitted by now
        held.release()
        await execution.compute(graph, {"x": ONES})

    run(main)
    assert not target.any()


@pytest.mark.parametrize("outputs", ["none", "arrays", "buffers"])
def test_a_cancelled_await_does_not_wait_for_a_submission(
    gpu: MLContext, run: Run, outputs: str
) -> None:
    graph, execution = doubling(gpu), MLAwaitedExecution(gpu)
    lock = submit_lock(gpu)
    y = empty_buffer(gpu.device, 24)
    target: Any = {"none": None, "arrays": np.zeros((2, 3), np.float32), "buffers": y}[outputs]

    async def compute() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": target})

    async def begun() -> None:
        await pause(0.02)  # it waits for the lock by now, as for a driver that takes its time

    async def main() -> None:
        lock.acquire()
        late = threading.Timer(LONG / 4, lock.release)
        late.start()
        try:
            await cancel_after(compute, begun)
            assert late.is_alive()
        finally:
            late.cancel()
            lock.release()
        await execution.compute(graph, {"x": ONES})

    run(main)
    assert not read(y).any()
    assert outputs != "arrays" or not target.any()


def test_nobody_waits_within_wgpu(gpu: MLContext) -> None:
    """Its waiting keeps everybody from submitting until the device is done."""
    need_wgpu_native()
    poller = gpu.device._poller
    before = poller._token_count
    awaited(doubling(gpu), {"x": ONES})
    awaited(doubling(gpu), {"x": ONES}, {"y": empty_buffer(gpu.device, 24)})
    tensor = gpu.create_tensor_sync("float32", [2, 3], readable=True)
    gpu.read_tensor_sync(tensor)
    assert poller._token_count == before


def test_cancelled_device_outputs_stay_as_they_are(gpu: MLContext, run: Run) -> None:
    graph, execution = doubling(gpu), MLAwaitedExecution(gpu)
    y = empty_buffer(gpu.device, 24)

    async def compute() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": y})

    async def main() -> None:
        held = Held(gpu)
        await cancel_after(compute, pause)
        held.release()
        await execution.compute(graph, {"x": ONES})

    run(main)
    assert not read(y).any()
