"""OnnxRuntimeEngine: a graph as one session, on arrays that are neither copied in nor out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from webnn_py.core import dtypes, forks
from webnn_py.core.errors import OperationError
from webnn_py.core.messages import said
from webnn_py.engines.base import HostExecutable
from webnn_py.engines.host import HostEngine, checked_threads
from webnn_py.engines.onnx_lowering import NotLowered, lower_alone, lower_graph, numbered
from webnn_py.engines.onnxruntime.exact import INSTEAD, is_exact
from webnn_py.engines.onnxruntime.kernels import PROVIDERS, SILENT, has_kernel
from webnn_py.engines.profile import RunTime, step_of, timed
from webnn_py.ir import Array, Graph, Node
from webnn_py.memory.heap import give_back
from webnn_py.passes import PRODUCTS

BROKEN_OPTIMIZERS = ["Pad_Fusion"]
"""It makes poolings of more padding than their kernels take."""

forks.leave_in_child(onnxruntime)

SPIN_OPTION = "session.intra_op.spin_duration_us"
SPIN_MICROSECONDS = 50
"""How long a thread that has nothing to do keeps its core: no longer than between two nodes of a
run, as event loops, other contexts and other processes want it, too."""

SMALL = 1 << 14
"""Bytes of all inputs and results up to which these are copied."""


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
        options.add_session_config_entry(SPIN_OPTION, str(SPIN_MICROSECONDS))
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
        give_back(lowered.external.values())
        values = [*graph.inputs, *(value for _, value in graph.outputs)]
        self._ends = [
            (name, dtypes.DTYPES[value.data_type].numpy, value.shape)
            for name, value in zip((*names.inputs, *names.outputs), values, strict=True)
        ]
        self._input_count = len(graph.inputs)
        self.any_memory = sum(value.byte_length for value in values) <= SMALL
        self._local = threading.local()
        self._listing = str(graph)
        self._nodes = graph.nodes

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the session on the arrays; small ones are copied, which takes less than to bind.

        A thread that has the same large arrays again binds none anew.
        """
        if self.any_memory:
            self._run_on_copies(inputs, outputs)
            return
        local: Any = self._local
        if not hasattr(local, "binding"):
            local.binding = self._session.io_binding()
            local.places = [None] * len(self._ends)
        for i, array in enumerate((*inputs, *outputs)):
            place = array.__array_interface__["data"][0]
            if place != local.places[i]:
                local.places[i] = None
                self._bind(local.binding, i, place)
                local.places[i] = place
        self._session.run_with_iobinding(local.binding)

    def _run_on_copies(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            binding, sources, targets = self._local.copies
        except AttributeError:
            binding, sources, targets = self._local.copies = self._new_copies()
        try:
            for source, array in zip(sources, inputs, strict=True):
                source[...] = array
            self._session.run_with_iobinding(binding)
        except Exception as error:  # of ONNX Runtime's own kinds
            raise OperationError(f"engine 'onnxruntime': {said(error)}") from error
        for array, target in zip(outputs, targets, strict=True):
            array[...] = target

    def _new_copies(self) -> tuple[Any, list[Array], list[Array]]:
        """Arrays of this thread's own, and what binds them."""
        arrays = [np.empty(shape, dtype) for _, dtype, shape in self._ends]
        binding = self._session.io_binding()
        for i, array in enumerate(arrays):
            self._bind(binding, i, array.ctypes.data)
        return binding, arrays[: self._input_count], arrays[self._input_count :]

    def _bind(self, binding: Any, number: int, place: int) -> None:
        name, dtype, shape = self._ends[number]
        bind = binding.bind_input if number < self._input_count else binding.bind_output
        bind(name, "cpu", 0, dtype, shape, place)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """All as one step."""
        seconds = timed(lambda: self.run(inputs, outputs))
        return RunTime((step_of("onnxruntime", self._nodes, seconds),), seconds, "host")

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
    passes = PRODUCTS

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
