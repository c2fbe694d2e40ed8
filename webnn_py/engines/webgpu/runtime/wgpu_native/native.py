"""Where wgpu-py's public calls are too slow or not enough: what is private in wgpu, and only here.

Each `Capability` stands for one use of wgpu's private names. It checks itself when this module is
loaded, and its handles once more on the first device; where a release of wgpu has other names or
signatures, the public calls do the work instead, slower or with less found out beforehand. The
capabilities do not depend on each other. WEBNN_NATIVE=0 turns all of them off.
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
from webnn_py.engines.webgpu.runtime.wgpu_native import fallback
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
    calls_of,
    fault,
    find_internals,
)
from webnn_py.engines.webgpu.runtime.wgpu_native.poll_backoff import pause

# The check


def check() -> None:
    """Find out what is there."""
    global _wgpu, _safe
    found = find_internals()
    off = os.environ.get("WEBNN_NATIVE") == "0"
    for capability in ALL:
        capability.missing = "WEBNN_NATIVE=0" if off else fault(capability, found)
    _wgpu = found if isinstance(found, Internals) else None
    _safe = calls_of(_wgpu) if CALLING.there else _wgpu and _wgpu.api.libf


_wgpu: Any = None
_safe: Any = None  # C functions that raise a GPUError
check()


def confirm(device: Any) -> None:
    """Look once more, at a real device: whether its handle is what the C functions take."""
    for capability in ALL:
        if capability.there and capability.by_handle:
            try:
                fits = _wgpu.ffi.typeof(device._internal) is _wgpu.ffi.typeof("WGPUDevice")
            except Exception as error:
                capability.missing = f"the handle of a GPUDevice: {error}"
            else:
                capability.missing = None if fits else "the handle of a GPUDevice is none"


def c_interface() -> tuple[Any, Any, Any]:
    """C functions that raise a GPUError, the same that do not, and the types of both."""
    return _safe, _wgpu.lib, _wgpu.ffi


# Waiting


SMALL = 1 << 14
"""Bytes from which copies let other threads run meanwhile."""


def mapping(
    device: Any, buffer: Any, writing: bool = False
) -> BufferMapping | fallback.BufferMapping:
    """Begin to let the host read a buffer, or only where waiting is there write it."""
    if WAITING.missing is not None:
        return fallback.BufferMapping(device, buffer)
    return BufferMapping(device, buffer, writing)


def read_mapped(buffer: Any) -> Any:
    """The memory of a mapped buffer, valid until `unmap`."""
    if not WAITING.there:
        return buffer.read_mapped(copy=False)
    begin = _safe.wgpuBufferGetMappedRange(buffer._internal, 0, buffer.size)
    return _wgpu.ffi.buffer(begin, buffer.size)


def read_small(buffer: Any, target: Any) -> bool:
    """Copy the beginning of a mapped buffer into an array, if that is little and simple."""
    size = target.nbytes
    if size > SMALL or WAITING.missing is not None or not target.flags.c_contiguous:
        return False
    begin = _safe.wgpuBufferGetMappedRange(buffer._internal, 0, -(-size // 4) * 4)
    _wgpu.ffi.memmove(target.data, begin, size)
    return True


def write_mapped(buffer: Any, contents: Any) -> None:
    """Copy contiguous memory into a mapped buffer, and let no other thread run meanwhile."""
    ffi = _wgpu.ffi
    begin = _safe.wgpuBufferGetMappedRange(buffer._internal, 0, contents.nbytes)
    ffi.memmove(begin, ffi.from_buffer(contents), contents.nbytes)


def write_buffer(queue: Any, buffer: Any, offset: int, contents: Any) -> None:
    """Have a queue write contiguous memory into a buffer, before what is submitted next."""
    if RECORDING.missing is not None:
        queue.write_buffer(buffer, offset, contents.reshape(-1).view(np.uint8))
        return
    data = _wgpu.ffi.from_buffer(contents)
    _safe.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, data, contents.nbytes)


def unmap(buffer: Any) -> None:
    """End what `mapping` began."""
    if WAITING.missing is None:
        _safe.wgpuBufferUnmap(buffer._internal)
    else:
        buffer.unmap()


_statuses: dict[Any, int | None] = {}
"""How what is waited for ended, by its number as a pointer; None while it is under way."""
_numbers = itertools.count(1)
_ready: list[tuple[Any, Any]] = []
"""Numbers that nobody uses now, and what tells them to wgpu-native."""


def _ended(status: int, _message: Any, number: Any, _unused: Any) -> None:
    # Not once Python has ended, and nobody waits any more.
    if _wgpu is not None and number in _statuses:
        _statuses[number] = int(status)


def _ended_all_the_same(_kind: type, error: BaseException, trace: types.TracebackType) -> None:
    """An interrupt came as it was told, as by Ctrl-C: cffi would drop it, and what was told."""
    told = trace.tb_frame.f_locals
    _ended(told["status"], None, told["number"], None)
    _interrupts[threading.get_ident()] = error.with_traceback(None)


_interrupts: dict[int, BaseException] = {}
"""What is yet to be raised on threads."""


@calls_library
def _process_events() -> None:
    """Be told what has ended, on all devices.

    It loses those that their drivers have lost, which ends the process if it is at one.
    """
    _wgpu.lib.wgpuInstanceProcessEvents(_wgpu.helpers._the_instance)
    if _interrupts and (error := _interrupts.pop(threading.get_ident(), None)) is not None:
        raise error


def _new_number() -> tuple[Any, Any]:
    ffi = _wgpu.ffi
    number = ffi.cast(_POINTER, next(_numbers))
    return number, ffi.new(_INFO, [ffi.NULL, _WHEN_LOOKED, _CALLBACK, number, ffi.NULL])[0]


if WAITING.there:
    _POINTER, _INFO = map(_wgpu.ffi.typeof, ("void *", "WGPUBufferMapCallbackInfo *"))
    _READ, _WRITE = _wgpu.lib.WGPUMapMode_Read, _wgpu.lib.WGPUMapMode_Write
    _WHEN_LOOKED = _wgpu.lib.WGPUCallbackMode_AllowProcessEvents
    _CALLBACK = _wgpu.ffi.callback(
        WAITING.interface["WGPUBufferMapCallback"], _ended, onerror=_ended_all_the_same
    )
    # A buffer may be released after this module, and its mapping ends then if it is under way.
    fallback.keep(_CALLBACK)


class BufferMapping:
    """The mapping of a buffer, which begins when this is made; looked for now and then.

    wgpu-py waits within wgpu-native, and lets nobody submit meanwhile.
    """

    __slots__ = ("_buffer", "_device", "_info", "_number")

    def __init__(self, device: Any, buffer: Any, writing: bool) -> None:
        self._device, self._buffer = device, buffer
        try:
            self._number, self._info = _ready.pop()
        except IndexError:
            self._number, self._info = _new_number()
        mode = _WRITE if writing else _READ
        _statuses[self._number] = None
        _safe.wgpuBufferMapAsync(buffer._internal, mode, 0, buffer.size, self._info)

    def __del__(self) -> None:
        if not hasattr(self, "_number"):  # it was interrupted as it was made
            return
        if _statuses.pop(self._number, None) is not None:  # else wgpu-native may yet use it
            _ready.append((self._number, self._info))

    def look(self) -> bool:
        """Whether it has ended."""
        _process_events()
        return _statuses[self._number] is not None

    def look_for(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> bool:
        """Look for its end without a pause, for so long at most.

        Args:
            seconds: How long.
            meanwhile: Called once, if it has not ended when this is called.

        Returns:
            Whether it has ended.
        """
        end = time.monotonic() + seconds
        while not self.look():
            if time.monotonic() > end:
                return False
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            else:
                pause(0.0)
        return True

    def wait(self, expected: float = 0.0) -> None:
        """Wait until it has ended, which is likely to take so many seconds.

        Raises:
            ContextLostError: The device was lost meanwhile, which wgpu never tells who waits.
            OperationError: The buffer cannot be mapped.
        """
        if _statuses[self._number] is None:
            begun = looked = time.monotonic()
            while not self.look():
                now = time.monotonic()
                if now - looked > fallback.LIFE_SIGN:
                    check_alive(self._device, self._buffer)
                    looked = now
                pause(now - begun, expected)
        status = _statuses[self._number]
        if status != _wgpu.lib.WGPUMapAsyncStatus_Success:
            raise OperationError(f"mapping a buffer of {self._buffer.size} bytes: status {status}")


# Checking


def is_lost(buffer: Any) -> bool:
    """Whether the device of a buffer is lost, as its driver says; False where nobody can tell.

    The one look that does not end the process for that.
    """
    if WAITING.missing is not None or CHECKING.missing is not None or buffer._internal is None:
        return False
    _process_events()
    try:
        queue = buffer._device.queue._internal
    except ReferenceError:  # all but its queue is gone
        queue = None
    try:
        if queue is None:  # the collector was there first
            touch(buffer)
        else:  # the cheapest call that fails on a lost device, and does nothing else
            _safe.wgpuQueueWriteBuffer(queue, buffer._internal, 0, _wgpu.ffi.NULL, 0)
    except wgpu.GPUError as error:
        return "lost" in str(error.with_traceback(None))  # frames would keep it, and it them
    return False


def check_alive(device: Any, buffer: Any) -> None:
    """Raise a ContextLostError if a device was lost or destroyed, by a buffer of it."""
    if CHECKING.missing is not None:
        fallback.check_alive(device)
    elif is_lost(buffer):
        raise ContextLostError("the GPUDevice is lost")


def is_released(resource: Any) -> bool:
    """Whether a GPU object was released by force, so that no call may be made with it."""
    return CHECKING.there and resource._internal is None


def touch(buffer: Any) -> None:
    """Raise wgpu's GPUError if a buffer that is not mapped is destroyed, or its device is lost."""
    if CHECKING.there:
        # The one call that looks at any buffer, whatever its usage, and changes none.
        _safe.wgpuBufferUnmap(buffer._internal)
    else:
        fallback.touch(buffer)


