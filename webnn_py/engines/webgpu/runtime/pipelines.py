"""Compute pipelines, each compiled once for the same code."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

from webnn_py.engines.webgpu.runtime.errors import device_errors

RECENT_PIPELINES = 256
"""Pipelines kept though no graph has them: those of graphs built again, of texture formats."""


class PipelineCache:
    """The pipelines of a device, kept as long as a graph has them, and for a while after."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._pipelines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._recent: deque[Any] = deque(maxlen=RECENT_PIPELINES)
        self._lock = threading.Lock()

    def get(self, name: str, code: str) -> Any:
        """The pipeline of a kernel.

        Args:
            name: Of the kernel, for messages.
            code: WGSL with an entry point "main".

        Raises:
            OperationError: The device refused the code.
        """
        with self._lock:
            found = self._pipelines.get(code)
        if found is not None:
            return found
        with device_errors(f"compiling the kernel {name}"):
            module = self._device.create_shader_module(code=code, label=name)
            pipeline = self._device.create_compute_pipeline(
                label=name, layout="auto", compute={"module": module, "entry_point": "main"}
            )
        with self._lock:
            self._recent.append(pipeline)
            return self._pipelines.setdefault(code, pipeline)
