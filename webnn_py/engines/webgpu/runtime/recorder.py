"""Recorder, which batches a context's operations in one command encoder per submission."""

from __future__ import annotations

import functools
import threading
from typing import Any

from webnn_py.engines.base import Loss
from webnn_py.engines.webgpu.runtime.device_graph import PassEncoder
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import Fail, PendingWork
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors, told
from webnn_py.ordering.operation import Operation, complete


class Batch(PassEncoder):
    """Recorded commands that are not submitted yet, in one command encoder.

    Attributes:
        empty: Whether nothing is recorded.
        operations: Number of recorded operations.
        bytes: Bytes of uploads and of new tensors, which cannot be freed before the submission.
    """

    def __init__(self, gpu: Device) -> None:
        super().__init__(None)
        self._gpu = gpu
        self.empty = True
        self.operations = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the batch has reached its limits and must be submitted."""
        most = self._gpu.policy
        return self.operations >= most.max_batch_operations or self.bytes >= most.max_batch_bytes

    def encoder(self) -> Any:
        """Return the command encoder, with no pass open; make it for the first command."""
        if self._encoder is None:
            self._encoder = self._gpu.plain_encoder("batch")
            self.empty = False
        return super().encoder()

    def submit(self) -> None:
        """Submit the recorded commands and reset the batch.

        `empty` stays false until the submission is done. So a thread that finds the batch empty
        submits after it.
        """
        if self._encoder is None:
            return
        try:
            try:
                commands = (self._encoder if self._pass is None else self.encoder()).finish()
            finally:  # a finalizer may record meanwhile on this thread
                self._encoder = self._pass = None
                self.operations = self.bytes = 0
            self._gpu.submit(commands)
        finally:
            self.empty = self._encoder is None


class Recorder:
    """Thread-safe recorder of a context's operations into a batch.

    Args:
        gpu: The device.
        loss: Notified when the device turns out to be lost.

    Attributes:
        lock: Held while recording or submitting. Acquire it by `with` only: an interrupt, such as
            Ctrl-C, may arrive before a function of ours could release it.
        batch: The commands that are not submitted yet; guarded by the lock.
        pending: The work that fails when the context is lost.
    """

    def __init__(self, gpu: Device, loss: Loss) -> None:
        self._gpu = gpu
        self._loss = loss
        self.lock = threading.RLock()
        self.batch = Batch(gpu)
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
        self.batch, self._batched = Batch(self._gpu), []