# Compiling


def ending_module(device: Any, code: str, label: str) -> Any:
    """A shader module of WGSL whose loops are known to end: none counts its rounds."""
    if TRUSTING.missing is not None:
        return device.create_shader_module(code=code, label=label)
    ffi, lib = _wgpu.ffi, _wgpu.lib
    text, name = code.encode(), label.encode()
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.addressof(source.chain)
    with ffi.from_buffer("char[]", text) as told, ffi.from_buffer("char[]", name) as called:
        source.code.data, source.code.length = told, len(text)
        descriptor.label.data, descriptor.label.length = called, len(name)
        checks = lib.WGPUShaderRuntimeChecks_BoundsChecks
        made = _safe.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, checks)
    return _wgpu.api.GPUShaderModule(label, made, device)


# Freeing


_OPEN = 16
"""The byte of a command buffer by which its release frees it; its context lies at 0, its id at 8.
wgpu-native 29 sets it to 0 when it makes the command buffer, as it does when that is submitted."""
if FREEING.there:
    _BYTES = _wgpu.ffi.typeof("uint8_t *")


def free_when_dropped(commands: Any) -> None:
    """Have a command buffer freed with its last reference, though it was never submitted."""
    if FREEING.there:
        _wgpu.ffi.cast(_BYTES, commands._internal)[_OPEN] = 1


