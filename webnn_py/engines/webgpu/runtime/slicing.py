"""A run in slices: as many kernels at a time as fit into a budget of GPU time."""

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
from webnn_py.engines.webgpu.runtime.profiling import MOST_PASSES, Stamped, has_clock, steps_of
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import OBSERVING
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import DispatchCommands

SLOW = {True: (1e12, 1e11), False: (5e9, 2e9)}
"""Operations and bytes a second of slow devices, by whether they are hardware."""
LAUNCH = 5e-6
"""Seconds that a dispatch of nothing takes."""
SMOOTHING = 0.25
"""How much the latest slice counts in the ratio of what slices took to what was expected."""
TRUSTED = (0.05, 20.0)
"""A slice that took more or less than so many times what was expected says nothing.

Nor does a dispatch that took less than is expected of a slow device, if that is software: lavapipe
writes the timestamps of a queue that has rendered when it likes to.
"""

MOST_UNREAD = 64
"""Slices whose timestamps are kept until they are submitted, which some never are."""

Part = tuple[int, int]
"""The number of a dispatch, and how many times it is made."""
Commands = Callable[[Sequence[Part]], DispatchCommands]


@dataclass(slots=True, eq=False)
class _Measurement:
    """Timestamps of a slice that are not read yet.

    Attributes:
        uses: Of the commands that leave them.
        stamps: Theirs.
        parts: What was recorded.
        each: Each part is stamped, not only their whole.
    """

    uses: Uses
    stamps: Stamped
    parts: Sequence[Part]
    each: bool


class Costs:
    """What each dispatch of a graph takes: guessed at first, then measured.

    Args:
        loaded: The graph.
    """

    def __init__(self, loaded: LoadedGraph) -> None:
        self._gpu = loaded.gpu
        self._seconds = _guessed(loaded)
        self._measured = [False] * len(self._seconds)
        self._unread: list[_Measurement] = []
        self._lock = threading.Lock()

    def of(self, number: int) -> float:
        """The seconds that a dispatch takes once."""
        return self._seconds[number]

    def known(self, parts: Sequence[Part]) -> bool:
        """Whether all of these were measured."""
        return all(self._measured[number] for number, _ in parts)

    def learn(self, parts: Sequence[Part], seconds: Sequence[float]) -> None:
        """Take in what each of some dispatches took."""
        with self._lock:
            for (number, times), taken in zip(parts, seconds, strict=True):
                least = 0.0 if self._gpu.hardware else TRUSTED[0] * self._seconds[number]
                if taken / times >= least:
                    self._seconds[number] = taken / times
                self._measured[number] = True

    def correct(self, parts: Sequence[Part], seconds: float) -> None:
        """Take in what some took in all: clocks and neighbours change."""
        with self._lock:
            expected = sum(times * self._seconds[number] for number, times in parts)
            lowest, highest = TRUSTED
            if lowest * expected < seconds < highest * expected:
                factor = 1 + SMOOTHING * (seconds / expected - 1)
                for number, _ in parts:
                    self._seconds[number] *= factor

    def record(self, encoder: Any, uses: Uses, parts: Sequence[Part], each: Commands) -> None:
        """Record dispatches, with timestamps where the device leaves them.

        Args:
            encoder: A GPUCommandEncoder with no open pass.
            uses: What its commands use.
            parts: What is recorded.
            each: Gives the commands of some parts.
        """
        whole = each(parts)
        if not (has_clock(self._gpu) and OBSERVING.is_available):
            record_pass(encoder, whole)
            return
        apart = not self.known(parts)
        commands = [each([part]) for part in parts] if apart else [whole]
        stamps = Stamped(self._gpu, encoder, commands)
        with self._lock:
            self._unread.append(_Measurement(uses, stamps, parts, apart))
            del self._unread[:-MOST_UNREAD]

    def read(self) -> None:
        """Have timestamps read whose commands were submitted; the reading thread waits for them."""
        with self._lock:
            ready = [measured for measured in self._unread if measured.uses.submitted]
            self._unread = [measured for measured in self._unread if measured not in ready]
        for measured in ready:
            take_in = functools.partial(self._take_in, measured)
            self._gpu.reader.submit(take_in, lambda error: None)

    def _take_in(self, measured: _Measurement) -> None:
        try:
            seconds = measured.stamps.read()
        except MLError:  # the device is lost; who runs something is told
            return
        if measured.each:
            self.learn(measured.parts, seconds)
        else:
            self.correct(measured.parts, seconds[0])


def _guessed(loaded: LoadedGraph) -> list[float]:
    """By arithmetic and bytes, for a slow device of its kind."""
    flops, bandwidth = SLOW[loaded.gpu.hardware]
    kernels = loaded.compiled.kernels
    found: list[float] = []
    for step, count in steps_of(loaded.compiled, [0.0] * len(kernels)):
        dispatches = sum(kernel.times for kernel in kernels[len(found) : len(found) + count])
        whole = max(step.flop / flops, step.bytes / bandwidth)
        found += [whole / dispatches + LAUNCH] * count
    return found


class SlicedGraphRun(SlicedRun):
    """One run of a graph in slices, over buffers that no other run uses meanwhile.

    Inputs are copied into them by the first slice, outputs out of them by the last.

    Attributes:
        placed: What is to be recorded before the first slice and after the last.
    """

    def __init__(self, loaded: LoadedGraph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        apart = loaded.take_apart()
        self._graphs: tuple[LoadedGraph, LoadedGraph] | None = loaded, apart
        placed = bind_resources.place_apart(apart, inputs, outputs, apart.io_buffer)
        placed.uploads = [(buffer, contents.copy()) for buffer, contents in placed.uploads]
        self.placed = placed
        self._dispatches = apart.dispatches(placed.places)
        self._whole = sum(times for *_, times in self._dispatches)
        self._done = 0
        self._at = (0, 0)  # the next dispatch, and how many times it was made

    @property
    def begun(self) -> bool:
        """Whether a slice was recorded."""
        return self._done > 0

    @property
    def progress(self) -> float:
        """The share of the dispatches that was recorded."""
        return self._done / self._whole

    def encode(self, encoder: Any, uses: Uses, seconds: float) -> bool:
        """Record the next slice, at least one dispatch.

        Args:
            encoder: A GPUCommandEncoder with no open pass.
            uses: What its commands use.
            seconds: Of GPU time that it may take.

        Returns:
            Whether it is the last one.
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
        """The last slice is recorded: once it is submitted, the next run may use the buffers.

        Args:
            uses: What its commands use.
        """
        if self._graphs is not None:
            loaded, apart = self._graphs
            uses.call_when_submitted(functools.partial(loaded.give_back, apart))

    def let_go(self) -> None:
        """Give its memory back, however much of it was recorded."""
        self._graphs, self.placed, self._dispatches = None, bind_resources.Dispatch(), []

    def _commands(self, parts: Sequence[Part]) -> DispatchCommands:
        return DispatchCommands([(*self._dispatches[n][:-1], times) for n, times in parts])

    def _within(self, costs: Costs, seconds: float) -> list[Part]:
        """The next dispatches that fit into a budget."""
        number, made = self._at
        parts: list[Part] = []
        expected = 0.0
        while number < len(self._dispatches) and len(parts) < MOST_PASSES:
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
