"""MLTensor: memory of a context, ordered on the context's own timeline."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from webnn_py.api.tensor_memory import TensorMemory
from webnn_py.core import convert
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import DLPackError, MLError, NotSupportedError, ValidationError
from webnn_py.core.messages import Suggesting, describe_error, shown, type_name
from webnn_py.core.pickling import Unpicklable
from webnn_py.ir import Array

KDL_CPU = 1
KDL_WEBGPU = 15


class MLTensor(Unpicklable, Suggesting):
    """Memory of a context that holds one tensor. `MLContext.create_tensor_sync` makes it.

    Source: WebNN 2026, "MLTensor interface"; its DLPack methods: DLPack, "Python Specification for
    DLPack".
    """

    def __init__(
        self,
        memory: TensorMemory,
        *,
        readable: bool = False,
        writable: bool = False,
        exportable: bool = False,
    ) -> None:
        self._memory = memory
        self._readable = readable
        self._writable = writable
        self._exportable = exportable

    @property
    def data_type(self) -> MLOperandDataType:
        """The data type's name."""
        return self._memory.descriptor.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, a tuple; empty for a scalar."""
        return self._memory.descriptor.shape

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
        return self._memory.constant

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` was called."""
        return self._memory.destroyed

    def destroy(self) -> None:
        """Give the memory back once work that uses it is done. Harmless twice.

        Source: WebNN 2026, "MLTensor interface", "destroy()".
        """
        self._memory.destroy()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number, as DLPack has them: (1, 0) for the CPU, (15, 0) for WebGPU.

        Source: DLPack, "Python Specification for DLPack".
        """
        return (KDL_CPU if self._memory.session.device_type == "cpu" else KDL_WEBGPU, 0)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of the contents after all work submitted so far.

        Args:
            stream: None: neither CPU nor WebGPU tensors have streams.
            max_version: The latest version of DLPack that the consumer knows, (major, minor).
            dl_device: (1, 0) for the CPU. It must be given for a GPU tensor, which is copied there.
            copy: Whether to copy. If not given, only what lies on a GPU is copied.

        Raises:
            DLPackError: (a BufferError) The request cannot be met: another device, a stream, a copy
                where `copy=False`, a tensor that is destroyed or exported, a context that is lost,
                contents that were never made, or that it would have to wait for on a thread with an
                event loop.
            ValidationError: `copy` is neither a bool nor None.

        Source: DLPack, "Python Specification for DLPack".
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
            array = self._memory.host_array(copy=bool(copy))
        except MLError as error:
            raise DLPackError(f"__dlpack__: {error}") from error
        try:
            return array.__dlpack__(max_version=max_version)
        except BufferError as error:
            raise DLPackError(
                "__dlpack__: the MLTensor's memory is read-only, which capsules of versions before"
                " 1.0 cannot say; ask with max_version=(1, 0) or copy=True"
            ) from error
        except Exception as error:  # NumPy's, over a version that is none
            raise DLPackError(
                f"max_version {shown(max_version)}: {describe_error(error)}"
            ) from error

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
        if self._memory.session.device_type != "cpu":
            raise NotSupportedError(
                "the MLTensor lies on a GPU; use read_tensor_sync or read_tensor_async"
            )
        if not self._readable:
            raise ValidationError("the MLTensor was not created readable")
        contents: Array = self._memory.host_array(copy=False)
        wanted = contents.dtype if dtype is None else _dtype(dtype)
        if wanted != contents.dtype and copy is False:
            raise ValidationError(f"a {self.data_type} MLTensor as {wanted} needs a copy")
        if wanted != contents.dtype or copy:
            return contents.astype(wanted)
        shared = contents.view()
        shared.flags.writeable = self._writable and contents.flags.writeable
        return shared

    def __repr__(self) -> str:
        memory = self._memory
        state = "destroyed " if memory.destroyed else "exported " if memory.rented else ""
        return f"<{state}MLTensor {memory.descriptor} on {memory.session.device_type}>"


def _dtype(given: Any) -> np.dtype[Any]:
    try:
        made: np.dtype[Any] = np.dtype(given)
        return made
    except Exception as error:  # NumPy's, or whatever its own methods raise
        raise ValidationError(f"dtype {shown(given)}: {describe_error(error)}") from error


def _device(given: Any) -> tuple[int, int]:
    try:
        kind, number = given
        return int(kind), int(number)
    except Exception:  # whatever its own methods raise
        raise DLPackError(f"dl_device {shown(given)}, expected device type and number") from None


def memory_of(tensor: object, what: str, error: type[MLError] = ValidationError) -> TensorMemory:
    """The memory of a tensor.

    Raises:
        ValidationError: It is none (or `error`).
    """
    if not isinstance(tensor, MLTensor):
        raise error(f"{what}: got {type_name(tensor)}, expected an MLTensor")
    return tensor._memory


def repeated(
    inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
) -> tuple[Hashable, list[TensorMemory], list[TensorMemory]] | None:
    """What is equal for the same tensors under the same names, and their memory.

    None if one is not usable now, or is none: who checks them says what they are.
    """
    try:
        reads: list[TensorMemory] = []
        writes: list[TensorMemory] = []
        serials: list[int] = []
        for tensors, memories in ((inputs, reads), (outputs, writes)):
            for tensor in tensors.values():
                memory = tensor._memory
                if memory.storage is None or memory.rented:
                    return None
                memories.append(memory)
                serials.append(memory.serial)
        # The names last: other objects than mappings may be without an end.
        return (*inputs, None, *outputs, *serials), reads, writes
    except Exception:
        return None
