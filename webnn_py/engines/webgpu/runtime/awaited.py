"""Awaited runs on a GPU context: submit on the worker, read back on another thread."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from webnn_py.core.dtypes import DTYPES
from webnn_py.core.messages import named
from webnn_py.engines.base import AwaitedRun, Executable
from webnn_py.engines.webgpu.runtime import resources
from webnn_py.engines.webgpu.runtime.device import device_errors
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable
from webnn_py.ir import Array
from webnn_py.memory import host
from webnn_py.memory.overlap import check_apart
from webnn_py.ordering import schedule

if TYPE_CHECKING:
    from webnn_py.api.graph import MLGraph


class Run(AwaitedRun):
    """One awaited computation on a device."""

    def __init__(
        self,
        graph: MLGraph,
        executable: Executable,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None,
    ) -> None:
        assert isinstance(executable, WebGPUExecutable)
        outputs = {} if outputs is None else outputs
        super().__init__(settle=any(given is not None for given in outputs.values()))
        bound = executable.bound
        graph.check_names(inputs, outputs, frozenset(bound))
        self._executable = executable
        self._outputs = dict(outputs)
        self._targets: dict[str, Array] = {
            name: host.output_array(outputs[name], descriptor, named("output", name))
            for name, descriptor in graph.output_descriptors.items()
            if outputs.get(name) is not None and not resources.is_device_resource(outputs[name])
        }
        check_apart(self._targets)
        for name, descriptor in graph.output_descriptors.items():
            if outputs.get(name) is None:
                dtype = DTYPES[descriptor.data_type].numpy
                self._targets[name] = np.empty(descriptor.shape, dtype)
        self._queue: Any = graph.context.queue
        self._dispatch = resources.place(
            executable, inputs, outputs, bound, executable.io_buffer, private=True
        )

    def when_there_is_room(self, start: schedule.Run) -> None:
        """Keep the memory bounded that results wait in for being read back."""
        slots = self._executable.gpu.slots

        def begin() -> None:
            self.done.on_done(slots.give)
            start()

        slots.take(begin)

    def begin(self) -> None:
        """Upload, record, submit; then have the outputs read back."""
        self.check_wanted()
        with device_errors("submitting a graph"):
            staging, fence = self._submit()
        self._executable.gpu.reader.submit(self._read, staging, fence)

    def _submit(self) -> tuple[list[tuple[Any, Array]], Any]:
        """Buffers to read, and where to; a fence to wait for if nothing is to be read."""
        gpu = self._executable.gpu
        self._queue.submit_recorded()
        with gpu.submit_lock:
            encoder = gpu.encoder("MLAwaitedExecution")
            for record in self._dispatch.before:
                record(encoder)
            self._executable.record(encoder, self._dispatch.places)
            for record in self._dispatch.after:
                record(encoder)
            staging = [
                (gpu.staging.copy(encoder, place), self._targets[name])
                for name, place in self._dispatch.downloads.items()
            ]
            fence = None if staging else gpu.staging.fence(encoder)
            commands = encoder.finish()
            # What is only read back is not written yet, and a cancelled await need not wait for the
            # driver, which may take as long as the work before.
            with self.part() if self._dispatch.written else contextlib.nullcontext():
                self._dispatch.check_usable()
                for buffer, contents in self._dispatch.uploads:
                    gpu.queue.write_buffer(buffer, 0, contents)
                gpu.queue.submit([commands])
        return staging, fence

    def release(self) -> None:
        """Keep the copies of host arrays no more."""
        self._dispatch.uploads = []

    def _read(self, staging: list[tuple[Any, Array]], fence: Any) -> None:
        gpu = self._executable.gpu
        try:
            with device_errors("reading a graph's outputs"):
                gpu.staging.read(staging, self.parts)
                if fence is not None:
                    gpu.staging.wait(fence)
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    def results(self) -> dict[str, Any]:
        """What the user gave, or the arrays that were made."""
        return {
            name: self._outputs.get(name)
            if isinstance(self._outputs.get(name), np.ndarray) or name not in self._targets
            else self._targets[name]
            for name in (name for name, _ in self._executable.graph.outputs)
        }
