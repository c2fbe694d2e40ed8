"""Queue of a GPU context: records operations in batches, submits at synchronisation points."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import wgpu

from webnn_py.core.completion import Cancellation, Completion, runs_event_loop
from webnn_py.core.errors import ValidationError, caused_by
from webnn_py.core.messages import type_name
from webnn_py.engines.base import Executable, Loss
from webnn_py.engines.device import CommandQueue
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.buffer_init import padded_bytes
from webnn_py.engines.webgpu.runtime.devices.command_tracking import check_submission, uses_of
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import Life
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors, told
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable
from webnn_py.engines.webgpu.runtime.fallback import check_alive, check_library, is_foreign
from webnn_py.engines.webgpu.runtime.recorder import Recorder
from webnn_py.engines.webgpu.runtime.replay import Reading
from webnn_py.engines.webgpu.runtime.webgpu_api import DispatchCommands, is_a
from webnn_py.ir import Array, Descriptor
from webnn_py.memory.host_arrays import BorrowedArray
from webnn_py.memory.overlap import EVERYTHING, Region, Span, region_of
from webnn_py.ordering.operation import Executor, Operation, Run

MAX_LOOP_DISPATCHES = 1_000
"""Dispatches that an event loop records itself: it takes up to 2 ms."""
MIN_SLOW_BUFFER_BYTES = 1 << 20
"""Size in bytes from which drivers take long to create a buffer."""


class DeviceQueue(CommandQueue):
    """Queue that records operations on the calling thread, in the device queue's order."""

    def __init__(self, gpu: Device, worker: Callable[[Run], None]) -> None:
        loss = Loss()
        self.recorder = recorder = Recorder(gpu, loss)
        super().__init__(
            Executor(
                worker,
                recorder.signal,
                recorder.submit_recorded,
                gpu.handle,
                inline=True,
                perform=recorder.perform,
            ),
            loss,
        )
        self.gpu = gpu
        gpu.life.add_listener(self)
        self._unreported: BaseException | None = None

    def allocate(self, descriptor: Descriptor) -> Binding:
        """Create a buffer of zeros."""
        size, batch = buffer_bytes(descriptor), self.recorder.batch
        made = Binding(self.gpu.buffer(size, STORAGE | COPIES, "tensor"), 0, size)
        if not batch.empty:  # the open batch keeps destroyed tensors alive
            batch.bytes += size
        return made

    def target(self, storage: Any) -> Span:
        """Return the tensor's span of its buffer."""
        binding: Binding = storage
        return binding.span

    def write(self, storage: Any, lent: BorrowedArray) -> Run:
        """Return a function that writes through the queue if the batch is empty, else by a copy."""

        def run() -> None:  # `Recorder.perform` holds the lock
            data = lent.array
            if data.nbytes != storage.size:
                data = padded_bytes(data, storage.size)
            batch = self.recorder.batch
            batch.bytes += storage.size
            batch.operations += 1
            if batch.empty:  # wgpu-native keeps a copy until the next submission
                self.gpu.webgpu.write_buffer(self.gpu.queue, storage.buffer, storage.offset, data)
                return
            source = self.gpu.handle.create_buffer_with_data(
                data=data, usage=wgpu.BufferUsage.COPY_SRC
            )
            batch.encoder().copy_buffer_to_buffer(
                source, 0, storage.buffer, storage.offset, storage.size
            )

        return run

    def read(
        self,
        storage: Any,
        target: Array,
        done: Completion[None],
        cancellation: Cancellation,
        waits: bool = False,
        slow: bool = False,
    ) -> Run:
        """Return a function that submits the batch and reads the tensor on the reading thread.

        A thread that waits maps a copy that is ready soon by itself, as a hand-over takes longer.
        """
        gpu, here = self.gpu, threading.get_ident() if waits else None

        def begin() -> None:
            staging = gpu.staging.get(storage.size)
            with self.loss(), device_errors("read_tensor"), self.recorder.lock:
                run(staging)

        def run(staging: Any = None) -> None:  # `Recorder.perform` holds the lock
            batch = self.recorder.batch
            staging = gpu.staging.copy(batch.encoder(), storage, staging)
            self.recorder.submit_batch()
            read = functools.partial(self._read, target, done, cancellation, gpu.life.submissions)
            reading = Reading(gpu, self.recorder.replays, staging)
            if here == threading.get_ident() and gpu.reader.idle:
                done.defer(functools.partial(self._read_soon, reading, read, done, cancellation))
            else:
                self._read_later(functools.partial(read, reading), done, cancellation)

        return begin if slow else run

    def reads_long(self, storage: Any) -> bool:
        """Whether the read needs a new large buffer, which would block this event loop."""
        is_large = storage.size >= MIN_SLOW_BUFFER_BYTES and not self.gpu.staging.has(storage.size)
        return is_large and runs_event_loop()

    def _read_later(self, read: Run, done: Completion[None], cancellation: Cancellation) -> None:
        """Read on the reading thread."""
        self.recorder.pending.add_result(done, cancellation)
        self.gpu.reader.submit(read, done.set_exception)

    def _read_soon(
        self,
        reading: Reading,
        read: Callable[[Reading], None],
        done: Completion[None],
        cancellation: Cancellation,
    ) -> None:
        """Read on this thread if the device finishes soon, else on the reading thread."""
        try:
            soon = reading.watch(self.gpu.policy.blocking_read_seconds)
        except BaseException as error:
            self._refuse_reading(done, error)
            return
        if soon:
            read(reading)
        else:
            self._read_later(functools.partial(read, reading), done, cancellation)

    def _read(
        self,
        target: Array,
        done: Completion[None],
        cancellation: Cancellation,
        submission: int,
        reading: Reading,
    ) -> None:
        try:
            reading.finish(target, cancellation)
        except BaseException as error:
            self._refuse_reading(done, error)
        else:
            self.gpu.life.end_submission(submission)
            done.set_result(None)

    def _refuse_reading(self, done: Completion[None], error: BaseException) -> None:
        found = told(error, "reading a tensor")
        with contextlib.suppress(BaseException), self.loss():
            raise found
        done.set_exception(found)

    def dispatch(
        self,
        executable: Executable,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        key: Hashable = None,
    ) -> Run:
        """Return a function that records a run into the open batch."""
        assert isinstance(executable, WebGPUExecutable)
        loaded = executable.loaded
        bound = bind_resources.place(loaded, inputs, outputs, loaded.io_buffer)
        name = None if bound.before or bound.after else key

        def run() -> None:  # `Recorder.perform` holds the lock
            batch = self.recorder.batch
            bound.record(loaded, batch, name)
            batch.operations += 1

        return run

    def repeat(self, executable: Executable, key: Hashable) -> Run | None:
        """Return a function that records cached commands, as for most dispatches in a loop."""
        assert isinstance(executable, WebGPUExecutable)
        commands = executable.loaded.repeat(key)
        return None if commands is None else functools.partial(self._repeat, commands)

    def repeat_at_once(self, executable: Executable, key: Hashable) -> Run | None:
        """Return a function that records cached commands, if that takes an event loop not long."""
        assert isinstance(executable, WebGPUExecutable)
        commands = executable.loaded.repeat(key)
        if commands is None or not (self.is_free and self.recorder.replays.has(commands)):
            return None
        is_short = len(commands) <= MAX_LOOP_DISPATCHES
        return functools.partial(self._repeat, commands) if is_short else None

    def _repeat(self, commands: DispatchCommands) -> None:
        batch = self.recorder.batch  # `Recorder.perform` holds the lock
        batch.repeat(commands)
        batch.operations += 1

    def check_commands(self, commands: Sequence[Any]) -> None:
        """Check the user's command buffers and mark them as submitted.

        Raises:
            ValidationError: They are not command buffers of this device, were submitted before, or
                use a destroyed or mapped resource.
            ContextLostError: The device is lost.
        """
        for index, given in enumerate(commands):
            if is_a(given, "GPUCommandBuffer"):
                check_library(given, self.gpu.handle, f"submit: command buffer {index}")
            if not is_a(given, "GPUCommandBuffer") or is_foreign(given, self.gpu.handle):
                raise ValidationError(
                    f"submit: got {type_name(given)}, expected a GPUCommandBuffer of this"
                    " context's device"
                )
            if uses_of(given).taken:
                raise ValidationError(
                    f"submit: command buffer {index}: the GPUCommandBuffer was submitted before"
                )
        with self.loss():
            self._check_alive()
            check_submission(commands)
        for given in commands:
            uses_of(given).taken = True

    def _check_alive(self) -> None:
        """Raise an error if the device is lost."""
        with device_errors("submitting command buffers"):
            self.gpu.life.check()
            if not self.gpu.webgpu.CHECKING.is_available:
                check_alive(self.gpu.handle)

    def memory_of_commands(self, commands: Sequence[Any]) -> list[Region]:
        """Return the regions that command buffers use, all of which they may write."""
        found = [uses_of(given) for given in commands]
        if not all(uses.complete for uses in found):
            return [EVERYTHING]
        resources = dict.fromkeys(used for uses in found for used in uses.resources())
        return [
            region_of(Span(used, 0, used.size) if is_a(used, "GPUBuffer") else Span(used))
            for used in resources
        ]

    def submit_commands(self, commands: Sequence[Any]) -> Run:
        """Return a function that submits the batch, then the user's command buffers."""

        def run() -> None:
            what = "submitting command buffers"
            with self.loss(), device_errors(what), self.recorder.lock:
                self.recorder.submit_batch()
                self._check_alive()
                self.gpu.queue.submit(list(commands))

        return run

    def submit_before_return(self, operation: Operation) -> None:
        """Submit commands before returning, unless they or their resources wait for a timeline.

        The user's own later submissions, ordered only by the device queue, then follow them.
        """
        if operation.sync or any(self.users(memory.region) for memory in operation.writes):
            self.submit(operation)
            if not operation.waits:
                super().flush()
            return
        try:  # concurrent work of other threads shares no memory with it
            self.recorder.perform(operation)
        except Exception as error:
            operation.abandon(error)

    def commands_failed(self, commands: Sequence[Any], error: BaseException) -> None:
        """Allow command buffers to be submitted again after a failed submission."""
        for given in commands:
            uses_of(given).taken = False
        self._unreported = error

    def raise_failed(self) -> None:
        """Raise an OperationError if the submission of accepted command buffers has failed."""
        failed, self._unreported = self._unreported, None
        if failed is not None:
            raise caused_by("a submission that had waited for a timeline", failed)

    def part(self, storage: Any, offset: int, size: int) -> Binding:
        """Return a range of the tensor's buffer."""
        return Binding(storage.buffer, storage.offset + offset, size)

    def rent(self, storage: Any) -> Rent:
        """Rent out a tensor's GPUBuffer to the user."""
        return Rent(storage.buffer, self.gpu.life)

    def flush(self) -> list[Operation]:
        """Record all operations that are ready, submit the batch, and return the parked ones."""
        if self._schedule.is_free and self.recorder.batch.empty:
            return []
        left = super().flush()
        self.recorder.submit_recorded()
        return left

    def close(self, error: BaseException) -> None:
        """Fail pending work and drop the recorded commands."""
        super().close(error)
        self.recorder.pending.fail_all(error)
        self.recorder.drop()


class Rent:
    """Loan of a tensor's GPUBuffer to the user, who may destroy the buffer until it ends.

    It makes no calls to the device, which may be gone when an abandoned rent ends.

    Args:
        buffer: The GPUBuffer.
        life: Lifetime of its device.

    Attributes:
        buffer: The GPUBuffer.
        destroyed: Whether the user has destroyed the buffer.
    """

    def __init__(self, buffer: Any, life: Life) -> None:
        self.buffer = buffer
        self._life = life
        self.destroyed = False
        buffer.destroy = self._destroy

    def _destroy(self) -> None:
        self.destroyed = True
        type(self.buffer).destroy(self.buffer)

    def revoke(self) -> None:
        """Destroy the buffer, but not during a submission that uses it."""
        self._life.run_when_unused(functools.partial(type(self.buffer).destroy, self.buffer))

    def end(self) -> None:
        """End the rent: the buffer's `destroy` does nothing afterwards."""
        self.buffer.destroy = _nothing


def _nothing() -> None:
    """Ignore `destroy` of a buffer after its rent has ended."""
