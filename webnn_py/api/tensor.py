"""MLTensor: memory of a context, ordered on the context's own timeline."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from webnn_py.core import convert
from webnn_py.core.errors import (
    DLPackError,
    InvalidStateError,
    MLError,
    NotSupportedError,
    ValidationError,
    consequence,
    root_of,
)
from webnn_py.core.messages import Suggesting, said, shown
from webnn_py.ir import Array, Descriptor

if TYPE_CHECKING:
    from webnn_py.api.context import MLContext

KDL_CPU = 1
KDL_WEBGPU = 15
_SERIALS = itertools.count()


class MLTensor(Suggesting):
    """A tensor that belongs to a context. Made by `MLContext.create_tensor_sync` and its kin.

    Source: WebNN 2026, "MLTensor interface".
    """

    def __init__(
        self,
        context: MLContext,
        descriptor: Descriptor,
        storage: Any,
        *,
        readable: bool = False,
        writable: bool = False,
        exportable: bool = False,
        constant: Any = None,
    ) -> None:
        self._context = context
        self.descriptor = descriptor
        self.storage = storage
        self._readable = readable
        self._writable = writable
        self._exportable = exportable
        self.contents = constant
        self._constant = constant is not None
        self.error: BaseException | None = None
        self.rented = False
        self.read_only = False
        self.serial = next(_SERIALS)
        self._destroyed = False
        self._lock = threading.Lock()

    @property
    def context(self) -> MLContext:
        """The context that the tensor belongs to."""
        return self._context

    @property
    def data_type(self) -> str:
        """The data type's name."""
        return self.descriptor.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self.descriptor.shape

    @property
    def readable(self) -> bool:
        """Whether `read_tensor_sync` and `_async` may be used."""
        return self._readable

    @property
    def writable(self) -> bool:
        """Whether `write_tensor` may be used."""
        return self._writable

    @property
    def exportable(self) -> bool:
        """Whether `export_to_gpu` may be used."""
        return self._exportable

    @property
    def constant(self) -> bool:
        """Whether the contents are fixed; usable in `MLGraphBuilder.constant`."""
        return self._constant

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` was called."""
        return self._destroyed

    def memory(self, context: MLContext, what: str, error: type[MLError] = ValidationError) -> Any:
        """Where the contents lie, if the tensor can be used by `context` now.

        Raises:
            ValidationError: It belongs to another context, or is destroyed (or `error`).
            InvalidStateError: It is rented out as a GPUBuffer.
        """
        memory = self.contents if self._constant else self.storage
        if self._context is not context:
            raise error(f"{what}: the MLTensor belongs to another context")
        if self._destroyed:
            raise error(f"{what}: the MLTensor is destroyed")
        if self.rented:
            raise InvalidStateError(
                f"{what}: the MLTensor is exported; release its GPUBuffer first"
            )
        return memory

    def check_fits(
        self, descriptor: Descriptor, what: str, error: type[MLError] = ValidationError
    ) -> None:
        """Raise a ValidationError (or `error`) if data type or shape are not an operand's."""
        wanted = Descriptor(descriptor.data_type, descriptor.shape)
        if self.descriptor != wanted:
            raise error(f"{what}: the MLTensor is {self.descriptor}, expected {wanted}")

    def rent(self) -> None:
        """Mark as exported.

        Raises:
            InvalidStateError: It is exported already.
        """
        with self._lock:
            self.memory(self._context, "export_to_gpu")
            self.rented = True

    def check_written(self) -> None:
        """Raise an OperationError if the work that was to write the contents failed."""
        if self.error is not None:
            raise consequence("the work that was to write this MLTensor", self.error)

    def destroy(self) -> None:
        """Give the memory back once work that uses it is done. Harmless twice."""
        self._destroyed = True
        self.storage = self.contents = None

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number, as DLPack has them: CPU (1) or WebGPU (15)."""
        return (KDL_CPU if self._context.device_type == "cpu" else KDL_WEBGPU, 0)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of the contents after all work submitted so far.

        A CPU tensor shares its memory unless `copy` is True. A GPU tensor is copied to the CPU
        when asked with `dl_device=(1, 0)`.

        Raises:
            DLPackError: (a BufferError) The request cannot be met: another device, a stream, a copy
                where `copy=False`, contents that were never made, or that it would have to wait for
                on a thread with an event loop.
        """
        if stream is not None:
            raise DLPackError(
                f"stream {shown(stream)}: neither CPU nor WebGPU tensors take a stream"
            )
        if copy is not None:
            convert.boolean(copy, "copy")
        own = self.__dlpack_device__()
        wanted = own if dl_device is None else _device(dl_device)
        if wanted[0] == own[0] == KDL_WEBGPU:
            raise DLPackError(
                "a WebGPU buffer cannot be handed over as a DLPack capsule; ask for a copy on the"
                " CPU with dl_device=(1, 0), or use export_to_gpu"
            )
        if wanted != (KDL_CPU, 0):
            raise DLPackError(f"device {wanted}: this tensor can be had on the CPU, (1, 0), only")
        if own[0] == KDL_WEBGPU and copy is False:
            raise DLPackError("a GPU tensor cannot be had on the CPU without a copy")
        try:
            array = self._context.host_array(self, copy=bool(copy))
        except MLError as error:
            raise DLPackError(f"__dlpack__: {error}") from error
        if max_version is None:
            return array.__dlpack__()
        try:
            return array.__dlpack__(max_version=max_version)
        except Exception as error:  # NumPy's, over a version that is none
            raise DLPackError(f"max_version {shown(max_version)}: {said(error)}") from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The contents after all work submitted so far, as `numpy.asarray` asks for them.

        The array shares the tensor's memory unless a copy or another data type is asked for, and
        is read-only where the tensor is not writable.

        Raises:
            NotSupportedError: The tensor lies on a GPU: use `read_tensor_sync` or `_async`.
            ValidationError: It is not readable, or `copy=False` forbids what `dtype` asks for.
            InvalidStateError: It would have to wait on a thread that is running an event loop.
            OperationError: The work that was to write the contents failed.
        """
        if copy is not None:
            convert.boolean(copy, "copy")
        if self._context.device_type != "cpu":
            raise NotSupportedError(
                "the MLTensor lies on a GPU; use read_tensor_sync or read_tensor_async"
            )
        if not self._readable:
            raise ValidationError("the MLTensor was not created readable")
        contents: Array = self._context.host_array(self, copy=False)
        wanted = contents.dtype if dtype is None else _dtype(dtype)
        if wanted != contents.dtype and copy is False:
            raise ValidationError(f"a {self.data_type} MLTensor as {wanted} needs a copy")
        if wanted != contents.dtype or copy:
            return contents.astype(wanted)
        shared = contents.view()
        shared.flags.writeable = self._writable and contents.flags.writeable
        return shared

    def __repr__(self) -> str:
        state = "destroyed " if self._destroyed else "exported " if self.rented else ""
        return f"<{state}MLTensor {self.descriptor} on {self._context.device_type}>"


def _dtype(given: Any) -> np.dtype[Any]:
    try:
        made: np.dtype[Any] = np.dtype(given)
        return made
    except Exception as error:  # NumPy's, or whatever its own methods raise
        raise ValidationError(f"dtype {shown(given)}: {said(error)}") from error


def _device(given: Any) -> tuple[int, int]:
    try:
        kind, number = given
        return int(kind), int(number)
    except Exception:  # whatever its own methods raise
        raise DLPackError(f"dl_device {shown(given)}, expected device type and number") from None


def identities(
    inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
) -> tuple[object, ...] | None:
    """What is equal for the same tensors under the same names; None if one is not usable now."""
    try:
        given = (*inputs.values(), *outputs.values())
        for tensor in given:
            if tensor.storage is None or tensor.rented:
                return None
        return (*inputs, None, *outputs, *[tensor.serial for tensor in given])
    except Exception:  # no tensors by name: who checks them says what they are
        return None


def on_tensors(
    reads: Iterable[MLTensor], writes: Iterable[MLTensor], run: Callable[[], None]
) -> Callable[[], None]:
    """Work that fails if what it reads was never made, and makes what it writes."""
    reads, writes = tuple(reads), tuple(writes)

    def work() -> None:
        for tensor in reads:
            if tensor.error is not None:
                tensor.check_written()
        run()
        for tensor in writes:
            tensor.error = None

    return work


def mark_failed(writes: Iterable[MLTensor]) -> Callable[[BaseException], None]:
    """What leaves the error of failed work in the tensors that it was to write."""
    writes = tuple(writes)

    def fail(error: BaseException) -> None:
        root = root_of(error)
        for tensor in writes:
            tensor.error = root

    return fail
