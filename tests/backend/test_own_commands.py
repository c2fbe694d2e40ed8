"""Commands of our own: as much of wgpu's encoders as they take, and invalid ones."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.adapters import need_wgpu_native
from tests.backend.buffers import STORAGE, buffer_of, empty_buffer, read
from tests.backend.tensors import ONES, SHAPE
from tests.backend.webgpu import RECORDING, WEBGPU, DispatchCommands, Encoder
from tests.internals import engine_of
from tests.processes import run_alone
from webnn_py import MLContext, ml
from webnn_py.engines.webgpu.runtime import fallback
from webnn_py.engines.webgpu.runtime.device_graph import record_pass
from webnn_py.engines.webgpu.runtime.devices.binding import Binding

ENCODERS = ("encoder", "plain_encoder")


@pytest.mark.parametrize("make", ENCODERS)
def test_copies_and_zeros(gpu: MLContext, make: str) -> None:
    device: Any = engine_of(gpu).gpu
    x, y = buffer_of(gpu.device, ONES * 3), empty_buffer(gpu.device, 24)
    encoder = getattr(device, make)("copies")
    encoder.copy_buffer_to_buffer(x, 4, y, 0, 20)
    encoder.begin_compute_pass().end()
    encoder.clear_buffer(y, 8, 4)
    device.submit(encoder.finish())
    np.testing.assert_array_equal(read(y, SHAPE).ravel(), [3, 3, 0, 3, 3, 0])


@pytest.mark.parametrize("make", ENCODERS)
@pytest.mark.parametrize("fault", ["out of bounds", "an open pass", "finished"])
def test_what_is_not_valid_is_an_error_when_it_is_finished(
    gpu: MLContext, make: str, fault: str
) -> None:
    device: Any = engine_of(gpu).gpu
    x, y = (gpu.device.create_buffer(size=24, usage=STORAGE) for _ in range(2))
    encoder, kept = getattr(device, make)(fault), []
    if fault == "out of bounds":
        encoder.copy_buffer_to_buffer(x, 0, y, 0, 28)
    elif fault == "an open pass":
        kept.append(encoder.begin_compute_pass())
    else:
        encoder.finish()
    with pytest.raises(wgpu.GPUError):
        encoder.finish()


def test_submitting_the_user_s_makes_none(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu gives back no memory of commands that are finished and never submitted."""
    x, y = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 24)
    commands = gpu.device.create_command_encoder()
    commands.copy_buffer_to_buffer(x, 0, y, 0, 24)
    finished = commands.finish()
    for make in ENCODERS:
        monkeypatch.delattr(type(engine_of(gpu).gpu), make)
    gpu.submit([finished])
    np.testing.assert_array_equal(read(y, SHAPE), ONES)


