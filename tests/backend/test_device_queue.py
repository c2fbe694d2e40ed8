"""Tensors in a device queue's order: batches, command buffers, lost devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import (
    STORAGE,
    buffer_of,
    copying,
    empty_buffer,
    read,
    tripling,
)
from tests.backend.held import destroy_unobserved
from tests.backend.tensors import LONG, ONES, SHAPE, Parked, adding, tensor
from tests.graphs import awaited, doubling, lost_info
from tests.loops import Run
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLGraphBuilder,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)


@pytest.fixture
def own_gpu(gpu: MLContext) -> Iterator[MLContext]:
    """A GPU context that the test may destroy."""
    with ml.create_context_sync(device_type="gpu") as context:
        yield context


# Batches


def test_dispatches_are_submitted_together(gpu: MLContext, submissions: list[int]) -> None:
    graph, one = adding(gpu), tensor(gpu, ONES)
    x, y = tensor(gpu, ONES * 0), tensor(gpu)
    gpu.flush()
    submissions.clear()
    for _ in range(100):
        gpu.dispatch(graph, {"x": x, "k": one}, {"y": y})
        x, y = y, x
    assert submissions == []
    gpu.flush()
    assert submissions == [1]
    gpu.flush()
    assert submissions == [1]
    np.testing.assert_array_equal(gpu.read_tensor_sync(x), ONES * 100)
    assert submissions == [1, 1]


def test_a_signal_and_an_export_submit(gpu: MLContext, submissions: list[int]) -> None:
    graph, x = doubling(gpu), tensor(gpu, ONES)
    y = tensor(gpu, exportable=True)
    gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[Timeline()(signal=1)])
    assert submissions == [1]
    gpu.dispatch(graph, {"x": x}, {"y": y})
    assert submissions == [1]
    with gpu.export_to_gpu(y):
        assert submissions == [1, 1]


def test_parking_submits_what_is_recorded(gpu: MLContext, submissions: list[int]) -> None:
    graph, x, y = doubling(gpu), tensor(gpu, ONES), tensor(gpu)
    gpu.flush()
    submissions.clear()
    gpu.dispatch(graph, {"x": x}, {"y": y})
    parked = Parked(gpu, graph)
    assert submissions == [1]
    parked.go()


def test_a_large_number_of_dispatches_is_submitted_in_between(
    gpu: MLContext, submissions: list[int]
) -> None:
    graph, x, y = doubling(gpu), tensor(gpu, ONES), tensor(gpu)
    for _ in range(600):
        gpu.dispatch(graph, {"x": x}, {"y": y})
    assert len(submissions) == 2


def test_large_writes_are_submitted_in_between(gpu: MLContext, submissions: list[int]) -> None:
    graph, x, y = doubling(gpu), tensor(gpu, ONES), tensor(gpu)
    large = tensor(gpu, np.zeros(1 << 20, np.float32))
    gpu.dispatch(graph, {"x": x}, {"y": y})
    gpu.flush()
    submissions.clear()
    gpu.dispatch(graph, {"x": x}, {"y": y})
    for turn in range(40):
        gpu.write_tensor(large, np.full(1 << 20, turn, np.float32))
    # At first behind what is recorded; then the queue writes, and keeps copies likewise.
    assert submissions == [1, 1]
    assert gpu.read_tensor_sync(large)[-1] == 39


def test_many_small_writes_are_submitted_in_between(gpu: MLContext, submissions: list[int]) -> None:
    small = tensor(gpu, ONES)
    gpu.read_tensor_sync(small)
    submissions.clear()
    for _ in range(600):
        gpu.write_tensor(small, ONES)
    assert submissions == [1, 1]


def test_large_tensors_made_and_dropped_are_submitted_for(
    gpu: MLContext, submissions: list[int]
) -> None:
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", [1 << 20])
    graph, given = b.build_sync({"y": b.add(x, x)}), tensor(gpu, np.ones(1 << 20, np.float32))
    gpu.flush()
    gpu.dispatch(graph, {"x": given}, {"y": tensor(gpu, np.zeros(1 << 20, np.float32))})
    gpu.flush()
    submissions.clear()
    for _ in range(40):
        made = gpu.create_tensor_sync("float32", [1 << 20])
        gpu.dispatch(graph, {"x": given}, {"y": made})
        made.destroy()
    assert submissions == [1, 1]


# Command buffers


def test_command_buffers_run_between_dispatches(gpu: MLContext) -> None:
    graph, x = doubling(gpu), tensor(gpu, ONES)
    y, z = tensor(gpu, exportable=True), tensor(gpu)
    with gpu.export_to_gpu(y) as buffer:
        commands = tripling(gpu, buffer)
    gpu.dispatch(graph, {"x": x}, {"y": y})
    gpu.submit([commands])
    gpu.dispatch(graph, {"x": y}, {"y": z})
    np.testing.assert_array_equal(gpu.read_tensor_sync(z), ONES * 12)


def test_command_buffers_wait_and_signal(gpu: MLContext) -> None:
    source, target = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 24)
    timeline = Timeline()
    commands = copying(gpu, source, target)
    gpu.submit([commands], sync=[timeline(wait=1, signal=2)])
    np.testing.assert_array_equal(read(target, SHAPE), ONES * 0)
    timeline.signal(1)
    timeline.wait_sync(2, timeout=LONG)
    np.testing.assert_array_equal(read(target, SHAPE), ONES)


def test_recorded_graphs_on_tensors_keep_the_order(gpu: MLContext) -> None:
    graph, x = doubling(gpu), tensor(gpu, ONES)
    y, z, last = tensor(gpu), tensor(gpu), tensor(gpu)
    gpu.dispatch(graph, {"x": x}, {"y": y})
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, {"x": y}, {"y": z})
    commands = encoder.finish()
    gpu.write_tensor(y, ONES * 5)
    gpu.submit([commands])
    gpu.dispatch(graph, {"x": z}, {"y": last})
    np.testing.assert_array_equal(gpu.read_tensor_sync(last), ONES * 20)


@pytest.mark.parametrize("given", [5, None, [5], [None], "ab"])
def test_what_is_no_command_buffer_is_refused(gpu: MLContext, given: Any) -> None:
    with pytest.raises(ValidationError, match="submit"):
        gpu.submit(given)


def test_command_buffers_are_submitted_once_and_on_their_device(
    gpu: MLContext, own_gpu: MLContext
) -> None:
    target = empty_buffer(gpu.device, 24)
    source = buffer_of(gpu.device, ONES)
    commands = copying(gpu, source, target)
    with pytest.raises(ValidationError, match="this context's device"):
        own_gpu.submit([commands])
    with pytest.raises(ValidationError, match="given twice"):
        gpu.submit([commands, commands])
    gpu.submit([commands])
    with pytest.raises(ValidationError, match="submitted before"):
        gpu.submit([commands])
    gpu.submit([])
    np.testing.assert_array_equal(read(target, SHAPE), ONES)


# Lost devices


@pytest.mark.parametrize("use", ["write", "read", "dispatch", "awaited", "encoder", "signal"])
def test_a_lost_device_takes_its_context_along(
    own_gpu: MLContext, use: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    graph, x, y = doubling(own_gpu), tensor(own_gpu, ONES), tensor(own_gpu)
    timeline = Timeline()
    own_gpu.read_tensor_sync(x)
    destroy_unobserved(own_gpu)  # as a device is lost: nobody is told
    execution = MLAwaitedExecution(own_gpu)
    uses: dict[str, Callable[[], Any]] = {
        "write": lambda: own_gpu.write_tensor(x, ONES),
        "read": lambda: own_gpu.read_tensor_sync(x),
        "dispatch": lambda: (own_gpu.dispatch(graph, {"x": x}, {"y": y}), own_gpu.flush()),
        "awaited": lambda: awaited(graph, {"x": x}),
        "encoder": lambda: MLCommandEncoder(own_gpu).dispatch(graph, {"x": x}, {"y": y}),
        "signal": lambda: own_gpu.dispatch(graph, {"x": x}, {"y": y}, [timeline(signal=1)]),
    }

    def use_twice() -> None:
        uses[use]()
        own_gpu.read_tensor_sync(y)

    with pytest.raises(MLError):
        use_twice()
    if use == "signal":
        with pytest.raises(OperationError, match="lost"):
            timeline.wait_sync(1, timeout=LONG)

    async def lost() -> None:
        assert "lost" in (await own_gpu.lost).message
        with pytest.raises(ContextLostError):
            await execution.compute(graph, {"x": ONES})

    run(lost)
    caplog.clear()


def test_a_device_lost_with_work_parked_and_under_way_ends_it_all(
    own_gpu: MLContext, caplog: pytest.LogCaptureFixture
) -> None:
    parked, done = Parked(own_gpu), Timeline()
    graph, x, y = doubling(own_gpu), tensor(own_gpu, ONES), tensor(own_gpu)
    own_gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[done(signal=1)])
    own_gpu.device.destroy()
    parked.go()
    with pytest.raises(OperationError):
        done.wait_sync(1, timeout=LONG)
    with pytest.raises(MLError):
        own_gpu.read_tensor_sync(y)
    assert lost_info(own_gpu).message
    caplog.clear()


def test_storage_is_the_usage_that_is_promised(gpu: MLContext) -> None:
    with gpu.export_to_gpu(tensor(gpu, exportable=True)) as buffer:
        assert buffer.usage & STORAGE
        assert buffer.usage & wgpu.BufferUsage.COPY_SRC
        assert buffer.usage & wgpu.BufferUsage.COPY_DST
