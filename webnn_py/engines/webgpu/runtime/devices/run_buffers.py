"""Buffers in which runs of a graph compute, one run after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable
from typing import Any

from webnn_py.core.errors import OperationError
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device

STEPS = 2
"""Sizes of which one is taken, in each doubling, when a buffer has to grow: few grow often."""


class RunBuffers:
    """The buffers; runs for all sizes of open dimensions may use the same: the queue orders them.

    Args:
        gpu: The device.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._buffers: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._shared = False

    def get(self, name: Hashable, size: int, label: str) -> Any:
        """A buffer of so many bytes or more, the same for a name as long as it is large enough."""
        with self._lock:
            found = self._buffers.get(name)
            if found is None or found.size < size:
                found = self._buffers[name] = self._make(size, label, grows=found is not None)
            return found

    def _make(self, size: int, label: str, grows: bool) -> Any:
        room = min(_grown(size), self._gpu.max_buffer_bytes)
        if grows and room > size:
            with contextlib.suppress(OperationError):  # there may be no memory left for more
                return self._gpu.buffer(room, STORAGE | COPIES, label)
        return self._gpu.buffer(size, STORAGE | COPIES, label)

    def share(self) -> None:
        """Know that commands use them which are submitted at any time, by anyone."""
        if not self._shared:
            with self._gpu.submit_lock:  # a run in pieces is over, and none begins
                self._shared = True

    @property
    def shared(self) -> bool:
        """Whether there are such commands."""
        return self._shared


def _grown(size: int) -> int:
    """The next of a few sizes."""
    step = max(4, (1 << size.bit_length() - 1) // STEPS)
    return -(-size // step) * step
