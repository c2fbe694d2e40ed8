"""MLContext: where graphs are built and run, and tensors live."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from webnn_py.api import tensors
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.api.promise import MLPromise
from webnn_py.api.session import MLContextLostInfo, Session
from webnn_py.api.signature import own_memory
from webnn_py.api.tensor import MLTensor, repeated
from webnn_py.core import convert
from webnn_py.core.completion import Cancellation, check_may_block, wait_or_cancel
from webnn_py.core.dtypes import ANY, MLOperandDataType
from webnn_py.core.errors import InvalidStateError, ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.ir import Array
from webnn_py.ops.declare import REGISTRY
from webnn_py.ordering.schedule import Operation
from webnn_py.ordering.timeline import TimelinePoint, points


class MLContext(Suggesting):
    """Where graphs are built and run. Make one with `ml.create_context_sync` or `_async`.

    All work on its tensors is ordered on the context's own timeline: it runs as if one piece after
    the other.

    Source: WebNN 2026, "MLContext interface".
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def device_type(self) -> str:
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
        """Name of the engine that runs the graphs."""
        return self._session.engine.name

    @property
    def lost(self) -> MLPromise[MLContextLostInfo]:
        """Gives an MLContextLostInfo when the context is lost; it never fails.

        Source: WebNN 2026, "MLContext interface", "Errors".
        """
        return MLPromise(self._session.lost)

    def destroy(self) -> None:
        """Lose the context: what is not done fails, nothing new is accepted. Harmless twice."""
        self._session.lose("destroy() was called")

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
            `preferred_input_layout`, `max_tensor_byte_length`, `input`, `constant` and `output`
            (each with `data_types` and `rank_range`), and for every operator its operands and
            `output` likewise.

        Source: WebNN 2026, "opSupportLimits()".
        """
        bounds = self._session.engine.limits()
        anything = _tensor_limits(ANY, 0, bounds.max_rank)
        operators: dict[str, Any] = {}
        for op in REGISTRY.values():
            types = self._session.supported_types(op)
            members = {
                name: _tensor_limits(types[name], *limits.rank_range)
                for name, limits in op.limits.items()
            }
            for name, ranks in op.output_ranks.items():
                members[name] = _tensor_limits(types["output"], *ranks)
            operators[op.name] = members
        return {
            "preferred_input_layout": "nchw",
            "max_tensor_byte_length": bounds.max_tensor_bytes,
            "input": anything,
            "constant": anything,
            "output": anything,
        } | operators

    def create_tensor_sync(
        self,
        data_type: MLOperandDataType | MLOperandDescriptor,
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
        flags = {"readable": readable, "writable": writable, "exportable": exportable}
        return tensors.create(self._session, data_type, shape, flags)

    async def create_tensor_async(
        self,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int] | None = None,
        *,
        readable: bool = False,
        writable: bool = False,
        exportable: bool = False,
    ) -> MLTensor:
        """As `create_tensor_sync`."""
        return self.create_tensor_sync(
            data_type, shape, readable=readable, writable=writable, exportable=exportable
        )

    def create_constant_tensor_sync(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None = None,
        shape: Sequence[int] | None = None,
    ) -> MLTensor:
        """A tensor whose contents never change, for `MLGraphBuilder.constant`.

        Args:
            value: An array, or what `MLGraphBuilder.constant` takes.
            data_type: The array's own if not given; an MLOperandDescriptor gives the shape too.
            shape: The array's own if not given.

        Source: WebNN 2026, "createConstantTensor()".
        """
        return tensors.create_constant(self._session, value, data_type, shape)

    async def create_constant_tensor_async(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None = None,
        shape: Sequence[int] | None = None,
    ) -> MLTensor:
        """As `create_constant_tensor_sync`."""
        return self.create_constant_tensor_sync(value, data_type, shape)

    def write_tensor(self, tensor: MLTensor, value: Any) -> None:
        """Write host memory into a tensor; `value` is copied before this returns.

        Args:
            tensor: A writable tensor of this context.
            value: An array of its data type and shape (or flat, with all its elements), or a buffer
                of its size in bytes.

        Raises:
            ValidationError: The tensor is not writable, or `value` does not fit.
        """
        tensors.write(self._session, tensor, value)

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
        memory, result, target = tensors.read_target(self._session, tensor, out)
        done, _ = memory.read(target, Cancellation())
        done.wait()
        return result

    async def read_tensor_async(self, tensor: MLTensor, out: Any = None) -> Array:
        """As `read_tensor_sync`, awaited. If that is cancelled, `out` is untouched or whole."""
        memory, result, target = tensors.read_target(self._session, tensor, out)
        cancellation = Cancellation()
        done, withdraw = memory.read(target, cancellation)
        await wait_or_cancel(done, cancellation, withdraw, settle=out is not None)
        return result

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
        session = self._session
        compiled = compiled_of(graph)
        executable = compiled.executable(session, ValidationError)
        waits = points(sync)
        known = repeated(inputs, outputs)
        key = None if known is None else (len(compiled.bound.places), known[0])
        run = None if key is None else session.queue.repeat(executable, key)
        if run is None or known is None:
            given = compiled.signature.on_tensors(session, inputs, outputs, compiled.bound)
            run = session.queue.dispatch(executable, given.inputs, given.outputs, key)
            tensors.submit(session, run, given.reads, given.writes, waits)
        else:
            _, reads, writes = known
            tensors.submit(session, run, reads, writes, waits)

    def submit(self, command_buffers: Sequence[Any], sync: Iterable[TimelinePoint] = ()) -> None:
        """Submit GPUCommandBuffers on this context's timeline; GPU contexts only.

        Raises:
            InvalidStateError: This is a CPU context.
            ValidationError: Not a list of command buffers of this device, submitted before, or they
                use a buffer or texture that is destroyed or mapped.
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

        def fail(error: BaseException) -> None:
            queue.commands_failed(buffers, error)
            failed.append(error)

        # The context is named as what is used: it must live until its work is done.
        queue.submit(Operation(queue.submit_commands(buffers), fail, waits, uses=(session,)))
        if failed:
            queue.raise_failed()

    def flush(self) -> None:
        """Submit what is recorded and not yet submitted, except what waits for a timeline.

        Raises:
            OperationError: Command buffers given to `submit` waited for a timeline and could not be
                submitted then.
        """
        self._session.check_alive()
        self._session.queue.flush()
        self._session.queue.raise_failed()

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
        memory = own_memory(self._session, tensor, "export_to_gpu")
        if not tensor.exportable:
            raise ValidationError("export_to_gpu: the MLTensor was not created exportable")
        queue: Any = self._session.queue
        left = queue.flush()
        if any(used is memory for work in left for used in work.uses):
            raise InvalidStateError(
                "export_to_gpu: work on the MLTensor waits for a timeline; wait for that first"
            )
        memory.check_written()
        memory.rent()
        storage = memory.storage
        try:
            with queue.rented_buffer(storage) as buffer:
                yield buffer
        finally:
            memory.rented = False
            if not queue.is_intact(storage):
                memory.destroy()

    def from_dlpack(self, value: Any) -> MLTensor:
        """A tensor over the memory of a DLPack tensor; GPU contexts copy it.

        Raises:
            DLPackError: (a BufferError) The memory is not on the CPU, is strided, or of a type that
                WebNN lacks.
        """
        return tensors.from_dlpack(self._session, value)

    def __repr__(self) -> str:
        state = "lost " if self._session.lost.done else ""
        return f"<{state}MLContext {self.device_type} {self.engine}>"


def session_of(context: object) -> Session:
    """What stands behind a context.

    Raises:
        ValidationError: It is none.
        ContextLostError: It is lost.
    """
    if not isinstance(context, MLContext):
        raise ValidationError(f"context: got {shown(context)}, expected an MLContext")
    context._session.check_alive()
    return context._session


def _tensor_limits(types: Sequence[str], low: int, high: int) -> dict[str, Any]:
    return {"data_types": list(types), "rank_range": {"min": low, "max": high}}
