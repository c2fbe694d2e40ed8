"""Readback: a pool of mappable buffers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu
from wgpu.backends.wgpu_native._api import libf
from wgpu.backends.wgpu_native._ffi import ffi, lib

from webnn_py.core.completion import Parts
from webnn_py.core.errors import ContextLostError, OperationError

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.runtime.binding import Binding
    from webnn_py.engines.webgpu.runtime.device import Device

KEPT_BYTES = 256 << 20
SHORTEST_PAUSE = 2e-5
LONGEST_PAUSE = 2e-3
"""Seconds between two looks at whether the device is done; a small part of the time waited."""

_statuses: dict[int, int | None] = {}
"""How mappings ended, by number; None while they are under way."""
_numbers = itertools.count(1)


def _mapped(status: int, _message: Any, number: Any, _unused: Any) -> None:
    key = int(ffi.cast("uintptr_t", number))
    if key in _statuses:  # somebody waits for it
        _statuses[key] = int(status)


_CALLBACK = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", _mapped)


def _callback_info(number: int) -> Any:
    info = ffi.new("WGPUBufferMapCallbackInfo *")
    info.mode = lib.WGPUCallbackMode_AllowProcessEvents
    info.callback = _CALLBACK
    info.userdata1 = ffi.cast("void *", number)
    return info[0]


class Staging:
    """Buffers that the host can read, kept by size for the next readback."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._free: dict[int, list[Any]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def copy(self, encoder: Any, source: Binding) -> Any:
        """Record the copy of a tensor into a buffer of the pool."""
        buffer = self._take(source.size)
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, buffer, 0, source.size)
        return buffer

    def read(self, copies: Sequence[tuple[Any, np.ndarray[Any, Any]]], parts: Parts) -> None:
        """Wait for the copies, write them into their targets as one part of the work."""
        for buffer, _ in copies:
            self.map(buffer)
        with parts.begin() as wanted:
            for buffer, target in copies:
                if wanted:
                    self._write_out(buffer, target)
                self.release(buffer)

    def map(self, buffer: Any) -> None:
        """Wait until the host can read the buffer.

        wgpu-py waits within wgpu-native, and lets nobody submit anything until the device is done.
        So this looks now and then instead.

        Raises:
            ContextLostError: The device was lost meanwhile, which wgpu never tells who waits.
        """
        self._check_device()
        number = next(_numbers)
        _statuses[number] = None
        begun = time.monotonic()
        try:
            libf.wgpuBufferMapAsync(
                buffer._internal,
                lib.WGPUMapMode_Read,
                0,
                buffer.size,
                _callback_info(number),
            )
            while True:
                libf.wgpuDevicePoll(self._gpu.handle._internal, False, ffi.NULL)
                status = _statuses[number]
                if status is not None:
                    break
                self._check_device()
                pause = (time.monotonic() - begun) / 16
                time.sleep(min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE))
        finally:
            del _statuses[number]
        if status != lib.WGPUMapAsyncStatus_Success:
            raise OperationError(f"mapping a buffer of {buffer.size} bytes: status {status}")

    def _write_out(self, buffer: Any, target: np.ndarray[Any, Any]) -> None:
        begin = libf.wgpuBufferGetMappedRange(buffer._internal, 0, buffer.size)
        memory = ffi.buffer(begin, buffer.size)
        view: np.ndarray[Any, Any] = np.frombuffer(memory, target.dtype, target.size)
        np.copyto(target, view.reshape(target.shape))

    def release(self, buffer: Any) -> None:
        """Give a mapped buffer back."""
        libf.wgpuBufferUnmap(buffer._internal)
        with self._lock:
            if self._kept + buffer.size <= KEPT_BYTES:
                self._kept += buffer.size
                self._free.setdefault(buffer.size, []).append(buffer)

    def fence(self, encoder: Any) -> Any:
        """Record something to wait for, when nothing is read back."""
        buffer = self._take(4)
        encoder.clear_buffer(buffer, 0, 4)
        return buffer

    def wait(self, buffer: Any) -> None:
        """Wait until a fence has been passed, and give its buffer back."""
        self.map(buffer)
        self.release(buffer)

    def clear(self) -> None:
        """Keep nothing for later."""
        with self._lock:
            self._free.clear()
            self._kept = 0

    def _check_device(self) -> None:
        # A destroyed device stops wgpu's polling thread, and its callbacks never come.
        if self._gpu.handle._poller is None:
            raise ContextLostError("the GPUDevice was destroyed")

    def _take(self, size: int) -> Any:
        capacity = max(256, 1 << (size - 1).bit_length()) if size < 1 << 20 else size
        with self._lock:
            free = self._free.get(capacity)
            if free:
                self._kept -= capacity
                return free.pop()
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        return self._gpu.buffer(capacity, usage, "staging")
