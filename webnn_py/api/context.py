"""MLContext: where graphs are built and run, and tensors live."""

from __future__ import annotations

import _thread
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from webnn_py.api import tensor_operations
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.api.loading import Loading
from webnn_py.api.promise import MLPromise
from webnn_py.api.session import MLContextLostInfo, Session
from webnn_py.api.slicing import Slicing
from webnn_py.api.support_limits import support_limits
from webnn_py.api.tensor import MLTensor, repeated
from webnn_py.api.tensor_checks import check_tensors, own_memory
from webnn_py.api.tensor_memory import Export
from webnn_py.core import convert
from webnn_py.core.completion import (
    check_interrupts_nothing,
    check_may_block,
    interrupts_own_call,
)
from webnn_py.core.devices import MLDeviceType
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import InvalidStateError, ValidationError
from webnn_py.core.messages import Suggesting
from webnn_py.core.pickling import Unpicklable
from webnn_py.ir import Array
from webnn_py.ordering.operation import Operation
from webnn_py.ordering.timeline import TimelinePoint, points, seconds_of


class MLContext(Slicing, Loading, Unpicklable, Suggesting):
    """Where graphs are built and run, and tensors live. `ml` makes it.

    All work on its tensors is ordered on the context's own timeline: it runs as if one piece after
    the other, but what waits for a timeline holds back only what shares memory with it. As a
    context manager, it is destroyed at the end of the block. In a child process that was forked
    after it was made, its calls raise an InvalidStateError.

    Source: WebNN 2026, "MLContext interface"; webnn_py, spec/execution.md, "Child processes".
    """

    @property
    def device_type(self) -> MLDeviceType:
        """Where graphs run: "cpu" or "gpu"."""
        return self._session.device_type

    @property
    def accelerated(self) -> bool:
        """Whether a hardware GPU does the work."""
        return self._session.engine.accelerated

    @property
    def device(self) -> Any:
        """The wgpu.GPUDevice of a GPU context, else None."""
        return self._session.device

    @property
    def engine(self) -> str:
        """Name of the engine that runs the graphs; on a CPU the reference runs what it does not.

        With engine="fastest" it is that of the graph built last, "fastest" until there is one.
        """
        return self._session.engine.name

    @property
    def lost(self) -> MLPromise[MLContextLostInfo]:
        """Gives an MLContextLostInfo when the context is lost; it never fails.

        Source: WebNN 2026, "MLContext interface", "Errors".
        """
        return MLPromise(self._session.lost)

    def destroy(self) -> None:
        """Lose the context: what is not done fails, nothing new is accepted. Harmless twice.

        The memory of its tensors, graphs and programs is given back, whoever still has them; graphs
        can still be saved. Called by a finalizer or signal handler in the midst of another call, it
        does so once that call can go on.

        Source: WebNN 2026, "MLContext interface", "destroy()".
        """
        why = "destroy() was called"
        if interrupts_own_call():
            _thread.start_new_thread(self._session.lose, (why,))
        else:
            self._session.lose(why)

    def __enter__(self) -> MLContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()

    def op_support_limits(self) -> dict[str, Any]:
        """What this context runs: data types and ranks, by operator and operand.

        Returns:
            `preferred_input_layout`, `max_tensor_byte_length` in bytes, `input`, `constant` and
            `output` (each with `data_types`, a list of names, and `rank_range`, with `min` and
            `max`), and for every operator, by its name here, its operands and `output` likewise.

        Source: WebNN 2026, "opSupportLimits()".
        """
        return support_limits(self._session)

    def create_tensor_sync(
        self,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int] | None = None,
        *,
        readable: bool = False,
        writable: bool = False,
        exportable: bool = False,
    ) -> MLTensor:
        """Make a tensor of zeros.

        Args:
            data_type: The data type's name, or an MLOperandDescriptor, which gives the shape too;
                int4 and uint4 are for constants alone.
            shape: The dimensions, each at least 1; a scalar if not given.
            readable: Allow `read_tensor_sync` and `_async`.
            writable: Allow `write_tensor`.
            exportable: Allow `export_to_gpu`; GPU contexts only.

        Raises:
            ValidationError: Data type, shape or an option is not valid.
            NotSupportedError: `exportable` on a CPU context, or more bytes than a buffer of the
                device can have.
            OperationError: There is no memory left.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "createTensor()".
        """
        flags = {"readable": readable, "writable": writable, "exportable": exportable}
        return tensor_operations.create(self._session, data_type, shape, flags)

    async def create_tensor_async(
        self,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int] | None = None,
        *,
        readable: bool = False,
        writable: bool = False,
        exportable: bool = False,
    ) -> MLTensor:
        """As `create_tensor_sync`; it does not suspend.

        Raises:
            MLError: As `create_tensor_sync`.

        Source: WebNN 2026, "createTensor()".
        """
        return self.create_tensor_sync(
            data_type, shape, readable=readable, writable=writable, exportable=exportable
        )

    def create_constant_tensor_sync(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None = None,
        shape: Sequence[int] | None = None,
    ) -> MLTensor:
        """Make a tensor whose contents never change, for `MLGraphBuilder.constant`.

        Args:
            value: A NumPy array, a number, bytes or anything with the buffer protocol or
                `__dlpack__`; it is copied.
            data_type: The array's own if not given; a number or raw bytes need it. An
                MLOperandDescriptor gives the shape too.
            shape: The array's own if not given.

        Raises:
            ValidationError: The contents do not fit data type and shape.
            OperationError: There is no memory left.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "createConstantTensor()".
        """
        return tensor_operations.create_constant(self._session, value, data_type, shape)

    async def create_constant_tensor_async(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None = None,
        shape: Sequence[int] | None = None,
    ) -> MLTensor:
        """As `create_constant_tensor_sync`; it does not suspend.

        Raises:
            MLError: As `create_constant_tensor_sync`.

        Source: WebNN 2026, "createConstantTensor()".
        """
        return self.create_constant_tensor_sync(value, data_type, shape)

    def write_tensor(self, tensor: MLTensor, value: Any) -> None:
        """Write host memory into a tensor, in order; `value` is copied before this returns.

        Where work that is not done keeps many such copies it waits first, for little on a thread
        that is running an event loop.

        Args:
            tensor: A writable tensor of this context.
            value: An array of its data type and shape (or flat, with all its elements), or a buffer
                of its size in bytes.

        Raises:
            ValidationError: The tensor is not writable, destroyed or another context's, or `value`
                does not fit.
            InvalidStateError: The tensor is exported.
            OperationError: There is no memory left for the copy.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "writeTensor()"; for the waiting webnn_py, spec/execution.md, "Order".
        """
        tensor_operations.write(self._session, tensor, value)

    def read_tensor_sync(
        self, tensor: MLTensor, out: Any = None, *, timeout: float | None = None
    ) -> Array:
        """The contents of a tensor after all work submitted before; blocks until it is done.

        Work that was submitted before and waits for a timeline is waited for, too: where only this
        thread would signal that, see `timeout`.

        Args:
            tensor: A readable tensor of this context.
            out: An array of the tensor's data type and shape to write into, or a 1-D array or
                buffer; if that is larger, its beginning is written.
            timeout: Seconds to wait at most; forever if not given. Behind them the read is taken
                back, and `out` is untouched or whole.

        Returns:
            `out` if that is an array, else an array of the tensor's data type and shape, over the
            memory of `out` or new.

        Raises:
            ValidationError: The tensor is not readable, destroyed or another context's, or `out`
                does not fit.
            InvalidStateError: This thread is running an event loop: use `read_tensor_async`. Or a
                finalizer or signal handler calls this in the midst of another call on this thread.
                Or the tensor is exported.
            WaitTimeoutError: (a TimeoutError) It was not done in time; says what it waits for.
            OperationError: The work that was to write the contents failed, or there is no memory
                left.
            ContextLostError: The context is lost, also while this waits.

        Source: WebNN 2026, "readTensor(tensor)", "readTensor(tensor, outputData)".
        """
        check_may_block("read_tensor_sync", "read_tensor_async")
        check_interrupts_nothing("read_tensor_sync")
        seconds = None if timeout is None else seconds_of(timeout)
        memory, result, target = tensor_operations.read_target(self._session, tensor, out)
        tensor_operations.read(memory, target, seconds, given=out is not None)
        return result

    async def read_tensor_async(
        self, tensor: MLTensor, out: Any = None, *, timeout: float | None = None
    ) -> Array:
        """As `read_tensor_sync`, awaited. If the await is cancelled, `out` is untouched or whole.

        Raises:
            MLError: As `read_tensor_sync`, but for the event loop, which it does not block.

        Source: WebNN 2026, "readTensor(tensor)", "readTensor(tensor, outputData)".
        """
        seconds = None if timeout is None else seconds_of(timeout)
        memory, result, target = tensor_operations.read_target(self._session, tensor, out)
        await tensor_operations.read_async(memory, target, seconds, given=out is not None)
        return result

    def dispatch(
        self,
        graph: MLGraph,
        inputs: Mapping[str, MLTensor],
        outputs: Mapping[str, MLTensor],
        sync: Iterable[TimelinePoint] = (),
    ) -> None:
        """Run a graph from tensors to tensors, in order; returns at once.

        If the work fails later, so do reads of its outputs and waits for what it was to signal.

        Args:
            graph: Built by this context.
            inputs: A tensor of this context for every input, by name, of just its data type and
                shape.
            outputs: The same for every output; none of them is given twice, nor as an input.
            sync: Timeline points that the work waits for and signals.

        Raises:
            ValidationError: A name, data type, shape, context or timeline point does not fit.
            InvalidStateError: The graph is destroyed, a tensor is exported, or an input is left out
                that becomes a constant by commands not submitted yet.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "dispatch()"; for `sync` webnn_py, spec/deviations.md, D24.
        """
        session = self._session
        compiled = compiled_of(graph)
        executables = compiled.check_usable(session, ValidationError)
        if compiled.is_open:
            check_tensors(inputs, compiled.signature.inputs)
        signature, sizes = compiled.fixed(inputs, ValidationError)
        executable = executables.get(sizes).executable
        waits = points(sync)
        known = repeated(inputs, outputs)
        key = None if known is None else (len(compiled.bound.constants.places), known[0])
        run = None if key is None else session.queue.repeat(executable, key)
        if run is None or known is None:
            given = signature.on_tensors(session, inputs, outputs, compiled.bound)
            run = session.queue.dispatch(executable, given.inputs, given.outputs, key)
            title = compiled.signature.title
            tensor_operations.submit(session, title, run, given.reads, given.writes, waits)
        else:
            _, reads, writes = known
            tensor_operations.submit(session, compiled.signature.title, run, reads, writes, waits)

    def submit(self, command_buffers: Sequence[Any], sync: Iterable[TimelinePoint] = ()) -> None:
        """Submit GPUCommandBuffers on this context's timeline; GPU contexts only.

        Args:
            command_buffers: wgpu.GPUCommandBuffers of `device`, each to be submitted once.
            sync: Timeline points that they wait for and signal.

        Raises:
            InvalidStateError: This is a CPU context.
            ValidationError: Not a list of command buffers of this device, submitted before, or they
                use a buffer or texture that is destroyed or mapped; or a timeline point does not
                fit.
            OperationError: The device refused them.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Submissions".
        """
        session = self._session
        session.check_alive()
        if self.device_type != "gpu":
            raise InvalidStateError("submit takes GPU command buffers; this is a CPU context")
        waits = points(sync)
        buffers = convert.items(command_buffers, "submit: command_buffers")
        queue: Any = session.queue
        queue.check_commands(buffers)
        failed: list[BaseException] = []

        def fail(error: BaseException, session: Session = session) -> None:
            queue.commands_failed(buffers, error)
            failed.append(error)

        # `fail` has the session: it must live until its work is done.
        used = queue.memory_of_commands(buffers)
        title = f"submit of {len(buffers)} command buffers"
        run = queue.submit_commands(buffers)
        queue.submit_before_return(Operation(run, fail, waits, writes=used, title=title))
        if failed:
            queue.raise_failed()

    def flush(self) -> None:
        """Submit what is recorded and not yet submitted, except what waits for a timeline.

        Raises:
            OperationError: Command buffers given to `submit` waited for a timeline and could not be
                submitted then, or the device refused what is recorded.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Submissions".
        """
        self._session.check_alive()
        self._session.queue.flush()
        self._session.queue.raise_failed()

    def export_to_gpu(self, tensor: MLTensor) -> AbstractContextManager[Any]:
        """Rent a tensor as a wgpu.GPUBuffer; the tensor is unusable until the block ends.

        Submit what uses the buffer before the block ends; the queue keeps the order. Destroying the
        GPUBuffer within the block destroys the tensor, after it does nothing.

        Args:
            tensor: A tensor of this context that was created `exportable`.

        Returns:
            A context manager that gives the tensor's own GPUBuffer, without a copy: its elements in
            row-major order, in bytes rounded up to a multiple of 4, with the usages STORAGE,
            COPY_SRC and COPY_DST.

        Raises:
            ValidationError: The tensor was not created exportable, is destroyed or another
                context's.
            InvalidStateError: It is exported already, or work on it waits for a timeline.
            OperationError: The work that was to write the contents failed.
            ContextLostError: The context is lost.

        Source: WebNN pull request 942, "WebGPU interop", retold in spec/interop.md.
        """
        memory = own_memory(self._session, tensor, "export_to_gpu")
        if not tensor.exportable:
            raise ValidationError("export_to_gpu: the MLTensor was not created exportable")
        return Export(memory)

    def from_dlpack(self, value: Any) -> MLTensor:
        """Make a tensor over the memory of a DLPack tensor; GPU contexts copy it.

        It is readable, and writable where the memory is.

        Args:
            value: Anything with `__dlpack__` and `__dlpack_device__`, its elements in row-major
                order in CPU memory.

        Raises:
            DLPackError: (a BufferError) The memory is not on the CPU, is strided, or of a type or
                shape that WebNN lacks.
            NotSupportedError: More bytes than a buffer of the device can have.
            OperationError: There is no memory left for the copy.
            ContextLostError: The context is lost.

        Source: DLPack, "Python Specification for DLPack".
        """
        return tensor_operations.from_dlpack(self._session, value)

    def __repr__(self) -> str:
        state = "lost " if self._session.lost.done else ""
        return f"<{state}MLContext {self.device_type} {self.engine}>"
