"""WebGPUExecutable: a compiled graph on a device, awaited or recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webnn_py.engines.base import AwaitedRun
from webnn_py.engines.device import Commands, DeviceExecutable
from webnn_py.engines.initialization import BoundInputs
from webnn_py.engines.webgpu.compiler.compiled import Compiled
from webnn_py.engines.webgpu.runtime import awaited
from webnn_py.engines.webgpu.runtime.device import Device
from webnn_py.engines.webgpu.runtime.loaded import LoadedGraph
from webnn_py.engines.webgpu.runtime.recording import Recording


class WebGPUExecutable(DeviceExecutable):
    """A graph's kernels and buffers on a device.

    Args:
        gpu: The device.
        compiled: The graph for devices like it.
        submit_recorded: Submits what the context has recorded and not yet submitted.
    """

    def __init__(
        self, gpu: Device, compiled: Compiled, submit_recorded: Callable[[], None]
    ) -> None:
        self.compiled = compiled
        self.loaded = LoadedGraph(gpu, compiled)
        self._submit_recorded = submit_recorded

    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """Submitted on the context's worker, read back on another thread."""
        return awaited.Run(self._submit_recorded, self.loaded, inputs, outputs)

    def record(self, commands: Commands, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Into a `Recording`."""
        assert isinstance(commands, Recording)
        commands.run(self.loaded, inputs, outputs)

    def initialize(
        self, commands: Commands, bound: BoundInputs, constants: Mapping[str, Any]
    ) -> None:
        """Into a `Recording`."""
        assert isinstance(commands, Recording)
        commands.initialize(self.loaded, bound, constants)

    def describe(self) -> str:
        """Every kernel with its workgroups and buffers, and the sizes of buffers."""
        return self.compiled.describe()

    def code(self) -> str:
        """The WGSL of every kernel, each once."""
        return self.compiled.code()
