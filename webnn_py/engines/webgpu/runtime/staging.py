"""Readback: a pool of mappable buffers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu

from webnn_py.core.completion import Cancellation
from webnn_py.engines.webgpu.runtime import native
from webnn_py.engines.webgpu.runtime.binding import Binding
from webnn_py.engines.webgpu.runtime.errors import device_errors
from webnn_py.engines.webgpu.runtime.life import Life
from webnn_py.engines.webgpu.runtime.pauses import Wait

KEPT_BYTES = 256 << 20
"""Bytes of staging buffers kept for later."""


class Staging:
    """Buffers that the host can read, kept by size for the next readback.

    Args:
        device: A GPUDevice.
        life: Its life.
    """

    def __init__(self, device: Any, life: Life) -> None:
        self._device = device
        self._life = life
        self._free: dict[int, list[Any]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def copy(self, encoder: Any, source: Binding) -> Any:
        """Record the copy of a tensor into a buffer of the pool."""
        buffer = self._take(source.size)
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, buffer, 0, source.size)
        return buffer

    def read(
        self,
        copies: Sequence[tuple[Any, np.ndarray[Any, Any]]],
        cancellation: Cancellation,
        wait: Wait | None = None,
    ) -> None:
        """Wait for the copies, write them into their targets as one section.

        Args:
            copies: Buffers, and what their contents are written into.
            cancellation: Of the work.
            wait: When they are likely to be there.
        """
        for buffer, _ in copies:
            self.map(buffer, wait)
            wait = None  # when the first is there, so are the others
        with self._life, cancellation.section() as wanted:
            for buffer, target in copies:
                if wanted:
                    self._write_out(buffer, target)
                self.release(buffer)

    def map(self, buffer: Any, wait: Wait | None = None) -> None:
        """Wait until the host can read the buffer.

        Raises:
            ContextLostError: The device was lost meanwhile.
        """
        native.map_for_reading(self._device, buffer, 0.0 if wait is None else wait.left)
        if wait is not None:
            wait.end()

    def _write_out(self, buffer: Any, target: np.ndarray[Any, Any]) -> None:
        memory = native.read_mapped(buffer)
        view: np.ndarray[Any, Any] = np.frombuffer(memory, target.dtype, target.size)
        np.copyto(target, view.reshape(target.shape))

    def release(self, buffer: Any) -> None:
        """Give a mapped buffer back."""
        native.unmap(buffer)
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

    def _take(self, size: int) -> Any:
        capacity = max(256, 1 << (size - 1).bit_length()) if size < 1 << 20 else size
        with self._lock:
            free = self._free.get(capacity)
            if free:
                self._kept -= capacity
                return free.pop()
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        with device_errors(f"allocating {capacity} bytes to read back"):
            return self._device.create_buffer(size=capacity, usage=usage, label="staging")
