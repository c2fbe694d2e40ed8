"""Repeated dispatches, whose commands are recorded before they are asked for.

WebGPU's command buffers serve once, so each repetition of a graph is encoded and finished anew.
That takes about a millisecond for 231 kernels, as long as a GPU takes for a token of a language
model. So whoever waits for the device records the commands that followed the present ones last
time: a loop over the same tensors, or over two sets of tensors in turn, finds them ready.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from typing import Any

from webnn_py.core.completion import Cancellation
from webnn_py.core.errors import MLError
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.staging import Ending
from webnn_py.engines.webgpu.runtime.poll_backoff import LatencyEstimate
from webnn_py.engines.webgpu.runtime.webgpu_api import BufferMapping, DispatchCommands
from webnn_py.ir import Array

MIN_DISPATCHES = 32
"""Dispatches of a run from which it has command buffers of its own.

Recording them takes several times as long as finishing and submitting one more command buffer.
"""
MIN_HITS = 2
"""Runs in a row that must have been foreseen before the next one is recorded ahead."""
MAX_RECORDED = 16
"""Runs that are recorded ahead at most."""

MAX_WATCHED_SECONDS = 5e-3
"""Expected seconds of runs up to which a blocked thread watches for their end by itself."""


class Replay:
    """A run of a graph over fixed tensors that repeats.

    Args:
        commands: Its dispatches.

    Attributes:
        recorded: Finished command buffers of it, each for one submission.
        following: The run that followed it last time.
    """

    __slots__ = ("__weakref__", "commands", "following", "recorded")

    def __init__(self, commands: DispatchCommands) -> None:
        self.commands = weakref.ref(commands)
        self.recorded: deque[Any] = deque()
        self.following: weakref.ref[Replay] | None = None


def _found(reference: weakref.ref[Replay] | None) -> Replay | None:
    return None if reference is None else reference()


class Replays:
    """The repeated runs of one context.

    Args:
        gpu: The device.

    Attributes:
        latency: Seconds from the submission of such runs until a read behind them is done.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._known: weakref.WeakKeyDictionary[DispatchCommands, Replay] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: weakref.ref[Replay] | None = None
        self._hits = 0
        self._unread = 0  # runs since the last read
        self.latency = LatencyEstimate()

    def has(self, commands: DispatchCommands) -> bool:
        """Return whether it pays to record a run's commands ahead.

        A software device computes on the cores that would record.
        """
        gpu = self._gpu
        many = len(commands) >= MIN_DISPATCHES
        return many and gpu.hardware and gpu.webgpu.RECORDING.is_available

    def next(self, commands: DispatchCommands) -> Any:
        """Return a command buffer recorded ahead for the dispatches that run now, or None."""
        replay = self._known.get(commands)
        if replay is None:
            replay = self._known[commands] = Replay(commands)
        latest = _found(self._latest)
        if latest is not None:
            self._hits = self._hits + 1 if _found(latest.following) is replay else 0
            latest.following = weakref.ref(replay)
        self._latest = weakref.ref(replay)
        self._unread += 1
        try:
            return replay.recorded.popleft()
        except IndexError:
            return None

    def take_unread(self) -> int:
        """Return the number of runs since the last call."""
        count, self._unread = self._unread, 0
        return count

    def record_ahead(self, count: int) -> None:
        """Record the runs that will follow, at most `count`, if they were foreseen lately.

        Errors are ignored: whoever needs the run gets them.
        """
        with contextlib.suppress(MLError, self._gpu.webgpu.LIBRARY.GPUError, RuntimeError):
            self._record_ahead(count)

    def _record_ahead(self, count: int) -> None:
        replay = _found(self._latest) if self._hits >= MIN_HITS else None
        needed: dict[Replay, int] = {}
        for _ in range(min(count, MAX_RECORDED)):
            replay = None if replay is None else _found(replay.following)
            commands = None if replay is None else replay.commands()
            if replay is None or commands is None:
                return
            needed[replay] = needed.get(replay, 0) + 1
            if len(replay.recorded) < needed[replay]:
                replay.recorded.append(self._record(commands))

    def _record(self, commands: DispatchCommands) -> Any:
        encoder = self._gpu.plain_encoder("recorded ahead")
        compute = encoder.begin_compute_pass()
        commands.encode(compute)
        compute.end()
        return encoder.finish()


class Reading:
    """A read of a tensor that was submitted, maybe behind repeated runs.

    Args:
        gpu: The device.
        replays: The context's repeated runs.
        staging: The readback buffer.
    """

    def __init__(self, gpu: Device, replays: Replays, staging: Any) -> None:
        self._gpu = gpu
        self._replays = replays
        self._count = replays.take_unread()
        self._staging = staging
        self._begun_at = time.monotonic()
        self._mapping: BufferMapping | None = None

    def watch(self, seconds: float) -> bool:
        """Poll without pauses for `seconds` behind the expected end, if that is soon.

        Returns:
            Whether the device has finished.
        """
        self._mapping = self._gpu.staging.mapping(self._staging)
        expected = self._replays.latency.seconds if self._count else 0.0
        if expected < MAX_WATCHED_SECONDS:
            seconds += expected
        return self._mapping.look_for(seconds, self._record_ahead)

    def finish(self, target: Array, cancellation: Cancellation) -> None:
        """Wait for the device, and write the result into an array unless that is cancelled.

        Raises:
            MLError: The device was lost, or the buffer cannot be mapped.
        """
        gpu, latency = self._gpu, self._replays.latency
        if self._mapping is None:
            self._mapping = gpu.staging.mapping(self._staging)
            self._record_ahead()
        if not self._count:
            gpu.staging.read([(self._staging, target)], cancellation, self._mapping)
            return
        ending = Ending(self._mapping, latency, self._begun_at)
        gpu.staging.read([(self._staging, target)], cancellation, ending)

    def _record_ahead(self) -> None:
        if self._count:
            self._replays.record_ahead(self._count)
