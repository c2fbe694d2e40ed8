"""MLCommandEncoder, which records graphs into a wgpu command encoder."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.programs.program import MLProgram, record_program
from webnn_py.api.session import session_of
from webnn_py.api.slicing import MLSlicedDispatch, record_slice
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_memory import check_not_held, run_on_tensors
from webnn_py.core import convert
from webnn_py.core.errors import InvalidStateError
from webnn_py.core.messages import Suggesting, named
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.device import CommandQueue, DeviceEngine, DeviceExecutable
from webnn_py.memory import host_arrays


class MLCommandEncoder(Unpicklable, Suggesting):
    """Recorder of graphs into GPU commands, next to your own passes.

    Nothing runs until you submit the command buffer, and nothing is read back.

    Args:
        context: A GPU context.
        encoder: Your wgpu.GPUCommandEncoder to record into, between your own passes; you finish
            it. By default, the MLCommandEncoder creates and owns one.

    Raises:
        ValidationError: `context` is not an MLContext.
        InvalidStateError: The context is not a GPU context.
        DataError: `encoder` is not a GPUCommandEncoder of the context's device.
        ContextLostError: The context is lost.

    Examples:
        ```python
        import numpy as np
        import wgpu

        from webnn_py import MLCommandEncoder, MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="gpu")
        device = ctx.device
        b = MLGraphBuilder(ctx)
        x, bias = b.input("x", "float32", [2]), b.input("bias", "float32", [2])
        graph = b.build_sync({"y": b.add(x, bias)})
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        source = device.create_buffer_with_data(data=np.float32([1, 2]), usage=usage)
        target = device.create_buffer(size=8, usage=usage)

        # The encoder owns the recording.
        encoder = MLCommandEncoder(ctx)
        encoder.initialize_graph(graph, {"bias": np.float32([10, 20])})
        encoder.dispatch(graph, {"x": source}, {"y": target})
        device.queue.submit([encoder.finish()])
        print(np.frombuffer(device.queue.read_buffer(target), np.float32))  # [11. 22.]

        # It records into your encoder: a program, and slices of a run.
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [2])
        square = b.build_sync({"y": b.mul(x, x)})
        square.compile_to("square.mlprogram")
        program = ctx.load_program_sync("square.mlprogram")
        job = ctx.slice_dispatch(square, {"x": source}, {"y": target})
        commands = device.create_command_encoder()
        recorder = MLCommandEncoder(ctx, encoder=commands)
        done = recorder.dispatch_slice(job, budget_ms=2.0)
        recorder.execute(program, {"x": source, "y": target})
        device.queue.submit([commands.finish()])
        print(np.frombuffer(device.queue.read_buffer(target), np.float32))  # [1. 4.]
        ```

    Source: WebNN 2022, "MLCommandEncoder".
    """

    def __init__(self, context: MLContext, *, encoder: Any = None) -> None:
        session = session_of(context)
        if session.device_type != "gpu":
            raise InvalidStateError(
                "MLCommandEncoder needs a GPU context; on a CPU context use MLExecution or"
                " MLAwaitedExecution"
            )
        engine, queue = session.engine, session.queue
        assert isinstance(engine, DeviceEngine)
        assert isinstance(queue, CommandQueue)
        self._session = session
        self._commands = engine.commands(queue, encoder)

    def initialize_graph(self, graph: MLGraph, constants: Mapping[str, Any] | None = None) -> None:
        """Record the one-time initialization of a graph.

        It takes effect at once for later commands of this encoder, and everywhere when the
        commands are submitted.

        Args:
            graph: Built by this context.
            constants: Inputs that become constants, by name, as in `dispatch`; later dispatches
                omit them. Arrays are read before this returns, GPU resources when the commands
                run. The sizes of their open dimensions become fixed.

        Raises:
            ValidationError: `graph` is not an MLGraph.
            DataError: A name, data type, size, format, context or device does not fit, or an open
                size of a constant does not follow from the constants.
            InvalidStateError: The graph was initialized before (a `dispatch` does so too) or is
                destroyed. Or this encoder is finished, one of your passes is open, or work on a
                tensor waits for a timeline.
            NotSupportedError: A tensor has more bytes than a buffer of the device can have, or
                with a texture more than the device can bind at once.
            OperationError: The device failed, or the work that writes a tensor failed.
            ContextLostError: The context is lost.

        Source: WebNN 2022, "MLCommandEncoder", "initializeGraph(graph, inputs)"; when it takes
        effect: webnn_py, spec/execution.md, "MLCommandEncoder".
        """
        self._commands.check_open()
        compiled = compiled_of(graph)
        compiled.check_usable(self._session)
        given, reads = compiled.signature.constants(self._session, constants)
        _check_not_held("input", constants)
        initialize = functools.partial(self._commands.initialize, compiled.bound, given)
        run_on_tensors(reads, (), initialize)

    def dispatch(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Record one run of a graph, after its initialization if none was recorded before.

        Args:
            graph: Built by this context.
            inputs: Every input that is not a constant, by name: a GPUBuffer, {"buffer", "offset",
                "size"} in bytes, a GPUTexture or view, {"texture", "mip_level", "origin", "size",
                "scale", "bias"} in texels, an MLTensor, an array or buffer in host memory (read
                before this returns), or {"resource": one of these, "dimensions": [...]}.
            outputs: Destinations by name, at least one: a GPUBuffer or GPUTexture, a view or part
                of one, or an MLTensor. Buffers may be larger than the result. No two destinations
                may share memory. The results of missing outputs are discarded.

        Raises:
            ValidationError: `graph` is not an MLGraph.
            DataError: A name, data type, size, format, context or device does not fit; nothing was
                recorded.
            InvalidStateError: This encoder is finished, one of your passes is open, the graph is
                destroyed, a tensor is exported, or work on one waits for a timeline. Or an input is
                missing that other commands, not submitted yet, turn into a constant.
            NotSupportedError: A tensor has more bytes than a buffer of the device can have, or
                with a texture more than the device can bind at once.
            OperationError: The device failed, or the work that writes a tensor failed.
            ContextLostError: The context is lost.

        Source: WebNN 2022, "MLCommandEncoder", "dispatch(graph, inputs, outputs)".
        """
        commands, compiled = self._commands, compiled_of(graph)
        executables = compiled.check_usable(self._session)
        known = commands.constants(compiled.bound) if compiled.is_open else None
        signature, sizes = compiled.fixed(inputs, constants=known)
        executable = executables.get(sizes).executable
        assert isinstance(executable, DeviceExecutable)
        if executable.repeat(commands, compiled.bound, inputs, outputs):
            return
        constants = commands.constants(compiled.bound)
        given = signature.on_device(
            self._session, inputs, outputs, compiled.bound, constants.places, recorded=True
        )
        _check_not_held("input", inputs)
        _check_not_held("output", outputs)
        record = functools.partial(executable.record, commands, given.inputs, given.outputs)
        run_on_tensors(given.reads, given.writes, record)
        commands.carry(compiled.bound)

    def dispatch_slice(self, job: MLSlicedDispatch, *, budget_ms: float = 2.0) -> bool:
        """Record the next slice of a run, of about `budget_ms` of GPU time.

        Submit the slices of a run in the order of their recording, one or more in each frame.
        Kernel times are estimated at first; a device with timestamp-query measures them as they
        run. A slice has at least one kernel, even one that exceeds the budget.

        Args:
            job: The run that `MLContext.slice_dispatch` returned.
            budget_ms: GPU time of the slice in milliseconds.

        Returns:
            Whether this was the last slice, whose commands write the outputs.

        Raises:
            ValidationError: `job` is not an MLSlicedDispatch, or the budget is not a number above
                0.
            DataError: The run belongs to another context, or one of its resources is not usable
                any more; nothing was recorded.
            InvalidStateError: The last slice was recorded before, this encoder is finished, or one
                of your passes is open. Or a tensor of the run is exported, or work on one waits for
                a timeline.
            OperationError: The device failed, or the work that writes a tensor failed.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Slices".
        """
        return record_slice(self._session, self._commands, job, budget_ms)

    def execute(self, program: MLProgram, arguments: Mapping[str, Any] | None = None) -> None:
        """Record one run of a program, compiling it first if needed.

        Args:
            program: Created on this context.
            arguments: Every argument by name: a GPUBuffer, {"buffer", "offset", "size"} in bytes,
                or an MLTensor. A read-only argument may also be an array or buffer in host memory,
                which is read before this returns. A written argument may not share memory with any
                other.

        Raises:
            ValidationError: `program` is not an MLProgram, or as in `MLProgram.compile_sync`.
            DataError: A name, data type, size, context or device does not fit; nothing was
                recorded.
            InvalidStateError: This encoder is finished, one of your passes is open, a tensor is
                exported, or work on one waits for a timeline.
            NotSupportedError: As in `MLProgram.compile_sync`.
            OperationError: The device failed, or the work that writes a tensor failed.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Running".
        """
        self._commands.check_open()
        self._session.check_alive()
        _check_not_held("argument", arguments)
        record_program(program, self._session, self._commands, arguments)

    def finish(self, *, label: str = "") -> Any:
        """Finish the recording.

        Args:
            label: Label of the GPUCommandBuffer, for wgpu's messages.

        Returns:
            The wgpu.GPUCommandBuffer to submit.

        Raises:
            InvalidStateError: The recording goes into your encoder, or is finished already.
            ValidationError: `label` is not a string; you can call `finish` again.
            OperationError: The device refused the recorded commands.
            ContextLostError: The device is lost.

        Source: WebNN 2022, "MLCommandEncoder", "finish(descriptor)".
        """
        self._session.check_process()
        return self._commands.finish(convert.label(label))


def _check_not_held(kind: str, given: Mapping[str, Any] | None) -> None:
    """Check that no work on these tensors waits for a timeline, as it could run out of order.

    Raises:
        InvalidStateError: Work on one of the tensors waits for a timeline.
    """
    for name, value in convert.mapping({} if given is None else given, f"{kind}s").items():
        resource = host_arrays.resource_of(value)
        if isinstance(resource, MLTensor):
            memory = memory_of(resource, named(kind, name))
            check_not_held(memory, f"{named(kind, name)}: the MLTensor", reading=kind == "input")
