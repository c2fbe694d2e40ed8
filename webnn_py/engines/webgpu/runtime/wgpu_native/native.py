"""Device operations for which wgpu-py's public calls are too slow or missing.

Each `Capability` stands for one use of wgpu-py's private names. All are checked when this module is
imported, and their handles again on the first device. If a release of wgpu-py has other names or
signatures, public calls (`fallback`) do the work: more slowly, or with fewer checks. The
capabilities are independent of each other. WEBNN_NATIVE=0 turns all of them off.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import wgpu

from webnn_py.core.errors import ContextLostError, OperationError
from webnn_py.core.exit_guard import calls_library
from webnn_py.engines.webgpu.runtime import fallback
from webnn_py.engines.webgpu.runtime.fallback import MIN_GIL_RELEASE_BYTES
from webnn_py.engines.webgpu.runtime.poll_backoff import pause, yield_core
from webnn_py.engines.webgpu.runtime.webgpu_h.forked import (
    ForkedDrivers,
    skip_release,
    skip_releases,
)
from webnn_py.engines.webgpu.runtime.webgpu_h.mapping import PolledMapping
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import (
    ALL,
    CALLING,
    CHECKING,
    FORKING,
    FREEING,
    OBSERVING,
    RECORDING,
    TIMING,
    TRUSTING,
    WAITING,
)
from webnn_py.engines.webgpu.runtime.wgpu_native.internals import (
    Internals,
    c_functions,
    fault,
    find_internals,
)

# Capability checks


def check_capabilities() -> None:
    """Import wgpu-py's private modules and set `missing` of each capability."""
    global _wgpu, _safe
    found = find_internals()
    off = os.environ.get("WEBNN_NATIVE") == "0"
    for capability in ALL:
        capability.missing = "WEBNN_NATIVE=0" if off else fault(capability, found)
    _wgpu = found if isinstance(found, Internals) else None
    _safe = c_functions(_wgpu) if CALLING.is_available else _wgpu and _wgpu.api.libf


_wgpu: Any = None
_safe: Any = None  # C functions that raise a GPUError
check_capabilities()


def prepare(device: Any) -> None:
    """Disable the capabilities that pass handles if the handle of `device` has another C type."""
    for capability in ALL:
        if capability.is_available and capability.passes_handles:
            try:
                fits = _wgpu.ffi.typeof(device._internal) is _wgpu.ffi.typeof("WGPUDevice")
            except Exception as error:
                capability.missing = f"the handle of a GPUDevice: {error}"
            else:
                capability.missing = None if fits else "the handle of a GPUDevice is none"


def c_interface() -> tuple[Any, Any, Any]:
    """Return the C functions that raise a GPUError, the same without checks, and the cffi types."""
    return _safe, _wgpu.lib, _wgpu.ffi


# Waiting


def mapping(
    device: Any, buffer: Any, writing: bool = False
) -> BufferMapping | fallback.BufferMapping:
    """Begin to map a buffer for reading, or for writing (only with `WAITING`)."""
    if WAITING.missing is not None:
        return fallback.BufferMapping(device, buffer)
    return BufferMapping(device, buffer, writing)


def read_mapped(buffer: Any) -> Any:
    """Return the memory of a mapped buffer, valid until `unmap`."""
    if not WAITING.is_available:
        return buffer.read_mapped(copy=False)
    begin = _safe.wgpuBufferGetMappedRange(buffer._internal, 0, buffer.size)
    return _wgpu.ffi.buffer(begin, buffer.size)


