"""Tensors that an execution is given: their memory, if it can be used now."""

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
    """The memory of a tensor that an execution is given, if it can be used now.

    Raises:
        DataError: It is of another context (on a GPU: device) or one that is lost, destroyed,
            constant where that cannot be, or does not fit.
        InvalidStateError: It is exported.
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
    """Let an execution use a tensor now, of its own context or of another one.

    Raises:
        DataError: It is destroyed, or its context is lost.
        InvalidStateError: It is exported.
    """
    if not memory.session.alive:
        raise DataError(f"{what}: the MLTensor's own context is lost")
    memory.place(what, DataError)


def check_tensors(given: object, names: Iterable[str]) -> None:
    """Raise a ValidationError if something else than a tensor is given for one of the names."""
    read = convert.mapping(given, "inputs")
    for name in names:
        if name in read:
            memory_of(read[name], named("input", name))


def own_tensor(session: Session, tensor: Any, descriptor: Descriptor, what: str) -> TensorMemory:
    """The memory of a context's own tensor that can be read and written now."""
    memory = own_memory(session, tensor, what)
    _check_fits(memory, descriptor, what, ValidationError)
    return memory


def own_memory(session: Session, tensor: object, what: str) -> TensorMemory:
    """The memory of a context's own tensor, if it can be read or written now.

    Raises:
        ContextLostError: The context is lost.
        ValidationError: It is none, of another context, destroyed or constant.
        InvalidStateError: It is exported.
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
