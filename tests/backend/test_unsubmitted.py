"""Commands that are never submitted are freed, with what they use, as wgpu-native does not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import wgpu

from tests.adapters import need_wgpu_native
from tests.backend.buffers import empty_buffer
from tests.backend.webgpu import FREEING
from tests.graphs import ONES, doubling
from tests.internals import engine_of, executable_of, set_policy, settle
from webnn_py import MLAwaitedExecution, MLCommandEncoder, MLContext, ml


@pytest.fixture(scope="module", autouse=True)
def _collected_soon() -> Iterator[None]:
    """Python's collector goes through what these tests make alone, not all tests there are."""
    gc.freeze()
    yield
    gc.unfreeze()


def unsubmitted() -> int:
    """Command buffers that wgpu-native keeps."""
    gc.collect()
    need_wgpu_native()
    counts: Any = wgpu.diagnostics.wgpu_native_counts
    return int(counts.get_dict()["CommandBuffer"]["count"])


@pytest.fixture
def context(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[MLContext]:
    """One whose next runs are recorded while they are not asked for."""
    with ml.create_context_sync(device_type="gpu") as made:
        set_policy(made, tiny_run_seconds=0.0)
        monkeypatch.setattr(engine_of(made).gpu, "hardware", True)
        yield made


def run_often(context: MLContext) -> Any:
    """A graph whose next run is recorded."""
    graph, execution = doubling(context), MLAwaitedExecution(context)

    async def main() -> None:
        for _ in range(4):
            await execution.compute(graph, {"x": ONES})

    asyncio.run(main())
    settle(context)
    assert executable_of(graph).prerecorder.is_recorded
    return graph


def test_a_graph_that_is_dropped(context: MLContext) -> None:
    before = unsubmitted()
    graph = run_often(context)
    assert unsubmitted() > before
    del graph
    assert unsubmitted() == before


def test_a_run_that_is_cancelled(context: MLContext) -> None:
    before = unsubmitted()
    graph = run_often(context)

    async def cancelled(run: Any) -> None:
        task = asyncio.ensure_future(run)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancelled(MLAwaitedExecution(context).compute(graph, {"x": ONES})))
    settle(context)
    del graph
    assert unsubmitted() == before


def test_a_context_that_is_destroyed(context: MLContext) -> None:
    before = unsubmitted()
    graph = run_often(context)
    context.destroy()
    del graph
    assert unsubmitted() == before


def test_a_device_that_is_destroyed(context: MLContext) -> None:
    before = unsubmitted()
    graph = run_often(context)
    context.device.destroy()
    del graph
    assert unsubmitted() == before


@pytest.mark.parametrize("submitted", [False, True])
def test_a_frame_of_the_user(gpu: MLContext, submitted: bool) -> None:
    before, device = unsubmitted(), gpu.device
    graph = doubling(gpu)
    x, y = empty_buffer(device, 24), empty_buffer(device, 24)
    commands = device.create_command_encoder()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    encoder.initialize_graph(graph)
    encoder.dispatch(graph, {"x": x}, {"y": y})
    frame = commands.finish()
    assert unsubmitted() == before + 1
    if submitted:
        device.queue.submit([frame])
    del frame
    assert unsubmitted() == before


def test_where_it_cannot_be(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FREEING, "missing", "taken away")
    before = unsubmitted()
    gpu.device.create_command_encoder().finish()
    assert unsubmitted() == before + 1
