"""OpenVinoEngine: a graph as one compiled model, on arrays that are neither copied in nor out."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core import fork_guard
from webnn_py.core.exit_guard import calls_libraries
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.core.messages import describe_error
from webnn_py.engines.base import AtSizes, CannotCompile, HostExecutable
from webnn_py.engines.host import HostEngine, checked_threads
from webnn_py.engines.onnx_lowering import NotLowered, lower_alone, lower_graph, numbered
from webnn_py.engines.openvino.alias_weights import name_turned_weights_apart
from webnn_py.engines.openvino.openvino_import import new_core, openvino
from webnn_py.engines.openvino.unsupported import (
    INSTEAD,
    is_exact,
    is_exact_joined,
    is_exact_open,
)
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.memory.memory_trim import trim_memory
from webnn_py.ops.declare import REGISTRY
from webnn_py.passes import PRODUCTS

IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
"""Where OpenVINO looks for external data at an address: their offset."""


PRIMITIVES = "CPU_RUNTIME_CACHE_CAPACITY"
"""How many pieces of code a model keeps that are made for sizes, each some 100 KB."""
MOST_PRIMITIVES = 5000
"""As many as OpenVINO keeps by itself: 1 GB, of a single product of ever new sizes."""
MOST_KEPT = 32
"""So many for each node: half the sets of sizes that other engines' graphs stay compiled for."""
JOINED = "SNIPPETS_MODE"
"""Whether elementwise nodes that read each other become one piece of code."""
LONGEST_JOINED = 128
"""Nodes in a row up to which they do: a second's work; three times as many take 27 times that."""


@calls_libraries("__init__")
class CompiledModel:
    """OpenVINO's compiled model of a graph, and what it is given.

    Args:
        graph: What to run; for any sizes that its open dimensions have.
        core: OpenVINO's.
        threads: That compute one run; as many as there are cores if None.

    Attributes:
        compiled: OpenVINO's.
        inputs: Its ends, in the graph's order; None of an input that nothing reads.
        outputs: The same; None of a result that follows from no input.
        fixed: The places of those, and their ends.
        weights: What it has the addresses of.

    Raises:
        NotLowered: ONNX does not compute it for all open sizes.
    """

    def __init__(self, graph: Graph, core: Any, threads: int | None) -> None:
        graph = name_turned_weights_apart(graph)
        names = numbered(graph)
        lowered = lower_graph(graph, names, external=True, instead=INSTEAD)
        self.weights = list(lowered.external.values())
        lowered.refer(
            {
                name: (IN_MEMORY, array.ctypes.data, array.nbytes)
                for name, array in lowered.external.items()
            }
        )
        model = core.read_model(lowered.model.SerializeToString())
        self.compiled = core.compile_model(model, "CPU", _settings(threads, graph))
        fork_guard.keep_alive_in_child(self.compiled)
        trim_memory(self.weights)
        by_name = _by_name(self.compiled.inputs)
        self.inputs = [by_name.get(name) for name in names.inputs]
        fixed = _constant_results(graph)
        by_name = _by_name(self.compiled.outputs)
        ports = [by_name.get(name) for name in names.outputs]
        self.outputs = [None if i in fixed else port for i, port in enumerate(ports)]
        self.fixed = [(i, ports[i]) for i in sorted(fixed)]


@calls_libraries("run")
class OpenVinoExecutable(HostExecutable):
    """A model at some sizes, and for each thread a request with arrays bound to it.

    Args:
        model: What to run.
        graph: What it computes, without open dimensions.
    """

    def __init__(self, model: CompiledModel, graph: Graph) -> None:
        self._model = model
        self._local = threading.local()
        self._listing = str(graph)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run a request on the arrays; a thread that has the same ones again binds none anew."""
        places = [array.__array_interface__["data"][0] for array in (*inputs, *outputs)]
        local: Any = self._local
        if getattr(local, "places", None) != places:
            self._bind(local, places, [*inputs, *outputs])
        local.request.infer()
        for i, port in self._model.fixed:  # OpenVINO writes them nowhere else
            np.copyto(outputs[i], local.request.get_tensor(port).data)

    def _bind(self, local: Any, places: list[int], arrays: Sequence[Array]) -> None:
        local.places = None
        if not hasattr(local, "request"):
            local.request = self._model.compiled.create_infer_request()
        ports = (*self._model.inputs, *self._model.outputs)
        for port, array in zip(ports, arrays, strict=True):
            if port is not None:
                local.request.set_tensor(port, _tensor(array))
        local.places = places

    def describe(self) -> str:
        """The graph's listing."""
        return self._listing

    def memory_use(self) -> MemoryUse:
        """The weights that the model has by their addresses, which all sizes share."""
        return {id(array): array.nbytes for array in self._model.weights}


