"""Runs that are recorded before they are asked for, while the device works on the one before.

Who awaits a graph again and again then waits for no recording: it takes about as long as small
models take the device.
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
from webnn_py.engines.webgpu.runtime.bind_resources import Dispatch
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.poll_backoff import LatencyEstimate, Wait
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import CommandBuffer
from webnn_py.ir import Array


class RunCommands:
    """The commands of one run, recorded piece by piece, and submitted once.

    Args:
        gpu: The device.
        run: What is recorded before and after, and what is read back.
        pieces: The commands between, in pieces that are submitted apart if need be, and steps.
        inputs: What `upload` will write before it is submitted: buffers, and bytes of each.

    Attributes:
        results: Buffers that the host can read when it has run, and the outputs' numbers.
        fence: What to wait for, if nothing is to be read.
        begun_at: When the device had the first of it to run; seconds.
    """

    def __init__(
        self,
        gpu: Device,
        run: Dispatch,
        pieces: Iterable[Sequence[Encodable]],
        inputs: Sequence[tuple[Any, int]] = (),
    ) -> None:
        self._gpu = gpu
        self._before, self._after = run.before, run.after
        self._downloads = run.downloads
        self._steps = deque(step for piece in pieces for step in (*piece, None))
        self._inputs = inputs
        self._sources: list[Any] = []
        self._spent: list[Any] = []
        self._encoder: Any = None
        self._pass: Any = None
        self._recorded: Any = None
        self._end: Completion[Any] | None = None  # of what a thread records
        self._submission = 0
        self.results: list[tuple[Any, int]] = []
        self.fence: Any = None
        self.begun_at = 0.0

    @property
    def recorded(self) -> bool:
        """Whether all of it is, or will be when a thread is done with the end."""
        return self._recorded is not None or self._end is not None

    @property
    def left(self) -> int:
        """Steps that are not recorded yet, the end among them."""
        return 0 if self.recorded else len(self._steps) + 1

    @property
    def begun(self) -> bool:
        """Whether any of it is."""
        return self.recorded or self._pass is not None

    @property
    def takes_inputs(self) -> bool:
        """Whether `upload` is to write its inputs."""
        return bool(self._sources)

    def upload(self, contents: Iterable[Array]) -> None:
        """Write the inputs of this run, for nobody else to change."""
        self._gpu.uploads.write(zip(self._sources, contents, strict=True))

    @property
    def encoded(self) -> bool:
        """Whether there is nothing left but to `record` the end."""
        return not self._steps

    def record(self) -> None:
        """Record the next step, or the end."""
        if self._pass is None:
            self._begin()
        if self._steps:
            self._encode()
        else:
            self._recorded = self._finish()

    @property
    def ends_elsewhere(self) -> bool:
        """Whether a thread records the end."""
        return self._end is not None

    def record_end_on(self, threads: Workers, pace: LatencyEstimate) -> None:
        """Have a thread record the end, for which `submit` waits."""
        encoder, end = self._close(), Completion[Any]()

        def finish() -> None:
            wait = Wait(pace)
            commands = _finished(encoder)
            wait.end()
            end.set_result(commands)

        threads.submit(finish, end.set_exception)
        self._end = end

    def _encode(self) -> bool:
        """Record the next step; whether a piece ends with it."""
        step = self._steps.popleft()
        if step is not None:
            step.encode(self._pass)
        if self._steps and self._steps[0] is None:
            self._steps.popleft()
            return True
        return step is None

    def submit(self, in_pieces: bool) -> None:
        """Submit it; what is not recorded yet is recorded.

        Args:
            in_pieces: What is recorded may run while the rest is being recorded.
        """
        if self._sources:
            self._gpu.uploads.end_writing(self._sources)
        if self._end is not None:
            self._recorded = self._end.wait()
        while self._steps:
            if self._pass is None:
                self._begin()
            if self._encode() and self._steps and in_pieces:
                self._submit(self._finish())
        if not self.recorded:
            self.record()
        self._submit(self._recorded)
        self._submission = self._gpu.life.submissions

    def _submit(self, commands: Any) -> None:
        self._gpu.submit(commands)
        self.begun_at = self.begun_at or time.monotonic()

    def submit_upload(self, sources: Sequence[Any], inputs: Sequence[tuple[Any, int]]) -> None:
        """Submit, before the rest, copies of inputs that are large: from what was written.

        Args:
            sources: What `Uploads.write` wrote.
            inputs: Buffers to copy them into, and bytes of each.
        """
        gpu = self._gpu
        gpu.uploads.end_writing(sources)
        encoder = gpu.plain_encoder("large inputs")
        gpu.uploads.copy(encoder, zip(sources, inputs, strict=True))
        gpu.submit(encoder.finish())
        self._spent += sources

    def ended(self) -> None:
        """It has run: others may have what it read its inputs from."""
        self._gpu.life.end_submission(self._submission)
        self._gpu.uploads.give_back(self._sources)
        self._gpu.uploads.give_back(self._spent)

    def _begin(self) -> None:
        """Begin to record commands that are submitted as one."""
        gpu = self._gpu
        make = gpu.encoder if self._before or self._after else gpu.plain_encoder
        encoder = self._encoder = make("MLAwaitedExecution")
        before, self._before = self._before, []
        for record in before:
            record(encoder)
        inputs, self._inputs = self._inputs, ()
        self._sources += [gpu.uploads.take(size) for _, size in inputs]
        gpu.uploads.copy(encoder, zip(self._sources, inputs, strict=False))
        self._pass = encoder.begin_compute_pass()

    def _finish(self) -> Any:
        """These commands."""
        return _finished(self._close())

    def _close(self) -> Any:
        """What these commands were recorded by; they read the results back if nothing follows."""
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


def _finished(encoder: Any) -> Any:
    commands = encoder.finish()
    if not isinstance(commands, CommandBuffer):  # one of wgpu's own
        native.free_when_dropped(commands)
    return commands


class Ahead:
    """What is known before a run, and recorded, of runs that differ in nothing but contents.

    Args:
        gpu: The device, whose graphs that were used last keep runs recorded.

    Attributes:
        pace: What they take, from their submission on.
        whole: What they take with it, which software drivers may compute in.
        ended: When the last of them ended; seconds.
        pieces: Their commands, as of a graph, once they were asked for.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.ended = -math.inf
        self.pieces: Sequence[Sequence[Encodable]] = ()
        self._kept: list[RunCommands] = []
        self._ending = LatencyEstimate()
        self.pace = LatencyEstimate()
        self.whole = LatencyEstimate(gpu.policy.max_counted_seconds)

    @property
    def recorded(self) -> bool:
        """Whether the next run is."""
        kept = self._kept[:1]  # another thread may take it
        return bool(kept) and kept[0].recorded

    def take(self) -> RunCommands | None:
        """The commands of the next run, recorded or in part; nobody else gets them."""
        try:
            return self._kept.pop(0)
        except IndexError:
            return None

    def record(
        self,
        make: Callable[[], RunCommands],
        while_: Callable[[float], bool],
        most: int = sys.maxsize,
        threads: Workers | None = None,
    ) -> bool:
        """Record the next run, or the one behind it while a thread records its end.

        Args:
            make: Gives the commands of a run, none of which are recorded.
            while_: Whether there is time for what is likely to take so many seconds; 0 for what
                takes but a moment.
            most: Steps to record.
            threads: What to leave the end to, if there is no time for that.

        Returns:
            Whether there is more to record, and was time for it.
        """
        if not while_(0):
            return False
        commands = self._unfinished(make)
        if commands is None:
            return False
        is_time = True
        while most and not commands.recorded:
            is_time = while_(self._ending.seconds if commands.encoded else 0)
            if not is_time:
                if commands.encoded and threads is not None:
                    commands.record_end_on(threads, self._ending)
                break
            ends = Wait(self._ending) if commands.encoded else None
            commands.record()
            if ends is not None:
                ends.end()
            most -= 1
        if commands.begun:
            self._keep(commands)
        return commands.ends_elsewhere or (is_time and not commands.recorded)

    def record_whole(self, make: Callable[[], RunCommands]) -> None:
        """Record all of the next run, if that is not done; `make` as for `record`."""
        commands = self._unfinished(make)
        if commands is not None:
            while not commands.recorded:
                commands.record()
            self._keep(commands)

    def _keep(self, commands: RunCommands) -> None:
        if len(self._kept) < self._gpu.policy.max_prerecorded_runs:
            self._kept.append(commands)
            self._gpu.recorded_ahead.use(self)

    def release(self) -> None:
        """Have nothing recorded any more: the next run is recorded when it is asked for."""
        self._kept.clear()

    def _unfinished(self, make: Callable[[], RunCommands]) -> RunCommands | None:
        """Commands to go on with, which nobody else has meanwhile; None if enough are recorded."""
        latest = self._kept[-1:]
        if latest and latest[0].recorded:
            more = (
                latest[0].ends_elsewhere and len(self._kept) < self._gpu.policy.max_prerecorded_runs
            )
            return make() if more else None
        try:
            return self._kept.pop()
        except IndexError:
            return make()
