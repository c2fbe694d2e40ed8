"""MLCommandEncoder: records graphs into a wgpu command encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from webnn_py.api.context import MLContext, check_context
from webnn_py.api.graph import MLGraph, executable_of
from webnn_py.core import convert
from webnn_py.core.errors import DataError, InvalidStateError
from webnn_py.core.messages import Suggesting

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable


class MLCommandEncoder(Suggesting):
    """Records graphs into the device queue's order, next to the user's own passes.

    Nothing runs until the command buffer is submitted; nothing is read back.

    Args:
        context: A GPU context.
        encoder: A wgpu.GPUCommandEncoder of yours to record into, between your own passes; you
            finish it. Without it, the MLCommandEncoder owns its recording.

    Raises:
        InvalidStateError: The context is not a GPU context.
        DataError: `encoder` is no GPUCommandEncoder of the context's device.

    Source: WebNN 2022, "MLCommandEncoder".
    """

    def __init__(self, context: MLContext, *, encoder: Any = None) -> None:
        check_context(context)
        if context.device_type != "gpu":
            raise InvalidStateError(
                "MLCommandEncoder needs a GPU context; on a CPU context use MLExecution or"
                " MLAwaitedExecution"
            )
        from webnn_py.engines.webgpu.runtime import recording

        self._context = context
        self._recording = recording.Recording(context, encoder)

    def initialize_graph(self, graph: MLGraph, constants: Mapping[str, Any] | None = None) -> None:
        """Record the preparation of a graph, once.

        Args:
            graph: Built by this context.
            constants: Inputs that are constant from now on, by name; they are not given to
                `dispatch` any more.

        Raises:
            InvalidStateError: The graph was initialized before, or this encoder is finished.
            DataError: A name or resource does not fit.
        """
        executable = self._executable(graph)
        given = {} if constants is None else convert.mapping(constants, "constants", DataError)
        self._recording.initialize(executable, graph, given)

    def dispatch(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Record one run of a graph. A graph that was not initialized is so first.

        Args:
            graph: Built by this context.
            inputs: By name: a GPUBuffer, {"buffer", "offset", "size"}, a GPUTexture or view, an
                array or buffer in host memory, or {"resource": one of these, "dimensions": [...]}.
            outputs: By name: a GPUBuffer, a binding of one, a GPUTexture or view. Buffers may be
                larger than the result. Every output must be given.

        Raises:
            DataError: A name, data type, size, format or device does not fit; nothing was recorded.
            InvalidStateError: This encoder is finished, or the graph is destroyed.
        """
        executable = self._executable(graph)
        given = convert.mapping(inputs, "inputs", DataError)
        targets = convert.mapping(outputs, "outputs", DataError)
        self._recording.dispatch(executable, graph, given, targets)

    def finish(self, *, label: str = "") -> Any:
        """End the recording.

        Returns:
            The wgpu.GPUCommandBuffer to submit.

        Raises:
            InvalidStateError: The encoder is the user's, or finished already.
            ValidationError: `label` is no string; the recording is not lost by it.
        """
        self._context.check_process()
        return self._recording.finish(convert.label(label))

    def _executable(self, graph: MLGraph) -> WebGPUExecutable:
        self._recording.check_open()
        executable: Any = executable_of(graph, self._context)
        result: WebGPUExecutable = executable
        return result
