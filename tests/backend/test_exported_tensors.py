"""Tensors that are lent to the user as GPU buffers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import (
    read,
    tripling,
)
from tests.backend.tensors import LONG, ONES, SHAPE, tensor
from tests.graphs import awaited, doubling
from tests.threads import in_threads
from webnn_py import (
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    Timeline,
    ValidationError,
    ml,
)


def test_the_user_works_on_an_exported_tensor_in_order(gpu: MLContext) -> None:
    graph, x = doubling(gpu), tensor(gpu, ONES)
    y, z = tensor(gpu, exportable=True), tensor(gpu)
    gpu.dispatch(graph, {"x": x}, {"y": y})
    with gpu.export_to_gpu(y) as buffer:
        assert isinstance(buffer, wgpu.GPUBuffer)
        assert buffer.size == 24
        gpu.device.queue.submit([tripling(gpu, buffer)])
    gpu.dispatch(graph, {"x": y}, {"y": z})
    np.testing.assert_array_equal(gpu.read_tensor_sync(z), ONES * 12)
    np.testing.assert_array_equal(gpu.read_tensor_sync(y), ONES * 6)


def test_a_rented_tensor_is_unusable_until_its_release(gpu: MLContext) -> None:
    graph, y = doubling(gpu), tensor(gpu)
    rented = tensor(gpu, ONES, exportable=True)
    with gpu.export_to_gpu(rented):
        assert "exported" in repr(rented)
        for call in (
            lambda: gpu.read_tensor_sync(rented),
            lambda: gpu.write_tensor(rented, ONES),
            lambda: gpu.dispatch(graph, {"x": rented}, {"y": y}),
            lambda: gpu.dispatch(graph, {"x": y}, {"y": rented}),
            lambda: awaited(graph, {"x": rented}),
            lambda: awaited(graph, {"x": y}, {"y": rented}),
            lambda: MLCommandEncoder(gpu).dispatch(graph, {"x": rented}, {"y": y}),
            lambda: gpu.export_to_gpu(rented).__enter__(),
        ):
            with pytest.raises(InvalidStateError, match="exported"):
                call()
        with pytest.raises(BufferError, match="exported"):
            rented.__dlpack__(dl_device=(1, 0))
    np.testing.assert_array_equal(gpu.read_tensor_sync(rented), ONES)


def test_an_export_ends_with_its_block_whatever_happens(gpu: MLContext) -> None:
    rented = tensor(gpu, ONES, exportable=True)
    with pytest.raises(KeyError), gpu.export_to_gpu(rented):
        raise KeyError
    np.testing.assert_array_equal(gpu.read_tensor_sync(rented), ONES)


def test_only_one_of_many_threads_rents(gpu: MLContext) -> None:
    rented, barrier = tensor(gpu, ONES, exportable=True), threading.Barrier(4)
    outcomes: list[str] = []

    def rent() -> None:
        barrier.wait(LONG)
        try:
            with gpu.export_to_gpu(rented):
                outcomes.append("rented")
                barrier.wait(LONG)
        except InvalidStateError:
            outcomes.append("refused")
            barrier.wait(LONG)

    in_threads(*[rent] * 4)
    assert sorted(outcomes) == ["refused"] * 3 + ["rented"]


def test_what_cannot_be_exported(gpu: MLContext) -> None:
    with pytest.raises(ValidationError, match="not created exportable"):
        gpu.export_to_gpu(tensor(gpu))
    with pytest.raises(ValidationError, match="expected an MLTensor"):
        gpu.export_to_gpu(5)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="constant"):
        gpu.export_to_gpu(gpu.create_constant_tensor_sync(ONES))
    gone = tensor(gpu, exportable=True)
    loan = gpu.export_to_gpu(gone)
    gone.destroy()
    with pytest.raises(ValidationError, match="destroyed"):
        gpu.export_to_gpu(gone)
    with pytest.raises(ValidationError, match="destroyed"), loan:
        pass


def test_a_tensor_destroyed_within_its_export_takes_the_buffer_along(gpu: MLContext) -> None:
    rented = tensor(gpu, ONES, exportable=True)
    with gpu.export_to_gpu(rented) as buffer:
        rented.destroy()
        with pytest.raises(ValidationError, match="GPUBuffer is destroyed"):
            gpu.device.queue.read_buffer(buffer)
    with pytest.raises(ValidationError, match="destroyed"):
        gpu.read_tensor_sync(rented)


def test_a_context_destroyed_within_an_export_takes_the_buffer_along(gpu: MLContext) -> None:
    queue = gpu.device.queue
    with ml.create_context_sync(gpu.device) as own:
        rented = tensor(own, ONES, exportable=True)
        with own.export_to_gpu(rented) as buffer:
            own.destroy()
            with pytest.raises(ValidationError, match="GPUBuffer is destroyed"):
                queue.read_buffer(buffer)


def test_a_tensor_that_parked_work_uses_is_not_exported(gpu: MLContext) -> None:
    graph, timeline = doubling(gpu), Timeline()
    x, y = tensor(gpu, ONES), tensor(gpu, exportable=True)
    other = tensor(gpu, ONES, exportable=True)
    gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[timeline(wait=1)])
    with (
        pytest.raises(InvalidStateError, match="waits for a timeline"),
        gpu.export_to_gpu(y),
    ):
        pass
    with gpu.export_to_gpu(other) as buffer:
        np.testing.assert_array_equal(read(buffer, SHAPE), ONES)
    timeline.signal(1)
    with gpu.export_to_gpu(y) as buffer:
        np.testing.assert_array_equal(read(buffer, SHAPE), ONES * 2)


def test_a_tensor_whose_buffer_the_user_destroyed_is_destroyed(gpu: MLContext) -> None:
    made = tensor(gpu, ONES, exportable=True)
    with gpu.export_to_gpu(made) as buffer:
        buffer.destroy()
    with pytest.raises(ValidationError, match="destroyed"):
        gpu.read_tensor_sync(made)
    np.testing.assert_array_equal(gpu.read_tensor_sync(tensor(gpu, ONES)), ONES)
