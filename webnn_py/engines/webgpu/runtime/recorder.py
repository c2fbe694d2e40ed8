"""Recorder, which batches a context's operations in one command encoder per submission."""

from __future__ import annotations

import functools
import threading
from typing import Any

from webnn_py.core.completion import Completion
from webnn_py.engines.base import Loss
from webnn_py.engines.webgpu.runtime.device_graph import PassEncoder
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import Fail, PendingWork
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors, told
from webnn_py.engines.webgpu.runtime.replay import Replays
from webnn_py.engines.webgpu.runtime.webgpu_api import DispatchCommands
from webnn_py.engines.webgpu.runtime.webgpu_h.encoding import CommandBuffer
from webnn_py.ordering.operation import Operation, complete


class Batch(PassEncoder):
    """Recorded commands that are not submitted yet: an open encoder behind command buffers.

    Args:
        gpu: The device.
        replays: The context's repeated runs.

    Attributes:
        empty: Whether nothing is recorded.
        operations: Number of recorded operations.
        bytes: Bytes of uploads and of new tensors, which cannot be freed before the submission.
    """

    def __init__(self, gpu: Device, replays: Replays) -> None:
        super().__init__(None)
        self._gpu = gpu
        self._replays = replays
        self._before: list[CommandBuffer | Completion[CommandBuffer]] = []
        self._replayed = 0
        self._is_long = False  # the open encoder holds a run with many dispatches
        self.empty = True
        self.operations = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the batch has reached its limits and must be submitted."""
        most = self._gpu.policy
        return (
            self.operations >= most.max_batch_operations
            or self.bytes >= most.max_batch_bytes
            or self._replayed >= most.max_batch_replays
        )

    def encoder(self) -> Any:
        """Return the command encoder, with no pass open; make it for the first command."""
        if self._encoder is None:
            self._encoder = self._gpu.plain_encoder("batch")
            self.empty = False
        return super().encoder()

    def repeat(self, commands: DispatchCommands) -> None:
        """Record a repeated run, or add the command buffer that was recorded for it."""
        if not self._replays.has(commands):
            commands.encode(self.compute_pass())
            return
        recorded = self._replays.next(commands)
        self._replayed += 1
        if recorded is None:
            if self._is_long:  # finish that while this thread encodes the next run
                self._close()
            commands.encode(self.compute_pass())
            self._is_long = True
            return
        self._close()
        self._before.append(recorded)
        self.empty = False

    def _close(self) -> None:
        """Finish the open encoder, on another thread if that takes long."""
        if self._encoder is None:
            return
        encoder, is_long = self.encoder(), self._is_long
        self._encoder, self._is_long = None, False
        if not is_long:
            self._before.append(encoder.finish())
            return
        finishing: Completion[CommandBuffer] = Completion()
        self._gpu.recorder.submit(
            lambda: finishing.set_result(encoder.finish()), finishing.set_exception
        )
        self._before.append(finishing)

    def _finished(self) -> Any:
        """Return the last command buffer."""
        if self._encoder is None and isinstance(self._before[-1], CommandBuffer):
            return self._before.pop()
        return self.encoder().finish()

    def submit(self) -> None:
        """Submit the recorded commands and reset the batch.

        `empty` stays false until the submission is done. So a thread that finds the batch empty
        submits after it.
        """
        if self._encoder is None and not self._before:
            return
        try:
            try:
                commands, before = self._finished(), self._before
            finally:  # a finalizer may record meanwhile on this thread
                self._encoder = self._pass = None
                self._before, self._is_long = [], False
                self.operations = self.bytes = self._replayed = 0
            finished = [one.wait() if isinstance(one, Completion) else one for one in before]
            self._gpu.submit(commands, finished)
        finally:
            self.empty = self._encoder is None and not self._before


class Recorder:
    """Thread-safe recorder of a context's operations into a batch.

    Args:
        gpu: The device.
        loss: Notified when the device turns out to be lost.

    Attributes:
        lock: Held while recording or submitting. Acquire it by `with` only: an interrupt, such as
            Ctrl-C, may arrive before a function of ours could release it.
        replays: The repeated runs.
        batch: The commands that are not submitted yet; guarded by the lock.
        pending: The work that fails when the context is lost.
    """

    def __init__(self, gpu: Device, loss: Loss) -> None:
        self._gpu = gpu
        self._loss = loss
        self.lock = threading.RLock()
        self.replays = Replays(gpu)
        self.batch = Batch(gpu, self.replays)
        self.pending = PendingWork()
        self._batched: list[Fail] = []

    def perform(self, operation: Operation) -> None:
        """Record an operation, or run a slow one at once; it fails if its batch is refused."""
        if operation.slow:
            operation.run()
            return
        try:
            with self.lock:
                operation.run()
                batch = self.batch
                if not batch.empty:
                    self._batched.append(operation.fail)
                if batch.is_full:
                    if batch.empty:  # an empty submission frees the uploads
                        batch.encoder()
                    self.submit_batch()
        except BaseException:
            with self._loss, device_errors(operation.title):
                raise

    def submit_recorded(self) -> None:
        """Submit the recorded commands."""
        if self.batch.empty:
            return
        with self._loss, device_errors("submitting recorded graphs"), self.lock:
            self.submit_batch()

    def submit_batch(self) -> None:
        """Submit the recorded commands; the caller holds the lock."""
        batched, self._batched = self._batched, []
        try:
            self.batch.submit()
        except BaseException as error:
            found = told(error, "submitting recorded graphs")
            for fail in batched:
                fail(found)
            raise found from found.__cause__

    def signal(self, operation: Operation) -> None:
        """Signal an operation's timelines when the device has run all recorded commands.

        Later work on this device need not wait for the signal: the device queue keeps the order.
        """
        gpu = self._gpu
        with self._loss, device_errors("submitting recorded graphs"), self.lock:
            fence = gpu.staging.fence(self.batch.encoder())
            self.submit_batch()
        for timeline, value in operation.signals:
            timeline.promise(value, gpu.handle)
        self.pending.add(operation, operation.fail_signals)
        gpu.reader.submit(
            functools.partial(self._complete, fence, operation), operation.fail_signals
        )

    def _complete(self, fence: Any, operation: Operation) -> None:
        try:
            with self._loss, device_errors("waiting for submitted work"):
                self._gpu.staging.wait(fence)
        except BaseException as error:
            operation.fail_signals(error)
        else:
            complete(operation)
        finally:
            self.pending.remove(operation)

    def drop(self) -> None:
        """Drop the recorded commands.

        This does not take the lock, which a submitting thread may hold for long.
        """
        self.batch, self._batched = Batch(self._gpu, self.replays), []
