"""WebGPUExecutable: a compiled graph on a device, awaited or recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core.lru_cache import MemoryUse
from webnn_py.engines.base import AwaitedRun, Step, Steps
from webnn_py.engines.device import Commands, DeviceExecutable, SlicedRun
from webnn_py.engines.profile import RunTime
from webnn_py.engines.webgpu.program.plan import Plan
from webnn_py.engines.webgpu.runtime import bind_resources, profiling
from webnn_py.engines.webgpu.runtime.awaited import AwaitedDeviceRun
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.prerecord import RunPrerecorder
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.program_arguments import place_arguments
from webnn_py.engines.webgpu.runtime.recorder import Recorder
from webnn_py.engines.webgpu.runtime.recording import Recording
from webnn_py.engines.webgpu.runtime.slicing import SlicedGraphRun

_ARRAYS = {np.ndarray}
_MADE = {np.ndarray, type(None)}
"""Types of outputs that are read back, into what was given or what is made."""


class WebGPUExecutable(DeviceExecutable):
    """A graph's kernels and buffers on a device.

    Args:
        loaded: The graph there.
        recorder: Of the context.
    """

    def __init__(self, loaded: LoadedGraph, recorder: Recorder) -> None:
        self.loaded = loaded
        self.compiled = loaded.compiled
        self.prerecorder = RunPrerecorder(loaded.gpu)
        self._arrays: bind_resources.ArrayPlaces | None = None
        self._made = [value for _, value in loaded.graph.outputs]
        self._recorder = recorder

    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """Submitted on the context's worker, read back on another thread."""
        loaded = self.loaded
        if _ARRAYS.issuperset(map(type, inputs)) and _MADE.issuperset(map(type, outputs)):
            if self._arrays is None:
                run = bind_resources.place(loaded, inputs, outputs, loaded.io_buffer)
                self._arrays = bind_resources.ArrayPlaces(run)
            dispatch = self._arrays.run(inputs)
        else:
            dispatch = bind_resources.place(loaded, inputs, outputs, loaded.io_buffer)
        made = list(zip(outputs, self._made, strict=True))
        return AwaitedDeviceRun(loaded, self.prerecorder, self._recorder, dispatch, made)

    def profile(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> RunTime:
        """A step for each value that is stored, however many kernels make it."""
        self._recorder.submit_recorded()
        return profiling.profile(self.loaded, inputs)

    def record(self, commands: Commands, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Into a `Recording`."""
        assert isinstance(commands, Recording)
        commands.run_graph(self.loaded, inputs, outputs)

    def sliced(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> SlicedRun:
        """Over buffers that no other run uses meanwhile."""
        with device_errors("preparing a run in slices"):
            return SlicedGraphRun(self.loaded, inputs, outputs)

    def record_slice(self, commands: Commands, run: SlicedRun, seconds: float) -> bool:
        """Into a `Recording`."""
        assert isinstance(commands, Recording)
        assert isinstance(run, SlicedGraphRun)
        return commands.slice(run, seconds)

    def memory_use(self) -> MemoryUse:
        """The device's buffers."""
        return self.loaded.memory_use()

    def describe(self) -> str:
        """Every kernel with its workgroups and buffers, and the sizes of buffers."""
        return self.compiled.describe()

    @property
    def remark(self) -> str:
        """Whether choices are used that `webnn-py tune` made."""
        tuned = sum(bool(kernel.tile) for kernel in self.compiled.template.kernels)
        return f"{tuned} kernels with tiles tuned on this adapter" if tuned else ""

    @property
    def is_far(self) -> bool:
        """Whether its kernels are tuned for sizes far from these."""
        return self.compiled.is_far

    def steps(self) -> Steps:
        """The kernels."""
        made = []
        for kernel, nodes in zip(self.compiled.kernels, self.compiled.nodes(), strict=True):
            reads = tuple(dict.fromkeys(part.value for part in kernel.reads))
            name = f"{kernel.name}, tuned: {kernel.tile}" if kernel.tile else kernel.name
            writes = tuple(part.value for part in kernel.writes)
            made.append(Step(name, nodes, reads, writes))
        return Steps(self.compiled.graph, tuple(made))

    def code(self) -> str:
        """The WGSL of every kernel, each once."""
        return self.compiled.code()


class ProgramExecutable:
    """A program's kernels and buffers on a device.

    Args:
        program: The program there.
        recorder: Of the context.
    """

    def __init__(self, program: LoadedProgram, recorder: Recorder) -> None:
        self.program = program
        self.prerecorder = RunPrerecorder(program.gpu)
        self._recorder = recorder

    def release(self) -> None:
        """Give back the device's memory; nothing can run it any more."""
        self.prerecorder = RunPrerecorder(self.program.gpu)
        self.program.release()

    @property
    def plan(self) -> Plan:
        """What was compiled."""
        return self.program.plan

    def describe(self) -> str:
        """The arguments, and every step of the variant that runs."""
        return self.program.plan.describe(self.program.variant)

    def start(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> AwaitedRun:
        """Check one awaited run.

        Args:
            inputs: What arguments hold at first, by name: the memory of a tensor, a resource of the
                device, or an array that nobody else changes.
            outputs: Where each that is written is to lie or go, by name: the same, or None where a
                new array is to be made.

        Raises:
            DataError: Something does not fit; nothing has run.
        """
        program = self.program
        dispatch = place_arguments(program, inputs, outputs, program.io_buffer)
        written = [(outputs[a.name], a.descriptor) for a in program.plan.arguments if a.written]
        return AwaitedDeviceRun(program, self.prerecorder, self._recorder, dispatch, written)

    def profile(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> RunTime:
        """Run twice on this thread, step by step and as a whole, and measure; as `start`."""
        self._recorder.submit_recorded()
        return profiling.profile_program(self.program, inputs, outputs)

    def record(
        self, commands: Commands, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Record one run into a `Recording`; arguments as for `start`, but all are given.

        Raises:
            DataError: Something does not fit; nothing was recorded.
        """
        assert isinstance(commands, Recording)
        commands.run_program(self.program, inputs, outputs)
