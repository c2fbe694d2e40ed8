"""Commands of our own: as much of wgpu's encoders as they take, and invalid ones."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import STORAGE, buffer_of, empty_buffer, read
from tests.backend.tensors import ONES, SHAPE
from tests.internals import engine_of
from tests.processes import run_alone
from webnn_py import MLContext, ml
from webnn_py.engines.webgpu.runtime.wgpu_native import native, public
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import RECORDING

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
    seen: list[Any] = []
    monkeypatch.setattr(public, "LIFE_SIGN", -1.0)
    monkeypatch.setattr(public, "check_alive", seen.append)
    buffer = gpu.device.create_buffer(size=4, usage=wgpu.BufferUsage.MAP_READ)
    looks, look = itertools.count(), native.BufferMapping.look
    monkeypatch.setattr(native.BufferMapping, "look", lambda m: next(looks) > 3 and look(m))
    native.mapping(gpu.device, buffer).wait()
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
    native.mapping(device, buffer)
    vars(sys)["kept"] = buffer


def test_a_mapping_under_way_when_python_ends() -> None:
    run_alone(end_before_a_mapping)