def read_small(buffer: Any, target: Any) -> bool:
    """Copy from the start of a mapped buffer into `target`, if that is small and C-contiguous.

    Returns:
        Whether the copy was made.
    """
    size = target.nbytes
    if size > MIN_GIL_RELEASE_BYTES or WAITING.missing is not None or not target.flags.c_contiguous:
        return False
    begin = _safe.wgpuBufferGetMappedRange(buffer._internal, 0, -(-size // 4) * 4)
    _wgpu.ffi.memmove(target.data, begin, size)
    return True


def write_mapped(buffer: Any, contents: Any) -> None:
    """Copy contiguous memory into a mapped buffer without releasing the GIL."""
    ffi = _wgpu.ffi
    begin = _safe.wgpuBufferGetMappedRange(buffer._internal, 0, contents.nbytes)
    ffi.memmove(begin, ffi.from_buffer(contents), contents.nbytes)


def write_buffer(queue: Any, buffer: Any, offset: int, contents: Any) -> None:
    """Write contiguous memory into a buffer through a queue, before its next submission."""
    if RECORDING.missing is not None:
        queue.write_buffer(buffer, offset, contents.reshape(-1).view(np.uint8))
        return
    data = _wgpu.ffi.from_buffer(contents)
    _safe.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, data, contents.nbytes)


def unmap(buffer: Any) -> None:
    """Unmap a buffer."""
    if WAITING.missing is None:
        _safe.wgpuBufferUnmap(buffer._internal)
    else:
        buffer.unmap()


_statuses: dict[Any, int | None] = {}
"""Final status of each mapping, by its token (a pointer); None while it is pending."""
_token_numbers = itertools.count(1)
_free_tokens: list[tuple[Any, Any]] = []
"""Unused tokens, each with the callback info that passes it to wgpu-native."""


def _on_mapped(status: int, _message: Any, token: Any, _unused: Any) -> None:
    # At interpreter exit `_wgpu` may be None, and nobody waits any more.
    if _wgpu is not None and token in _statuses:
        _statuses[token] = int(status)


def _on_interrupt(_kind: type, error: BaseException, trace: types.TracebackType) -> None:
    """Store the status, and keep an interrupt (Ctrl-C) that cffi would drop, to raise it later."""
    arguments = trace.tb_frame.f_locals
    _on_mapped(arguments["status"], None, arguments["token"], None)
    _interrupts[threading.get_ident()] = error.with_traceback(None)


_interrupts: dict[int, BaseException] = {}
"""Interrupts still to be raised, by thread."""


@calls_library
def _process_events() -> None:
    """Run the callbacks of finished work on all devices.

    This also reports devices that their drivers have lost. Unlike wgpuDevicePoll, it does not end
    the process then.
    """
    _wgpu.lib.wgpuInstanceProcessEvents(_wgpu.helpers._the_instance)
    if _interrupts and (error := _interrupts.pop(threading.get_ident(), None)) is not None:
        raise error


def _new_token() -> tuple[Any, Any]:
    ffi = _wgpu.ffi
    token = ffi.cast(_POINTER, next(_token_numbers))
    return token, ffi.new(_INFO, [ffi.NULL, _ON_PROCESS_EVENTS, _CALLBACK, token, ffi.NULL])[0]


if WAITING.is_available:
    _POINTER, _INFO = map(_wgpu.ffi.typeof, ("void *", "WGPUBufferMapCallbackInfo *"))
    _READ, _WRITE = _wgpu.lib.WGPUMapMode_Read, _wgpu.lib.WGPUMapMode_Write
    _ON_PROCESS_EVENTS = _wgpu.lib.WGPUCallbackMode_AllowProcessEvents
    _CALLBACK = _wgpu.ffi.callback(
        WAITING.interface["WGPUBufferMapCallback"], _on_mapped, onerror=_on_interrupt
    )
    # A buffer may be released after this module, which ends a pending mapping and calls back.
    fallback.leak(_CALLBACK)


class BufferMapping(PolledMapping):
    """The mapping of a buffer, which begins with the constructor and is polled.

    wgpu-py waits inside wgpu-native instead, and blocks submissions meanwhile.

    Args:
        device: The GPUDevice.
        buffer: The GPUBuffer to map, all of it.
        writing: Map for writing instead of reading.
    """

    __slots__ = ("_buffer", "_device", "_info", "_token")

    def __init__(self, device: Any, buffer: Any, writing: bool) -> None:
        self._device, self._buffer = device, buffer
        try:
            self._token, self._info = _free_tokens.pop()
        except IndexError:
            self._token, self._info = _new_token()
        mode = _WRITE if writing else _READ
        _statuses[self._token] = None
        _safe.wgpuBufferMapAsync(buffer._internal, mode, 0, buffer.size, self._info)

    def __del__(self) -> None:
        if not hasattr(self, "_token"):  # __init__ was interrupted
            return
        if _statuses.pop(self._token, None) is not None:  # else wgpu-native may still use it
            _free_tokens.append((self._token, self._info))

    def look(self) -> bool:
        """Poll, and return whether the mapping has ended."""
        _process_events()
        return _statuses[self._token] is not None

    def wait(self, expected: float = 0.0) -> None:
        """Wait until the mapping has ended.

        Args:
            expected: Expected seconds; 0 if unknown.

        Raises:
            ContextLostError: The device was lost meanwhile, which wgpu does not report to waiters.
            OperationError: The buffer cannot be mapped.
        """
        if _statuses[self._token] is None:
            begun = looked = spins_until = time.monotonic()
            while not self.look():
                now = time.monotonic()
                if now < spins_until:
                    yield_core()
                    continue
                if now - looked > fallback.LIVENESS_CHECK_SECONDS:
                    check_alive(self._device, self._buffer)
                    looked = now
                spins_until = now + pause(now - begun, expected)
        status = _statuses[self._token]
        if status != _wgpu.lib.WGPUMapAsyncStatus_Success:
            raise OperationError(f"mapping a buffer of {self._buffer.size} bytes: status {status}")


# Checks of devices and buffers


def is_lost(buffer: Any) -> bool:
    """Return whether the driver has lost the device of a buffer; False if that is unknown.

    Other checks end the process if the device is lost.
    """
    if WAITING.missing is not None or CHECKING.missing is not None or buffer._internal is None:
        return False
    _process_events()
    try:
        queue = buffer._device.queue._internal
    except ReferenceError:  # the GPUDevice object is gone
        queue = None
    try:
        if queue is None:  # the garbage collector took the queue first
            touch(buffer)
        else:  # the cheapest call that fails on a lost device and does nothing else
            _safe.wgpuQueueWriteBuffer(queue, buffer._internal, 0, _wgpu.ffi.NULL, 0)
    except wgpu.GPUError as error:
        return "lost" in str(error.with_traceback(None))  # its frames would form a cycle
    return False


def check_alive(device: Any, buffer: Any) -> None:
    """Raise a ContextLostError if a device was lost or destroyed.

    Args:
        device: The GPUDevice.
        buffer: A buffer of the device.
    """
    if CHECKING.missing is not None:
        fallback.check_alive(device)
    elif is_lost(buffer):
        raise ContextLostError("the GPUDevice is lost")


def is_released(resource: Any) -> bool:
    """Return whether a GPU object was released explicitly, so that no call may use it."""
    return CHECKING.is_available and resource._internal is None


def touch(resource: Any) -> None:
    """Raise a GPUError if an unmapped buffer or a texture is destroyed or its device is lost."""
    if not isinstance(resource, wgpu.GPUBuffer):
        texture = resource.texture if isinstance(resource, wgpu.GPUTextureView) else resource
        texture.create_view()
    elif CHECKING.is_available:
        # The one call that checks a buffer of any usage and changes nothing.
        _safe.wgpuBufferUnmap(resource._internal)
    else:
        fallback.touch(resource)


# Compiling


def module_of_ending_loops(device: Any, code: str, label: str) -> Any:
    """Return a shader module of WGSL whose loops are known to end.

    wgpu-native adds no iteration counters to its loops.
    """
    if TRUSTING.missing is not None:
        return fallback.module_of_ending_loops(device, code, label)
    ffi, lib = _wgpu.ffi, _wgpu.lib
    text, name = code.encode(), label.encode()
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.addressof(source.chain)
    with ffi.from_buffer("char[]", text) as c_code, ffi.from_buffer("char[]", name) as c_label:
        source.code.data, source.code.length = c_code, len(text)
        descriptor.label.data, descriptor.label.length = c_label, len(name)
        checks = lib.WGPUShaderRuntimeChecks_BoundsChecks
        handle = _safe.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, checks)
    return _wgpu.api.GPUShaderModule(label, handle, device)


