"""Dawn as an implementation of WebGPU (`webgpu_api.WebGPU`)."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import wgpudawn
from wgpudawn.backends.dawn import _api, extras

from webnn_py.core.errors import ContextLostError, OperationError
from webnn_py.core.exit_guard import calls_library
from webnn_py.core.requirements import check_version
from webnn_py.engines.webgpu.runtime import fallback, webgpu_api
from webnn_py.engines.webgpu.runtime.dawn import calls
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.fallback import (
    module_of_ending_loops as module_of_ending_loops,
)
from webnn_py.engines.webgpu.runtime.fallback import timestamp_period as timestamp_period
from webnn_py.engines.webgpu.runtime.poll_backoff import pause
from webnn_py.engines.webgpu.runtime.webgpu_api import Capability, SubgroupMatrix
from webnn_py.engines.webgpu.runtime.webgpu_h import encoding
from webnn_py.engines.webgpu.runtime.webgpu_h.forked import ForkedDrivers
from webnn_py.engines.webgpu.runtime.webgpu_h.mapping import PolledMapping

LIBRARY: Any = wgpudawn
check_version(LIBRARY)
NAME = "dawn"
ENCODES_ON_SUBMIT = True
SUBGROUP_MATRIX = "chromium-experimental-subgroup-matrix"
SYNCHRONIZED = "implicit-device-synchronization"
WANTED_FEATURES: Sequence[str] = [
    *("shader-f16", "subgroups", "subgroup-size-control", "timestamp-query"),
    *(SUBGROUP_MATRIX, SYNCHRONIZED),
]
TOGGLES = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")
"""Without them NVIDIA's adapters list neither subgroup matrices nor shader-f16."""
DISABLED_TOGGLES = ("timestamp_quantization", "enable_spirv_validation")
"""Timestamps in steps of 65 µs time no kernel; checking Tint's output is for Dawn's authors."""
WAIT_SECONDS = 0.05
"""Seconds of one wait in Dawn, so that interrupts and losses are noticed."""

safe, lib, ffi = calls.safe, calls.lib, calls.ffi
calls.install()

_OFF = "WEBNN_NATIVE=0" if os.environ.get("WEBNN_NATIVE") == "0" else None
RECORDING = Capability("recording", "commands are recorded by public methods", missing=_OFF)
WAITING = Capability("waiting", "another thread waits for each result", missing=_OFF)
CHECKING = Capability("checking", "destroyed buffers are not known before a submission")
OBSERVING = Capability("observing", "the resources of the user's commands are not checked")
FREEING = Capability("freeing", "commands that are never submitted are not freed")


# Recording

_C = encoding.CInterface(safe, lib, ffi, releasing=lib)
DispatchCommands = encoding.DispatchCommands.bound(_C, recording=RECORDING)
BindGroup = encoding.BindGroup.bound(_C)
ComputePass = encoding.ComputePass.bound(_C)
CommandBuffer = encoding.CommandBuffer.bound(_C)
Encoder = encoding.Encoder.bound(_C, compute_pass=ComputePass, command_buffer=CommandBuffer)


def free_when_dropped(commands: Any) -> None:
    """Do nothing: Dawn frees a command buffer with its last reference."""


check_command_buffer_layout = free_when_dropped


# Adapters and devices


def enumerate_adapters() -> list[Any]:
    """Return new adapters, as each makes one device; set the toggles before Dawn's first use."""
    if not calls.is_loaded():
        extras.set_instance_extras(enable_toggles=TOGGLES, disable_toggles=DISABLED_TOGGLES)
    return list(LIBRARY.gpu.enumerate_adapters_sync())


def request_device(adapter: Any, features: list[str], limits: dict[str, int]) -> Any:
    """Request a device."""
    wanted: Any = {"required_features": features, "required_limits": limits}
    return extras.request_device_sync(adapter, disable_toggles=DISABLED_TOGGLES, **wanted)


def prepare(device: Any) -> None:
    """Serialize calls from now on if the device is not safe for threads."""
    if SYNCHRONIZED not in device.features:
        calls.take_turns()
        _C.releasing = safe


def has_clock(device: Any) -> bool:
    """Return whether a device has timestamps that are fine enough to time kernels."""
    coarse = "timestamp_quantization" in extras.get_toggles(device)
    return "timestamp-query" in device.features and not coarse


def subgroup_matrices(device: Any) -> tuple[SubgroupMatrix, ...]:
    """Return the matrix products that subgroups of 32 compute; empty if a device has none."""
    known = SUBGROUP_MATRIX in device.features and extras.get_adapter_properties(device.adapter)
    listed = known["subgroup_matrix_configs"] if known else ()
    names = ("component_type", "result_component_type", "m", "n", "k")
    fixed = (one for one in listed if one["min_subgroup_size"] == one["max_subgroup_size"] == 32)
    return tuple(tuple(map(one.get, names)) for one in fixed)


def wgsl(code: str) -> str:
    """Return WGSL unchanged."""
    return code


# Waiting


@calls_library
def _wait_any(wait: Any, nanoseconds: int) -> bool:
    """Wait for a future, and return whether it is complete."""
    safe.wgpuInstanceWaitAny(calls.instance(), 1, wait, nanoseconds)
    return bool(wait.completed)


