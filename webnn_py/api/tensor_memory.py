"""The memory behind an MLTensor: whether it can be used now, and what becomes of work on it."""

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
from webnn_py.ir import Array, Descriptor
from webnn_py.memory.overlap import region_of
from webnn_py.ordering.operation import Operation, Run, wait_in_order

_SERIALS = itertools.count()


class TensorMemory:
    """Memory of a context that holds one tensor.

    Args:
        session: Whose it is.
        descriptor: Data type and shape.
        storage: Where the contents lie, as the engine has it.
        constant: The contents, if they are fixed.
        read_only: It is somebody else's, who does not allow writing.

    Attributes:
        error: Why the contents were never made, if the work that was to do so failed.
        rented: It is exported as a GPUBuffer.
        destroyed: It was given back.
        serial: Unlike that of any other.
        region: The memory, as work is told apart by it.
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
        self._rent: Any = None
        self._lock = threading.Lock()
        session.has(self)

    def place(self, what: str, error: type[MLError] = ValidationError) -> Any:
        """Where the contents lie, if they can be used now.

        Raises:
            ValidationError: The tensor is destroyed (or `error`).
            InvalidStateError: It is rented out as a GPUBuffer.
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

    def rent(self) -> Any:
        """The rent of its GPUBuffer, which is destroyed with the tensor until `end_rent`.

        Raises:
            InvalidStateError: It is exported already.
        """
        queue: Any = self.session.queue
        with self._lock:
            self._rent = queue.rent(self.place("export_to_gpu"))
            self.rented = True
            return self._rent

    def end_rent(self) -> None:
        """Take the GPUBuffer back from the user."""
        self._rent = None
        self.rented = False

    def destroy(self) -> None:
        """Give the memory back once work that uses it is done. Harmless twice."""
        self.destroyed = True
        self._revoke()
        self.storage = self.contents = None

    def release(self) -> None:
        """Give the memory back; the context is gone, which who asks is told."""
        self.storage = None
        self._revoke()

    def _revoke(self) -> None:
        """End the loan of its GPUBuffer, if there is one."""
        with self._lock:
            rent, self._rent = self._rent, None
        if rent is not None:
            rent.revoke()

    @property
    def current(self) -> Any:
        """The `storage`, which another thread may be giving back just now.

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
        """Raise an OperationError if the work that was to write the contents failed."""
        if self.error is not None:
            raise caused_by("the work that was to write this MLTensor", self.error)

    def read(
        self, target: Array, cancellation: Cancellation, given: bool = True, waits: bool = False
    ) -> tuple[Completion[None], Operation]:
        """Have the contents read into an array, after the work on them submitted before.

        Args:
            target: The array.
            cancellation: Of the read.
            given: Others have the array, too.
            waits: This thread does nothing else until it is done.

        Returns:
            The end of it, and the work itself.
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
        """The contents in host memory after all work submitted so far; shared where it can be.

        Raises:
            InvalidStateError: It would block this thread's event loop.
            OperationError: The work that made the contents failed.
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
            # Who has the memory may write there: what reads it has to be done as well.
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
    """Let what uses a tensor begin; raise an InvalidStateError if work on it is held.

    Args:
        memory: The tensor's.
        what: What cannot be done then, and with which tensor.
        reading: Held work that only reads it does not matter.
    """
    for work in memory.session.queue.flush():
        if work.uses(memory.region, writing=reading):
            raise InvalidStateError(
                f"{what}: work on it waits for a timeline ({work.title} {work.describe_state()});"
                " wait for that first"
            )


class Export(AbstractContextManager[Any]):
    """A tensor of a GPU context, rented as the GPUBuffer that it lies in.

    Who drops it without leaving it ends nothing: what may be gone by then, such as when Python
    ends, is not asked for.

    Args:
        memory: The tensor's; nothing else may use it meanwhile.
    """

    def __init__(self, memory: TensorMemory) -> None:
        self._memory = memory
        self._rent: Any = None

    def __enter__(self) -> Any:
        memory = self._memory
        memory.session.check_alive()
        check_not_held(memory, "export_to_gpu: the MLTensor")
        memory.check_written()
        self._rent = memory.rent()
        return self._rent.buffer

    def __exit__(self, *raised: object) -> None:
        rent, self._rent = self._rent, None
        if rent is None:
            return
        rent.end()
        self._memory.end_rent()
        if rent.destroyed:
            self._memory.destroy()


def run_on_tensors(reads: Sequence[TensorMemory], writes: Sequence[TensorMemory], run: Run) -> None:
    """Do work that fails if what it reads was never made, and makes what it writes."""
    for tensor in reads:
        if tensor.error is not None:
            tensor.check_written()
    run()
    mark_made(writes)


def mark_made(writes: Sequence[TensorMemory]) -> None:
    """Leave no error in tensors that work writes."""
    for tensor in writes:
        tensor.error = None


def mark_failed(writes: Sequence[TensorMemory], error: BaseException) -> None:
    """Leave the error of failed work in the tensors that it was to write."""
    root = root_cause(error)
    for tensor in writes:
        tensor.error = root
