"""Making tensors, and the host memory that is written to and read from them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.api.descriptor import split
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor
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
from webnn_py.ir import Array, Descriptor
from webnn_py.memory import host_arrays
from webnn_py.ordering.operation import Operation, Run, wait_in_order
from webnn_py.ordering.timeline import TimelinePoint

MOMENT = 0.002
"""Seconds for which a call may keep an event loop's thread."""


def create(session: Session, data_type: Any, shape: Any, flags: dict[str, bool]) -> MLTensor:
    """A zeroed tensor; see `MLContext.create_tensor_sync`."""
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


def create_constant(session: Session, value: Any, data_type: Any, shape: Any) -> MLTensor:
    """A tensor of fixed contents; see `MLContext.create_constant_tensor_sync`."""
    session.check_alive()
    with prefix_errors("create_constant_tensor"):
        array, name = host_arrays.constant_array(value, *split(data_type, shape))
        check_dimensions(array.shape, name)
    array.flags.writeable = False
    memory = TensorMemory(session, Descriptor(name, array.shape), None, constant=array)
    return MLTensor(memory)


@convert_memory_errors
def write(session: Session, tensor: MLTensor, value: Any) -> None:
    """Submit the writing of host memory, read or copied now; see `MLContext.write_tensor`."""
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
    """The memory to read, what a read returns, and the array of the shape to write into."""
    memory = own_memory(session, tensor, "read_tensor")
    if not tensor.readable:
        raise ValidationError("read_tensor: the MLTensor was not created readable")
    descriptor = memory.descriptor
    if out is None:
        target = np.empty(descriptor.shape, dtypes.DTYPES[descriptor.data_type].numpy)
    else:
        if isinstance(out, MLTensor):  # its memory is shared by DLPack, but not its place in order
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
    """Block while a tensor is read.

    Args:
        memory: The tensor's.
        target: What its contents are written into.
        seconds: To wait at most; None for no limit.
        given: Others have the array, too.

    Raises:
        WaitTimeoutError: It was not done in time, and is taken back.
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
    """As `read`, awaited."""
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
    """Put work on tensors into the context's order."""
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
    """A tensor over the memory of a DLPack tensor; see `MLContext.from_dlpack`."""
    session.check_alive()
    try:
        if not hasattr(value, "__dlpack__"):
            raise DataError(f"a {type_name(value)} does not speak DLPack")
        array = host_arrays.array_of(value).view()
        name = dtypes.from_numpy(array.dtype)
        check_dimensions(array.shape, name)
    except MLError as error:
        raise DLPackError(f"from_dlpack: {error}") from None
    except Exception as error:  # whatever the producer raises
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
    """What a tensor is made of, of no type for constants alone and without open dimensions.

    Raises:
        ValidationError: Data type or shape is not valid.
    """
    data_type, shape = split(data_type, shape)
    name = dtypes.check(data_type)
    if name in dtypes.PACKED_4BIT:
        raise ValidationError(f"data type {name} is for constants only")
    sizes = () if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, name)
    return Descriptor(name, sizes)
