"""Creation of tensors, and writes and reads of their contents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.api.descriptor import split
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_checks import own_memory
from webnn_py.api.tensor_memory import TensorMemory, mark_failed, run_on_tensors
from webnn_py.core import convert, dtypes
from webnn_py.core.completion import Cancellation, runs_event_loop, wait_or_cancel, within
from webnn_py.core.errors import (
    DataError,
    DLPackError,
    MLError,
    NotSupportedError,
    ValidationError,
    WaitTimeoutError,
    convert_memory_errors,
    prefix_errors,
)
from webnn_py.core.messages import describe_error, type_name
from webnn_py.core.shapes import check_dimensions
from webnn_py.engines.device import CommandQueue
from webnn_py.ir import Array, Descriptor, Shape
from webnn_py.memory import host_arrays
from webnn_py.ordering.operation import Operation, Run, wait_in_order
from webnn_py.ordering.timeline import TimelinePoint

MOMENT = 0.002
"""Maximum seconds for which a call may block an event loop's thread."""


def create(session: Session, data_type: Any, shape: Any, flags: dict[str, bool]) -> MLTensor:
    """Create a tensor of zeros; see `MLContext.create_tensor_sync`."""
    session.check_alive()
    with prefix_errors("create_tensor"):
        descriptor = tensor_descriptor(data_type, shape)
        for name, flag in flags.items():
            convert.boolean(flag, f"option {name!r}")
        if flags["exportable"] and session.device_type != "gpu":
            raise NotSupportedError("exportable tensors need a GPU context")
    with session.queue.loss():
        storage = session.queue.allocate(descriptor)
    return MLTensor(TensorMemory(session, descriptor, storage), **flags)


def part(tensor: MLTensor, offset: int, shape: Shape) -> MLTensor:
    """Return a tensor over a part of another one's memory on a device, from a byte on."""
    memory = memory_of(tensor, "part")
    session, descriptor = memory.session, Descriptor(tensor.data_type, shape)
    assert isinstance(session.queue, CommandQueue)
    storage = session.queue.part(memory.current, offset, descriptor.byte_length)
    flags = {"readable": tensor.readable, "writable": tensor.writable}
    return MLTensor(TensorMemory(session, descriptor, storage), **flags)


def create_constant(session: Session, value: Any, data_type: Any, shape: Any) -> MLTensor:
    """Create a constant tensor; see `MLContext.create_constant_tensor_sync`."""
    session.check_alive()
    with prefix_errors("create_constant_tensor"):
        array, name = host_arrays.constant_array(value, *split(data_type, shape))
        check_dimensions(array.shape, name)
    array.flags.writeable = False
    memory = TensorMemory(session, Descriptor(name, array.shape), None, constant=array)
    return MLTensor(memory)


@convert_memory_errors
def write(session: Session, tensor: MLTensor, value: Any) -> None:
    """Submit a write of host memory into a tensor; see `MLContext.write_tensor`."""
    memory = own_memory(session, tensor, "write_tensor")
    if not tensor.writable:
        raise ValidationError("write_tensor: the MLTensor was not created writable")
    try:
        array = host_arrays.input_array(value, memory.descriptor, "write_tensor")
    except DataError as error:
        raise ValidationError(str(error)) from None
    queue, lent = session.queue, host_arrays.BorrowedArray(array)
    if not queue.is_free:
        queue.wait_for_room(MOMENT if runs_event_loop() else None)
        if not queue.is_free:
            lent.keep()
    run = queue.write(memory.storage, lent)
    submit(session, "write_tensor", run, [], [memory], lent=lent)


@convert_memory_errors
def read_target(session: Session, tensor: MLTensor, out: Any) -> tuple[TensorMemory, Array, Array]:
    """Return the tensor's memory, the result of the read, and the array to read into."""
    memory = own_memory(session, tensor, "read_tensor")
    if not tensor.readable:
        raise ValidationError("read_tensor: the MLTensor was not created readable")
    descriptor = memory.descriptor
    if out is None:
        target = np.empty(descriptor.shape, dtypes.DTYPES[descriptor.data_type].numpy)
    else:
        if isinstance(out, MLTensor):  # a write to its memory would bypass the order
            raise ValidationError(
                "read_tensor: option 'out': got MLTensor, expected an array or a buffer; read into"
                " an array, and give that to write_tensor"
            )
        try:
            target = host_arrays.output_array(out, descriptor, "read_tensor")
        except DataError as error:
            raise ValidationError(str(error)) from None
    return memory, out if isinstance(out, np.ndarray) else target, target


