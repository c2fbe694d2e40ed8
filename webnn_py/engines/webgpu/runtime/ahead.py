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

from webnn_py.engines.webgpu.runtime.device import Device
from webnn_py.engines.webgpu.runtime.pauses import Pace, Wait
from webnn_py.engines.webgpu.runtime.pieces import Encodable
from webnn_py.engines.webgpu.runtime.resources import Dispatch
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
        self._submission = 0
        self.results: list[tuple[Any, int]] = []
        self.fence: Any = None
        self.begun_at = 0.0

    @property
    def recorded(self) -> bool:
        """Whether all of it is."""
        return self._recorded is not None

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
        """These commands; they read the results back if nothing follows."""
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
        return encoder.finish()


class Ahead:
    """What is known before a run, and recorded, of runs that differ in nothing but contents.

    Attributes:
        pace: What they take, from their submission on.
        whole: What they take with it, which software drivers may compute in.
        ended: When the last of those ended that were read back where they are awaited; seconds.
    """

    def __init__(self) -> None:
        self.ended = -math.inf
        self._kept: list[RunCommands] = []
        self._ending = Pace()
        self.pace = Pace()
        self.whole = Pace()

    @property
    def recorded(self) -> bool:
        """Whether the next run is."""
        kept = self._kept[-1:]  # another thread may take it
        return bool(kept) and kept[0].recorded

    def take(self) -> RunCommands | None:
        """The commands of a run, recorded or in part; nobody else gets them."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def record(
        self,
        make: Callable[[], RunCommands],
        while_: Callable[[float], bool],
        most: int = sys.maxsize,
    ) -> bool:
        """Record the next run.

        Args:
            make: Gives the commands of a run, none of which are recorded.
            while_: Whether there is time for what is likely to take so many seconds; 0 for what
                takes but a moment.
            most: Steps to record.

        Returns:
            Whether there is more to record, and was time for it.
        """
        if not while_(0):
            return False
        commands = self.take() or make()
        is_time = True
        while most and not commands.recorded:
            is_time = while_(self._ending.seconds if commands.encoded else 0)
            if not is_time:
                break
            ends = Wait(self._ending) if commands.encoded else None
            commands.record()
            if ends is not None:
                ends.end()
            most -= 1
        if commands.begun and not self._kept:
            self._kept.append(commands)
        return is_time and not commands.recorded