# Freeing


_OPEN_FLAG_BYTE = 16
"""Offset of the flag in a command buffer that makes its release free it (context at 0, id at 8).
wgpu-native 29 clears the flag when it makes a command buffer, not only when it submits it."""
if FREEING.is_available:
    _BYTES = _wgpu.ffi.typeof("uint8_t *")


def free_when_dropped(commands: Any) -> None:
    """Have a command buffer freed with its last reference even if it was never submitted."""
    if FREEING.is_available:
        _wgpu.ffi.cast(_BYTES, commands._internal)[_OPEN_FLAG_BYTE] = 1


def check_command_buffer_layout(device: Any) -> None:
    """Disable `FREEING` if command buffers have another layout than `free_when_dropped` assumes."""
    if not FREEING.is_available:
        return
    ffi = _wgpu.ffi
    # Through wgpu-py's own class: observed encoders call `free_when_dropped` themselves.
    commands = _wgpu.api.GPUDevice.create_command_encoder(device).finish()
    context, expected = (ffi.cast("void **", thing._internal)[0] for thing in (commands, device))
    if context != expected:
        FREEING.missing = "a command buffer does not begin with its context"
    elif ffi.cast("uint8_t *", commands._internal)[_OPEN_FLAG_BYTE]:
        FREEING.missing = "wgpu-native frees them itself"
    free_when_dropped(commands)


# Timing


def timestamp_period(queue: Any) -> float:
    """Return the nanoseconds of one timestamp tick."""
    if not TIMING.is_available:
        return fallback.timestamp_period(queue)
    return float(_wgpu.lib.wgpuQueueGetTimestampPeriod(queue._internal))


# Observing


def specialize(thing: Any, kind: type) -> None:
    """Change the class of a wgpu-py object to a subclass, in place."""
    assert OBSERVING.is_available
    thing.__class__ = kind


def releasing_unless(base: Any, lost: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the `_release` method of a subclass of GPUDevice that skips lost devices.

    Releasing a lost device ends the process in wgpu-native.

    Args:
        base: The class whose `_release` does the rest.
        lost: Returns whether a device is lost.
    """
    if not FORKING.is_available:
        return {}

    ending = sys.is_finalizing  # bound here, as module globals may be gone by then

    def release(device: Any) -> None:
        if ending() or (base._release is not skip_release and lost(device)):
            device._internal = None
        else:
            base._release(device)

    return {"_release": release}


# Forking


def _abandon_drivers() -> bool:
    """Stop wgpu-py from releasing GPU objects; return whether the parent had used wgpu."""
    if not FORKING.is_available:
        return fallback.leak_all_gpu_objects()
    if _wgpu.helpers._the_instance is None:
        return False
    skip_releases(_wgpu.api)
    return True


check_process = ForkedDrivers(_abandon_drivers).check_process
