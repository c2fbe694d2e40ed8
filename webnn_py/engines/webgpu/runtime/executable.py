"""Executables of graphs and programs on a WebGPU device, to await or to record."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core.lru_cache import MemoryUse
from webnn_py.engines.base import AwaitedRun, Step, Steps
from webnn_py.engines.device import Commands, DeviceExecutable, SlicedRun
from webnn_py.engines.initialization import BoundInputs
from webnn_py.engines.profile import RunTime
from webnn_py.engines.webgpu.program.plan import Plan
from webnn_py.engines.webgpu.runtime import bind_resources, profiling
from webnn_py.engines.webgpu.runtime.awaited import AwaitedDeviceRun
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.devices.buffer_init import padded_bytes
from webnn_py.engines.webgpu.runtime.devices.command_tracking import are_usable
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.prerecord import RunPrerecorder
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.program_arguments import place_arguments
from webnn_py.engines.webgpu.runtime.recorder import Recorder
from webnn_py.engines.webgpu.runtime.recording import Recording
from webnn_py.engines.webgpu.runtime.slicing import SlicedGraphRun
from webnn_py.engines.webgpu.runtime.webgpu_api import names_of
from webnn_py.ir import Array

_ARRAYS = {np.ndarray}
_MADE = {np.ndarray, type(None)}
"""Types of output arguments that are read back into host arrays, passed or new."""


class ArrayPlaces:
    """The fixed bindings of a graph's runs from host arrays to host arrays.

    Args:
        run: One such run.

    Attributes:
        traffic: The transfers of each run.
    """

    def __init__(self, run: bind_resources.BoundRun) -> None:
        self._places, self._downloads = run.places, run.downloads
        self.traffic = run.traffic

    def run(self, inputs: Sequence[Array]) -> bind_resources.BoundRun:
        """Return a run with the same bindings and other contents."""
        uploads = [
            (buffer, array if array.nbytes == size else padded_bytes(array, size))
            for (buffer, size), array in zip(self.traffic.inputs, inputs, strict=True)
        ]
        return bind_resources.BoundRun(self._places, uploads=uploads, downloads=self._downloads)


class WebGPUExecutable(DeviceExecutable):
    """Executable of a graph loaded on a device.

    Args:
        loaded: The graph's pipelines and buffers on the device.
        recorder: Recorder of the context.
    """

    def __init__(self, loaded: LoadedGraph, recorder: Recorder) -> None:
        self.loaded = loaded
        self.compiled = loaded.compiled
        self.prerecorder = RunPrerecorder(loaded)
        self._arrays: ArrayPlaces | None = None
        self._made = [value for _, value in loaded.graph.outputs]
        self._input_names = [value.name for value in loaded.graph.inputs]
        self._output_names = [name for name, _ in loaded.graph.outputs]
        self._recorder = recorder

    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """Return a run that a worker thread submits and another thread reads back."""
        loaded = self.loaded
        if _ARRAYS.issuperset(map(type, inputs)) and _MADE.issuperset(map(type, outputs)):
            if self._arrays is None:
                run = bind_resources.place(loaded, inputs, outputs, loaded.io_buffer)
                self._arrays = ArrayPlaces(run)
            run, traffic = self._arrays.run(inputs), self._arrays.traffic
        else:
            run = bind_resources.place(loaded, inputs, outputs, loaded.io_buffer)
            traffic = run.traffic
        made = list(zip(outputs, self._made, strict=True))
        return AwaitedDeviceRun(loaded, self.prerecorder, self._recorder, run, traffic, made)

    def profile(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> RunTime:
        """Measure a run, with one step per stored value, even if several kernels compute it."""
        self._recorder.submit_recorded()
        return profiling.profile(self.loaded, inputs)

    def record(self, commands: Commands, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record one run into a `Recording`."""
        assert isinstance(commands, Recording)
        commands.run_graph(self.loaded, inputs, outputs, _key((*inputs, *outputs)))

    def repeat(
        self,
        commands: Commands,
        bound: BoundInputs,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
    ) -> bool:
        """Record the commands of an earlier run on the same buffers, which fit then as now."""
        if not type(inputs) is type(outputs) is dict:
            return False
        given = [*map(inputs.get, self._input_names), *map(outputs.get, self._output_names)]
        buffers = [buffer for buffer in given if buffer is not None]
        if len(buffers) != len(inputs) + len(outputs):  # a name is unknown
            return False
        found = self.loaded.repeat(_key(given))
        if found is None or not are_usable(buffers):  # one may be destroyed by now
            return False
        assert isinstance(commands, Recording)
        return commands.repeat(bound, self.loaded, found, buffers)

    def sliced(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> SlicedRun:
        """Begin a sliced run on buffers that no other run uses meanwhile."""
        with device_errors("preparing a run in slices"):
            return SlicedGraphRun(self.loaded, inputs, outputs)

    def record_slice(self, commands: Commands, run: SlicedRun, seconds: float) -> bool:
        """Record the next slice into a `Recording`; return whether it is the last one."""
        assert isinstance(commands, Recording)
        assert isinstance(run, SlicedGraphRun)
        return commands.slice(run, seconds)

    def maker(self) -> Callable[[], WebGPUExecutable]:
        """Return a function that makes executables with own buffers of intermediate values."""
        gpu, compiled, template = self.loaded.gpu, self.compiled, self.loaded.template
        at_sizes, recorder = self.loaded.at_sizes, self._recorder
        return lambda: WebGPUExecutable(
            LoadedGraph(gpu, compiled, template, at_sizes=at_sizes), recorder
        )

    def memory_use(self) -> MemoryUse:
        """Return the device buffers of the graph, with their sizes in bytes."""
        return self.loaded.memory_use()

    def describe(self) -> str:
        """Describe every kernel with its workgroups and buffers, and the buffer sizes."""
        return self.compiled.describe()

    @property
    def remark(self) -> str:
        """Return the number of kernels with tuned tiles, and the precision of float32, if any."""
        tuned = sum(bool(kernel.tile) for kernel in self.compiled.template.kernels)
        precision = self.compiled.features.float32_precision
        remarks = (
            f"{tuned} kernels with tiles tuned on this adapter" if tuned else "",
            "" if precision == "highest" else f"float32 precision of products: {precision}",
        )
        return "\n".join(filter(None, remarks))

    @property
    def is_far(self) -> bool:
        """Whether its kernels were compiled for far sizes."""
        return self.compiled.is_far

    def steps(self) -> Steps:
        """Return a step for each kernel."""
        made = []
        for kernel, nodes in zip(self.compiled.kernels, self.compiled.nodes(), strict=True):
            reads = tuple(dict.fromkeys(part.value for part in kernel.reads))
            name = f"{kernel.name}, tuned: {kernel.tile}" if kernel.tile else kernel.name
            writes = tuple(part.value for part in kernel.writes)
            made.append(Step(name, nodes, reads, writes))
        return Steps(self.compiled.graph, tuple(made))

    def code(self) -> str:
        """Return the WGSL of the kernels, without duplicates."""
        return self.compiled.code()


def _key(resources: Sequence[Any]) -> Hashable:
    """Return a key of these very buffers and of no later ones; None if others are among them.

    A weak reference never equals one to another object, even where that has the same address.
    """
    for given in resources:
        if given is not None and "GPUBuffer" not in names_of(type(given)):
            return None
    return tuple([given if given is None else weakref.ref(given) for given in resources])


class ProgramExecutable:
    """Executable of a program loaded on a device.

    Args:
        program: The program's pipelines and buffers on the device.
        recorder: Recorder of the context.
    """

    def __init__(self, program: LoadedProgram, recorder: Recorder) -> None:
        self.program = program
        self.prerecorder = RunPrerecorder(program)
        self._recorder = recorder

    def release(self) -> None:
        """Release the device memory; the program cannot run afterwards."""
        self.prerecorder = RunPrerecorder(self.program)
        self.program.release()

    @property
    def plan(self) -> Plan:
        """Return the compiled plan of the program."""
        return self.program.plan

    def describe(self) -> str:
        """Describe the arguments, and every step of the selected variant."""
        return self.program.plan.describe(self.program.variant)

    def start(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> AwaitedRun:
        """Check the arguments and return an awaited run.

        Args:
            inputs: Initial contents of arguments, by name: the memory of a tensor, a resource of
                the device, or a private array.
            outputs: Destination of each written argument, by name: likewise, or None for a new
                array.

        Raises:
            DataError: An argument does not fit; nothing has run.
        """
        program = self.program
        run = place_arguments(program, inputs, outputs, program.io_buffer)
        written = [(outputs[a.name], a.descriptor) for a in program.plan.arguments if a.written]
        return AwaitedDeviceRun(
            program, self.prerecorder, self._recorder, run, run.traffic, written
        )

    def profile(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> RunTime:
        """Measure two runs on this thread, step by step and as a whole; arguments as in `start`."""
        self._recorder.submit_recorded()
        return profiling.profile_program(self.program, inputs, outputs)

    def record(
        self, commands: Commands, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Record one run into a `Recording`; arguments as in `start`, but none is missing.

        Raises:
            DataError: An argument does not fit; nothing was recorded.
        """
        assert isinstance(commands, Recording)
        commands.run_program(self.program, inputs, outputs)
