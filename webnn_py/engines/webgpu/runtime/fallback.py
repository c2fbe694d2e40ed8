"""Public calls in place of what an implementation of WebGPU lacks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import wgpu

from webnn_py.core.errors import ContextLostError, OperationError, ValidationError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.runtime.webgpu_api import (
    Dispatch,
    implementation_of,
    is_a,
    names_of,
)

MIN_GIL_RELEASE_BYTES = 1 << 14
"""Copies of at least so many bytes release the GIL; smaller ones are over sooner without."""
LIVENESS_CHECK_SECONDS = 0.05
"""Seconds between two checks of a device during a wait, as wgpu reports no loss to waiters."""


def encode(compute: Any, dispatches: Sequence[Dispatch]) -> None:
    """Record dispatches into an open compute pass."""
    for pipeline, group, offsets, x, y, z, times in checkpoints(dispatches):
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group, offsets)
        for _ in checkpoints(range(times)):
            compute.dispatch_workgroups(x, y, z)


def check_alive(device: Any) -> None:
    """Raise a ContextLostError if a device was lost or destroyed."""
    try:
        device.create_command_encoder().finish()
    except implementation_of(device).LIBRARY.GPUError as error:
        if "lost" in str(error):
            raise ContextLostError("the GPUDevice is lost") from None


def module_of_ending_loops(device: Any, code: str, label: str) -> Any:
    """Return a shader module of WGSL, whose loops the implementation may count."""
    return device.create_shader_module(code=code, label=label)


def timestamp_period(queue: Any) -> float:
    """Return 1, as WebGPU's timestamps count nanoseconds."""
    return 1.0


class BufferMapping:
    """The mapping of a buffer for reading, which begins with `wait`, on another thread.

    Args:
        device: The GPUDevice.
        buffer: A GPUBuffer with the usage MAP_READ.
    """

    def __init__(self, device: Any, buffer: Any) -> None:
        self._device = device
        self._buffer = buffer

    def look(self) -> bool:
        """Return False: public calls cannot poll."""
        return False

    def look_for(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> bool:
        """Return False: public calls cannot poll."""
        return False

    def wait(self, expected: float = 0.0) -> None:
        """Map the buffer on another thread and wait for it.

        The thread is left behind if the device is destroyed.

        Raises:
            ContextLostError: The device was lost.
            OperationError: The buffer cannot be mapped.
        """
        failed: list[BaseException] = []
        done = threading.Event()

        def wait() -> None:
            try:
                self._buffer.map_sync(wgpu.MapMode.READ)
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=wait, name="webnn-mapping", daemon=True).start()
        while not done.wait(LIVENESS_CHECK_SECONDS):
            check_alive(self._device)
        if failed:
            check_alive(self._device)
            raise OperationError(f"mapping a buffer of {self._buffer.size} bytes: {failed[0]}")


def touch(buffer: Any) -> None:
    """Raise a GPUError if a storage buffer is destroyed or its device lost.

    Other buffers are not checked.
    """
    device = device_of(buffer)
    if device is not None and buffer.usage & wgpu.BufferUsage.STORAGE:
        storage = {"type": wgpu.BufferBindingType.storage}
        entry = {"binding": 0, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": storage}
        layout = device.create_bind_group_layout(entries=[entry])
        resource = {"buffer": buffer, "offset": 0, "size": 4}
        device.create_bind_group(layout=layout, entries=[{"binding": 0, "resource": resource}])


def device_of(thing: Any) -> Any:
    """Return the GPUDevice that made a GPU object, or None if the object does not hold it.

    The libraries have no public name for it: it is the one attribute that is a GPUDevice.
    """
    for value in getattr(thing, "__dict__", {}).values():
        with contextlib.suppress(ReferenceError):  # a weak proxy whose device is gone
            if "GPUDevice" in names_of(type(value)):
                return value
    return None


def is_foreign(thing: Any, device: Any) -> bool:
    """Return whether another device made a GPU object; False if its device is unknown."""
    owner = device_of(thing)
    return owner is not None and owner is not device


def check_library(thing: Any, device: Any, what: str) -> None:
    """Raise a ValidationError if a GPU object is of another library than the device."""
    given, own = implementation_of(thing), implementation_of(device)
    if given is not own:
        raise ValidationError(
            f"{what}: got a {type(thing).__name__} of {given.LIBRARY.__name__}, expected one of"
            f" {own.LIBRARY.__name__}, which has this context's GPUDevice"
        )


def leak_all_gpu_objects() -> bool:
    """Keep every GPU object of the process from being released; return whether there are any."""
    found = [thing for thing in gc.get_objects() if is_a(thing, "GPUAdapter", "GPUObjectBase")]
    leak(*found)
    return bool(found)


def leak(*things: object) -> None:
    """Keep objects alive until the process ends, longer than their modules."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
