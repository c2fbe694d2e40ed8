"""Buffers of a graph's intermediate values, inputs and outputs, shared by its runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable
from typing import Any

from webnn_py.core.errors import OperationError
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device

SIZES_PER_DOUBLING = 2
"""A buffer that grows takes one of so many sizes in each doubling, so that it grows seldom."""


class RunBuffers:
    """Growable buffers by name. Runs for all open sizes share them, as the queue orders runs.

    Args:
        gpu: The device.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._buffers: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._shared = False

    def get(self, name: Hashable, size: int, label: str) -> Any:
        """Return the buffer of a name; make or replace it if it has fewer than `size` bytes."""
        with self._lock:
            found = self._buffers.get(name)
            if found is None or found.size < size:
                found = self._buffers[name] = self._make(size, label, grows=found is not None)
            return found

    def _make(self, size: int, label: str, grows: bool) -> Any:
        room = min(_rounded_up(size), self._gpu.max_buffer_bytes)
        if grows and room > size:
            with contextlib.suppress(OperationError):  # there may be memory for `size` alone
                return self._gpu.buffer(room, STORAGE | COPIES, label)
        return self._gpu.buffer(size, STORAGE | COPIES, label)

    def share(self) -> None:
        """Note that recorded commands use the buffers, which anyone may submit at any time."""
        if not self._shared:
            with self._gpu.submit_lock:  # wait for the end of a run submitted in chunks
                self._shared = True

    @property
    def is_shared(self) -> bool:
        """Return whether recorded commands use the buffers."""
        return self._shared


def _rounded_up(size: int) -> int:
    """Round up to one of `SIZES_PER_DOUBLING` sizes in each doubling."""
    step = max(4, (1 << size.bit_length() - 1) // SIZES_PER_DOUBLING)
    return -(-size // step) * step
