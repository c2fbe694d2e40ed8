"""TensorMemory: the storage of an MLTensor, with its state, errors and export."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from webnn_py.api.session import Session
from webnn_py.core import dtypes
from webnn_py.core.completion import (
    Cancellation,
    Completion,
    check_interrupts_nothing,
    check_may_block,
)
from webnn_py.core.errors import (
    InvalidStateError,
    MLError,
    ValidationError,
    caused_by,
    root_cause,
)
from webnn_py.engines.device import CommandQueue, Rent
from webnn_py.ir import Array, Descriptor
from webnn_py.memory.overlap import region_of
from webnn_py.ordering.operation import Operation, Run, wait_in_order

_SERIALS = itertools.count()


class TensorMemory:
    """Storage of one tensor of a context.

    Args:
        session: Session of the context.
        descriptor: Data type and shape.
        storage: The engine's storage object, such as an array or a buffer.
        constant: The contents of a constant tensor, None for any other.
        read_only: Whether the memory is borrowed from an owner who forbids writing.

    Attributes:
        error: Error of the failed work that was to write the contents, else None.
        rented: Whether the tensor is exported as a GPUBuffer.
        destroyed: Whether `destroy` was called.
        serial: Unique number of this tensor.
        region: Memory region, by which the queue detects hazards.
    """

    def __init__(
        self,
        session: Session,
        descriptor: Descriptor,
        storage: Any,
        constant: Array | None = None,
        read_only: bool = False,
    ) -> None:
        self.session = session
        self.descriptor = descriptor
        self.storage = storage
        self.contents = constant
        self.constant = constant is not None
        self.read_only = read_only
        self.error: BaseException | None = None
        self.rented = False
        self.destroyed = False
        self.serial = next(_SERIALS)
        self.region = region_of(session.queue.target(storage) if constant is None else constant)
        self._rent: Rent | None = None
        self._lock = threading.Lock()
        session.register_holder(self)

    def place(self, what: str, error: type[MLError] = ValidationError) -> Any:
        """Return the contents of a constant, else the storage, if the tensor is usable now.

        Raises:
            ValidationError: (or `error`) The tensor is destroyed.
            InvalidStateError: The tensor is exported as a GPUBuffer.
        """
        found = self.contents if self.constant else self.storage
        if self.destroyed:
            raise error(f"{what}: the MLTensor is destroyed")
        if found is None:
            self.session.check_alive()
        if self.rented:
            raise InvalidStateError(
                f"{what}: the MLTensor is exported; release its GPUBuffer first"
            )
        return found

    def rent(self) -> Rent:
        """Rent out the GPUBuffer; destroying the tensor before `end_rent` also destroys it.

        Raises:
            InvalidStateError: The tensor is exported already.
        """
        queue = self.session.queue
        assert isinstance(queue, CommandQueue)  # only GPU contexts have exportable tensors
        with self._lock:
            self._rent = rent = queue.rent(self.place("export_to_gpu"))
            self.rented = True
            return rent

    def end_rent(self) -> None:
        """End the export, so that the tensor is usable again."""
        self._rent = None
        self.rented = False

    def destroy(self) -> None:
        """Release the memory once all work that uses it is done. Harmless twice."""
        self.destroyed = True
        self._revoke()
        self.storage = self.contents = None

    def release(self) -> None:
        """Release the memory at the loss of the context; later uses raise a ContextLostError."""
        self.storage = None
        self._revoke()

    def _revoke(self) -> None:
        """Revoke the rent of the GPUBuffer, if there is one."""
        with self._lock:
            rent, self._rent = self._rent, None
        if rent is not None:
            rent.revoke()

    @property
    def current(self) -> Any:
        """Return the `storage`, which another thread may release at any time.

        Raises:
            ContextLostError: The context is lost.
            ValidationError: The tensor is destroyed.
        """
        found = self.storage
        if found is None:
            self.session.check_alive()
            raise ValidationError("the MLTensor is destroyed")
        return found

    def check_written(self) -> None:
        """Raise an OperationError if the work that writes the contents failed."""
        if self.error is not None:
            raise caused_by("the work that was to write this MLTensor", self.error)

    def read(
        self, target: Array, cancellation: Cancellation, given: bool = True, waits: bool = False
    ) -> tuple[Completion[None], Operation]:
        """Submit a read of the contents into an array, after all earlier work on them.

        Args:
            target: Destination array.
            cancellation: Cancellation of the read.
            given: Whether the user also holds the array.
            waits: Whether this thread blocks until the read is done.

        Returns:
            The completion of the read, and its operation.
        """
        done: Completion[None] = Completion()
        queue, reads, storage = self.session.queue, (self,), self.storage
        if storage is None or self.rented:
            storage = self.place("read_tensor")
        slow = not waits and queue.reads_long(storage)
        run = queue.read(storage, target, done, cancellation, waits, slow)
        operation = Operation(
            functools.partial(run_on_tensors, reads, (), run),
            done.set_exception,
            reads=reads,
            writes=(region_of(target),) if given else (),
            slow=slow,
            title="read_tensor",
        )
        queue.submit(operation)
        return done, operation

    def host_array(self, copy: bool) -> Array:
        """Return the contents in host memory after all work submitted so far.

        A constant or CPU tensor shares its memory unless `copy` is set.

        Raises:
            InvalidStateError: The call would block this thread's event loop.
            OperationError: The work that writes the contents failed.
        """
        self.session.check_alive()
        memory: Array = self.place("the MLTensor")
        if self.constant or self.session.device_type == "cpu":
            self._wait()
            return memory.copy() if copy else memory
        check_may_block("a copy from the GPU", "read_tensor_async")
        check_interrupts_nothing("a copy from the GPU")
        target = np.empty(self.descriptor.shape, dtypes.DTYPES[self.descriptor.data_type].numpy)
        wait_in_order(*self.read(target, Cancellation(), waits=True))
        return target

    def _wait(self) -> None:
        """Wait until all work submitted so far that uses the tensor is done."""
        queue = self.session.queue
        if queue.users(self.region):
            what = "work on the MLTensor that is not done"
            check_may_block(what, "read_tensor_async first")
            check_interrupts_nothing(what)
            done: Completion[None] = Completion()
            # The recipient of the memory may write to it: pending reads must finish as well.
            operation = Operation(
                lambda: done.set_result(None),
                done.set_exception,
                writes=(self,),
                title="sharing a tensor's memory",
            )
            queue.submit(operation)
            wait_in_order(done, operation)
        self.check_written()


def check_not_held(memory: TensorMemory, what: str, reading: bool = False) -> None:
    """Submit recorded work; raise an InvalidStateError if work on a tensor is parked.

    Args:
        memory: Memory of the tensor.
        what: Start of the error message: the refused call and the tensor.
        reading: Ignore parked work that only reads the tensor.
    """
    for work in memory.session.queue.flush():
        if work.uses(memory.region, writing=reading):
            raise InvalidStateError(
                f"{what}: work on it waits for a timeline ({work.title} {work.describe_state()});"
                " wait for that first"
            )


class Export(AbstractContextManager[Any]):
    """Context manager that exports a GPU tensor as its GPUBuffer.

    Dropping it without leaving the block does not end the export: at interpreter shutdown the
    objects for that may be gone.

    Args:
        memory: Memory of the tensor, which nothing else may use meanwhile.
    """

    def __init__(self, memory: TensorMemory) -> None:
        self._memory = memory
        self._rent: Rent | None = None

    def __enter__(self) -> Any:
        memory = self._memory
        memory.session.check_alive()
        check_not_held(memory, "export_to_gpu: the MLTensor")
        memory.check_written()
        self._rent = rent = memory.rent()
        return rent.buffer

    def __exit__(self, *raised: object) -> None:
        rent, self._rent = self._rent, None
        if rent is None:
            return
        rent.end()
        self._memory.end_rent()
        if rent.destroyed:
            self._memory.destroy()


def run_on_tensors(reads: Sequence[TensorMemory], writes: Sequence[TensorMemory], run: Run) -> None:
    """Run work unless the write of an input failed, then clear the errors of its outputs."""
    for tensor in reads:
        if tensor.error is not None:
            tensor.check_written()
    run()
    mark_made(writes)


def mark_made(writes: Sequence[TensorMemory]) -> None:
    """Clear the errors of tensors that work has written."""
    for tensor in writes:
        tensor.error = None


def mark_failed(writes: Sequence[TensorMemory], error: BaseException) -> None:
    """Store the error of failed work in the tensors that it should have written."""
    root = root_cause(error)
    for tensor in writes:
        tensor.error = root
