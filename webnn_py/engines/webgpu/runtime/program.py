"""LoadedProgram: a compiled program on a device, with its pipelines, buffers and bind groups."""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import wgpu

from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.program.needs import choose_variant
from webnn_py.engines.webgpu.program.plan import Argument, BufferPlan, Place, Plan, Step
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, PlaceCache
from webnn_py.engines.webgpu.runtime.devices.buffer_init import padded_bytes, write_and_unmap
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineKey
from webnn_py.engines.webgpu.runtime.submit_chunks import max_chunk_dispatches
from webnn_py.engines.webgpu.runtime.webgpu_api import Dispatch, DispatchCommands
from webnn_py.ir import Value

LATER_CHUNKS = 2
"""Size of later chunks, in those of the first ones: an H100 rests up to 50 µs between two."""


class ProgramCommands:
    """The commands of one run for fixed bindings of arguments.

    Args:
        sections: Dispatches, each with its number of repetitions.
    """

    def __init__(self, sections: Sequence[tuple[DispatchCommands, int]]) -> None:
        self._sections = sections

    def encode(self, compute: Any) -> None:
        """Record the commands into an open compute pass."""
        for commands, repeat in self._sections:
            commands.encode(compute, repeat)

    @functools.cached_property
    def pieces(self) -> Sequence[Sequence[ProgramCommands]]:
        """Return the commands in chunks, so that the device runs one while the next is recorded."""
        count = sum(len(commands) * repeat for commands, repeat in self._sections)
        first = max_chunk_dispatches(count)
        pieces: list[Sequence[ProgramCommands]] = []
        for commands, repeat in self._sections:
            while repeat:
                each = first * (LATER_CHUNKS if len(pieces) >= LATER_CHUNKS else 1)
                repeats = min(max(each // len(commands), 1), repeat)
                pieces.append([ProgramCommands([(commands, repeats)])])
                repeat -= repeats
        return pieces


class LoadedProgram:
    """The variant of a program that fits a device, ready to run.

    Args:
        gpu: The device.
        plan: The program.

    Attributes:
        variant: The chosen variant.
        arguments: A value for each argument of a run.

    Raises:
        NotSupportedError: The device lacks a requirement of every variant.
        OperationError: The device refused a kernel, or has no memory left.
    """

    def __init__(self, gpu: Device, plan: Plan) -> None:
        self.gpu = gpu
        self.plan = plan
        self.variant = choose_variant(plan, gpu.offer)
        self.arguments = tuple(Value(a.data_type, a.shape, a.name) for a in plan.arguments)
        self._commands: PlaceCache[ProgramCommands] = PlaceCache()
        self._io: dict[Value, Binding] = {}
        self._lock = threading.Lock()
        self._shared = False
        used = {step.kernel: plan.kernels[step.kernel] for step in self.variant.steps}
        self._buffers: list[Any] = []
        pipelines = gpu.pipelines.get_all(
            ((k.name, PipelineKey.of_program(k, plan.shaders)) for k in used.values()),
            self._make_buffers,
        )
        self._pipelines = dict(zip(used, pipelines, strict=True))
        self._fixed = {
            number: self._bind_group(step, {})
            for number, step in checkpoints(enumerate(self.variant.steps))
            if all(place.kind == "buffer" for place in step.places)
        }

    def release(self) -> None:
        """Drop the device's memory."""
        self._commands, self._pipelines, self._fixed = PlaceCache(), {}, {}
        self._io, self._buffers = {}, []

    def _make_buffers(self) -> None:
        self._buffers += [self._buffer(buffer) for buffer in checkpoints(self.variant.buffers)]

    def _buffer(self, planned: BufferPlan) -> Any:
        usage = STORAGE | COPIES if planned.usage == "storage" else wgpu.BufferUsage.UNIFORM
        contents = planned.contents
        if not contents:
            return self.gpu.buffer(planned.size, usage, "of a program")
        with device_errors(f"uploading to a buffer of {planned.size} bytes"), self.gpu.life:
            buffer = self.gpu.buffer(planned.size, usage, "of a program", mapped=True)
            arrays = [self.plan.tensors[part.tensor] for part in contents]
            parts = (padded_bytes(data, -(-data.nbytes // 4) * 4) for data in arrays)
            starts = (part.offset for part in contents)
            write_and_unmap(self.gpu, buffer, zip(starts, parts, strict=True))
        return buffer

    def _bind_group(self, step: Step, places: Mapping[Value, Binding]) -> Any:
        kernel = self.plan.kernels[step.kernel]
        with device_errors(f"binding {kernel.name}"):
            return self.gpu.bind_places(
                self._pipelines[step.kernel].get_bind_group_layout(0),
                [self._bound(place, places) for place in step.places],
                [layout.binding for layout in kernel.bindings],
            )

    def _bound(self, place: Place, places: Mapping[Value, Binding]) -> Binding:
        if place.kind == "buffer":
            return Binding(self._buffers[place.index], place.offset, place.size)
        given = places[self.arguments[place.index]]
        return Binding(given.buffer, given.offset + place.offset, place.size)

    def dispatches(self, places: Mapping[Value, Binding]) -> list[Dispatch]:
        """Return the dispatch of each step for these bindings of arguments."""
        return [
            (
                self._pipelines[step.kernel],
                self._fixed.get(number) or self._bind_group(step, places),
                (),
                *step.workgroups,
                step.times,
            )
            for number, step in checkpoints(enumerate(self.variant.steps))
        ]

    def _commands_for(self, places: Mapping[Value, Binding]) -> ProgramCommands:
        """Make the commands of a run for these bindings of arguments."""
        dispatches = self.dispatches(places)
        commands = self.gpu.webgpu.DispatchCommands
        return ProgramCommands(
            [
                (commands(dispatches[part.first : part.first + part.count]), part.repeat)
                for part in self.variant.sections
            ]
        )

    @property
    def in_pieces(self) -> bool:
        """Return whether runs may be submitted in chunks, under the device's `submit_lock`.

        Other recorded commands could otherwise use the buffers between two chunks. A software
        adapter computes on the cores that record, and gains nothing by chunks.
        """
        return self.gpu.hardware and not self._shared

    def commands(self, places: Mapping[Value, Binding]) -> ProgramCommands:
        """Return the commands of one run.

        Args:
            places: The binding of each argument.
        """
        return self._commands.get(places, self._commands_for)

    def encode(self, compute: Any, places: Mapping[Value, Binding], name: Hashable = None) -> None:
        """Record one run into an open compute pass, to be submitted at any time.

        Args:
            compute: A GPUComputePassEncoder.
            places: The binding of each argument.
            name: Ignored: no commands of a program are found by name.
        """
        with self.gpu.submit_lock:  # wait for the end of a run submitted in chunks
            self._shared = True
        self._commands.get(places, self._commands_for).encode(compute)

    def argument(self, value: Value) -> Argument:
        """Return the program's description of an argument."""
        return self.plan.arguments[self.arguments.index(value)]

    def io_buffer(self, value: Value) -> Binding:
        """Return the program's own buffer for an argument. The queue orders its users."""
        with self._lock:
            if value not in self._io:
                size = self.argument(value).size
                self._io[value] = Binding(self.gpu.buffer(size, STORAGE | COPIES, "io"), 0, size)
            return self._io[value]
