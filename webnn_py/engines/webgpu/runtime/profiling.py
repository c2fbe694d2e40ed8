"""Profiles of graphs and programs: the time of each kernel, by the device's clock if it has one."""

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
from webnn_py.ir import Node, Value
from webnn_py.ops.flops import flops

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled

MAX_PASSES_PER_QUERY_SET = 2048
"""Passes whose timestamps one query set can hold on every device."""
MIN_KERNELS_SHARE = 0.25
"""Smallest plausible ratio of the kernels' total time to the whole run's, on a software device.

lavapipe writes the timestamps of a queue that has rendered before it computes.
"""
MAX_CLOCK_TRIES = 4
"""Implausible measurements before the host's clock replaces the device's; a busy machine may cause
some."""


def profile(loaded: LoadedGraph, inputs: Sequence[Any]) -> RunTime:
    """Run a graph twice: kernel by kernel, and as a whole.

    Args:
        loaded: The graph.
        inputs: A Binding, a resource of the device or an array for each input.

    Raises:
        DataError: An input does not fit.
        OperationError: The device failed.
    """
    gpu = loaded.gpu
    outputs = [None] * len(loaded.graph.outputs)
    run = bind_resources.place(loaded, inputs, outputs, bind_resources.fresh_buffers(loaded.gpu))
    with device_errors("profiling a graph"):
        _upload_inputs(gpu, run)
        dispatches = loaded.dispatches(run.places)
        apart = [gpu.webgpu.DispatchCommands([each]) for each in dispatches]
        seconds, whole, clock = _measure(gpu, apart, gpu.webgpu.DispatchCommands(dispatches))
    return RunTime(tuple(step for step, _ in steps_of(loaded.compiled, seconds)), whole, clock)


