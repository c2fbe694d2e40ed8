"""Compute pipelines, each compiled once for the same code."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from webnn_py.core import cooperation
from webnn_py.engines.webgpu.runtime.errors import device_errors

MOST_THREADS = 12
"""That make pipelines at once for one graph; drivers share locks, and gain little from more."""

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
        return self._made(name, code) if found is None else found

    def get_all(self, kernels: Iterable[tuple[str, str]]) -> list[Any]:
        """The pipelines of several kernels, made on several threads: drivers take their time.

        Args:
            kernels: Name and code of each, as for `get`.

        Raises:
            OperationError: The device refused the code of one.
        """
        wanted = list(kernels)
        with self._lock:
            found = {code: self._pipelines.get(code) for _, code in wanted}
        lacking = {code: name for name, code in wanted if found[code] is None}
        threads = min(len(lacking), MOST_THREADS, os.cpu_count() or 1)
        if threads <= 1:
            found |= {code: self._made(name, code) for code, name in lacking.items()}
        else:
            with ThreadPoolExecutor(
                threads, thread_name_prefix="webnn-pipelines", initializer=cooperation.enable
            ) as pool:
                try:
                    made = list(pool.map(self._made, lacking.values(), lacking))
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            found |= zip(lacking, made, strict=True)
        return [found[code] for _, code in wanted]

    def _made(self, name: str, code: str) -> Any:
        with device_errors(f"compiling the kernel {name}"):
            module = self._device.create_shader_module(code=code, label=name)
            pipeline = self._device.create_compute_pipeline(
                label=name, layout="auto", compute={"module": module, "entry_point": "main"}
            )
        with self._lock:
            self._recent.append(pipeline)
            return self._pipelines.setdefault(code, pipeline)