def _settings(threads: int | None, graph: Graph) -> dict[str, str]:
    """Runs of one thread each run at once; those of more wait for each other."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"}
    if _longest_row(graph) > LONGEST_JOINED and not any(map(is_exact_joined, graph.nodes)):
        settings[JOINED] = "DISABLE"
    if graph.open_sizes:
        settings[PRIMITIVES] = str(min(MOST_KEPT * len(graph.nodes), MOST_PRIMITIVES))
    if threads is not None:
        streams = max((os.cpu_count() or 1) // threads, 1)
        settings["NUM_STREAMS"] = str(streams)
        settings["INFERENCE_NUM_THREADS"] = str(threads * streams)
    return settings


def _longest_row(graph: Graph) -> int:
    """The most nodes that read one another and compute or move elements one by one."""
    lengths: dict[Value, int] = {}
    for node in graph.nodes:
        op = REGISTRY[node.op]
        if op.elementwise or op.family == "movement":
            before = max((lengths.get(value, 0) for value in node.operands), default=0)
            lengths.update(dict.fromkeys(node.outputs, before + 1))
    return max(lengths.values(), default=0)


def _by_name(ports: Sequence[Any]) -> dict[str, Any]:
    """A model's ends by their names; an input that nothing reads has none."""
    return {name: port for port in reversed(ports) for name in port.names}


def _constant_results(graph: Graph) -> set[int]:
    """The places of results that follow from no input."""
    following: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        if not following.isdisjoint(node.operands):
            following.update(node.outputs)
    return {i for i, (_, value) in enumerate(graph.outputs) if value not in following}


class _Writable:
    """The memory of an array, which OpenVINO refuses where it is read-only."""

    __slots__ = ("__array_interface__",)

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _tensor(array: Array) -> Any:
    """OpenVINO's tensor over an array's memory."""
    writable = array if array.flags.writeable else np.asarray(_Writable(array))
    return openvino.Tensor(writable, shared_memory=True)


class OpenVinoEngine(HostEngine):
    """Runs what OpenVINO's CPU plugin computes as WebNN says.

    Args:
        threads: That compute one run; as many as there are cores if not given.

    Raises:
        ValidationError: `threads` is no number from 1.
        InvalidStateError: This is a child process, and the parent had loaded OpenVINO.
    """

    name = "openvino"
    passes = PRODUCTS
    stays_open = True
    has_own_weights = True

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = checked_threads(threads)
        self._core = new_core()

    def supports(self, node: Node) -> bool:
        """Whether ONNX has operators for the node that OpenVINO computes as WebNN says."""
        if not is_exact(node):
            return False
        try:
            lower_alone(node, INSTEAD)
        except NotLowered:
            return False
        return True

    def compile(self, graph: Graph) -> HostExecutable:
        """Make a compiled model.

        Raises:
            CannotCompile: OpenVINO fails over it.
        """
        try:
            return OpenVinoExecutable(CompiledModel(graph, self._core, self._threads), graph)
        except RuntimeError as error:
            raise CannotCompile(describe_error(error)) from error

    def compile_open(self, graph: Graph) -> AtSizes | None:
        """Make a compiled model for all sizes; what is not exact at some is compiled for these.

        Raises:
            NotLowered: ONNX does not compute it for all sizes.
        """
        if not all(map(is_exact_open, graph.nodes)):
            return None
        model = CompiledModel(graph, self._core, self._threads)

        def at_sizes(fixed: Graph, sizes: Mapping[str, int]) -> HostExecutable:
            if not all(map(is_exact, fixed.nodes)):
                raise CannotCompile("OpenVINO computes a node otherwise at these sizes")
            return OpenVinoExecutable(model, fixed)

        return at_sizes
