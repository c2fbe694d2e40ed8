"""AwaitedDeviceRun: one awaited computation on a device, from its arguments to its results.

A run passes through these states, whichever thread takes it on:

    checked -> inputs read -> recorded -> submitted -> read back -> done

The calling thread checks the arguments (`__init__`) and reads the inputs (`read_inputs`). Who does
the other steps is the run's `Driver`, chosen when it has its turn (`when_there_is_room`):

    Driver          records, submits    waits for the end     reads back
    READER          context's worker    reader thread         reader thread
    WORKER          context's worker    context's worker      context's worker
    WORKER_WATCHES  event loop          context's worker      event loop, when the end is near
    LOOP            event loop          event loop, in turns  event loop; reader thread, if late
    LOOP_AT_ONCE    event loop          event loop, blocking  event loop; reader thread, if late

A run without an order that is alone on the device has another driver than READER, as handing it to
another thread takes longer than small graphs take the device. Whoever waits for the end records the
next run meanwhile (`prerecord`). `RunPolicy` holds the thresholds.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Awaitable, Sequence
from enum import Enum, auto
from typing import Any

import numpy as np

from webnn_py.core.completion import Completion, next_turn
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.workers import count_as_done
from webnn_py.engines.base import AwaitedRun
from webnn_py.engines.webgpu.runtime.bind_resources import BoundRun, Traffic
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors, told
from webnn_py.engines.webgpu.runtime.devices.staging import Ending
from webnn_py.engines.webgpu.runtime.prerecord import (
    RunCommands,
    RunPrerecorder,
    Source,
    TimeBeforeEnd,
    TimeWhileIdle,
)
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.recorder import Recorder
from webnn_py.engines.webgpu.runtime.webgpu_api import BufferMapping, DispatchCommands
from webnn_py.ir import Descriptor
from webnn_py.memory.allocation import fault_in
from webnn_py.memory.host_arrays import aligned_copy
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering import operation

SizedBuffers = Sequence[tuple[Any, int]]
"""Buffers that the host writes into, each with its number of bytes."""


class Driver(Enum):
    """The threads that take a run from its turn to its end: see the table above."""

    READER = auto()
    WORKER = auto()
    WORKER_WATCHES = auto()
    LOOP = auto()
    LOOP_AT_ONCE = auto()


class RepeatedCommands(RunCommands):
    """The commands of a run between buffers of the device, which `Replays` may have recorded ahead.

    Args:
        gpu: The device.
        run: The run.
        commands: Its dispatches.
        recorder: Of the context; the caller of `submit` holds its lock.
    """

    def __init__(
        self, gpu: Device, run: BoundRun, commands: DispatchCommands, recorder: Recorder
    ) -> None:
        super().__init__(gpu, run, commands.pieces)
        self._repeated, self._recorder = commands, recorder

    def submit(self, source: Source) -> None:
        """Submit the commands behind all that the context has recorded."""
        recorder = self._recorder
        recorder.batch.repeat(self._repeated)
        self.fence = self._gpu.staging.fence(recorder.batch.encoder())
        recorder.submit_batch()
        self.begun_at = time.monotonic()
        self._submission = self._gpu.life.submissions

    def record_following(self) -> None:
        """Record the runs that followed this one last time."""
        replays = self._recorder.replays
        replays.record_ahead(replays.take_unread())


class AwaitedDeviceRun(AwaitedRun):
    """One awaited computation on a device.

    Args:
        loaded: The graph or program.
        prerecorder: Records its runs before they are asked for, and knows how long they take.
        recorder: Of the context.
        run: Where inputs and outputs lie, and what is recorded before and after.
        traffic: Its host-device transfers.
        outputs: For each output the user's array or resource, or None; and its descriptor.
    """

    def __init__(
        self,
        loaded: LoadedGraph | LoadedProgram,
        prerecorder: RunPrerecorder,
        recorder: Recorder,
        run: BoundRun,
        traffic: Traffic,
        outputs: Sequence[tuple[Any, Descriptor]],
    ) -> None:
        super().__init__()
        gpu, policy = loaded.gpu, loaded.gpu.policy
        self._gpu, self._policy = gpu, policy
        self._loaded = loaded
        self._recorder = recorder
        self._bound = run
        self._driver = Driver.READER
        can_prerecord = traffic.only and traffic.result_bytes <= policy.prerecorded_result_bytes
        self._prerecorder = prerecorder if can_prerecord else None
        is_large = traffic.input_bytes >= policy.large_input_bytes
        self._may_be_tiny = (
            not gpu.hardware
            and can_prerecord
            and not is_large
            and 0 < prerecorder.whole_latency.seconds < policy.tiny_run_seconds
        )
        # Tiny inputs go through the device's queue: mapping a buffer again takes as long.
        mapped = traffic.inputs if gpu.webgpu.WAITING.is_available and not self._may_be_tiny else ()
        self._inputs: SizedBuffers = () if is_large else mapped
        self._large_inputs: SizedBuffers = mapped if is_large else ()
        self._large_sources: list[Any] = []  # the mapped buffers that hold the large inputs
        self._commands: RunCommands | None = None  # with the inputs written
        self._is_ordered = True  # it has a place in the context's order
        self._is_submitted = False  # by the loop's thread
        self._begun_at = 0.0  # when a thread began to submit all of it; seconds
        self._max_late_seconds = 0.0  # by which the loop's thread may notice its end later
        self._handoff: Completion[Ending | None] | None = None  # of its end, to the loop's thread
        self._begin_on_worker: operation.Run = _do_nothing
        self._is_read_on_loop = traffic.result_bytes <= policy.loop_result_bytes
        self._has_run_before = prerecorder.latency.seconds > 0
        self._user_arrays = [output for output, _ in outputs if isinstance(output, np.ndarray)]
        self._outputs_are_new = [given is None for given, _ in outputs]
        self._outputs = [
            np.empty(made.shape, DTYPES[made.data_type].numpy) if given is None else given
            for given, made in outputs
        ]

    # Checked -> inputs read, on the calling thread

    def read_inputs(self) -> None:
        """Write the inputs where a prerecorded run reads them, or copy them."""
        run, gpu = self._bound, self._gpu
        if not self._may_be_tiny:
            try:
                if self._commands is None:
                    self._commands = self._take_prerecorded(may_record=self._is_short_and_next)
                sizes = [size for _, size in self._large_inputs]
                if sizes and gpu.uploads.have(sizes):
                    self._write_large_inputs()  # else the worker does: making them takes long
            except BaseException as error:
                raise told(error, "uploading a graph's inputs") from error.__cause__
        run.uploads = [(buffer, aligned_copy(contents)) for buffer, contents in run.uploads]

    @property
    def _is_short_and_next(self) -> bool:
        """Whether the calling thread, such as an event loop's, may record and submit it."""
        gpu, known = self._gpu, self._prerecorder
        if known is None or not gpu.hardware or self._large_inputs or gpu.in_flight.under_way:
            return False
        return 0 < known.latency.seconds < self._policy.short_run_seconds

    def _take_prerecorded(self, may_record: bool = False) -> RunCommands | None:
        """Take the commands that were recorded for this run, and write its inputs for them.

        Args:
            may_record: Begin to record few steps if none were; the worker may still be at it.
        """
        commands = None if self._prerecorder is None else self._prerecorder.take()
        if commands is None and may_record:
            commands = self._new_commands(self._inputs)
            if commands.steps_left > self._max_steps_left:
                return None
            commands.record()
        if commands is not None and commands.takes_inputs:
            run = self._bound
            commands.upload([contents for _, contents in run.uploads])
            run.uploads = []
        return commands

    @property
    def _max_steps_left(self) -> int:
        """Steps that the loop's thread may record before it submits."""
        known, policy = self._prerecorder, self._policy
        if known is None or known.latency.seconds >= policy.short_run_seconds:
            return 0
        # Where runs follow each other, those behind it would be late, too.
        return sys.maxsize if self._follows_another else policy.max_steps_left

    @property
    def _follows_another(self) -> bool:
        """Whether it begins right behind another run of the graph."""
        known = self._prerecorder
        if known is None:
            return False
        return time.monotonic() - known.ended_at < self._policy.back_to_back_seconds

    def _new_commands(self, inputs: SizedBuffers = ()) -> RunCommands:
        """Return commands of which nothing is recorded."""
        run, known = self._bound, self._prerecorder
        if known is not None:
            return known.new_commands(run, inputs)
        return RunCommands(self._gpu, run, self._loaded.commands(run.places).pieces, inputs)

    def _write_large_inputs(self) -> None:
        """Write large inputs into mapped buffers, for one run at a time."""
        run, uploads = self._bound, self._gpu.uploads
        if run.uploads and uploads.are_for(self):
            self._large_sources = [uploads.take(size) for _, size in self._large_inputs]
            contents = [array for _, array in run.uploads]
            uploads.write(zip(self._large_sources, contents, strict=True))
            run.uploads = []

    # Inputs read -> submitted

    def when_there_is_room(self, start: operation.Run, is_next: bool = False) -> None:
        """Choose the driver when fewer than `max_runs_in_flight` runs wait to be read back."""
        in_flight, self._begin_on_worker = self._gpu.in_flight, start
        self._is_ordered = False

        def take_turn() -> None:
            self.done.on_done(in_flight.release)
            if in_flight.under_way == 1:
                self._driver = Driver.WORKER
                if is_next and self._is_tiny:
                    self._compute_at_once()
                elif is_next:
                    self._submit_on_loop()
            if self._driver not in (Driver.LOOP, Driver.LOOP_AT_ONCE):
                start()

        in_flight.acquire(take_turn)

    @property
    def _is_tiny(self) -> bool:
        """Whether this thread may compute all of it: the device has nothing else to do."""
        gpu = self._gpu
        return (
            self._may_be_tiny
            and not gpu.owes_turn
            and self._is_read_on_loop
            and bool(self._bound.downloads)
            and gpu.life.is_idle
            and not gpu.submit_lock.locked()
            and self._recorder.batch.empty
        )

    def _compute_at_once(self) -> None:
        """Submit, wait and read back on this thread, such as an event loop's."""
        gpu, known, self._driver = self._gpu, self._prerecorder, Driver.LOOP_AT_ONCE
        assert known is not None
        record_next = functools.partial(known.record_whole, self._bound)
        gpu.owes_turn = True
        try:
            commands = self._submit()
            with device_errors("reading a graph's outputs"):
                mapping = gpu.staging.mapping(commands.results[0][0])
                is_over = mapping.look_for(self._policy.tiny_wait_seconds, record_next)
        except BaseException as error:
            self.done.set_exception(error)
            return
        if is_over:
            self._read(commands, mapping)
        else:
            self._read_on_reader(commands, mapping)

    def _submit_on_loop(self) -> None:
        """Submit on this thread, such as an event loop's, if little is left to record."""
        gpu, known, commands = self._gpu, self._prerecorder, self._commands
        # A software driver may compute on this thread whatever was submitted before.
        if known is None or commands is None or not gpu.hardware:
            return
        if commands.steps_left > self._max_steps_left:
            return
        if self._bound.uploads or self._large_sources or not self._recorder.batch.empty:
            return
        if not gpu.submit_lock.acquire(blocking=False):
            return
        try:
            follows_another = self._follows_another
            self._recorder.pending.add_result(self.done, self.cancellation)
            with device_errors("submitting a graph"):
                commands.submit(self._loaded)
            self._is_submitted = True
            self._max_late_seconds = self._policy.late_seconds if follows_another else 0.0
            if self._is_read_on_loop and commands.results:
                self._handoff = Completion()
                self.done.on_done(functools.partial(self._handoff.set_result, None))
                self._driver = Driver.WORKER_WATCHES
                if known.latency.seconds < self._policy.short_run_seconds:
                    self._handoff.set_result(self._ending_of(commands, known))
                    self._driver = Driver.LOOP
        except BaseException as error:
            self.done.set_exception(error)
        finally:
            gpu.submit_lock.release()

    def begin(self) -> None:
        """Submit on the worker, unless the loop's thread did; then read back or have it done."""
        if self.done.done:  # the submission failed, or only the next run is to be recorded
            return
        commands = self._commands if self._is_submitted else self._submit()
        assert commands is not None
        gpu = self._gpu
        is_alone = self._driver is not Driver.READER and gpu.in_flight.under_way == 1
        if is_alone and gpu.reader.idle:
            self._wait_on_worker(commands)
        else:
            self._read_on_reader(commands)

    def _submit(self) -> RunCommands:
        """Record what is not recorded yet, and submit, unless the run was cancelled."""
        gpu, run, recorder = self._gpu, self._bound, self._recorder
        self.cancellation.check()
        recorder.pending.add_result(self.done, self.cancellation)
        self._begun_at = time.monotonic()
        # Resources of the user are written from now on. Else a cancelled await need not wait for
        # the driver, which may take as long as the work before.
        section = self.cancellation if run.written else contextlib.nullcontext()
        try:
            repeated = self._repeated()
            if not (repeated or recorder.batch.empty or self._driver is Driver.LOOP_AT_ONCE):
                recorder.submit_recorded()
            recording = recorder.lock if repeated else contextlib.nullcontext()
            with recording, gpu.submit_lock, gpu.life, section:
                if run.written:
                    self.cancellation.check()
                if run.given:
                    run.check_usable()
                commands = repeated or self._commands or self._take_prerecorded()
                commands = commands or self._new_commands()
                if self._large_inputs:
                    self._write_large_inputs()
                for buffer, contents in run.uploads:
                    gpu.webgpu.write_buffer(gpu.queue, buffer, 0, contents)
                if self._large_sources:
                    commands.submit_upload(self._large_sources, self._large_inputs)
                commands.submit(self._loaded)
        except BaseException as error:
            raise told(error, "submitting a graph") from error.__cause__
        return commands

    def _repeated(self) -> RepeatedCommands | None:
        """Return the run's commands if it uses buffers of the device alone and may be repeated."""
        run, loaded = self._bound, self._loaded
        if not isinstance(loaded, LoadedGraph) or self._prerecorder is not None:
            return None
        if run.before or run.after or run.uploads or run.downloads or self._large_inputs:
            return None
        commands = loaded.commands(run.places, self.key)
        if not self._recorder.replays.has(commands):
            return None
        return RepeatedCommands(self._gpu, run, commands, self._recorder)

    # Submitted -> done

    def _wait_on_worker(self, commands: RunCommands) -> None:
        """Record the next run, then read this one back or hand its end to the loop's thread."""
        known, handoff = self._prerecorder, self._handoff
        if known is None or not commands.results:
            self._read(commands, on_worker=True)
            return
        ending = self._ending_of(commands, known)
        if self._has_run_before:
            end = ending.expected_at
            goes_on = (lambda: not ending.look()) if handoff is None else (lambda: False)
            time_left = TimeBeforeEnd(end - self._policy.wake_seconds, end, goes_on)
            known.record(self._bound, self._inputs, time_left)
        if handoff is not None:
            ending.come_near()
            handoff.set_result(ending)
            if handoff.wait(0) is ending:
                return
        self._read(commands, ending, on_worker=True)

    def _ending_of(self, commands: RunCommands, known: RunPrerecorder) -> Ending:
        """Begin to wait for the first result."""
        return self._gpu.staging.ending(commands.results[0][0], known.latency, commands.begun_at)

    @property
    def end(self) -> Awaitable[None]:
        """Its end, which the loop's thread looks for itself if it submitted the run."""
        if self._handoff is not None:
            return self._watch(self._handoff)
        return self._give_turn() if self._driver is Driver.LOOP_AT_ONCE else self.done

    async def _give_turn(self) -> None:
        """Let other tasks take their turn, as this one has blocked their thread."""
        try:
            await next_turn()
        finally:
            self._gpu.owes_turn = False
        await self.done

    async def _watch(self, handoff: Completion[Ending | None]) -> None:
        """Await the end; look for it on this thread when it is near: being woken takes longer."""
        policy, known, is_over = self._policy, self._prerecorder, False
        assert known is not None
        try:
            await handoff.settled()
            ending = handoff.wait(0)
            may_record, latest = self._driver is Driver.LOOP, -2 * policy.wake_seconds
            while ending is not None and not (self.done.done or is_over) and ending.left > latest:
                if may_record:
                    late = 0.0 if known.is_recorded else self._max_late_seconds
                    may_record = known.record(
                        self._bound,
                        self._inputs,
                        TimeBeforeEnd(
                            ending.expected_at + late,
                            ending.expected_at + min(late, policy.late_finish_seconds),
                        ),
                        policy.steps_per_turn,
                        self._gpu.recorder,
                    )
                is_over = ending.look()
                if not is_over:
                    await next_turn()
        finally:
            handoff.set_result(None)  # the worker reads it back, unless it handed it over
            ending = handoff.wait(0)
            if ending is not None:
                self._read_handed_over(ending, is_over)
        await self.done

    def _read_handed_over(self, ending: Ending, is_over: bool) -> None:
        """Read back on this thread if the run is over, and have the worker record the next."""
        commands, begin_on_worker = self._commands, self._begin_on_worker
        assert commands is not None

        def read() -> None:
            self._read(commands, ending)
            if self._prerecorder is not None and not self._prerecorder.is_recorded:
                begin_on_worker()

        if is_over:
            read()
        else:
            self._gpu.reader.submit(read, self.done.set_exception)

    def prepare_next(self) -> None:
        """Record the next run on the worker, until another run begins."""
        known = self._prerecorder
        if known is not None and self._has_run_before and self.done.done:
            known.record(self._bound, self._inputs, TimeWhileIdle(self._gpu))

    def _read_on_reader(self, commands: RunCommands, mapping: BufferMapping | None = None) -> None:
        read = functools.partial(self._read, commands, mapping)
        self._gpu.reader.submit(read, self.done.set_exception)

    def _read(
        self,
        commands: RunCommands,
        ending: Ending | BufferMapping | None = None,
        on_worker: bool = False,
    ) -> None:
        """Wait for the results and copy them, on this thread.

        Args:
            commands: The commands of the run.
            ending: The wait for the first result, if it has begun.
            on_worker: Whether this is the context's worker.
        """
        staging = self._gpu.staging

        def succeed() -> None:
            commands.release_uploads()  # before the next run may look for them
            known, now = self._prerecorder, time.monotonic()
            if known is not None:
                known.ended_at = now
                if self._begun_at:
                    known.whole_latency.learn(now - self._begun_at)
            if on_worker:
                # An await that follows at once would else find the worker busy and leave its
                # submission to that, and so would the next one: all of them would be slower.
                count_as_done()
            self.done.set_result(None)

        try:
            if commands.fence is not None:
                commands.record_following()
                staging.wait(commands.fence)
            for _, number in commands.results:
                if self._outputs_are_new[number]:
                    fault_in(self._outputs[number])
            results = [(buffer, self._outputs[number]) for buffer, number in commands.results]
            known = self._prerecorder
            if ending is None and results and known and self._is_ordered:
                ending = self._ending_of(commands, known)
            staging.read(results, self.cancellation, ending, None if on_worker else succeed)
            if on_worker:
                del results  # they are freed with their last user, who may be quicker than this
                succeed()
        except BaseException as error:
            self.done.set_exception(told(error, "reading a graph's outputs"))

    def memory(self) -> tuple[list[Region], list[Region]]:
        """The user's resources of the device, and the arrays that results are read back into."""
        written = [*self._bound.written.values(), *self._user_arrays]
        return [*map(region_of, self._bound.read)], [*map(region_of, written)]

    def results(self) -> list[Any]:
        """Hand over the user's arrays and resources, and the arrays made for other outputs."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def release(self) -> None:
        """Drop copies of inputs, and what refers back to this run."""
        self._bound.uploads = []
        if not self._is_submitted:
            self._commands = None
        if self._large_inputs:
            self._large_sources = []
            self._gpu.uploads.leave(self)
        self._begin_on_worker = _do_nothing


def _do_nothing() -> None:
    """Stand for a callback that is not set."""
