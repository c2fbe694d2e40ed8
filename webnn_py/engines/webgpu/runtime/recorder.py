"""Records a context's operations as they come, and submits them together."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from webnn_py.engines.device_loss import Loss
from webnn_py.engines.webgpu.runtime.command_batch import Batch
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors, told
from webnn_py.engines.webgpu.runtime.in_flight import UnderWay
from webnn_py.ordering.operation import Operation, complete


class Recorder:
    """What is recorded and not yet submitted, by one thread at a time.

    Args:
        gpu: The device.
        under_way: What the context has begun.
        loss: Told of a device that is found lost.

    Attributes:
        lock: Who records or submits has it, by `with` alone: an interrupt, such as by Ctrl-C, may
            come before a function of ours that would release it.
        batch: What is recorded; for who has the lock.
    """

    def __init__(self, gpu: Device, under_way: UnderWay, loss: Loss) -> None:
        self._gpu = gpu
        self._under_way = under_way
        self._loss = loss
        self.lock = threading.RLock()
        self.batch = Batch(gpu)
        self._in_batch: list[Callable[[BaseException], None]] = []

    def perform(self, operation: Operation) -> None:
        """Record it, unless it is slow; it fails with the batch, if that is then refused."""
        if operation.slow:
            operation.run()
            return
        try:
            with self.lock:
                operation.run()
                batch = self.batch
                if not batch.empty:
                    self._in_batch.append(operation.fail)
                if batch.full:
                    batch.encoder()
                    self.submit_batch()
        except BaseException:
            with self._loss, device_errors(operation.title):
                raise

    @property
    def nothing_recorded(self) -> bool:
        """Whether there is nothing to submit."""
        return self.batch.empty

    def submit_recorded(self) -> None:
        """Submit what is recorded."""
        with self._loss, device_errors("submitting recorded graphs"), self.lock:
            self.submit_batch()

    def submit_batch(self) -> None:
        """As `submit_recorded`, for who has the lock."""
        recorded, self._in_batch = self._in_batch, []
        try:
            self.batch.submit()
        except BaseException as error:
            found = told(error, "submitting recorded graphs")
            for fail in recorded:
                fail(found)
            raise found from found.__cause__

    def signal(self, operation: Operation) -> None:
        """Later work on this device need not wait; everyone else waits until it has run."""
        gpu = self._gpu
        with self._loss, device_errors("submitting recorded graphs"), self.lock:
            fence = gpu.staging.fence(self.batch.encoder())
            self.submit_batch()
        for timeline, value in operation.signals:
            timeline.promise(value, gpu.handle)
        self._under_way.add(operation, operation.fail_signals)
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
            self._under_way.remove(operation)

    def drop(self) -> None:
        """Drop what is recorded.

        Without the lock: a thread that submits has it, as long as the device takes for that.
        """
        self.batch, self._in_batch = Batch(self._gpu), []
