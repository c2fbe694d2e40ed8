"""The commands of awaited runs, recorded before they are asked for.

While the device works on one run of a graph, a thread records the next one. Whoever awaits the
graph again then waits for no recording, which takes about as long as small models take the device.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from webnn_py.core.completion import Completion
from webnn_py.core.errors import MLError
from webnn_py.core.workers import Workers
from webnn_py.engines.webgpu.runtime.bind_resources import BoundRun
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.poll_backoff import LatencyEstimate
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.engines.webgpu.runtime.webgpu_h.encoding import CommandBuffer
from webnn_py.ir import Array, Value

MAX_PIECES_AHEAD = 8
"""Pieces of a run that are recorded before it is asked for. Of longer runs only the first is: the
device works on it while the others are recorded, and one command buffer of all begins late."""


class Commands(Protocol):
    """The commands of a run whose bindings are known."""

    @property
    def pieces(self) -> Sequence[Sequence[Encodable]]:
        """Return the steps of each command buffer's piece."""


class Source(Protocol):
    """A graph or program on a device."""

    @property
    def gpu(self) -> Device:
        """Return the device."""

    @property
    def in_pieces(self) -> bool:
        """Whether a piece may be submitted before the next one is recorded."""

    def commands(self, places: Mapping[Value, Binding], /) -> Commands:
        """Return the commands of a run for these bindings."""


class RecordingTime(Protocol):
    """Says how long the next run may be recorded."""

    def allows(self, seconds: float) -> bool:
        """Return whether there is time to finish commands in so many seconds; 0 for a step."""


class TimeBeforeEnd:
    """The time until the end of a run, which must be noticed in time.

    Args:
        until: When steps begin no more; seconds.
        finished_by: When the next run's command buffer must be finished; seconds.
        goes_on: Whether steps may begin all the same, as the run goes on.
    """

    __slots__ = ("_finished_by", "_goes_on", "_until")

    def __init__(
        self, until: float, finished_by: float, goes_on: Callable[[], bool] = lambda: False
    ) -> None:
        self._until, self._finished_by, self._goes_on = until, finished_by, goes_on

    def allows(self, seconds: float) -> bool:
        """Return whether there is time to finish commands in so many seconds; 0 for a step."""
        now = time.monotonic()
        if seconds:
            return now < self._until and now + seconds < self._finished_by
        return now < self._until or self._goes_on()


class TimeWhileIdle:
    """The time until another run begins.

    Args:
        gpu: The device.
    """

    __slots__ = ("_in_flight",)

    def __init__(self, gpu: Device) -> None:
        self._in_flight = gpu.in_flight

    def allows(self, seconds: float) -> bool:
        """Return whether no run is in flight."""
        return self._in_flight.under_way == 0