def profile_program(
    program: LoadedProgram, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> RunTime:
    """Run a program twice: step by step, and as a whole.

    Only the first repetition of a section is timed step by step.

    Args:
        program: The program.
        inputs: Initial contents of arguments by name.
        outputs: Targets of written arguments by name.

    Raises:
        DataError: An argument does not fit.
        OperationError: The device failed.
    """
    gpu, plan, variant = program.gpu, program.plan, program.variant
    run = place_arguments(program, inputs, outputs, program.io_buffer)
    with device_errors("profiling a program"):
        _upload_inputs(gpu, run)
        dispatches = program.dispatches(run.places)
        apart: list[Encodable] = []
        steps: list[tuple[int, Step, int]] = []
        for part in variant.sections:
            section = slice(part.first, part.first + part.count)
            for step, dispatch in zip(variant.steps[section], dispatches[section], strict=True):
                steps.append((len(apart), step, part.repeat))
                apart.append(gpu.webgpu.DispatchCommands([dispatch]))
            if part.repeat > 1:
                again = gpu.webgpu.DispatchCommands(dispatches[section])
                apart.append(ProgramCommands([(again, part.repeat - 1)]))
        seconds, whole, clock = _measure(gpu, apart, program.commands(run.places))
    times = []
    for index, step, repeat in steps:
        moved = sum(place.size for place in step.places) * step.times * repeat
        name = plan.kernels[step.kernel].name
        times.append(StepTime(name, (), seconds[index] * repeat, 0, moved))
    return RunTime(tuple(times), whole, clock)


def _upload_inputs(gpu: Device, run: bind_resources.BoundRun) -> None:
    """Upload and convert the inputs of a run."""
    encoder = gpu.encoder("inputs")
    for record in run.before:
        record(encoder)
    with gpu.submit_lock:
        for buffer, contents in run.uploads:
            gpu.queue.write_buffer(buffer, 0, contents)
        gpu.queue.submit([encoder.finish()])


def _measure(
    gpu: Device, apart: Sequence[Encodable], whole: Encodable
) -> tuple[list[float], float, str]:
    """Return the seconds of each part, the seconds of the whole, and the clock's name."""
    for clock in (*[clock_of(gpu)] * MAX_CLOCK_TRIES, HostClock(gpu)):
        *seconds, together = clock.measure([*apart, whole])
        if gpu.hardware or sum(seconds) >= MIN_KERNELS_SHARE * together:
            break
    return seconds, together, clock.name


def steps_of(compiled: Compiled, seconds: Sequence[float]) -> list[tuple[StepTime, int]]:
    """Join consecutive kernels of the same root values to steps; return each with its kernel count.

    The arithmetic of a root counts once, at its first kernel: a split-K product has several.

    Args:
        compiled: The graph.
        seconds: The seconds of each kernel.
    """
    nodes_of = compiled.nodes_of_roots()
    counted: set[Value] = set()
    parts = itertools.groupby(
        zip(compiled.kernels, compiled.nodes(), seconds, strict=True),
        key=lambda part: part[0].roots,
    )
    steps = []
    for roots, part in parts:
        kernels, (nodes, *_), times = zip(*part, strict=True)
        names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
        found = step_of(names, nodes, sum(times), lambda node: 0)
        own = {node for root in roots if root not in counted for node in nodes_of[root]}
        counted.update(roots)
        steps.append((replace(found, flop=sum(map(flops_of, own))), len(kernels)))
    return steps


def flops_of(node: Node) -> int:
    """Return `flops` of a node, or of an operator that only this engine has.

    Those are attention, products of integers and of packed weights, and a recurrence's steps.
    """
    from webnn_py.engines.webgpu.compiler.legalize.attention import ATTENTION, flops_of_attention
    from webnn_py.engines.webgpu.compiler.legalize.integer_products import (
        CODES_CONVOLUTION,
        CODES_PRODUCT,
        flops_of_codes,
    )
    from webnn_py.engines.webgpu.compiler.legalize.packed_products import (
        PACKED_PRODUCT,
        flops_of_packed,
    )
    from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS
    from webnn_py.engines.webgpu.compiler.legalize.split_products import (
        SPLIT_CONVOLUTION,
        SPLIT_PRODUCT,
        flops_of_split,
    )

    if node.op == ATTENTION:
        return flops_of_attention(node)
    if node.op in (CODES_PRODUCT, CODES_CONVOLUTION):
        return flops_of_codes(node)
    if node.op == PACKED_PRODUCT:
        return flops_of_packed(node)
    if node.op in (SPLIT_PRODUCT, SPLIT_CONVOLUTION):
        return flops_of_split(node)
    if node.op != STEPS:
        return flops(node)
    projected, weight = node.inputs[:2]
    assert projected is not None
    assert weight is not None
    return 2 * projected.shape[1] * weight.size


def has_clock(gpu: Device) -> bool:
    """Return whether the device supports timestamps."""
    return gpu.webgpu.has_clock(gpu.handle)


def clock_of(gpu: Device) -> DeviceClock | HostClock:
    """Return the device's own clock, or the host's if it has none."""
    return DeviceClock(gpu) if has_clock(gpu) else HostClock(gpu)


class TimedPasses:
    """Commands recorded in a compute pass each, between two timestamps.

    Args:
        gpu: A device with timestamps.
        encoder: A GPUCommandEncoder without an open pass.
        commands: At most MAX_PASSES_PER_QUERY_SET commands.
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
        """Wait for the submitted commands and return the seconds of each pass.

        Raises:
            ContextLostError: The device was lost meanwhile.
        """
        self._gpu.staging.read([(self._copy, self._ticks)], Cancellation())
        ticks = np.maximum(self._ticks[1::2] - self._ticks[::2], 0)
        period = self._gpu.webgpu.timestamp_period(self._gpu.queue)
        seconds: list[float] = (ticks * period * 1e-9).tolist()
        return seconds


class DeviceClock:
    """Measures by timestamps of the device before and after each pass.

    Args:
        gpu: A device with timestamps.
    """

    name = "gpu"

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu

    def measure(self, commands: Sequence[Encodable]) -> list[float]:
        """Return the seconds of each of the commands."""
        seconds: list[float] = []
        for first in range(0, len(commands), MAX_PASSES_PER_QUERY_SET):
            encoder = self._gpu.encoder("profile")
            part = commands[first : first + MAX_PASSES_PER_QUERY_SET]
            passes = TimedPasses(self._gpu, encoder, part)
            with self._gpu.submit_lock:
                self._gpu.queue.submit([encoder.finish()])
            seconds += passes.read()
        return seconds


class HostClock:
    """Measures by the host's clock: submits each pass alone and waits for it.

    Args:
        gpu: The device.
    """

    name = "host"

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu

    def measure(self, commands: Sequence[Encodable]) -> list[float]:
        """Return the seconds of each of the commands, less those of an empty submission."""
        nothing = self._gpu.webgpu.DispatchCommands([])
        idle = statistics.median(timed(lambda: self._run(nothing)) for _ in range(9))
        total = [timed(functools.partial(self._run, each)) for each in commands]
        return [max(seconds - idle, 0.0) for seconds in total]

    def _run(self, commands: Encodable) -> None:
        gpu = self._gpu
        encoder = gpu.encoder("profile")
        record_pass(encoder, commands)
        fence = gpu.staging.fence(encoder)
        with gpu.submit_lock:
            gpu.queue.submit([encoder.finish()])
        gpu.staging.wait(fence)
