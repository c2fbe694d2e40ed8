"""OnnxRuntimeEngine: a graph as one session, on arrays that are neither copied in nor out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from webnn_py.core import dtypes, forks
from webnn_py.engines.base import HostExecutable
from webnn_py.engines.host import HostEngine, checked_threads
from webnn_py.engines.onnx_lowering import NotLowered, lower_alone, lower_graph, numbered
from webnn_py.engines.onnxruntime.exact import INSTEAD, is_exact
from webnn_py.engines.onnxruntime.kernels import PROVIDERS, SILENT, has_kernel
from webnn_py.ir import Array, Graph, Node

BROKEN_OPTIMIZERS = ["Pad_Fusion"]
"""It makes poolings of more padding than their kernels take."""

forks.leave_in_child(onnxruntime)

SMALL = 1 << 14
"""Bytes of all results up to which these are copied."""


class OnnxRuntimeExecutable(HostExecutable):
    """A session, and for each thread what binds arrays to it.

    Args:
        graph: What to run.
        threads: That compute, the calling one included; as many as there are cores if None.
    """

    def __init__(self, graph: Graph, threads: int | None) -> None:
        names = numbered(graph)
        lowered = lower_graph(graph, names, external=True, instead=INSTEAD)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = SILENT
        if threads is not None:
            options.intra_op_num_threads = threads
        # The session computes with the arrays themselves.
        self._weights = [
            onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in lowered.external.values()
        ]
        options.add_external_initializers(list(lowered.external), self._weights)
        self._session = onnxruntime.InferenceSession(
            lowered.model.SerializeToString(),
            options,
            providers=PROVIDERS,
            disabled_optimizers=BROKEN_OPTIMIZERS,
        )
        forks.leave_in_child(self._session)
        self._inputs = [
            (name, dtypes.DTYPES[value.data_type].numpy, value.shape)
            for name, value in zip(names.inputs, graph.inputs, strict=True)
        ]
        self._outputs = [
            (name, dtypes.DTYPES[value.data_type].numpy, value.shape)
            for name, (_, value) in zip(names.outputs, graph.outputs, strict=True)
        ]
        self._input_names, self._output_names = list(names.inputs), list(names.outputs)
        self._are_small = sum(value.byte_length for _, value in graph.outputs) <= SMALL
        self._local = threading.local()
        self._listing = str(graph)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the session on the arrays; small results are copied, which takes less than to bind.

        A thread that has the same arrays again binds none anew.
        """
        if self._are_small:
            feeds = dict(zip(self._input_names, inputs, strict=True))
            made = self._session.run(self._output_names, feeds)
            for target, array in zip(outputs, made, strict=True):
                np.copyto(target, array)
            return
        places = [array.ctypes.data for array in (*inputs, *outputs)]
        if getattr(self._local, "places", None) != places:
            self._bind(places)
        self._session.run_with_iobinding(self._local.binding)

    def _bind(self, places: list[int]) -> None:
        local: Any = self._local
        local.places = None
        if not hasattr(local, "binding"):
            local.binding = self._session.io_binding()
        count = len(self._inputs)
        for (name, dtype, shape), place in zip(self._inputs, places[:count], strict=True):
            local.binding.bind_input(name, "cpu", 0, dtype, shape, place)
        for (name, dtype, shape), place in zip(self._outputs, places[count:], strict=True):
            local.binding.bind_output(name, "cpu", 0, dtype, shape, place)
        local.places = places

    def describe(self) -> str:
        """The graph's listing."""
        return self._listing


class OnnxRuntimeEngine(HostEngine):
    """Runs what ONNX Runtime's CPU kernels compute as WebNN says.

    Args:
        threads: That compute one run, the calling one included; as many as there are cores if not
            given.

    Raises:
        ValidationError: `threads` is no number from 1.
    """

    name = "onnxruntime"

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = checked_threads(threads)

    def supports(self, node: Node) -> bool:
        """Whether ONNX has operators for the node, and ONNX Runtime kernels for all of these."""
        if not is_exact(node):
            return False
        try:
            made = lower_alone(node, INSTEAD)
        except NotLowered:
            return False
        asked = zip(made.nodes, made.types, strict=True)
        return all(has_kernel(written, *types) for written, types in asked)

    def compile(self, graph: Graph) -> HostExecutable:
        """Make a session."""
        return OnnxRuntimeExecutable(graph, self._threads)