def read(memory: TensorMemory, target: Array, seconds: float | None, given: bool) -> None:
    """Read a tensor and block until the read is done.

    Args:
        memory: Memory of the tensor.
        target: Destination array.
        seconds: Maximum wait in seconds; None for no limit.
        given: Whether the user also holds the array.

    Raises:
        WaitTimeoutError: The read did not finish in time and is cancelled.
    """
    cancellation = Cancellation()
    done, operation = memory.read(target, cancellation, given, waits=True)
    if seconds is None:
        wait_in_order(done, operation)
        return
    try:
        done.wait(seconds)
    except TimeoutError:
        if done.done:
            raise
        standing = operation.describe_state()
        writing = cancellation.cancel()
        memory.session.queue.withdraw(operation)
        writing.wait()
        raise _overdue("read_tensor_sync", memory, seconds, standing) from None


async def read_async(
    memory: TensorMemory, target: Array, seconds: float | None, given: bool
) -> None:
    """Read a tensor without blocking the event loop; arguments as in `read`."""
    cancellation = Cancellation()
    done, operation = memory.read(target, cancellation, given)
    standing = ""

    def withdraw() -> None:
        nonlocal standing
        standing = operation.describe_state()
        memory.session.queue.withdraw(operation)

    try:
        await within(seconds, wait_or_cancel(done, cancellation, withdraw, settle=given))
    except TimeoutError:
        if not standing:
            raise
        raise _overdue("read_tensor_async", memory, seconds, standing) from None


def _overdue(
    what: str, memory: TensorMemory, seconds: float | None, standing: str
) -> WaitTimeoutError:
    return WaitTimeoutError(
        f"{what} of the MLTensor {memory.descriptor} is not done after {seconds:g} s: it {standing}"
    )


def submit(
    session: Session,
    title: str,
    run: Run,
    reads: Sequence[TensorMemory],
    writes: Sequence[TensorMemory],
    sync: tuple[TimelinePoint, ...] = (),
    lent: host_arrays.BorrowedArray | None = None,
) -> None:
    """Submit work on tensors to the context's queue."""
    operation = Operation(
        functools.partial(run_on_tensors, reads, writes, run),
        functools.partial(mark_failed, writes),
        sync,
        reads=reads,
        writes=writes,
        title=title,
    )
    if lent is not None:
        operation.kept_bytes, operation.keep = lent.array.nbytes, lent.keep
    session.queue.submit(operation)


def from_dlpack(session: Session, value: Any) -> MLTensor:
    """Create a tensor over the memory of a DLPack tensor; see `MLContext.from_dlpack`."""
    session.check_alive()
    try:
        if not hasattr(value, "__dlpack__"):
            raise DataError(f"a {type_name(value)} does not speak DLPack")
        array = host_arrays.array_of(value).view()
        name = dtypes.from_numpy(array.dtype)
        check_dimensions(array.shape, name)
    except MLError as error:
        raise DLPackError(f"from_dlpack: {error}") from None
    except Exception as error:  # the producer may raise any type
        raise DLPackError(f"from_dlpack: {describe_error(error)}") from error
    if not array.flags.c_contiguous:
        raise DLPackError(
            f"from_dlpack: the memory of shape {list(array.shape)} is strided; copy it first"
        )
    if session.device_type == "cpu":
        writable = bool(array.flags.writeable)
        descriptor = Descriptor(name, array.shape)
        memory = TensorMemory(session, descriptor, array, read_only=not writable)
        return MLTensor(memory, readable=True, writable=writable)
    flags = {"readable": True, "writable": True, "exportable": False}
    tensor = create(session, name, array.shape, flags)
    write(session, tensor, array)
    return tensor


def tensor_descriptor(data_type: Any, shape: Any) -> Descriptor:
    """Return the checked descriptor of a tensor, without 4-bit types and open dimensions.

    Raises:
        ValidationError: The data type or shape is not valid.
    """
    data_type, shape = split(data_type, shape)
    name = dtypes.check(data_type)
    if name in dtypes.PACKED_4BIT:
        raise ValidationError(f"data type {name} is for constants only")
    sizes = () if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, name)
    return Descriptor(name, sizes)
