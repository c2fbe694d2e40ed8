"""Contexts over Dawn beside those over wgpu, in one process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import ONES
from tests.backend.tint import tint
from tests.graphs import awaited, doubling, normal
from tests.internals import engine_of
from tests.processes import ROOT, run_alone
from webnn_py import (
    MLCommandEncoder,
    MLContext,
    MLGraphBuilder,
    NotSupportedError,
    OperationError,
    ValidationError,
    ml,
)
from webnn_py.engines.webgpu.runtime.devices.adapters import find_adapter, request_device

pytestmark = pytest.mark.kernels
wgpudawn = pytest.importorskip("wgpudawn")
ONES8 = np.ones((8, 8), np.float32)
STORAGE = wgpudawn.BufferUsage.STORAGE | wgpudawn.BufferUsage.COPY_SRC


@pytest.fixture(scope="module")
def dawn() -> Iterator[MLContext]:
    if find_adapter(engine="dawn") is None:
        pytest.skip("Dawn takes none of the drivers")
    with ml.create_context_sync(device_type="gpu", engine="dawn") as context:
        yield context


@pytest.fixture
def native(gpu: MLContext) -> MLContext:
    if gpu.engine == "dawn":
        pytest.skip("wgpu is Dawn here, too")
    return gpu


def test_a_context_of_each_library(dawn: MLContext, native: MLContext) -> None:
    assert (dawn.engine, native.engine) == ("dawn", "webgpu")
    assert isinstance(dawn.device, wgpudawn.GPUDevice)
    assert not isinstance(native.device, wgpudawn.GPUDevice)
    for context in (dawn, native):
        np.testing.assert_array_equal(awaited(doubling(context), {"x": ONES})["y"], ONES * 2)


def test_a_context_that_is_awaited(dawn: MLContext) -> None:
    made = asyncio.run(ml.create_context_async(device_type="gpu", engine="dawn"))
    with made:
        assert made.engine == dawn.engine


def use_an_unsafe_device() -> None:
    device = find_adapter(engine="dawn").request_device_sync()
    assert "implicit-device-synchronization" not in device.features
    with ml.create_context_sync(device) as context:
        assert context.engine == "dawn"
        assert context.device is device
        b = MLGraphBuilder(context)
        x = h = b.input("x", "float32", [8, 8])
        for size in range(1, 9):  # kernels enough for several threads
            h = b.relu(b.matmul(b.pad(h, [0, size], [0, 0]), b.constant(normal(8 + size, 8))))
        graph = b.build_sync({"x2": b.add(x, x), "h": h})
        for _ in range(20):
            np.testing.assert_array_equal(awaited(graph, {"x": ONES8})["x2"], ONES8 * 2)


def test_a_device_that_is_not_safe_for_threads(dawn: MLContext) -> None:
    """Its calls take turns from then on, those for other devices too: in a process of its own."""
    run_alone(use_an_unsafe_device)


def test_an_engine_that_contradicts_the_device(dawn: MLContext, native: MLContext) -> None:
    with pytest.raises(ValidationError, match=r"engine 'webgpu' contradicts .* is of wgpudawn"):
        ml.create_context_sync(dawn.device, engine="webgpu")
    with pytest.raises(ValidationError, match=r"engine 'dawn' contradicts .* is of wgpu:"):
        ml.create_context_sync(native.device, engine="dawn")
    with pytest.raises(ValidationError, match="engine 'dawn' runs on GPUs"):
        ml.create_context_sync(device_type="cpu", engine="dawn")
    with pytest.raises(ValidationError, match="engine 'dawn' has no option 'threads'"):
        ml.create_context_sync(device_type="gpu", engine="dawn", engine_options={"threads": 1})


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpudawn", None)
    with pytest.raises(NotSupportedError, match=r'needs the package wgpudawn.*"webnn-py\[dawn\]"'):
        ml.create_context_sync(device_type="gpu", engine="dawn")


def test_resources_of_the_other_library(dawn: MLContext, native: MLContext) -> None:
    for context, other, library in ((dawn, native, "wgpu"), (native, dawn, "wgpudawn")):
        graph, device = doubling(context), other.device
        buffer = device.create_buffer(size=24, usage=STORAGE)
        texture = device.create_texture(size=(3, 2, 1), format="r32float", usage=4)
        for given in (buffer, {"buffer": buffer}, texture, texture.create_view()):
            with pytest.raises(ValidationError, match=f"input 'x'.* of {library}, expected"):
                awaited(graph, {"x": given})
        with pytest.raises(ValidationError, match=f"GPUCommandEncoder of {library}, expected"):
            MLCommandEncoder(context, encoder=device.create_command_encoder())
        with pytest.raises(ValidationError, match=f"GPUCommandBuffer of {library}, expected"):
            context.submit([device.create_command_encoder().finish()])


def test_an_error_comes_to_the_thread_that_made_it(dawn: MLContext) -> None:
    """Dawn's library would raise it from any thread's next call."""
    device, other = dawn.device, threading.Event()
    found: list[BaseException] = []

    def call() -> None:
        while not other.is_set():
            try:
                device.create_buffer(size=4, usage=STORAGE)
            except Exception as error:
                found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for number in range(50):
            with pytest.raises(wgpudawn.GPUValidationError):
                device.create_shader_module(code=f"nonsense {number}")
    finally:
        other.set()
        thread.join()
    assert not found


def test_kernels_are_tried_by_the_other_compiler(gpu: MLContext) -> None:
    """As each backend test does with those that it builds; see `kernels_are_taken_by_both`."""
    main = "@compute @workgroup_size(1) fn main() { var x = %s; }"
    for half in ("1h", "vec4h(1h)"):
        tint().check(f"enable f16; {main % half}")
    tint().check(main % "1li + i64(2)")  # naga alone has these
    with pytest.raises(wgpudawn.GPUValidationError, match="unresolved value 'nonsense'"):
        tint().check(main % "nonsense")


def test_kernels_that_dawn_refuses(dawn: MLContext) -> None:
    pipelines = engine_of(dawn).gpu.pipelines
    with pytest.raises(OperationError, match="compiling the kernel broken: "):
        pipelines.get("broken", "nonsense")


def test_matrices_of_subgroups_are_those_of_the_device(dawn: MLContext, native: MLContext) -> None:
    for context in (dawn, native):
        listed = engine_of(context).gpu.offer.subgroup_matrices
        is_enabled = "chromium-experimental-subgroup-matrix" in context.device.features
        assert bool(listed) == is_enabled
        for factor, result, *sizes in listed:
            assert {factor, result} <= {"f16", "f32", "i8", "i32", "u8", "u32"}
            assert all(size > 0 for size in sizes)


def test_our_devices_are_safe_for_threads(dawn: MLContext) -> None:
    assert "implicit-device-synchronization" in request_device(engine="dawn").features


def test_a_destroyed_resource_is_known_before_a_submission(dawn: MLContext) -> None:
    graph, device = doubling(dawn), dawn.device
    texture: Any = device.create_texture(size=(3, 2, 1), format="r32float", usage=4)
    for given in (device.create_buffer(size=24, usage=STORAGE), texture):
        given.destroy()
        with pytest.raises(ValueError, match="destroyed"):
            awaited(graph, {"x": given})


def test_the_package_imports_neither_library() -> None:
    code = "import sys, webnn_py; assert not {'wgpu', 'wgpudawn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
