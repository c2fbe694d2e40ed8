"""WebGPUExecutable: a compiled graph on a device, awaited or recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webnn_py.core.recently_used import Held
from webnn_py.engines.base import AwaitedRun, Step, Steps
from webnn_py.engines.device import Commands, DeviceExecutable, SlicedRun
from webnn_py.engines.profile import RunTime
from webnn_py.engines.webgpu.compiler.compiled import Compiled
from webnn_py.engines.webgpu.runtime import awaited, profiling
from webnn_py.engines.webgpu.runtime.device import Device
from webnn_py.engines.webgpu.runtime.errors import device_errors
from webnn_py.engines.webgpu.runtime.loaded import LoadedGraph
from webnn_py.engines.webgpu.runtime.recording import Recording
from webnn_py.engines.webgpu.runtime.slicing import SlicedGraphRun


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

    def profile(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> RunTime:
        """A step for each value that is stored, however many kernels make it."""
        self._submit_recorded()
        return profiling.profile(self.loaded, inputs)

    def record(self, commands: Commands, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Into a `Recording`."""
        assert isinstance(commands, Recording)
        commands.run(self.loaded, inputs, outputs)

    def sliced(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> SlicedRun:
        """Over buffers that no other run uses meanwhile."""
        with device_errors("preparing a run in slices"):
            return SlicedGraphRun(self.loaded, inputs, outputs)

    def record_slice(self, commands: Commands, run: SlicedRun, seconds: float) -> bool:
        """Into a `Recording`."""
        assert isinstance(commands, Recording)
        assert isinstance(run, SlicedGraphRun)
        return commands.slice(run, seconds)

    def held(self) -> Held:
        """The device's buffers."""
        return self.loaded.held()

    def describe(self) -> str:
        """Every kernel with its workgroups and buffers, and the sizes of buffers."""
        return self.compiled.describe()

    def steps(self) -> Steps:
        """The kernels."""
        made = []
        for kernel, nodes in zip(self.compiled.kernels, self.compiled.nodes(), strict=True):
            reads = tuple(dict.fromkeys(part.value for part in kernel.reads))
            made.append(Step(kernel.name, nodes, reads, kernel.writes.value))
        return Steps(self.compiled.graph, tuple(made))

    def code(self) -> str:
        """The WGSL of every kernel, each once."""
        return self.compiled.code()
