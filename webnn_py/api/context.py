"""MLContext, which builds and runs graphs and owns tensors."""

from __future__ import annotations

import _thread
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from webnn_py.api import tensor_operations
from webnn_py.api.compiled import compiled_of
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.graph import MLGraph
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
from webnn_py.engines.device import CommandQueue
from webnn_py.ir import Array
from webnn_py.ordering.operation import Operation
from webnn_py.ordering.timeline import TimelinePoint, points, seconds_of


class MLContext(Slicing, Loading, Unpicklable, Suggesting):
    """Execution context that builds and runs graphs and owns tensors. Create it with `ml`.

    The context orders all work on its tensors on its own timeline, as if operations ran one after
    the other. An operation that waits for a timeline delays only operations that share memory with
    it. Used as a context manager, the context is destroyed at the end of the block. In a child
    process that was forked after its creation, its calls raise an InvalidStateError.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLCommandEncoder, MLGraphBuilder, MLProgram, ml

        ctx = ml.create_context_sync(device_type="gpu")
        print(ctx.device_type, ctx.engine, ctx.device is not None)  # gpu webgpu True
        print(type(ctx.accelerated).__name__)  # bool
        print(ctx.op_support_limits()["relu"]["input"]["rank_range"]["max"])  # 8

        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [2])
        graph = b.build_sync({"y": b.add(x, x)})

        # Tensors: each call sees what the calls before it did.
        t = ctx.create_tensor_sync("float32", [2], readable=True, writable=True, exportable=True)
        c = ctx.create_constant_tensor_sync(np.float32([1, 2]))
        ctx.write_tensor(t, np.float32([1, 2]))
        ctx.dispatch(graph, {"x": t}, {"y": t})
        ctx.flush()
        print(ctx.read_tensor_sync(t))  # [2. 4.]
        with ctx.export_to_gpu(t) as buffer:
            commands = ctx.device.create_command_encoder()
            commands.clear_buffer(buffer)
            ctx.submit([commands.finish()])
        print(ctx.read_tensor_sync(t))  # [0. 0.]
        job = ctx.slice_dispatch(graph, {"x": t}, {"y": t})

        # Files.
        graph.save("double.mlgraph")
        graph = ctx.load_graph_sync("double.mlgraph")
        graph.compile_to("double.mlprogram")
        program = ctx.load_program_sync("double.mlprogram")


        async def main():
            graph = await ctx.load_graph_async("double.mlgraph")
            await ctx.load_program_async("double.mlprogram")
            t = await ctx.create_tensor_async("float32", [2], readable=True, writable=True)
            await ctx.create_constant_tensor_async(np.float32([1, 2]))
            ctx.write_tensor(t, np.float32([3, 4]))
            return await ctx.read_tensor_async(t)


        print(asyncio.run(main()))  # [3. 4.]

        # Memory of other libraries, without a copy on a CPU context.
        cpu = ml.create_context_sync(device_type="cpu")
        print(cpu.from_dlpack(np.float32([5, 6])).shape)  # (2,)


        async def reason():
            return (await cpu.lost).message


        cpu.destroy()
        print(asyncio.run(reason()))  # destroy() was called
        ```

    Source: WebNN 2026, "MLContext interface"; webnn_py, spec/execution.md, "Child processes".
    """

    @property
    def device_type(self) -> MLDeviceType:
        """Return the device type that graphs run on: "cpu" or "gpu"."""
        return self._session.device_type

    @property
    def accelerated(self) -> bool:
        """Whether graphs run on a hardware GPU."""
        return self._session.engine.accelerated

    @property
    def device(self) -> Any:
        """Return the GPUDevice, of wgpu or wgpudawn, of a GPU context; None on the CPU."""
        return self._session.device

    @property
    def engine(self) -> str:
        """Return the name of the engine that runs the graphs.

        On a CPU, the reference engine runs the operators that this engine does not support. With
        engine="fastest", it is the engine of the graph built last, and "fastest" before that.
        """
        return self._session.engine.name

    @property
    def lost(self) -> MLPromise[MLContextLostInfo]:
        """Return a promise of the MLContextLostInfo at the loss of the context; it never fails.

        Source: WebNN 2026, "MLContext interface", "Errors".
        """
        return MLPromise(self._session.lost)

    def destroy(self) -> None:
        """Lose the context: pending work fails, and new work is refused. Harmless twice.

        The memory of its tensors, graphs and programs is released even while you hold references
        to them; graphs can still be saved. If a finalizer or signal handler calls this in the
        midst of another call on the context, the loss happens once that call can go on.

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
        """Return the data types and ranks that this context supports, by operator and operand.

        Returns:
            `preferred_input_layout`, `max_tensor_byte_length` in bytes, `input`, `constant` and
            `output`, each with `data_types`, a list of names, and `rank_range`, with `min` and
            `max`. Every operator has an entry under its webnn_py name, with the same fields for
            its operands and its `output`.

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
        """Create a tensor of zeros.

        Args:
            data_type: Name of the data type, or an MLOperandDescriptor, which also has the shape.
                int4 and uint4 are for constants only.
            shape: The dimensions, each at least 1; a scalar by default.
            readable: Allow `read_tensor_sync` and `_async`.
            writable: Allow `write_tensor`.
            exportable: Allow `export_to_gpu`; GPU contexts only.

        Raises:
            ValidationError: The data type, the shape or an option is not valid.
            NotSupportedError: `exportable` is set on a CPU context, or the tensor has more bytes
                than a buffer of the device can have.
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
        """Create a tensor as `create_tensor_sync` does; the await does not suspend.

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
        """Create a tensor whose contents never change, for `MLGraphBuilder.constant`.

        Args:
            value: A NumPy array, a number, bytes or anything with the buffer protocol or
                `__dlpack__`; it is copied.
            data_type: The array's data type by default; required for a number or raw bytes. An
                MLOperandDescriptor also has the shape.
            shape: The array's shape by default.

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
        """Create a constant as `create_constant_tensor_sync` does, without suspending.

        Raises:
            MLError: As `create_constant_tensor_sync`.

        Source: WebNN 2026, "createConstantTensor()".
        """
        return self.create_constant_tensor_sync(value, data_type, shape)

    def write_tensor(self, tensor: MLTensor, value: Any) -> None:
        """Write host memory into a tensor, in submission order; copy `value` before returning.

        If pending work holds many such copies, the call waits for some of it first (back-pressure).
        On a thread that is running an event loop this wait is short.

        Args:
            tensor: A writable tensor of this context.
            value: An array of the tensor's data type and shape, a flat array of all its elements,
                or a buffer of its size in bytes.

        Raises:
            ValidationError: The tensor is not writable, is destroyed or belongs to another
                context, or `value` does not fit.
            InvalidStateError: The tensor is exported.
            OperationError: There is no memory left for the copy.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "writeTensor()"; for the waiting webnn_py, spec/execution.md, "Order".
        """
        tensor_operations.write(self._session, tensor, value)

    def read_tensor_sync(
        self, tensor: MLTensor, out: Any = None, *, timeout: float | None = None
    ) -> Array:
        """Return the contents of a tensor after all work submitted before; block until then.

        This includes earlier work that waits for a timeline. If only this thread would signal that
        timeline, the call would never return: set `timeout`.

        Args:
            tensor: A readable tensor of this context.
            out: Destination: an array of the tensor's data type and shape, or a 1-D array or
                buffer. If a 1-D array or buffer is larger, only its beginning is written.
            timeout: Maximum wait in seconds; unlimited by default. After that the read is
                cancelled, and `out` is either untouched or completely written.

        Returns:
            `out` if it is an array. Else an array of the tensor's data type and shape, new or over
            the memory of `out`.

        Raises:
            ValidationError: The tensor is not readable, is destroyed or belongs to another
                context, or `out` does not fit.
            InvalidStateError: This thread is running an event loop: use `read_tensor_async`. Or a
                finalizer or signal handler calls this in the midst of another call on this thread.
                Or the tensor is exported.
            WaitTimeoutError: (a TimeoutError) The read did not finish in time; the message names
                what it waits for.
            OperationError: The work that writes the contents failed, or there is no memory left.
            ContextLostError: The context is lost, before or during the wait.

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
        """Read a tensor as `read_tensor_sync` does, without blocking the event loop.

        If the await is cancelled, `out` is either untouched or completely written.

        Raises:
            MLError: As `read_tensor_sync`, except the error about the event loop.

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
        """Run a graph from tensors to tensors, in submission order; return at once.

        If the work fails later, reads of its outputs fail too, and so do waits for the timeline
        points that it was to signal.

        Args:
            graph: Built by this context.
            inputs: A tensor of this context for every input, by name, with exactly the input's
                data type and shape.
            outputs: A tensor for every output, likewise. No tensor may occur twice. An output may
                be an input's tensor, which is then read as it was before.
            sync: Timeline points that the work waits for and signals.

        Raises:
            ValidationError: A name, data type, shape, context or timeline point does not fit.
            InvalidStateError: The graph is destroyed, a tensor is exported, or an input is missing
                that commands not submitted yet turn into a constant.
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
        key = None if known is None else compiled.key_of(known.key)
        run = None if key is None else session.queue.repeat(executable, key)
        if run is None or known is None:
            given = signature.on_tensors(session, inputs, outputs, compiled.bound)
            run = session.queue.dispatch(executable, given.inputs, given.outputs, key)
            reads, writes = given.reads, given.writes
        else:
            reads, writes = known.reads, known.writes
        tensor_operations.submit(session, compiled.signature.title, run, reads, writes, waits)

    def submit(self, command_buffers: Sequence[Any], sync: Iterable[TimelinePoint] = ()) -> None:
        """Submit GPUCommandBuffers on this context's timeline; GPU contexts only.

        Args:
            command_buffers: wgpu.GPUCommandBuffers of `device`; each can be submitted once.
            sync: Timeline points that they wait for and signal.

        Raises:
            InvalidStateError: This is a CPU context.
            ValidationError: This is not a list of command buffers of this device, one was
                submitted before, or one uses a buffer or texture that is destroyed or mapped. Or a
                timeline point does not fit.
            OperationError: The device refused them.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Submissions".
        """
        session = self._session
        session.check_alive()
        queue = session.queue
        if not isinstance(queue, CommandQueue):
            raise InvalidStateError("submit takes GPU command buffers; this is a CPU context")
        waits = points(sync)
        buffers = convert.items(command_buffers, "submit: command_buffers")
        queue.check_commands(buffers)
        failed: list[BaseException] = []

        def fail(error: BaseException, session: Session = session) -> None:
            queue.commands_failed(buffers, error)
            failed.append(error)

        # `fail` holds a reference to the session, which must live until its work is done.
        used = queue.memory_of_commands(buffers)
        title = f"submit of {len(buffers)} command buffers"
        run = queue.submit_commands(buffers)
        queue.submit_before_return(Operation(run, fail, waits, writes=used, title=title))
        if failed:
            queue.raise_failed()

    def flush(self) -> None:
        """Submit all recorded work to the device, except work that waits for a timeline.

        Raises:
            OperationError: Command buffers given to `submit` waited for a timeline and could not be
                submitted then, or the device refused the recorded work.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Submissions".
        """
        self._session.check_alive()
        self._session.queue.flush()
        self._session.queue.raise_failed()

    def export_to_gpu(self, tensor: MLTensor) -> AbstractContextManager[Any]:
        """Rent a tensor as a wgpu.GPUBuffer; the tensor is unusable until the block ends.

        Submit your commands on the buffer before the block ends; the device queue keeps the order.
        Destroying the GPUBuffer within the block destroys the tensor; afterwards it does nothing.

        Args:
            tensor: A tensor of this context that was created `exportable`.

        Returns:
            A context manager that yields the tensor's own GPUBuffer, without a copy. The buffer
            holds the elements in row-major order; its size in bytes is a multiple of 4. Its usages
            are STORAGE, COPY_SRC and COPY_DST.

        Raises:
            ValidationError: The tensor was not created exportable, is destroyed or belongs to
                another context.
            InvalidStateError: The tensor is exported already, or work on it waits for a timeline.
            OperationError: The work that writes the contents failed.
            ContextLostError: The context is lost.

        Source: WebNN pull request 942, "WebGPU interop", retold in spec/interop.md.
        """
        memory = own_memory(self._session, tensor, "export_to_gpu")
        if not tensor.exportable:
            raise ValidationError("export_to_gpu: the MLTensor was not created exportable")
        return Export(memory)

    def from_dlpack(self, value: Any) -> MLTensor:
        """Create a tensor over the memory of a DLPack tensor; GPU contexts copy it.

        The tensor is readable. It is writable if the memory is writable.

        Args:
            value: An object with `__dlpack__` and `__dlpack_device__`, whose elements lie in
                row-major order in CPU memory.

        Raises:
            DLPackError: (a BufferError) The memory is not on the CPU, is strided, or has a data
                type or shape that WebNN lacks.
            NotSupportedError: The tensor has more bytes than a buffer of the device can have.
            OperationError: There is no memory left for the copy.
            ContextLostError: The context is lost.

        Source: DLPack, "Python Specification for DLPack".
        """
        return tensor_operations.from_dlpack(self._session, value)

    def __repr__(self) -> str:
        state = "lost " if self._session.lost.done else ""
        return f"<{state}MLContext {self.device_type} {self.engine}>"