def confirm_freeing(device: Any) -> None:
    """Look whether command buffers of a device are what `free_when_dropped` takes them for."""
    if not FREEING.there:
        return
    ffi = _wgpu.ffi
    # By wgpu-py's own class, as an encoder that is observed has it done.
    commands = _wgpu.api.GPUDevice.create_command_encoder(device).finish()
    context, made_by = (ffi.cast("void **", made._internal)[0] for made in (commands, device))
    if context != made_by:
        FREEING.missing = "a command buffer does not begin with its context"
    elif ffi.cast("uint8_t *", commands._internal)[_OPEN]:
        FREEING.missing = "wgpu-native frees them itself"
    free_when_dropped(commands)


# Timing


def timestamp_period(queue: Any) -> float:
    """Nanoseconds between two timestamps that differ by one."""
    if not TIMING.there:
        return 1.0
    return float(_wgpu.lib.wgpuQueueGetTimestampPeriod(queue._internal))


# Observing


def specialize(thing: Any, kind: type) -> None:
    """Make an object of wgpu's one of a subclass of its class, in place."""
    assert OBSERVING.there
    thing.__class__ = kind


def releasing_unless(base: Any, lost: Callable[[Any], bool]) -> dict[str, Any]:
    """The method of a subclass of GPUDevice that releases it, unless its driver has lost it.

    wgpu-native would end the process.
    """
    if not FORKING.there:
        return {}

    ending = sys.is_finalizing  # when what modules have is gone

    def release(device: Any) -> None:
        if ending() or (base._release is not _keep and lost(device)):
            device._internal = None
        else:
            base._release(device)

    return {"_release": release}


# Forking


def abandon_drivers() -> bool:
    """In a child process: give nothing back to the parent's drivers, which hang or crash there.

    Returns:
        Whether there were drivers; False if the parent had not used wgpu.
    """
    if not FORKING.there:
        return fallback.keep_for_ever()
    if _wgpu.helpers._the_instance is None:
        return False
    for member in vars(_wgpu.api).values():
        if isinstance(member, type) and hasattr(member, "_release"):
            member._release = _keep
    return True


def _keep(thing: Any) -> None:
    """What is done in place of releasing a GPU object."""