class RunCommands:
    """The commands of one run, recorded step by step and submitted once.

    Args:
        gpu: The device.
        run: What is recorded before and after the steps, and the results to read back.
        pieces: The steps, in pieces that are submitted one by one if need be.
        inputs: Buffers that `upload` writes before the submission, each with its bytes.

    Attributes:
        results: Buffers that the host can read after the run, each with its output's number.
        fence: What to wait for if there are no results.
        begun_at: When the first piece was submitted; seconds.
        later_steps: Steps that are not recorded before the run is submitted.
    """

    def __init__(
        self,
        gpu: Device,
        run: BoundRun,
        pieces: Sequence[Sequence[Encodable]],
        inputs: Sequence[tuple[Any, int]] = (),
    ) -> None:
        self._gpu = gpu
        self._before, self._after = run.before, run.after
        self._downloads = run.downloads
        self._command_buffer: Any = None
        self._finishing: Completion[Any] | None = None  # the command buffer, by another thread
        self._steps: deque[Encodable | None] = deque()  # None ends a piece
        for piece in pieces:
            self._steps += piece
            self._steps.append(None)
        is_long = len(pieces) > MAX_PIECES_AHEAD
        self.later_steps = self.steps_left - len(pieces[0]) if is_long else 0
        self._inputs = inputs
        self._sources: list[Any] = []
        self._large_sources: list[Any] = []
        self._encoder: Any = None
        self._pass: Any = None
        self._ends_piece = False  # the last recorded step
        # Else the device would begin when all of it is encoded.
        self._is_split = gpu.webgpu.ENCODES_ON_SUBMIT and not (run.before or run.after)
        self._finished_pieces: list[Any] = []  # command buffers before the last one
        self._submission = 0
        self.results: list[tuple[Any, int]] = []
        self.fence: Any = None
        self.begun_at = 0.0

    @property
    def is_recorded(self) -> bool:
        """Whether all of it is recorded, but for a command buffer that a thread finishes."""
        return self._command_buffer is not None or self._finishing is not None

    @property
    def steps_left(self) -> int:
        """Steps to record, the end of the command buffer among them."""
        return 0 if self.is_recorded else len(self._steps) + 1

    @property
    def has_begun(self) -> bool:
        """Whether any of it is recorded."""
        return self.is_recorded or self._pass is not None or bool(self._finished_pieces)

    @property
    def is_encoded(self) -> bool:
        """Whether only the end of the command buffer is left to record."""
        return not self._steps

    @property
    def is_finished_elsewhere(self) -> bool:
        """Whether a thread finishes the command buffer."""
        return self._finishing is not None

    @property
    def takes_inputs(self) -> bool:
        """Whether `upload` is to write its inputs."""
        return bool(self._sources)

    def upload(self, contents: Iterable[Array]) -> None:
        """Write the inputs of this run, which nobody else may change."""
        self._gpu.uploads.write(zip(self._sources, contents, strict=True))

    def record(self) -> None:
        """Record the next step, or finish the command buffer."""
        self._ends_piece = self._record_step()
        if self._ends_piece and self._steps and self._is_split:
            self._finished_pieces.append(self._finish())
            self._ends_piece = False

    def _record_step(self) -> bool:
        """Record the next step; return whether it ends a piece."""
        if self._pass is None:
            self._begin()
        steps = self._steps
        if not steps:
            self._command_buffer = self._finish()
            return True
        step = steps.popleft()
        if step is not None:
            step.encode(self._pass)
        if steps and steps[0] is None:
            steps.popleft()
            return True
        return step is None

    def finish_on(self, threads: Workers, latency: LatencyEstimate) -> None:
        """Finish the command buffer on one of `threads`, for which `submit` waits.

        Args:
            threads: They finish it.
            latency: Learns how long that takes.
        """
        self._finishing = self._finish_elsewhere(threads, latency.learn)

    def _finish_elsewhere(
        self, threads: Workers, learn: Callable[[float], None] = lambda seconds: None
    ) -> Completion[Any]:
        encoder, finishing = self._close(), Completion[Any]()

        def finish() -> None:
            begun = time.monotonic()
            commands = self._finish(encoder)
            learn(time.monotonic() - begun)
            finishing.set_result(commands)

        threads.submit(finish, finishing.set_exception)
        return finishing

    def submit(self, source: Source) -> None:
        """Record what is not recorded yet, and submit; piece by piece if `source` allows that."""
        if self._sources:
            self._gpu.uploads.end_writing(self._sources)
        if self._finishing is not None:
            self._command_buffer = self._finishing.wait()
        before, self._finished_pieces = self._finished_pieces, []
        if source.in_pieces:
            for commands in before:
                self._submit(commands)
            before = []
        finishing: deque[Completion[Any]] = deque()
        while self._command_buffer is None:
            ends_piece, self._ends_piece = self._ends_piece, False
            if (ends_piece or self._record_step()) and self._steps and source.in_pieces:
                if self.begun_at and self._gpu.hardware:  # it has work: record the next meanwhile
                    finishing.append(self._finish_elsewhere(self._gpu.recorder))
                    if len(finishing) > 1:
                        self._submit(finishing.popleft().wait())
                else:
                    self._submit(self._finish())
        for each in finishing:
            self._submit(each.wait())
        self._submit(self._command_buffer, before)
        self._submission = self._gpu.life.submissions

    def submit_upload(self, sources: Sequence[Any], inputs: Sequence[tuple[Any, int]]) -> None:
        """Submit copies of large inputs, before the rest.

        Args:
            sources: The buffers that `Uploads.write` wrote.
            inputs: Buffers to copy them into, each with its bytes.
        """
        gpu = self._gpu
        gpu.uploads.end_writing(sources)
        encoder = gpu.plain_encoder("large inputs")
        gpu.uploads.copy(encoder, zip(sources, inputs, strict=True))
        gpu.submit(encoder.finish())
        self._large_sources += sources

    def record_following(self) -> None:
        """Record what is known to follow; most runs have no known follower."""

    def release_uploads(self) -> None:
        """Let other runs have the buffers of its inputs: it has run."""
        self._gpu.life.end_submission(self._submission)
        sources = [*self._sources, *self._large_sources]
        if sources:
            self._gpu.uploads.give_back(sources)

    def _begin(self) -> None:
        """Begin a command buffer."""
        gpu = self._gpu
        make = gpu.encoder if self._before or self._after else gpu.plain_encoder
        encoder = self._encoder = make("MLAwaitedExecution")
        inputs, self._inputs = self._inputs, ()
        if inputs:
            self._sources += [gpu.uploads.take(size) for _, size in inputs]
            gpu.uploads.copy(encoder, zip(self._sources, inputs, strict=True))
        before, self._before = self._before, []  # may copy inputs
        for record in before:
            record(encoder)
        self._pass = encoder.begin_compute_pass()

    def _close(self) -> Any:
        """End the pass; after the last step, record the readback. Return the encoder."""
        gpu, encoder = self._gpu, self._encoder
        self._pass.end()
        self._encoder = self._pass = None
        if self._steps:
            return encoder
        for record in self._after:
            record(encoder)
        for number, place in self._downloads.items():
            self.results.append((gpu.staging.copy(encoder, place), number))
        self.fence = None if self.results else gpu.staging.fence(encoder)
        return encoder

    def _finish(self, encoder: Any = None) -> Any:
        """Finish the command buffer of an encoder, by default of the one to close."""
        commands = (encoder or self._close()).finish()
        if not isinstance(commands, CommandBuffer):  # one of the library's own
            self._gpu.webgpu.free_when_dropped(commands)
        return commands

    def _submit(self, commands: Any, before: Sequence[CommandBuffer] = ()) -> None:
        self._gpu.submit(commands, before)
        self.begun_at = self.begun_at or time.monotonic()


