"""Awaited runs on a GPU context: submit on the worker, read back on another thread.

Handing over takes longer than small graphs take the device. So a run that is alone on it is read
back by the worker; or who awaits it submits it, and reads it back, if either only takes a moment.
Tiny graphs on software drivers, which compute on this machine's cores, are seen through at once.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.core.completion import Completion, next_turn
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.errors import MLError
from webnn_py.core.workers import Workers
from webnn_py.engines.awaited import AwaitedRun
from webnn_py.engines.webgpu.runtime.bind_resources import Dispatch
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.staging import BufferMapping, Ending
from webnn_py.engines.webgpu.runtime.in_flight import Recorded, UnderWay
from webnn_py.engines.webgpu.runtime.poll_backoff import LatencyEstimate, Wait
from webnn_py.engines.webgpu.runtime.prerecord import Ahead, RunCommands
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.ir import Descriptor
from webnn_py.memory import host_arrays
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering import operation

Targets = Sequence[tuple[Any, int]]
"""Buffers that the host writes into, and how many bytes."""


class Run(AwaitedRun):
    """One awaited computation on a device.

    Args:
        loaded: What is computed.
        ahead: What is known of its runs.
        recorded: What the context has not yet submitted.
        under_way: What the context has begun.
        dispatch: What is recorded before and after, and where everything lies.
        outputs: For each what was given, or None and what it is.
    """

    def __init__(
        self,
        loaded: LoadedGraph | LoadedProgram,
        ahead: Ahead,
        recorded: Recorded,
        under_way: UnderWay,
        dispatch: Dispatch,
        outputs: Sequence[tuple[Any, Descriptor]],
    ) -> None:
        super().__init__()
        self._gpu = loaded.gpu
        self._policy = loaded.gpu.policy
        self._loaded = loaded
        self._recorded = recorded
        self._under_way = under_way
        self._alone = False  # nothing else was under way when it took its turn
        self._dispatch = dispatch
        traffic = dispatch.traffic
        results = traffic.result_bytes
        self._ahead = (
            ahead if results <= self._policy.prerecorded_result_bytes and traffic.only else None
        )
        large = traffic.input_bytes >= self._policy.large_input_bytes
        soft = not self._gpu.hardware and self._ahead is not None and not large
        self._may_be_tiny = soft and 0 < ahead.whole.seconds < self._policy.tiny_run_seconds
        # Tiny inputs go through the queue: to map memory again takes as long.
        inputs = traffic.inputs if self._gpu.uploads.is_available and not self._may_be_tiny else ()
        self._targets: Targets = () if large else inputs
        self._large: Targets = inputs if large else ()
        self._sources: list[Any] = []  # from which large inputs will be copied
        self._prepared: RunCommands | None = None  # its inputs are written
        self._submitted: tuple[RunCommands, Wait] | None = None  # before it took its turn
        self._whole: Wait | None = None  # until it is read back
        self._start: operation.Run = _nothing
        self._due: Completion[Ending | None] | None = None  # its end, if that is left to who awaits
        self._is_short = False  # who awaits sees it through
        self._late = 0.0  # and may do so by so many seconds
        self._seen_there = results <= self._policy.loop_result_bytes
        self._repeated = ahead.pace.seconds > 0
        self._given = [output for output, _ in outputs if isinstance(output, np.ndarray)]
        self._outputs = [
            np.empty(made.shape, DTYPES[made.data_type].numpy) if given is None else given
            for given, made in outputs
        ]

    def read_inputs(self) -> None:
        """Write them where a run that was recorded ahead reads them, or copy them."""
        if not self._may_be_tiny:
            with device_errors("uploading a graph's inputs"):
                self._prepared = self._prepared or self._recorded_ahead(self._is_next)
                if self._gpu.uploads.have(size for _, size in self._large):
                    self._write_large()  # else the worker does, as to make them takes long
        run = self._dispatch
        run.uploads = [
            (buffer, host_arrays.aligned_copy(contents)) for buffer, contents in run.uploads
        ]

    def _write_large(self) -> None:
        """Write inputs that are large where commands copy them from: for one run at a time."""
        given, uploads = self._dispatch.uploads, self._gpu.uploads
        if self._large and given and uploads.are_for(self):
            self._sources = [uploads.take(size) for _, size in self._large]
            uploads.write(zip(self._sources, (c for _, c in given), strict=True))
            self._dispatch.uploads = []

    @property
    def _is_next(self) -> bool:
        """Whether it may be recorded and submitted on this thread, which may be an event loop's."""
        gpu, ahead = self._gpu, self._ahead
        is_short = ahead is not None and 0 < ahead.pace.seconds < self._policy.short_run_seconds
        return is_short and gpu.hardware and not (gpu.in_flight.under_way or self._large)

    @property
    def _most_left(self) -> int:
        """Steps that may be left to record before it is submitted on this thread."""
        ahead = self._ahead
        if ahead is None or ahead.pace.seconds >= self._policy.short_run_seconds:
            return 0
        return sys.maxsize if self._follows else self._policy.max_steps_left

    @property
    def _follows(self) -> bool:
        """Whether it begins right behind another one."""
        return (
            self._ahead is not None
            and time.monotonic() - self._ahead.ended < self._policy.back_to_back_seconds
        )

    def _recorded_ahead(self, begin: bool = False) -> RunCommands | None:
        """The commands of this run as far as they were recorded ahead, its inputs written.

        Args:
            begin: Begin to record a few, if none were; the worker may still be at it.
        """
        commands = self._ahead.take() if self._ahead else None
        if commands is None and begin:
            made = self._commands(self._targets)
            if made.left <= self._most_left:
                made.record()
                commands = made
        if commands is not None and commands.takes_inputs:
            run = self._dispatch
            commands.upload([contents for _, contents in run.uploads])
            run.uploads = []
        return commands

    def when_there_is_room(self, start: operation.Run, is_next: bool = False) -> None:
        """Keep the memory bounded that results wait in for being read back."""
        in_flight, self._start = self._gpu.in_flight, start

        def begin() -> None:
            self._alone = in_flight.under_way == 1
            self.done.on_done(in_flight.release)
            if self._alone and is_next:
                if self._is_tiny:
                    self._compute_at_once()
                else:
                    self._submit_at_once()
            if not self._is_short:
                start()

        in_flight.acquire(begin)

    @property
    def _is_tiny(self) -> bool:
        """Whether all of it takes but a moment, on a driver that may compute on this thread."""
        gpu = self._gpu
        return (
            self._may_be_tiny
            and not gpu.owes_turn
            and self._seen_there
            and bool(self._dispatch.downloads)
            and gpu.life.is_idle
            and not gpu.submit_lock.locked()
            and self._recorded.nothing_recorded
        )

    def _compute_at_once(self) -> None:
        """Do all of it on this thread, which may be an event loop's."""
        gpu, self._is_short = self._gpu, True
        gpu.owes_turn = True
        try:
            commands = self._begin()
            with device_errors("reading a graph's outputs"):
                mapping = gpu.staging.mapping(commands.results[0][0])
                seen = mapping.look_for(self._policy.tiny_wait_seconds, self._record_next)
        except BaseException as error:
            self.done.set_exception(error)
            return
        read = functools.partial(self._read, commands, mapping)
        if seen:
            read()
        else:
            gpu.reader.submit(read, self.done.set_exception)

    def _submit_at_once(self) -> None:
        """Submit on this thread, which may be an event loop's, if that takes but a moment."""
        gpu, ahead, commands = self._gpu, self._ahead, self._prepared
        # A software driver may work on what is submitted, and on what was before, meanwhile.
        if ahead is None or commands is None or not gpu.hardware:
            return
        if commands.left > self._most_left:
            return
        if self._dispatch.uploads or self._sources or not self._recorded.nothing_recorded:
            return
        if not gpu.submit_lock.acquire(blocking=False):
            return
        try:
            follows = self._follows  # before it is recorded, if it is not
            self._under_way.add_result(self.done, self.cancellation)
            with device_errors("submitting a graph"):
                commands.submit(self._loaded.in_pieces)
            wait = Wait(ahead.pace, commands.begun_at)
            self._submitted = commands, wait
            self._late = self._policy.late_seconds if follows else 0.0
            if self._seen_there and commands.results:
                self._due = Completion()
                self.done.on_done(functools.partial(self._due.set_result, None))
                if ahead.pace.seconds < self._policy.short_run_seconds:
                    self._due.set_result(gpu.staging.ending(commands.results[0][0], wait))
                    self._is_short = True
        except BaseException as error:
            self.done.set_exception(error)
        finally:
            gpu.submit_lock.release()

    def begin(self) -> None:
        """Upload, record, submit, if that is not done; then have the outputs read back."""
        if self.done.done:  # it could not be submitted, or only the next is to be prepared
            return
        if self._submitted is not None:
            commands, wait = self._submitted
        else:
            commands = self._begin()
            wait = Wait(self._ahead.pace if self._ahead else LatencyEstimate(), commands.begun_at)
        gpu = self._gpu
        if self._alone and gpu.in_flight.under_way == 1 and gpu.reader.idle:
            self._read_alone(commands, wait)
        else:
            gpu.reader.submit(functools.partial(self._read, commands), self.done.set_exception)

    def _begin(self) -> RunCommands:
        """Submit it, unless it was cancelled."""
        self.cancellation.check()
        self._under_way.add_result(self.done, self.cancellation)
        if self._ahead is not None:
            self._whole = Wait(self._ahead.whole)
        with device_errors("submitting a graph"):
            return self._submit()

    def _submit(self) -> RunCommands:
        """Upload, record what is not recorded yet, submit."""
        gpu, run = self._gpu, self._dispatch
        if not self._is_short:  # else nothing is recorded
            self._recorded.submit_recorded()
        # What is only read back is not written yet, and a cancelled await need not wait for the
        # driver, which may take as long as the work before.
        section = self.cancellation if run.written else contextlib.nullcontext()
        with gpu.submit_lock, gpu.life, section:
            if run.written:
                self.cancellation.check()
            run.check_usable()
            commands = self._prepared or self._recorded_ahead() or self._commands()
            self._write_large()
            for buffer, contents in run.uploads:
                native.write_buffer(gpu.queue, buffer, 0, contents)
            if self._sources:
                commands.submit_upload(self._sources, self._large)
            commands.submit(self._loaded.in_pieces)
        return commands

    def _commands(self, inputs: Targets = ()) -> RunCommands:
        run, ahead = self._dispatch, self._ahead
        pieces = (ahead and ahead.pieces) or self._loaded.commands(run.places).pieces
        if ahead is not None:
            ahead.pieces = pieces
        return RunCommands(self._gpu, run, pieces, inputs)

    def _read_alone(self, commands: RunCommands, wait: Wait) -> None:
        """Read back, or leave that to who awaits it; before, record the next run."""
        if self._ahead is None or not commands.results:
            self._read(commands)
            return
        ending = self._gpu.staging.ending(commands.results[0][0], wait)
        due = self._due

        def is_time(seconds: float) -> bool:
            if ending.left > max(seconds, self._policy.wake_seconds):
                return True
            return due is None and not seconds and not ending.look()

        if self._repeated:
            self._record_ahead(is_time)
        if due is not None:
            ending.come_near()
            due.set_result(ending)
            if due.wait(0) is ending:
                return
        self._read(commands, ending)

    @property
    def end(self) -> Awaitable[None]:
        """Its end, which who awaits looks for itself if it was submitted there."""
        if self._due is not None:
            return self._watch(self._due)
        return self._turn() if self._is_short else self.done

    async def _turn(self) -> None:
        """Let other tasks take their turn, as this one took the thread."""
        try:
            await next_turn()
        finally:
            self._gpu.owes_turn = False
        await self.done

    async def _watch(self, due: Completion[Ending | None]) -> None:
        """Await the end; when it is near, look for it here: being woken takes longer."""
        seen = False
        try:
            await due.settled()
            ending = due.wait(0)
            recording = self._is_short
            while (
                ending is not None
                and not (self.done.done or seen)
                and ending.left > -2 * self._policy.wake_seconds
            ):
                if recording:
                    is_time = functools.partial(self._is_time, ending)
                    recording = self._record_ahead(
                        is_time, self._policy.steps_per_turn, self._gpu.recorder
                    )
                seen = ending.look()
                if not seen:
                    await next_turn()
        finally:
            due.set_result(None)  # the worker reads it back, unless it left that to us
            ending = due.wait(0)
            if ending is not None:
                self._read_left(ending, seen)
        await self.done

    def _is_time(self, ending: Ending, seconds: float) -> bool:
        """Whether to record what takes so many seconds before the end is looked for."""
        assert self._ahead is not None
        late = 0.0 if self._ahead.recorded else self._late
        return (
            ending.left + (min(late, self._policy.late_finish_seconds) if seconds else late)
            > seconds
        )

    def _read_left(self, ending: Ending, seen: bool) -> None:
        """Read back what the worker has left, here if it was seen to be over."""
        assert self._submitted is not None
        read = functools.partial(self._read_before, self._submitted[0], ending, self._start)
        if seen:
            read()
        else:
            self._gpu.reader.submit(read, self.done.set_exception)

    def _read_before(self, commands: RunCommands, ending: Ending, start: operation.Run) -> None:
        """Read back, and have the worker prepare the next run."""
        self._read(commands, ending)
        if self._ahead is not None and not self._ahead.recorded:
            start()

    def prepare_next(self) -> None:
        """Record the next run, as long as nothing else is to be done."""
        if self._ahead is not None and self._repeated and self.done.done:
            self._record_ahead(lambda seconds: self._gpu.in_flight.under_way == 0)

    def _record_next(self) -> None:
        """Record the next run, while the driver's own threads compute this one."""
        assert self._ahead is not None
        with contextlib.suppress(MLError), device_errors("recording a graph"):
            self._ahead.record_whole(self._commands)

    def _record_ahead(
        self,
        while_: Callable[[float], bool],
        most: int = sys.maxsize,
        threads: Workers | None = None,
    ) -> bool:
        """Record the next run; who reads this one back is told what is wrong with the device."""
        assert self._ahead is not None
        make = functools.partial(self._commands, self._targets)
        with contextlib.suppress(MLError), device_errors("recording a graph"):
            return self._ahead.record(make, while_, most, threads)
        return False

    def memory(self) -> tuple[list[Region], list[Region]]:
        """The user's resources of the device, and the arrays that results are read back into."""
        written = [*self._dispatch.written.values(), *self._given]
        return [*map(region_of, self._dispatch.read)], [*map(region_of, written)]

    def release(self) -> None:
        """Keep neither the copies of host arrays any more, nor what keeps this."""
        self._dispatch.uploads = []
        self._prepared = None
        if self._large:
            self._sources = []
            self._gpu.uploads.leave(self)
        self._start = _nothing

    def _read(self, commands: RunCommands, ending: Ending | BufferMapping | None = None) -> None:
        gpu, outputs = self._gpu, self._outputs
        try:
            with device_errors("reading a graph's outputs"):
                if commands.fence is not None:
                    gpu.staging.wait(commands.fence)
                results = [(buffer, outputs[number]) for buffer, number in commands.results]
                succeed = functools.partial(self._succeed, commands)
                gpu.staging.read(results, self.cancellation, ending, succeed)
        except BaseException as error:
            self.done.set_exception(error)

    def _succeed(self, commands: RunCommands) -> None:
        commands.ended()  # before the next run may look for what it gives back
        if self._whole is not None:
            self._whole.end()
        if self._ahead is not None:
            self._ahead.ended = time.monotonic()
        self.done.set_result(None)

    def results(self) -> list[Any]:
        """What was given, or the arrays that were made."""
        return self._outputs


def _nothing() -> None:
    """What has nothing to do."""
