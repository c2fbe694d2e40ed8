"""Checks that tensors are usable in an execution; they return the tensors' memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_memory import TensorMemory
from webnn_py.core import convert
from webnn_py.core.errors import DataError, MLError, ValidationError
from webnn_py.core.messages import named
from webnn_py.ir import Descriptor


def given_tensor(
    session: Session, tensor: MLTensor, descriptor: Descriptor, what: str, written: bool = False
) -> TensorMemory:
    """Return the memory of a tensor argument, after checking that it is usable now.

    Raises:
        DataError: The tensor belongs to another context (on a GPU: another device) or a lost one,
            is destroyed, is constant or read-only where it may not be, or does not fit.
        InvalidStateError: The tensor is exported.
    """
    memory = memory_of(tensor, what, DataError)
    device = session.device
    if written and (memory.constant or memory.read_only):
        raise DataError(f"{what}: the MLTensor cannot be written to")
    if memory.session is not session and (device is None or memory.session.device is not device):
        owner = "another context" if device is None else "a context on another device"
        raise DataError(f"{what}: the MLTensor belongs to {owner}")
    check_there(memory, what)
    if memory.constant and device is not None:
        raise DataError(f"{what}: the MLTensor is constant; use MLGraphBuilder.constant")
    _check_fits(memory, descriptor, what, DataError)
    return memory


def check_there(memory: TensorMemory, what: str) -> None:
    """Check that a tensor, perhaps of another context, is usable now.

    Raises:
        DataError: The tensor is destroyed, or its context is lost.
        InvalidStateError: The tensor is exported.
    """
    if not memory.session.alive:
        raise DataError(f"{what}: the MLTensor's own context is lost")
    memory.place(what, DataError)


def check_tensors(given: object, names: Iterable[str]) -> None:
    """Raise a ValidationError if the value of one of the names is not an MLTensor."""
    read = convert.mapping(given, "inputs")
    for name in names:
        if name in read:
            memory_of(read[name], named("input", name))


def own_tensor(session: Session, tensor: Any, descriptor: Descriptor, what: str) -> TensorMemory:
    """Return the memory of a usable tensor of this context that fits the descriptor."""
    memory = own_memory(session, tensor, what)
    _check_fits(memory, descriptor, what, ValidationError)
    return memory


def own_memory(session: Session, tensor: object, what: str) -> TensorMemory:
    """Return the memory of a tensor of this context, after checking that it is usable now.

    Raises:
        ContextLostError: The context is lost.
        ValidationError: `tensor` is not an MLTensor, belongs to another context, or is destroyed or
            constant.
        InvalidStateError: The tensor is exported.
    """
    if not session.alive:
        session.check_alive()
    memory = tensor._memory if type(tensor) is MLTensor else memory_of(tensor, what)
    if memory.session is session and memory.storage is not None and not memory.rented:
        return memory
    if memory.session is not session:
        raise ValidationError(f"{what}: the MLTensor belongs to another context")
    memory.place(what)
    if memory.constant:
        raise ValidationError(f"{what}: the MLTensor is constant")
    return memory


def _check_fits(
    memory: TensorMemory, descriptor: Descriptor, what: str, error: type[MLError]
) -> None:
    wanted = Descriptor(descriptor.data_type, descriptor.shape)
    if memory.descriptor != wanted:
        raise error(f"{what}: the MLTensor is {memory.descriptor}, expected {wanted}")
