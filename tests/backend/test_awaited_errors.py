"""MLAwaitedExecution: what is refused, and graphs, contexts and devices that end meanwhile."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import COPIES, STORAGE, buffer_of, empty_buffer
from tests.backend.held import Held, worked
from tests.backend.networks import assert_like, network, network_inputs
from tests.graphs import (
    ONES,
    TWOS,
    assert_awaits,
    awaited,
    build,
    doubling,
    expected,
)
from tests.loops import Run, pause, together, under_asyncio
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    ml,
)


@pytest.fixture
def own_gpu(gpu: MLContext) -> Iterator[MLContext]:
    """A GPU context that the test may destroy."""
    with ml.create_context_sync(device_type="gpu") as context:
        yield context


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, None, "input 'x' is missing; expected .*float32"),
        ({"x": ONES, "z": ONES}, None, "unknown input 'z'"),
        ({"x": ONES}, {"z": ONES}, "unknown output 'z'"),
        ({"x": ONES[0]}, None, r"input 'x': shape \[3\], expected \[2, 3\]"),
        ({"x": np.ones((2, 3))}, None, "input 'x': data type float64, expected float32"),
        ({"x": ONES.tolist()}, None, "input 'x': got list"),
        ({"x": {"resource": ONES, "dimensions": [3, 2]}}, None, r"dimensions \[3, 2\], expected"),
        ({"x": ONES}, {"y": np.empty(5, np.float32)}, "5 elements, expected at least 6"),
        ({"x": ONES}, {"y": np.empty((2, 3))}, "output 'y': data type float64"),
        ({"x": ONES}, {"y": bytes(24)}, "output 'y': the array is read-only"),
    ],
)
def test_bad_resources_are_data_errors_and_harmless(
    context: MLContext, inputs: Any, outputs: Any, message: str
) -> None:
    graph = doubling(context)
    with pytest.raises(DataError, match=message):
        awaited(graph, inputs, outputs)
    np.testing.assert_array_equal(awaited(graph, {"x": ONES})["y"], TWOS)


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ({"offset": 2}, "from a multiple of 4"),
        ({"offset": -4}, "offset -4 of the binding"),
        ({"offset": 1.5}, "offset 1.5 of the binding"),
        ({"offset": "0"}, "offset '0' of the binding"),
        ({"offset": 12}, "20 bytes from offset 12 of a buffer of 32, expected at least 24"),
        ({"offset": 64}, "from offset 64 of a buffer of 32"),
        ({"size": 20}, "20 bytes from offset 0"),
        ({"size": 36}, "36 bytes from offset 0 of a buffer of 32"),
        ({"length": 24}, r"unknown keys \['length'\]"),
        ({"buffer": 5}, "got int, expected a GPUBuffer"),
    ],
)
def test_bad_bindings(gpu: MLContext, binding: Any, message: str) -> None:
    graph = doubling(gpu)
    buffer = empty_buffer(gpu.device, 32)
    with pytest.raises(DataError, match=f"input 'x': .*{message}"):
        awaited(graph, {"x": {"buffer": buffer, **binding}})
    with pytest.raises(DataError, match=f"output 'y': .*{message}"):
        awaited(graph, {"x": ONES}, {"y": {"buffer": buffer, **binding}})
    assert_awaits(gpu)


def test_buffers_that_cannot_be_used(gpu: MLContext) -> None:
    graph, device = doubling(gpu), gpu.device
    destroyed = empty_buffer(device, 24)
    destroyed.destroy()
    gone = empty_buffer(device, 24, COPIES)
    gone.destroy()
    mapped = device.create_buffer(size=24, usage=STORAGE | COPIES, mapped_at_creation=True)
    vertices = device.create_buffer(size=24, usage="VERTEX")
    for buffer, message in (
        (destroyed, "is destroyed"),
        (gone, "is destroyed"),
        (mapped, "is mapped"),
        (vertices, "usage lacks STORAGE"),
    ):
        with pytest.raises(DataError, match=f"input 'x': the .*{message}"):
            awaited(graph, {"x": buffer})
        with pytest.raises(DataError, match=f"output 'y': the .*{message}"):
            awaited(graph, {"x": ONES}, {"y": buffer})
        assert_awaits(gpu)


def test_a_buffer_destroyed_while_the_run_waits(gpu: MLContext, run: Run) -> None:
    # What was used before is cached; wgpu would end the process over the submission.
    graph, execution = doubling(gpu), MLAwaitedExecution(gpu)
    x, held = buffer_of(gpu.device, ONES), list[Held]()

    async def compute() -> None:
        await execution.compute(graph, {"x": x})

    async def failing() -> None:
        with pytest.raises(DataError, match="input 'x': the GPUBuffer is destroyed"):
            await compute()

    async def destroying() -> None:
        x.destroy()
        held.pop().release()

    async def main() -> None:
        await compute()
        held.append(Held(gpu))
        await together([failing, destroying])

    run(main)
    assert_awaits(gpu)


def test_a_buffer_of_another_device(gpu: MLContext, own_gpu: MLContext) -> None:
    buffer = empty_buffer(own_gpu.device, 24)
    with pytest.raises(DataError, match=r"input 'x': .*belongs to another GPUDevice"):
        awaited(doubling(gpu), {"x": buffer})
    with pytest.raises(DataError, match=r"output 'y': .*belongs to another GPUDevice"):
        awaited(doubling(gpu), {"x": ONES}, {"y": buffer})
    assert_awaits(gpu)


def test_device_resources_are_not_for_the_cpu(cpu: MLContext, gpu: MLContext) -> None:
    with pytest.raises(DataError, match="input 'x': got GPUBuffer"):
        awaited(doubling(cpu), {"x": empty_buffer(gpu.device, 24)})
    assert_awaits(cpu)


# States


def test_a_graph_belongs_to_its_context(context: MLContext) -> None:
    with ml.create_context_sync(device_type=context.device_type) as other:  # type: ignore[arg-type]
        graph = doubling(other)

        async def main() -> None:
            with pytest.raises(DataError, match="another context"):
                await MLAwaitedExecution(context).compute(graph, {"x": ONES})

        under_asyncio(main)
    assert_awaits(context)


def test_a_destroyed_graph_does_not_run(context: MLContext) -> None:
    graph = doubling(context)
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        awaited(graph, {"x": ONES})
    assert_awaits(context)


def test_a_graph_destroyed_meanwhile_still_completes(context: MLContext, run: Run) -> None:
    graph, execution = build(context, network), MLAwaitedExecution(context)
    held, inputs = list[Held](), network_inputs(5)
    results: dict[str, Any] = {}

    async def computing() -> None:
        results.update(await execution.compute(graph, inputs))

    async def destroying() -> None:
        await pause(0.01)
        graph.destroy()
        held.pop().release()

    async def main() -> None:
        held.append(Held(context))
        await together([computing, destroying])

    run(main)
    assert_like(results, expected(network, inputs))


@pytest.mark.parametrize("device_type", ["cpu", "gpu"])
def test_a_context_destroyed_meanwhile_fails_what_waits(
    gpu: MLContext, device_type: Any, run: Run
) -> None:
    context = ml.create_context_sync(device_type=device_type)
    graph, execution, held = doubling(context), MLAwaitedExecution(context), list[Held]()
    failed: list[int] = []

    async def failing(number: int) -> None:
        with pytest.raises(ContextLostError, match="destroy"):
            await execution.compute(graph, {"x": ONES})
        failed.append(number)

    async def destroying() -> None:
        await pause(0.01)
        context.destroy()
        held.pop().release()

    async def main() -> None:
        held.append(Held(context))
        await together([*(functools.partial(failing, n) for n in range(3)), destroying])
        with pytest.raises(ContextLostError):
            await execution.compute(graph, {"x": ONES})
        assert "destroy" in (await context.lost).message

    run(main)
    assert sorted(failed) == [0, 1, 2]


def test_a_device_lost_while_its_results_are_awaited(
    own_gpu: MLContext, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    graph, execution = doubling(own_gpu), MLAwaitedExecution(own_gpu)
    held = [Held(own_gpu, "reader")]

    async def failing() -> None:
        with pytest.raises(ContextLostError, match="GPUDevice"):
            await execution.compute(graph, {"x": ONES})

    async def losing() -> None:
        await worked(own_gpu)
        own_gpu.device.destroy()
        held.pop().release()

    async def main() -> None:
        await together([failing, losing])
        assert "GPUDevice" in (await own_gpu.lost).message
        with pytest.raises(ContextLostError):
            await execution.compute(graph, {"x": ONES})

    run(main)
    caplog.clear()  # wgpu logs the loss


def test_a_device_lost_before_what_waits_begins(
    own_gpu: MLContext, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    graph, execution = doubling(own_gpu), MLAwaitedExecution(own_gpu)
    waiting, held = threading.Event(), list[Held]()

    async def failing() -> None:
        waiting.set()  # nothing else of the loop runs until the computation waits
        with pytest.raises(ContextLostError, match="GPUDevice"):
            await execution.compute(graph, {"x": ONES})

    async def losing() -> None:
        while not waiting.is_set():
            await pause()
        own_gpu.device.destroy()
        held.pop().release()

    async def main() -> None:
        held.append(Held(own_gpu))
        await together([failing, losing])

    run(main)
    caplog.clear()


def test_a_device_lost_before(own_gpu: MLContext, caplog: pytest.LogCaptureFixture) -> None:
    graph, x = doubling(own_gpu), empty_buffer(own_gpu.device, 24)
    own_gpu.device.destroy()
    with pytest.raises(ContextLostError, match="GPUDevice"):
        awaited(graph, {"x": x})
    with pytest.raises(ContextLostError, match="GPUDevice"):
        doubling(own_gpu)
    caplog.clear()