class BufferMapping(PolledMapping):
    """The mapping of a buffer, which begins with the constructor."""

    __slots__ = ("_buffer", "_device", "_wait")

    def __init__(self, device: Any, buffer: Any, writing: bool) -> None:
        self._device, self._buffer = device, buffer
        mode = lib.WGPUMapMode_Write if writing else lib.WGPUMapMode_Read
        self._wait = ffi.new(_WAIT)
        with device_errors("mapping a buffer"):
            future = safe.wgpuBufferMapAsync(buffer._internal, mode, 0, buffer.size, _INFO)
        self._wait.future = future

    def look(self) -> bool:
        """Poll, and return whether the mapping has ended."""
        return bool(self._wait.completed) or _wait_any(self._wait, 0)

    def wait(self, expected: float = 0.0) -> None:
        """Wait until the mapping has ended; errors as of `webgpu_api.BufferMapping`."""
        begun = time.monotonic()
        while not self.look():
            if calls.takes_turns():  # a wait in Dawn would keep all other calls waiting
                pause(time.monotonic() - begun, expected)
            elif _wait_any(self._wait, int(WAIT_SECONDS * 1e9)):
                break
            check_alive(self._device, self._buffer)
        if lib.wgpuBufferGetMapState(self._buffer._internal) != lib.WGPUBufferMapState_Mapped:
            check_alive(self._device, self._buffer)
            raise OperationError(f"mapping a buffer of {self._buffer.size} bytes failed")


_WAIT = ffi.typeof("WGPUFutureWaitInfo *")
_INFO = ffi.new("WGPUBufferMapCallbackInfo *")[0]
_INFO.mode = lib.WGPUCallbackMode_WaitAnyOnly
_INFO.callback = lib._wgpu_dawn_WGPUBufferMapCallback  # must be set; ignores an unknown userdata


def mapping(device: Any, buffer: Any, writing: bool = False) -> webgpu_api.BufferMapping:
    """Begin to map a buffer for reading, or for writing (only with `WAITING`)."""
    if not WAITING.is_available:
        return fallback.BufferMapping(device, buffer)
    return BufferMapping(device, buffer, writing)


def _mapped_range(buffer: Any, size: int) -> Any:
    if buffer.usage & LIBRARY.BufferUsage.MAP_READ:
        return lib.wgpuBufferGetConstMappedRange(buffer._internal, 0, size)
    return lib.wgpuBufferGetMappedRange(buffer._internal, 0, size)


def read_mapped(buffer: Any) -> Any:
    """Return the memory of a mapped buffer, valid until `unmap`."""
    if not WAITING.is_available:
        return buffer.read_mapped(copy=False)
    return ffi.buffer(_mapped_range(buffer, buffer.size), buffer.size)


def read_small(buffer: Any, target: Any) -> bool:
    """Copy from the start of a mapped buffer into `target`, if that is small and C-contiguous."""
    size, is_large = target.nbytes, target.nbytes > fallback.MIN_GIL_RELEASE_BYTES
    if is_large or not target.flags.c_contiguous or not WAITING.is_available:
        return False
    ffi.memmove(target.data, _mapped_range(buffer, -(-size // 4) * 4), size)
    return True


def write_mapped(buffer: Any, contents: Any) -> None:
    """Copy contiguous memory into a mapped buffer without releasing the GIL."""
    begin = lib.wgpuBufferGetMappedRange(buffer._internal, 0, -(-contents.nbytes // 4) * 4)
    ffi.memmove(begin, ffi.from_buffer(contents), contents.nbytes)


def write_buffer(queue: Any, buffer: Any, offset: int, contents: Any) -> None:
    """Write contiguous memory into a buffer through a queue, before its next submission."""
    data = ffi.from_buffer(contents)
    safe.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, data, contents.nbytes)


def unmap(buffer: Any) -> None:
    """Unmap a buffer."""
    if WAITING.is_available:
        safe.wgpuBufferUnmap(buffer._internal)
    else:
        buffer.unmap()


# Checks of devices and resources

_DESTROYED = "_webnn_destroyed"


def _note_destroy(kind: Any) -> None:
    """Have `destroy` of a class leave a note, as Dawn has no call that tells."""
    destroy = kind.destroy

    @functools.wraps(destroy)
    def noting(resource: Any) -> None:
        vars(resource)[_DESTROYED] = True
        destroy(resource)

    kind.destroy = noting


for _kind in (_api.GPUBuffer, _api.GPUTexture):
    _note_destroy(_kind)


def touch(resource: Any) -> None:
    """Raise a GPUError if a buffer or texture is destroyed or its device is lost."""
    resource = getattr(resource, "texture", resource)
    if _DESTROYED in vars(resource):
        raise LIBRARY.GPUValidationError(f"{resource.label!r} is destroyed")
    if is_lost(resource):
        raise LIBRARY.GPUError("the device is lost")


def is_lost(resource: Any) -> bool:
    """Return whether the device of a resource is lost or destroyed; False if that is unknown."""
    safe.wgpuInstanceProcessEvents(calls.instance())  # asks the driver
    try:
        device = resource._device._internal
    except ReferenceError:  # the GPUDevice object is gone
        device = None
    wait = ffi.new(_WAIT)
    if device is not None:
        wait.future = lib.wgpuDeviceGetLostFuture(device)
    return device is not None and _wait_any(wait, 0)


def check_alive(device: Any, buffer: Any) -> None:
    """Raise a ContextLostError if a device was lost or destroyed."""
    if is_lost(buffer):
        raise ContextLostError("the GPUDevice is lost")


def is_released(resource: Any) -> bool:
    """Return whether a GPU object was released explicitly, so that no call may use it."""
    return resource._internal is None


def specialize(thing: Any, kind: type) -> None:
    """Change the class of a wgpudawn object to a subclass, in place."""
    thing.__class__ = kind


def releasing_unless(base: Any, lost: Callable[[Any], bool]) -> dict[str, Any]:
    """Return no methods: Dawn releases a lost device like any other."""
    return {}


check_process = ForkedDrivers(calls.abandon).check_process
