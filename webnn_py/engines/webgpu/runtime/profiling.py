"""What a graph's kernels take, by the device's clock where it has one."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu

from webnn_py.core.completion import Cancellation
from webnn_py.engines.profile import RunTime, StepTime, step_of, timed
from webnn_py.engines.webgpu.program.plan import Step
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph, record_pass
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.program import LoadedProgram, ProgramCommands
from webnn_py.engines.webgpu.runtime.program_arguments import place_arguments
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import DispatchCommands
from webnn_py.engines.webgpu.runtime.wgpu_native.native import timestamp_period
from webnn_py.ir import Node, Value
from webnn_py.ops.flops import flops

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled

MOST_PASSES = 2048
"""Passes whose timestamps one query set holds, on any device."""
LEAST = 0.25
"""Kernels one by one that took less of their whole were not timed, if the device is software.

lavapipe writes the timestamps of a queue that has rendered before it computes.
"""
TRIES = 4
"""Times in which that happens before it is no noise of a busy machine."""


def profile(loaded: LoadedGraph, inputs: Sequence[Any]) -> RunTime:
    """Run a graph, each kernel for itself, and then as a whole.

    Raises:
        DataError: What is given does not fit.
        OperationError: The device failed.
    """
    gpu = loaded.gpu
    outputs = [None] * len(loaded.graph.outputs)
    run = bind_resources.place(loaded, inputs, outputs, bind_resources.fresh_buffers(loaded.gpu))
    with device_errors("profiling a graph"):
        _give(gpu, run)
        dispatches = loaded.dispatches(run.places)
        apart = [DispatchCommands([each]) for each in dispatches]
        seconds, whole, clock = _measured(gpu, apart, DispatchCommands(dispatches))
    return RunTime(tuple(step for step, _ in steps_of(loaded.compiled, seconds)), whole, clock)


def profile_program(
    program: LoadedProgram, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> RunTime:
    """Run a program twice: each step for itself, but repetitions after the first, and as a whole.

    Args:
        program: What runs.
        inputs: What arguments hold at first, by name.
        outputs: Where those that are written lie.

    Raises:
        DataError: What is given does not fit.
        OperationError: The device failed.
    """
    gpu, plan, variant = program.gpu, program.plan, program.variant
    run = place_arguments(program, inputs, outputs, program.io_buffer)
    with device_errors("profiling a program"):
        _give(gpu, run)
        dispatches = program.dispatches(run.places)
        apart: list[Encodable] = []
        steps: list[tuple[int, Step, int]] = []
        for part in variant.sections:
            section = slice(part.first, part.first + part.count)
            for step, dispatch in zip(variant.steps[section], dispatches[section], strict=True):
                steps.append((len(apart), step, part.repeat))
                apart.append(DispatchCommands([dispatch]))
            if part.repeat > 1:
                again = DispatchCommands(dispatches[section])
                apart.append(ProgramCommands([(again, part.repeat - 1)]))
        seconds, whole, clock = _measured(gpu, apart, program.commands(run.places))
    times = []
    for place, step, repeat in steps:
        moved = sum(place.size for place in step.places) * step.times * repeat
        name = plan.kernels[step.kernel].name
        times.append(StepTime(name, (), seconds[place] * repeat, 0, moved))
    return RunTime(tuple(times), whole, clock)


def _give(gpu: Device, run: bind_resources.Dispatch) -> None:
    """Put inputs where they belong."""
    encoder = gpu.encoder("inputs")
    for record in run.before:
        record(encoder)
    with gpu.submit_lock:
        for buffer, contents in run.uploads:
            gpu.queue.write_buffer(buffer, 0, contents)
        gpu.queue.submit([encoder.finish()])


def _measured(
    gpu: Device, apart: Sequence[Encodable], whole: Encodable
) -> tuple[list[float], float, str]:
    """The seconds of steps and of all, and the clock."""
    for clock in (*[clock_of(gpu)] * TRIES, HostClock(gpu)):
        *seconds, together = clock.measure([*apart, whole])
        if gpu.hardware or sum(seconds) >= LEAST * together:
            break
    return seconds, together, clock.name


def steps_of(compiled: Compiled, seconds: Sequence[float]) -> list[tuple[StepTime, int]]:
    """A step for the kernels of the same roots, and how many these are.

    Arithmetic is told with the first kernel of a root: that of a product that is divided along k.

    Args:
        compiled: The graph.
        seconds: What each kernel took.
    """
    made = compiled.nodes_of_roots()
    told: set[Value] = set()
    parts = itertools.groupby(
        zip(compiled.kernels, compiled.nodes(), seconds, strict=True),
        key=lambda part: part[0].roots,
    )
    steps = []
    for roots, part in parts:
        kernels, (nodes, *_), times = zip(*part, strict=True)
        names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
        found = step_of(names, nodes, sum(times), lambda node: 0)
        own = {node for root in roots if root not in told for node in made[root]}
        told.update(roots)
        steps.append((replace(found, flop=sum(map(flops_of, own))), len(kernels)))
    return steps


def flops_of(node: Node) -> int:
    """As `flops`, also of what only this engine has: attention, all steps of a recurrence."""
    from webnn_py.engines.webgpu.compiler.legalize.attention import ATTENTION, flops_of_attention
    from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS

    if node.op == ATTENTION:
        return flops_of_attention(node)
    if node.op != STEPS:
        return flops(node)
    projected, weight = node.inputs[:2]
    assert projected is not None
    assert weight is not None
    return 2 * projected.shape[1] * weight.size


def has_clock(gpu: Device) -> bool:
    """Whether the device can leave timestamps."""
    return "timestamp-query" in gpu.handle.features


def clock_of(gpu: Device) -> DeviceClock | HostClock:
    """The device's own clock, else the host's."""
    return DeviceClock(gpu) if has_clock(gpu) else HostClock(gpu)


class Stamped:
    """Records each of some commands in a pass of its own, between two timestamps.

    Args:
        gpu: A device that has a clock.
        encoder: A GPUCommandEncoder with no open pass.
        commands: At most MOST_PASSES.
    """

    def __init__(self, gpu: Device, encoder: Any, commands: Sequence[Encodable]) -> None:
        count = 2 * len(commands)
        queries = gpu.handle.create_query_set(type="timestamp", count=count)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        stamps = gpu.buffer(8 * count, usage, "timestamps")
        for number, each in enumerate(commands):
            writes = {
                "query_set": queries,
                "beginning_of_pass_write_index": 2 * number,
                "end_of_pass_write_index": 2 * number + 1,
            }
            compute = encoder.begin_compute_pass(timestamp_writes=writes)
            each.encode(compute)
            compute.end()
        encoder.resolve_query_set(queries, 0, count, stamps, 0)
        self._copy = gpu.staging.copy(encoder, Binding(stamps, 0, 8 * count))
        self._gpu = gpu
        self._ticks = np.empty(count, np.int64)

    def read(self) -> list[float]:
        """The seconds that each pass took, once the commands have run, which are submitted.

        Raises:
            ContextLostError: The device was lost meanwhile.
        """
        self._gpu.staging.read([(self._copy, self._ticks)], Cancellation())
        ticks = np.maximum(self._ticks[1::2] - self._ticks[::2], 0)
        seconds: list[float] = (ticks * timestamp_period(self._gpu.queue) * 1e-9).tolist()
        return seconds


class DeviceClock:
    """Reads the device's clock before and after each pass."""

    name = "gpu"

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu

    def measure(self, commands: Sequence[Encodable]) -> list[float]:
        """The seconds that each takes."""
        found: list[float] = []
        for first in range(0, len(commands), MOST_PASSES):
            encoder = self._gpu.encoder("profile")
            stamped = Stamped(self._gpu, encoder, commands[first : first + MOST_PASSES])
            with self._gpu.submit_lock:
                self._gpu.queue.submit([encoder.finish()])
            found += stamped.read()
        return found


class HostClock:
    """Submits each pass alone and waits for it, for devices without timestamps."""

    name = "host"

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu

    def measure(self, commands: Sequence[Encodable]) -> list[float]:
        """The seconds that each takes, less those of a submission of nothing."""
        nothing = DispatchCommands([])
        idle = statistics.median(timed(lambda: self._run(nothing)) for _ in range(9))
        taken = [timed(functools.partial(self._run, each)) for each in commands]
        return [max(seconds - idle, 0.0) for seconds in taken]

    def _run(self, commands: Encodable) -> None:
        gpu = self._gpu
        encoder = gpu.encoder("profile")
        record_pass(encoder, commands)
        fence = gpu.staging.fence(encoder)
        with gpu.submit_lock:
            gpu.queue.submit([encoder.finish()])
        gpu.staging.wait(fence)
