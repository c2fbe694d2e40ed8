"""Sliced runs: record as many dispatches at a time as fit into a budget of GPU time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from webnn_py.core.errors import ContextLostError, MLError
from webnn_py.engines.device import SlicedRun
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph, record_pass
from webnn_py.engines.webgpu.runtime.devices.command_tracking import Uses
from webnn_py.engines.webgpu.runtime.profiling import (
    MAX_PASSES_PER_QUERY_SET,
    TimedPasses,
    has_clock,
    steps_of,
)
from webnn_py.engines.webgpu.runtime.webgpu_api import DispatchCommands

SLOW_DEVICE_RATES = {True: (1e12, 1e11), False: (5e9, 2e9)}
"""FLOP/s and bytes/s of a slow device, for hardware (True) and software."""
EMPTY_DISPATCH_SECONDS = 5e-6
SMOOTHING = 0.25
"""Weight of the latest slice in the moving average of measured to expected time."""
PLAUSIBLE_RATIOS = (0.05, 20.0)
"""Range of measured to expected time outside which a measurement is ignored.

On software the lower bound holds for single dispatches, too: lavapipe writes the timestamps of a
queue that has rendered at arbitrary times.
"""

MAX_UNREAD_MEASUREMENTS = 64
"""Measurements kept until their slices are submitted; some slices never are."""

Part = tuple[int, int]
"""The number of a dispatch, and its repetitions."""
Commands = Callable[[Sequence[Part]], DispatchCommands]


@dataclass(slots=True, eq=False)
class _Measurement:
    """Unread timestamps of a slice.

    Attributes:
        uses: The Uses of the commands that write them.
        passes: The timed passes.
        parts: The recorded dispatches.
        each: Whether each part has timestamps, not only the whole slice.
    """

    uses: Uses
    passes: TimedPasses
    parts: Sequence[Part]
    each: bool


class Costs:
    """The cost of each dispatch of a graph: estimated at first, then measured.

    Args:
        loaded: The graph.
    """

    def __init__(self, loaded: LoadedGraph) -> None:
        self._gpu = loaded.gpu
        self._seconds = _estimates(loaded)
        self._measured = [False] * len(self._seconds)
        self._unread: list[_Measurement] = []
        self._lock = threading.Lock()

    def of(self, number: int) -> float:
        """Return the seconds of one dispatch, without repetitions."""
        return self._seconds[number]

    def is_measured(self, parts: Sequence[Part]) -> bool:
        """Return whether all these dispatches were measured."""
        return all(self._measured[number] for number, _ in parts)

    def learn(self, parts: Sequence[Part], seconds: Sequence[float]) -> None:
        """Learn the measured seconds of each dispatch."""
        with self._lock:
            for (number, times), taken in zip(parts, seconds, strict=True):
                lowest = PLAUSIBLE_RATIOS[0] * self._seconds[number]
                if self._gpu.hardware or taken / times >= lowest:
                    self._seconds[number] = taken / times
                self._measured[number] = True

    def correct(self, parts: Sequence[Part], seconds: float) -> None:
        """Scale the costs of dispatches by their total seconds, as the clock and load change."""
        with self._lock:
            expected = sum(times * self._seconds[number] for number, times in parts)
            lowest, highest = PLAUSIBLE_RATIOS
            if lowest * expected < seconds < highest * expected:
                factor = 1 + SMOOTHING * (seconds / expected - 1)
                for number, _ in parts:
                    self._seconds[number] *= factor

    def record(self, encoder: Any, uses: Uses, parts: Sequence[Part], each: Commands) -> None:
        """Record dispatches, with timestamps if the device supports them.

        Args:
            encoder: A GPUCommandEncoder without an open pass.
            uses: The Uses of its commands.
            parts: The dispatches.
            each: Returns the commands of dispatches.
        """
        whole = each(parts)
        if not (has_clock(self._gpu) and self._gpu.webgpu.OBSERVING.is_available):
            record_pass(encoder, whole)
            return
        apart = not self.is_measured(parts)
        commands = [each([part]) for part in parts] if apart else [whole]
        passes = TimedPasses(self._gpu, encoder, commands)
        with self._lock:
            self._unread.append(_Measurement(uses, passes, parts, apart))
            del self._unread[:-MAX_UNREAD_MEASUREMENTS]

    def read(self) -> None:
        """Read the timestamps of submitted slices on the reader thread."""
        with self._lock:
            ready = [measured for measured in self._unread if measured.uses.submitted]
            self._unread = [measured for measured in self._unread if measured not in ready]
        for measured in ready:
            take_in = functools.partial(self._take_in, measured)
            self._gpu.reader.submit(take_in, lambda error: None)

    def _take_in(self, measured: _Measurement) -> None:
        try:
            seconds = measured.passes.read()
        except MLError:  # the device is lost, which the next run reports
            return
        if measured.each:
            self.learn(measured.parts, seconds)
        else:
            self.correct(measured.parts, seconds[0])


def _estimates(loaded: LoadedGraph) -> list[float]:
    """Estimate the seconds of each dispatch by FLOP and bytes, for a slow device of its kind."""
    flops, bandwidth = SLOW_DEVICE_RATES[loaded.gpu.hardware]
    kernels = loaded.compiled.kernels
    seconds: list[float] = []
    for step, count in steps_of(loaded.compiled, [0.0] * len(kernels)):
        dispatches = sum(kernel.times for kernel in kernels[len(seconds) : len(seconds) + count])
        whole = max(step.flop / flops, step.bytes / bandwidth)
        seconds += [whole / dispatches + EMPTY_DISPATCH_SECONDS] * count
    return seconds


class SlicedGraphRun(SlicedRun):
    """One run of a graph in slices, over buffers that no other run uses meanwhile.

    The first slice copies inputs into the buffers, the last one copies outputs out of them.

    Args:
        loaded: The graph on the device.
        inputs: As of `bind_resources.place`.
        outputs: As of `bind_resources.place`.

    Attributes:
        placed: The bindings, and the commands before the first slice and after the last.
    """

    def __init__(self, loaded: LoadedGraph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        twin = loaded.borrow_twin()
        self._webgpu = loaded.gpu.webgpu
        self._graphs: tuple[LoadedGraph, LoadedGraph] | None = loaded, twin
        placed = bind_resources.place_in_own_buffers(twin, inputs, outputs, twin.io_buffer)
        placed.uploads = [(buffer, contents.copy()) for buffer, contents in placed.uploads]
        self.placed = placed
        self._dispatches = twin.dispatches(placed.places)
        self._whole = sum(times for *_, times in self._dispatches)
        self._done = 0
        self._at = (0, 0)  # the next dispatch, and its repetitions recorded so far

    @property
    def begun(self) -> bool:
        """Return whether a slice was recorded."""
        return self._done > 0

    @property
    def progress(self) -> float:
        """Return the share of recorded dispatches, from 0 to 1."""
        return self._done / self._whole

    def encode(self, encoder: Any, uses: Uses, seconds: float) -> bool:
        """Record the next slice, at least one dispatch.

        Args:
            encoder: A GPUCommandEncoder without an open pass.
            uses: The Uses of its commands.
            seconds: The budget of GPU time.

        Returns:
            Whether this is the last slice.
        """
        if self._graphs is None:
            raise ContextLostError("the context of the run in slices is lost")
        costs = self._graphs[0].costs(Costs)
        costs.read()
        parts = self._within(costs, seconds)
        costs.record(encoder, uses, parts, self._commands)
        self._advance(parts)
        return self._done == self._whole

    def finish(self, uses: Uses) -> None:
        """Release the buffers for the next run when the last slice is submitted.

        Args:
            uses: The Uses of the last slice's commands.
        """
        if self._graphs is not None:
            loaded, twin = self._graphs
            uses.call_when_submitted(functools.partial(loaded.return_twin, twin))

    def release(self) -> None:
        """Drop the buffers, in whatever state the run is."""
        self._graphs, self.placed, self._dispatches = None, bind_resources.BoundRun(), []

    def _commands(self, parts: Sequence[Part]) -> DispatchCommands:
        dispatches = [(*self._dispatches[n][:-1], times) for n, times in parts]
        return self._webgpu.DispatchCommands(dispatches)

    def _within(self, costs: Costs, seconds: float) -> list[Part]:
        """Return the next dispatches that fit into a budget of seconds, at least one."""
        number, made = self._at
        parts: list[Part] = []
        expected = 0.0
        while number < len(self._dispatches) and len(parts) < MAX_PASSES_PER_QUERY_SET:
            each = costs.of(number)
            left = self._dispatches[number][-1] - made
            fitting = left if each <= 0 else int(min(left, (seconds - expected) / each))
            times = min(left, fitting if parts else max(fitting, 1))
            if times <= 0:
                break
            parts.append((number, times))
            expected += times * each
            if times < left:
                break
            number, made = number + 1, 0
        return parts

    def _advance(self, parts: Sequence[Part]) -> None:
        for number, times in parts:
            made = times + (self._at[1] if number == self._at[0] else 0)
            whole = made == self._dispatches[number][-1]
            self._at = (number + 1, 0) if whole else (number, made)
            self._done += times
