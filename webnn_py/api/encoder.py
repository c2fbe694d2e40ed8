"""MLCommandEncoder: records graphs into a wgpu command encoder."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.api.programs.program import MLProgram, record_program
from webnn_py.api.session import session_of
from webnn_py.api.slicing import MLSlicedDispatch, record_slice
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_memory import check_not_held, run_on_tensors
from webnn_py.core import convert
from webnn_py.core.errors import InvalidStateError
from webnn_py.core.messages import Suggesting, named
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.device import DeviceEngine, DeviceExecutable
from webnn_py.memory import host_arrays


class MLCommandEncoder(Unpicklable, Suggesting):
    """Records graphs into the device queue's order, next to the user's own passes.

    Nothing runs until the command buffer is submitted; nothing is read back.

    Args:
        context: A GPU context.
        encoder: A wgpu.GPUCommandEncoder of yours to record into, between your own passes; you
            finish it. Without it, the MLCommandEncoder owns its recording.

    Raises:
        ValidationError: `context` is no MLContext.
        InvalidStateError: The context is not a GPU context.
        DataError: `encoder` is no GPUCommandEncoder of the context's device.
        ContextLostError: The context is lost.

    Source: WebNN 2022, "MLCommandEncoder".
    """

    def __init__(self, context: MLContext, *, encoder: Any = None) -> None:
        session = session_of(context)
        if session.device_type != "gpu":
            raise InvalidStateError(
                "MLCommandEncoder needs a GPU context; on a CPU context use MLExecution or"
                " MLAwaitedExecution"
            )
        assert isinstance(session.engine, DeviceEngine)
        self._session = session
        self._commands = session.engine.commands(session.queue, encoder)

    def initialize_graph(self, graph: MLGraph, constants: Mapping[str, Any] | None = None) -> None:
        """Record the preparation of a graph, once.

        It takes effect at once for what is recorded into this encoder, and for everyone when the
        commands are submitted.

        Args:
            graph: Built by this context.
            constants: Inputs that are constant from then on, by name, as `dispatch` takes them;
                they are not given to it any more. Arrays are read before this returns, GPU
                resources when the commands run. The sizes of their open dimensions are fixed from
                then on.

        Raises:
            ValidationError: `graph` is no MLGraph.
            DataError: A name, data type, size, format, context or device does not fit, or an open
                size of a constant does not follow from the constants.
            InvalidStateError: The graph was initialized before, by a `dispatch` too; it is
                destroyed, this encoder is finished, a pass of the user's is open, or work on a
                tensor waits for a timeline.
            NotSupportedError: More bytes than a buffer of the device can have, or with a texture
                than it binds at once.
            OperationError: The device failed, or the work that was to write a tensor.
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
        """Record one run of a graph. A graph that was not initialized is so first.

        Args:
            graph: Built by this context.
            inputs: Every input that is no constant, by name: a GPUBuffer, {"buffer", "offset",
                "size"} in bytes, a GPUTexture or view, {"texture", "mip_level", "origin", "size",
                "scale", "bias"} in texels, an MLTensor, an array or buffer in host memory (read
                before this returns), or {"resource": one of these, "dimensions": [...]}.
            outputs: What to write outputs into, by name: a GPUBuffer or GPUTexture, a view or part
                of one, or an MLTensor. Buffers may be larger than the result. No two share memory.
                What an output holds that is left out is lost; one at least is given.

        Raises:
            ValidationError: `graph` is no MLGraph.
            DataError: A name, data type, size, format, context or device does not fit; nothing was
                recorded.
            InvalidStateError: This encoder is finished, a pass of the user's is open, the graph is
                destroyed, a tensor is exported, work on one waits for a timeline, or an input is
                left out that becomes a constant by other commands, not submitted yet.
            NotSupportedError: More bytes than a buffer of the device can have, or with a texture
                than it binds at once.
            OperationError: The device failed, or the work that was to write a tensor.
            ContextLostError: The context is lost.

        Source: WebNN 2022, "MLCommandEncoder", "dispatch(graph, inputs, outputs)".
        """
        self._commands.check_open()
        compiled = compiled_of(graph)
        executables = compiled.check_usable(self._session)
        constants = self._commands.constants(compiled.bound)
        signature, sizes = compiled.fixed(inputs, constants=constants)
        executable = executables.get(sizes).executable
        assert isinstance(executable, DeviceExecutable)
        given = signature.on_device(
            self._session, inputs, outputs, compiled.bound, constants.places, recorded=True
        )
        _check_not_held("input", inputs)
        _check_not_held("output", outputs)
        record = functools.partial(executable.record, self._commands, given.inputs, given.outputs)
        run_on_tensors(given.reads, given.writes, record)
        self._commands.carry(compiled.bound)

    def dispatch_slice(self, job: MLSlicedDispatch, *, budget_ms: float = 2.0) -> bool:
        """Record the next slice of a run: about as much of it as the budget of GPU time takes.

        The slices of a run are submitted in the order in which they are recorded, one a frame or
        more. What a kernel takes is guessed at first, and measured as it runs where the device has
        timestamp-query. A slice has one kernel at least, however long that takes.

        Args:
            job: What `MLContext.slice_dispatch` gave.
            budget_ms: Milliseconds of GPU time.

        Returns:
            Whether this was the last slice: its commands write the outputs.

        Raises:
            ValidationError: `job` is none, or the budget is no number above 0.
            DataError: The run belongs to another context, or a resource of it is not usable any
                more; nothing was recorded.
            InvalidStateError: The last slice was recorded before, this encoder is finished, a pass
                of the user's is open, a tensor of the run is exported, or work on one waits for a
                timeline.
            OperationError: The device failed, or the work that was to write a tensor.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Slices".
        """
        return record_slice(self._session, self._commands, job, budget_ms)

    def execute(self, program: MLProgram, arguments: Mapping[str, Any] | None = None) -> None:
        """Record one run of a program. One that is not compiled is so first.

        Args:
            program: Made by this context.
            arguments: Every argument by name: a GPUBuffer, {"buffer", "offset", "size"} in bytes,
                an MLTensor, or for those that are only read an array or buffer in host memory (read
                before this returns). Nothing that is written shares memory with anything else.

        Raises:
            ValidationError: `program` is no MLProgram, or as `MLProgram.compile_sync`.
            DataError: A name, data type, size, context or device does not fit; nothing was
                recorded.
            InvalidStateError: This encoder is finished, a pass of the user's is open, a tensor is
                exported, or work on one waits for a timeline.
            NotSupportedError: As `MLProgram.compile_sync`.
            OperationError: The device failed, or the work that was to write a tensor.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Running".
        """
        self._commands.check_open()
        self._session.check_alive()
        _check_not_held("argument", arguments)
        record_program(program, self._session, self._commands, arguments)

    def finish(self, *, label: str = "") -> Any:
        """End the recording.

        Args:
            label: The GPUCommandBuffer's, for wgpu's messages.

        Returns:
            The wgpu.GPUCommandBuffer to submit.

        Raises:
            InvalidStateError: The encoder is the user's, or finished already.
            ValidationError: `label` is no string; the recording is not lost by it.
            OperationError: The device refused what was recorded.
            ContextLostError: The device is lost.

        Source: WebNN 2022, "MLCommandEncoder", "finish(descriptor)".
        """
        self._session.check_process()
        return self._commands.finish(convert.label(label))


def _check_not_held(kind: str, given: Mapping[str, Any] | None) -> None:
    """Work that waits for a timeline may run after what is recorded now.

    Raises:
        InvalidStateError: There is such work on one of the tensors.
    """
    for name, value in convert.mapping({} if given is None else given, f"{kind}s").items():
        resource = host_arrays.resource_of(value)
        if isinstance(resource, MLTensor):
            memory = memory_of(resource, named(kind, name))
            check_not_held(memory, f"{named(kind, name)}: the MLTensor", reading=kind == "input")
