"""The part of MLContext that deals with tensors and the context's own timeline."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from webnn_py.api.builder import MLOperandDescriptor
from webnn_py.api.graph import executable_of
from webnn_py.api.tensor import MLTensor, identities, mark_failed, on_tensors
from webnn_py.core import convert, dtypes
from webnn_py.core.completion import Completion, Parts, check_may_block, wait_or_drop
from webnn_py.core.errors import (
    DataError,
    DLPackError,
    InvalidStateError,
    MLError,
    NotSupportedError,
    ValidationError,
    telling_of_memory,
)
from webnn_py.core.messages import said, shown, type_name
from webnn_py.core.shapes import check_dimensions
from webnn_py.engines.base import Queue
from webnn_py.ir import Array, Descriptor
from webnn_py.memory import host
from webnn_py.memory.overlap import check_apart
from webnn_py.ordering.schedule import Operation, Run
from webnn_py.ordering.timeline import TimelinePoint, points

if TYPE_CHECKING:
    from webnn_py.api.context import MLContext
    from webnn_py.api.graph import MLGraph


class TensorMethods(ABC):
    """Creating, writing, reading and exporting tensors; dispatching graphs on them.

    All of it is ordered on the context's own timeline: work runs as if one after the other.
    """

    _queue: Queue

    @property
    @abstractmethod
    def device_type(self) -> str:
        """Where graphs run: "cpu" or "gpu"."""

    @abstractmethod
    def check_alive(self) -> None:
        """Raise a ContextLostError if the context is lost."""

    @abstractmethod
    def _self(self) -> MLContext:
        """This context, typed."""

    def create_tensor_sync(
        self,
        data_type: Any,
        shape: Sequence[int] | None = None,
        *,
        readable: bool = False,
        writable: bool = False,
        exportable: bool = False,
    ) -> MLTensor:
        """Memory of this context, zeroed.

        Args:
            data_type: The data type's name, or an MLOperandDescriptor.
            shape: The dimensions, each at least 1.
            readable: Allow reading it on the host.
            writable: Allow writing it from the host.
            exportable: Allow `export_to_gpu`; GPU contexts only.

        Raises:
            ValidationError: Data type or shape are not valid.
            NotSupportedError: `exportable` on a CPU context.

        Source: WebNN 2026, "createTensor()".
        """
        self.check_alive()
        descriptor = _descriptor(data_type, shape)
        flags = {"readable": readable, "writable": writable, "exportable": exportable}
        for name, flag in flags.items():
            convert.boolean(flag, f"option {name!r}")
        if exportable and self.device_type != "gpu":
            raise NotSupportedError("exportable tensors need a GPU context")
        return MLTensor(self._self(), descriptor, self._queue.allocate(descriptor), **flags)

    async def create_tensor_async(
        self, data_type: Any, shape: Sequence[int] | None = None, **flags: bool
    ) -> MLTensor:
        """As `create_tensor_sync`."""
        return self.create_tensor_sync(data_type, shape, **flags)

    def create_constant_tensor_sync(
        self, value: Any, data_type: Any = None, shape: Sequence[int] | None = None
    ) -> MLTensor:
        """A tensor whose contents never change, for `MLGraphBuilder.constant`.

        Args:
            value: An array, or what `MLGraphBuilder.constant` takes.
            data_type: The array's own if not given; an MLOperandDescriptor gives the shape too.
            shape: The array's own if not given.

        Source: WebNN 2026, "createConstantTensor()".
        """
        self.check_alive()
        data_type, shape = _split(data_type, shape)
        array, name = host.constant_array(value, data_type, shape)
        check_dimensions(array.shape, name)
        array.flags.writeable = False
        return MLTensor(self._self(), Descriptor(name, array.shape), None, constant=array)

    async def create_constant_tensor_async(
        self, value: Any, data_type: Any = None, shape: Sequence[int] | None = None
    ) -> MLTensor:
        """As `create_constant_tensor_sync`."""
        return self.create_constant_tensor_sync(value, data_type, shape)

    @telling_of_memory
    def write_tensor(self, tensor: MLTensor, value: Any) -> None:
        """Write host memory into a tensor; `value` is copied before this returns.

        Args:
            tensor: A writable tensor of this context.
            value: An array of its data type and shape (or flat, with all its elements), or a buffer
                of its size in bytes.

        Raises:
            ValidationError: The tensor is not writable, or `value` does not fit.
        """
        storage = self._memory(tensor, "write_tensor")
        if not tensor.writable:
            raise ValidationError("write_tensor: the MLTensor was not created writable")
        try:
            array = host.input_array(value, tensor.descriptor, "write_tensor")
        except DataError as error:
            raise ValidationError(str(error)) from None
        self._submit(self._queue.write(storage, array.copy()), writes=[tensor])

    def read_tensor_sync(self, tensor: MLTensor, out: Any = None) -> Array:
        """The contents of a tensor after all work submitted before; blocks until it is done.

        Args:
            tensor: A readable tensor of this context.
            out: An array to write into; made if not given.

        Raises:
            ValidationError: The tensor is not readable, or `out` does not fit.
            InvalidStateError: This thread is running an event loop; use `read_tensor_async`.
            OperationError: The work that made the contents failed.
        """
        check_may_block("read_tensor_sync", "read_tensor_async")
        result, target = self._target(tensor, out)
        done, _ = self._fetch(tensor, target, Parts())
        done.wait()
        return result

    async def read_tensor_async(self, tensor: MLTensor, out: Any = None) -> Array:
        """As `read_tensor_sync`, awaited. If that is cancelled, `out` is untouched or whole."""
        result, target = self._target(tensor, out)
        parts = Parts()
        done, withdraw = self._fetch(tensor, target, parts)
        await wait_or_drop(done, parts, withdraw, settle=out is not None)
        return result

    @telling_of_memory
    def _target(self, tensor: MLTensor, out: Any) -> tuple[Array, Array]:
        """What a read returns, and the array of the tensor's shape to write into."""
        self._memory(tensor, "read_tensor")
        if not tensor.readable:
            raise ValidationError("read_tensor: the MLTensor was not created readable")
        descriptor = tensor.descriptor
        if out is None:
            target = np.empty(descriptor.shape, dtypes.DTYPES[descriptor.data_type].numpy)
        else:
            try:
                target = host.output_array(out, descriptor, "read_tensor")
            except DataError as error:
                raise ValidationError(str(error)) from None
        return out if isinstance(out, np.ndarray) else target, target

    def _fetch(self, tensor: MLTensor, target: Array, parts: Parts) -> tuple[Completion[None], Run]:
        """The end of a read, and what takes it out of the order."""
        done: Completion[None] = Completion()
        run = self._queue.read(self._memory(tensor, "read_tensor"), target, done, parts)
        work = on_tensors([tensor], [], run)
        return done, self._queue.submit(Operation(work, done.set_exception, uses=(tensor,)))

    def host_array(self, tensor: MLTensor, copy: bool) -> Array:
        """The contents in host memory after all work submitted so far; shared where it can be.

        Raises:
            InvalidStateError: It would block this thread's event loop.
            OperationError: The work that made the contents failed.
        """
        self.check_alive()
        memory: Array = tensor.memory(self._self(), "the MLTensor")
        if tensor.constant or self.device_type == "cpu":
            self._wait_for(tensor)
            return memory.copy() if copy else memory
        check_may_block("a copy from the GPU", "read_tensor_async")
        descriptor = tensor.descriptor
        target = np.empty(descriptor.shape, dtypes.DTYPES[descriptor.data_type].numpy)
        done, _ = self._fetch(tensor, target, Parts())
        done.wait()
        return target

    def _wait_for(self, tensor: MLTensor) -> None:
        """Wait until all work submitted so far that uses a tensor is done."""
        if self._queue.uses(tensor):
            check_may_block("work on the MLTensor that is not done", "read_tensor_async first")
            done: Completion[None] = Completion()
            self._queue.submit(Operation(lambda: done.set_result(None), done.set_exception))
            done.wait()
        tensor.check_written()

    def dispatch(
        self,
        graph: MLGraph,
        inputs: Mapping[str, MLTensor],
        outputs: Mapping[str, MLTensor],
        sync: Iterable[TimelinePoint] = (),
    ) -> None:
        """Run a graph from tensors to tensors, in order; returns at once.

        Args:
            graph: Built by this context.
            inputs: Every input by name.
            outputs: Every output by name; no tensor stands twice.
            sync: Timeline points that the work waits for and signals.

        Raises:
            ValidationError: A name, data type, shape or context does not fit.
            InvalidStateError: The graph is destroyed, or a tensor exported.

        Source: WebNN 2026, "dispatch()".
        """
        context = self._self()
        executable = executable_of(graph, context, ValidationError)
        waits = points(sync)
        key = identities(inputs, outputs)
        run = None if key is None else self._queue.repeat(executable, key)
        if run is None:
            inputs = convert.mapping(inputs, "inputs")
            outputs = convert.mapping(outputs, "outputs")
            places = self._checked(graph, inputs, outputs)
            run = self._queue.dispatch(executable, *places, key)
        self._submit(run, (*inputs.values(),), (*outputs.values(),), waits)

    def _checked(
        self, graph: MLGraph, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Where the tensors of a dispatch lie, by name."""
        bound = graph.bound_names()
        graph.check_names(inputs, outputs, bound, ValidationError)
        missing = [name for name in graph.output_descriptors if name not in outputs]
        if missing:
            raise ValidationError(f"dispatch: output {shown(missing[0])} is missing")
        read, written = (
            {
                name: self._bound(f"{kind} {shown(name)}", tensor, descriptors[name])
                for name, tensor in given.items()
            }
            for kind, given, descriptors in (
                ("input", inputs, graph.input_descriptors),
                ("output", outputs, graph.output_descriptors),
            )
        )
        writes = list(outputs.values())
        everything = [*inputs.values(), *writes]
        check_apart(
            {name: self._queue.target(place) for name, place in written.items()}, ValidationError
        )
        if any(everything.count(tensor) > 1 for tensor in writes):
            raise ValidationError("dispatch: an output tensor is used twice, also as an input")
        for name, tensor in outputs.items():
            if tensor.read_only:
                raise ValidationError(f"output {shown(name)}: the MLTensor's memory is read-only")
        return read, written

    def _submit(
        self,
        run: Run,
        reads: Sequence[MLTensor] = (),
        writes: Sequence[MLTensor] = (),
        sync: tuple[TimelinePoint, ...] = (),
    ) -> None:
        work = on_tensors(reads, writes, run)
        self._queue.submit(Operation(work, mark_failed(writes), sync, uses=(*reads, *writes)))

    def submit(self, command_buffers: Sequence[Any], sync: Iterable[TimelinePoint] = ()) -> None:
        """Submit GPUCommandBuffers on this context's timeline; GPU contexts only.

        Raises:
            InvalidStateError: This is a CPU context.
            ValidationError: Not a list of command buffers of this device, submitted before, or they
                use a buffer or texture that is destroyed or mapped.
        """
        self.check_alive()
        if self.device_type != "gpu":
            raise InvalidStateError("submit takes GPU command buffers; this is a CPU context")
        waits = points(sync)
        buffers = convert.items(command_buffers, "submit: command_buffers")
        queue: Any = self._queue
        queue.check_commands(buffers)
        failed: list[BaseException] = []

        def fail(error: BaseException) -> None:
            queue.commands_failed(buffers, error)
            failed.append(error)

        # The context is named as what is used: it must live until its work is done.
        queue.submit(Operation(queue.submit_commands(buffers), fail, waits, uses=(self,)))
        if failed:
            self._queue.raise_failed()

    def flush(self) -> None:
        """Submit what is recorded and not yet submitted, except what waits for a timeline.

        Raises:
            OperationError: Command buffers given to `submit` waited for a timeline and could not be
                submitted then.
        """
        self.check_alive()
        self._queue.flush()
        self._queue.raise_failed()

    @contextlib.contextmanager
    def export_to_gpu(self, tensor: MLTensor) -> Iterator[Any]:
        """Rent a tensor as a wgpu.GPUBuffer; the tensor is unusable until the block ends.

        Submit what uses the buffer before the block ends; the queue keeps the order. Destroying the
        GPUBuffer within the block destroys the tensor, after it does nothing.

        Raises:
            ValidationError: The tensor was not created exportable.
            InvalidStateError: It is exported already, or work on it waits for a timeline.
            OperationError: The work that made the contents failed.
        """
        storage = self._memory(tensor, "export_to_gpu")
        if not tensor.exportable:
            raise ValidationError("export_to_gpu: the MLTensor was not created exportable")
        left = self._queue.flush()
        if any(used is tensor for work in left for used in work.uses):
            raise InvalidStateError(
                "export_to_gpu: work on the MLTensor waits for a timeline; wait for that first"
            )
        tensor.check_written()
        tensor.rent()
        queue: Any = self._queue
        try:
            with queue.lending(storage) as buffer:
                yield buffer
        finally:
            tensor.rented = False
            if not queue.is_intact(storage):
                tensor.destroy()

    def from_dlpack(self, value: Any) -> MLTensor:
        """A tensor over the memory of a DLPack tensor; GPU contexts copy it.

        Raises:
            DLPackError: (a BufferError) The memory is not on the CPU, is strided, or of a type that
                WebNN lacks.
        """
        self.check_alive()
        try:
            if not hasattr(value, "__dlpack__"):
                raise DataError(f"a {type_name(value)} does not speak DLPack")
            array = host.array_of(value).view()
            name = dtypes.from_numpy(array.dtype)
            check_dimensions(array.shape, name)
        except MLError as error:
            raise DLPackError(f"from_dlpack: {error}") from None
        except Exception as error:  # whatever the producer raises
            raise DLPackError(f"from_dlpack: {said(error)}") from error
        if not array.flags.c_contiguous:
            raise DLPackError(
                f"from_dlpack: the memory of shape {list(array.shape)} is strided; copy it first"
            )
        descriptor = Descriptor(name, array.shape)
        if self.device_type == "cpu":
            writable = bool(array.flags.writeable)
            shared = MLTensor(self._self(), descriptor, array, readable=True, writable=writable)
            shared.read_only = not writable
            return shared
        tensor = self.create_tensor_sync(name, array.shape, readable=True, writable=True)
        self.write_tensor(tensor, array)
        return tensor

    def _memory(self, tensor: object, what: str) -> Any:
        """Where a tensor's contents lie, if it can be read or written now."""
        self.check_alive()
        if not isinstance(tensor, MLTensor):
            raise ValidationError(f"{what}: got {type_name(tensor)}, expected an MLTensor")
        memory = tensor.memory(self._self(), what)
        if tensor.constant:
            raise ValidationError(f"{what}: the MLTensor is constant")
        return memory

    def _bound(self, what: str, tensor: Any, descriptor: Descriptor) -> Any:
        """Where the tensor that is given for an operand lies."""
        memory = self._memory(tensor, what)
        tensor.check_fits(descriptor, what)
        return memory


def _split(data_type: Any, shape: Any) -> tuple[Any, Any]:
    """Data type and shape, each as given or both of an MLOperandDescriptor."""
    if isinstance(data_type, MLOperandDescriptor):
        return data_type.data_type, data_type.shape
    return data_type, shape


def _descriptor(data_type: Any, shape: Any) -> Descriptor:
    data_type, shape = _split(data_type, shape)
    name = dtypes.check(data_type)
    if name in dtypes.PACKED_4BIT:
        raise ValidationError(f"data type {name} is for constants only")
    sizes = () if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, name)
    return Descriptor(name, sizes)
