"""The commands of awaited runs, recorded before they are asked for.

While the device works on one run of a graph, a thread records the next one. Whoever awaits the
graph again then waits for no recording, which takes about as long as small models take the device.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from webnn_py.core.completion import Completion
from webnn_py.core.workers import Workers
from webnn_py.engines.webgpu.runtime.bind_resources import BoundRun
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.poll_backoff import LatencyEstimate
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.ir import Array


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
    """

    def __init__(
        self,
        gpu: Device,
        run: BoundRun,
        pieces: Iterable[Sequence[Encodable]],
        inputs: Sequence[tuple[Any, int]] = (),
    ) -> None:
        self._gpu = gpu
        self._before, self._after = run.before, run.after
        self._downloads = run.downloads
        self._steps: deque[Encodable | None] = deque()  # None ends a piece
        for piece in pieces:
            self._steps += piece
            self._steps.append(None)
        self._inputs = inputs
        self._sources: list[Any] = []
        self._large_sources: list[Any] = []
        self._encoder: Any = None
        self._pass: Any = None
        self._command_buffer: Any = None
        self._finishing: Completion[Any] | None = None  # the command buffer, by another thread
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
        return self.is_recorded or self._pass is not None

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
        if self._pass is None:
            self._begin()
        if self._steps:
            self._encode()
        else:
            self._command_buffer = _finish(self._gpu, self._close())

    def finish_on(self, threads: Workers, latency: LatencyEstimate) -> None:
        """Finish the command buffer on one of `threads`, for which `submit` waits.

        Args:
            threads: They finish it.
            latency: Learns how long that takes.
        """
        encoder, finishing = self._close(), Completion[Any]()

        def finish() -> None:
            begun = time.monotonic()
            commands = _finish(self._gpu, encoder)
            latency.learn(time.monotonic() - begun)
            finishing.set_result(commands)

        threads.submit(finish, finishing.set_exception)
        self._finishing = finishing

    def submit(self, in_pieces: bool) -> None:
        """Record what is not recorded yet, and submit.

        Args:
            in_pieces: Submit each piece before the next one is recorded.
        """
        if self._sources:
            self._gpu.uploads.end_writing(self._sources)
        if self._finishing is not None:
            self._command_buffer = self._finishing.wait()
        while self._steps:
            if self._pass is None:
                self._begin()
            if self._encode() and self._steps and in_pieces:
                self._submit(_finish(self._gpu, self._close()))
        if self._command_buffer is None:
            self.record()
        self._submit(self._command_buffer)
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
        before, self._before = self._before, []
        for record in before:
            record(encoder)
        inputs, self._inputs = self._inputs, ()
        if inputs:
            self._sources += [gpu.uploads.take(size) for _, size in inputs]
            gpu.uploads.copy(encoder, zip(self._sources, inputs, strict=True))
        self._pass = encoder.begin_compute_pass()

    def _encode(self) -> bool:
        """Record the next step; return whether a piece ends with it."""
        step = self._steps.popleft()
        if step is not None:
            step.encode(self._pass)
        if self._steps and self._steps[0] is None:
            self._steps.popleft()
            return True
        return step is None

    def _close(self) -> Any:
        """End the pass and return the encoder; after the last step, record the readback."""
        gpu, encoder = self._gpu, self._encoder
        self._pass.end()
        self._encoder = self._pass = None
        if not self._steps:
            for record in self._after:
                record(encoder)
            self.results = [
                (gpu.staging.copy(encoder, place), number)
                for number, place in self._downloads.items()
            ]
            self.fence = None if self.results else gpu.staging.fence(encoder)
        return encoder

    def _submit(self, commands: Any) -> None:
        self._gpu.submit(commands)
        self.begun_at = self.begun_at or time.monotonic()


def _finish(gpu: Device, encoder: Any) -> Any:
    commands = encoder.finish()
    if not gpu.webgpu.is_own(commands):
        gpu.webgpu.free_when_dropped(commands)
    return commands


class RunPrerecorder:
    """Records runs of one graph that differ in their contents alone, before they are asked for.

    Args:
        gpu: The device, of whose graphs the most recently used keep recorded runs.

    Attributes:
        latency: Seconds of a run from its submission on.
        whole_latency: Seconds with the submission, in which software drivers may compute.
        ended_at: When the last run ended; seconds.
        pieces: The commands of a run, once they were asked for.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._recorded: list[RunCommands] = []
        self._finish_latency = LatencyEstimate()
        self.latency = LatencyEstimate()
        self.whole_latency = LatencyEstimate(gpu.policy.max_counted_seconds)
        self.ended_at = -math.inf
        self.pieces: Sequence[Sequence[Encodable]] = ()

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
        make: Callable[[], RunCommands],
        is_time: Callable[[float], bool],
        max_steps: int = sys.maxsize,
        threads: Workers | None = None,
    ) -> bool:
        """Record the next run, or the one behind it while a thread finishes the first.

        Args:
            make: Makes the commands of a run, of which nothing is recorded.
            is_time: Says whether there is time for what takes so many seconds; 0 for a step.
            max_steps: Steps to record.
            threads: They finish the command buffer if there is no time for that.

        Returns:
            Whether there is more to record, and was time for it.
        """
        if not is_time(0):
            return False
        commands = self._unfinished(make)
        if commands is None:
            return False
        has_time = True
        while max_steps and not commands.is_recorded:
            is_last = commands.is_encoded
            has_time = is_time(self._finish_latency.seconds if is_last else 0)
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
        return commands.is_finished_elsewhere or (has_time and not commands.is_recorded)

    def record_whole(self, make: Callable[[], RunCommands]) -> None:
        """Record all of the next run, unless that is done; `make` as for `record`."""
        commands = self._unfinished(make)
        if commands is not None:
            while not commands.is_recorded:
                commands.record()
            self._keep(commands)

    def release(self) -> None:
        """Drop recorded runs: the next one is recorded when it is asked for."""
        self._recorded.clear()

    def _keep(self, commands: RunCommands) -> None:
        if len(self._recorded) < self._gpu.policy.max_prerecorded_runs:
            self._recorded.append(commands)
            self._gpu.recorded_ahead.use(self)

    def _unfinished(self, make: Callable[[], RunCommands]) -> RunCommands | None:
        """Take commands to go on with, which nobody else has; None if enough are recorded."""
        latest = self._recorded[-1:]
        if latest and latest[0].is_recorded:
            has_room = len(self._recorded) < self._gpu.policy.max_prerecorded_runs
            return make() if has_room and latest[0].is_finished_elsewhere else None
        try:
            return self._recorded.pop()
        except IndexError:
            return make()