def test_waiting_for_long_makes_none(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits finds out now and then whether the device lives."""
    need_wgpu_native()  # others wait within the driver
    seen: list[Any] = []
    monkeypatch.setattr(fallback, "LIVENESS_CHECK_SECONDS", -1.0)
    monkeypatch.setattr(fallback, "check_alive", seen.append)
    buffer = gpu.device.create_buffer(size=4, usage=wgpu.BufferUsage.MAP_READ)
    looks, look = itertools.count(), WEBGPU.BufferMapping.look
    monkeypatch.setattr(WEBGPU.BufferMapping, "look", lambda m: next(looks) > 3 and look(m))
    WEBGPU.mapping(gpu.device, buffer).wait()
    assert next(looks) > 4
    assert not seen


@pytest.mark.parametrize("make", ENCODERS)
def test_what_is_never_submitted_harms_nothing(gpu: MLContext, make: str) -> None:
    device: Any = engine_of(gpu).gpu
    begun = getattr(device, make)("begun")
    kept = [begun.begin_compute_pass(), begun, getattr(device, make)("finished").finish()]
    assert kept
    del begun, kept
    gc.collect()
    test_copies_and_zeros(gpu, make)


def test_without_the_capability_they_are_those_of_wgpu(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = engine_of(gpu).gpu
    assert not isinstance(device.plain_encoder("a"), wgpu.GPUCommandEncoder)
    monkeypatch.setattr(RECORDING, "missing", "taken away")
    assert isinstance(device.plain_encoder("a"), wgpu.GPUCommandEncoder)


def end_before_a_mapping() -> None:
    """Leave a buffer to the end of Python, which clears `sys` after all other modules."""
    device = ml.create_context_sync(device_type="gpu").device
    usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
    buffer = device.create_buffer(size=4, usage=usage)
    WEBGPU.mapping(device, buffer)
    vars(sys)["kept"] = buffer


def test_a_mapping_under_way_when_python_ends() -> None:
    run_alone(end_before_a_mapping)


DOUBLING = """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(6)
fn main(@builtin(local_invocation_index) i: u32) { y[i] = 2.0 * x[i]; }"""
WAYS = ("straight", "by wgpu")


@pytest.fixture(params=WAYS)
def doubling(gpu: MLContext, request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What doubles a place in a buffer, over bind groups that are made in one of both ways."""
    if request.param == "by wgpu":
        monkeypatch.setattr(RECORDING, "missing", "taken away")
    device: Any = engine_of(gpu).gpu
    pipeline = device.pipelines.get("doubling", DOUBLING)

    def run(x: Binding, y: Binding, bindings: tuple[int, ...] = (0, 3)) -> None:
        group = device.bind_places(pipeline.get_bind_group_layout(0), [x, y], bindings)
        assert isinstance(group, wgpu.GPUBindGroup) is (request.param == "by wgpu")
        encoder = device.plain_encoder("doubling")
        record_pass(encoder, DispatchCommands([(pipeline, group, (), 1, 1, 1, 1)]))
        del group
        device.submit(encoder.finish())

    return run


def test_places_in_buffers_are_bound(gpu: MLContext, doubling: Any) -> None:
    x = buffer_of(gpu.device, np.arange(80, dtype=np.float32))
    y = empty_buffer(gpu.device, 24)
    doubling(Binding(x, 256, 24), Binding(y, 0, 24))
    np.testing.assert_array_equal(read(y, SHAPE).ravel(), 2 * np.arange(64, 70))


@pytest.mark.parametrize("fault", ["out of bounds", "not aligned", "another binding", "destroyed"])
def test_places_that_cannot_be_bound(gpu: MLContext, doubling: Any, fault: str) -> None:
    x, y = empty_buffer(gpu.device, 1024), empty_buffer(gpu.device, 24)
    offset = {"out of bounds": 1020, "not aligned": 4}.get(fault, 0)
    if fault == "destroyed":
        x.destroy()
    bindings = (0, 2) if fault == "another binding" else (0, 3)
    with pytest.raises(wgpu.GPUError):
        doubling(Binding(x, offset, 24), Binding(y, 0, 24), bindings)


@pytest.mark.skipif(
    not RECORDING.is_available, reason=f"no recording of our own: {RECORDING.missing}"
)
def test_what_is_recorded_keeps_its_device() -> None:
    """Errors are told to a callback of the GPUDevice object; wgpu-native calls it where it was."""
    device = wgpu.gpu.request_adapter_sync().request_device_sync()
    usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    a, b = (device.create_buffer(size=64, usage=usage) for _ in range(2))
    lives, encoders = weakref.ref(device), [Encoder(device) for _ in range(3)]
    encoders[0].copy_buffer_to_buffer(a, 0, b, 60, 64)
    computing, commands = encoders[1].begin_compute_pass(), encoders[2].finish()
    del device, a, b
    gc.collect()
    assert lives() is not None
    with ThreadPoolExecutor(1) as threads, pytest.raises(wgpu.GPUError, match=r"offset:? 60"):
        threads.submit(encoders[0].finish).result()
    del encoders, computing
    gc.collect()
    assert lives() is not None
    del commands
    gc.collect()
    assert lives() is None
