"""MLTensor: a tensor in the memory of a context, and its DLPack and NumPy protocols."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
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
    """Tensor in the memory of a context. Create it with `MLContext.create_tensor_sync`.

    Examples:
        ```python
        import numpy as np

        from webnn_py import ml

        ctx = ml.create_context_sync(device_type="cpu")
        t = ctx.create_tensor_sync("float32", [2, 3], readable=True, writable=True)
        print(t.data_type, t.shape)  # float32 (2, 3)
        print(t.readable, t.writable, t.exportable, t.constant)  # True True False False
        ctx.write_tensor(t, np.ones((2, 3), np.float32))
        print(np.from_dlpack(t)[0])  # [1. 1. 1.]
        t.destroy()
        print(t.destroyed)  # True
        ```

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
        """Return the name of the data type."""
        return self._memory.descriptor.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dimensions; an empty tuple for a scalar."""
        return self._memory.descriptor.shape

    @property
    def readable(self) -> bool:
        """Whether `read_tensor_sync` and `read_tensor_async` accept the tensor."""
        return self._readable

    @property
    def writable(self) -> bool:
        """Whether `write_tensor` accepts the tensor."""
        return self._writable

    @property
    def exportable(self) -> bool:
        """Whether `export_to_gpu` accepts the tensor."""
        return self._exportable

    @property
    def constant(self) -> bool:
        """Whether the contents never change; `MLGraphBuilder.constant` accepts such a tensor."""
        return self._memory.constant

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` was called."""
        return self._memory.destroyed

    def destroy(self) -> None:
        """Release the memory once all work that uses it is done. Harmless twice.

        Source: WebNN 2026, "MLTensor interface", "destroy()".
        """
        self._memory.destroy()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number: (1, 0) for the CPU, (15, 0) for WebGPU.

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
        """Return a DLPack capsule of the contents after all work submitted so far.

        Args:
            stream: None; neither CPU nor WebGPU tensors have streams.
            max_version: Latest version of DLPack that the consumer supports, as (major, minor).
            dl_device: (1, 0) for the CPU. It is required for a GPU tensor, which is copied there.
            copy: Whether to copy. By default, only GPU tensors are copied.

        Raises:
            DLPackError: (a BufferError) The request names another device or a stream, or needs a
                copy despite `copy=False`. Or the tensor is destroyed or exported, the context is
                lost, or the work that writes the contents failed. Or the call would have to wait on
                a thread that is running an event loop.
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
        except Exception as error:  # NumPy raises various types for an invalid version
            raise DLPackError(
                f"max_version {shown(max_version)}: {describe_error(error)}"
            ) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the contents after all work submitted so far, for `numpy.asarray`.

        The array shares the tensor's memory unless you request a copy or another data type. A
        shared array is read-only if the tensor is not writable.

        Raises:
            NotSupportedError: The tensor lies on a GPU: use `read_tensor_sync` or
                `read_tensor_async`.
            ValidationError: The tensor is not readable, or `dtype` needs a copy that `copy=False`
                forbids.
            InvalidStateError: The call would have to wait on a thread that is running an event
                loop.
            OperationError: The work that writes the contents failed.
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
    except Exception as error:  # NumPy or the object's own methods raise it, of any type
        raise ValidationError(f"dtype {shown(given)}: {describe_error(error)}") from error


def _device(given: Any) -> tuple[int, int]:
    try:
        kind, number = given
        return int(kind), int(number)
    except Exception:  # the object's own methods may raise any type
        raise DLPackError(f"dl_device {shown(given)}, expected device type and number") from None


def memory_of(tensor: object, what: str, error: type[MLError] = ValidationError) -> TensorMemory:
    """Return the memory of a tensor.

    Raises:
        ValidationError: (or `error`) `tensor` is not an MLTensor.
    """
    if not isinstance(tensor, MLTensor):
        hint = "; write_tensor copies it into one" if isinstance(tensor, np.ndarray) else ""
        raise error(f"{what}: got {type_name(tensor)}, expected an MLTensor{hint}")
    return tensor._memory


@dataclass(frozen=True, slots=True)
class NamedTensors:
    """The memory of named tensors, which were checked if a run is found by their key.

    Attributes:
        key: A cache key.
        reads: Memory of the inputs.
        writes: Memory of the outputs.
    """

    key: Hashable
    reads: list[TensorMemory]
    writes: list[TensorMemory]


def repeated(
    inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
) -> NamedTensors | None:
    """Return the memory of these named tensors.

    Return None if a value is not a usable tensor; the full checks then raise the error.
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
        # Iterate over the names last: an object that is not a mapping may iterate without end.
        return NamedTensors((*inputs, None, *outputs, *serials), reads, writes)
    except Exception:
        return None