class RunPrerecorder:
    """Records runs of one graph that differ in their contents alone, before they are asked for.

    Of a device's graphs, the most recently used keep recorded runs.

    Args:
        source: The graph or program.

    Attributes:
        latency: Seconds of a run from its submission on.
        whole_latency: Seconds with the submission, in which software drivers may compute.
        ended_at: When the last run ended; seconds.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._gpu = gpu = source.gpu
        self._recorded: list[RunCommands] = []
        self._finish_latency = LatencyEstimate()
        self.latency = LatencyEstimate()
        self.whole_latency = LatencyEstimate(gpu.policy.max_counted_seconds)
        self.ended_at = -math.inf
        self._pieces: Sequence[Sequence[Encodable]] = ()

    def new_commands(self, run: BoundRun, inputs: Sequence[tuple[Any, int]]) -> RunCommands:
        """Return commands of which nothing is recorded; arguments as of `RunCommands`."""
        pieces = self._pieces = self._pieces or self._source.commands(run.places).pieces
        return RunCommands(self._gpu, run, pieces, inputs)

    @property
    def is_recorded(self) -> bool:
        """Whether the next run is."""
        first = self._recorded[:1]  # another thread may take it
        return bool(first) and first[0].is_recorded

    def take(self) -> RunCommands | None:
        """Return the commands of the next run, recorded or in part, for this caller alone."""
        try:
            return self._recorded.pop(0)
        except IndexError:
            return None

    def record(
        self,
        run: BoundRun,
        inputs: Sequence[tuple[Any, int]],
        time_left: RecordingTime,
        max_steps: int = sys.maxsize,
        threads: Workers | None = None,
    ) -> bool:
        """Record the next run, or the one behind it while a thread finishes the first.

        Errors are ignored: whoever reads the present run back, or needs the next one, gets them.

        Args:
            run: A run with the same bindings, such as the present one.
            inputs: As of `RunCommands`.
            time_left: The time for it.
            max_steps: Steps to record.
            threads: They finish the command buffer if there is no time for that.

        Returns:
            Whether there is more to record, and was time for it.
        """
        try:
            return self._record(run, inputs, time_left, max_steps, threads)
        except (MLError, self._gpu.webgpu.LIBRARY.GPUError, RuntimeError):
            return False

    def _record(
        self,
        run: BoundRun,
        inputs: Sequence[tuple[Any, int]],
        time_left: RecordingTime,
        max_steps: int,
        threads: Workers | None,
    ) -> bool:
        if not time_left.allows(0):
            return False
        commands = self._unfinished(run, inputs)
        if commands is None:
            return False
        has_time = True
        while max_steps and commands.steps_left > commands.later_steps:
            is_last = commands.is_encoded
            has_time = time_left.allows(self._finish_latency.seconds if is_last else 0)
            if not has_time:
                if is_last and threads is not None:
                    commands.finish_on(threads, self._finish_latency)
                break
            begun = time.monotonic()
            commands.record()
            if is_last:
                self._finish_latency.learn(time.monotonic() - begun)
            max_steps -= 1
        if commands.has_begun:
            self._keep(commands)
        has_more = commands.steps_left > commands.later_steps
        return commands.is_finished_elsewhere or (has_time and has_more)

    def record_whole(self, run: BoundRun) -> None:
        """Record all of the next run, unless that is done; see `record`."""
        with contextlib.suppress(MLError, self._gpu.webgpu.LIBRARY.GPUError, RuntimeError):
            commands = self._unfinished(run, ())
            if commands is not None:
                while commands.steps_left > commands.later_steps:
                    commands.record()
                self._keep(commands)

    def release(self) -> None:
        """Drop recorded runs: the next one is recorded when it is asked for."""
        self._recorded.clear()

    def _keep(self, commands: RunCommands) -> None:
        if len(self._recorded) < self._gpu.policy.max_prerecorded_runs:
            self._recorded.append(commands)
            self._gpu.recorded_ahead.use(self)

    def _unfinished(self, run: BoundRun, inputs: Sequence[tuple[Any, int]]) -> RunCommands | None:
        """Take commands to go on with, which nobody else has; None if enough are recorded."""
        latest = self._recorded[-1:]
        if latest and latest[0].is_recorded:
            has_room = len(self._recorded) < self._gpu.policy.max_prerecorded_runs
            more = has_room and latest[0].is_finished_elsewhere
            return self.new_commands(run, inputs) if more else None
        try:
            return self._recorded.pop()
        except IndexError:
            return self.new_commands(run, inputs)
