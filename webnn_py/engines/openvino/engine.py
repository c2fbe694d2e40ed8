"""The engine that compiles a graph to one OpenVINO model and runs it without copying arrays."""

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
from webnn_py.engines.onnx_lowering.node_times import (
    PROFILED_RUNS,
    NodeTime,
    numbered_nodes,
    steps_of,
)
from webnn_py.engines.openvino.openvino_import import new_core, openvino
from webnn_py.engines.openvino.unsupported import (
    INSTEAD,
    is_exact,
    is_exact_fused,
    is_exact_open,
)
from webnn_py.engines.profile import RunTime, StepTime, timed
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.memory.memory_trim import trim_memory
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes import PRODUCTS
from webnn_py.passes.rewrite import Rewriter

IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
"""Location of external data in memory; its offset is the address."""


CACHE_CAPACITY_OPTION = "CPU_RUNTIME_CACHE_CAPACITY"
"""Option for the number of cached kernels for specific sizes; each takes about 100 KB."""
MAX_CACHED_KERNELS = 5000
"""OpenVINO's default; a single product with ever new sizes can fill it with 1 GB."""
MAX_CACHED_KERNELS_PER_NODE = 32
"""Half the number of sets of sizes for which other engines' graphs stay compiled."""
PROFILE_OPTION = "PERF_COUNT"
"""Option that has a request measure its nodes."""
SNIPPETS_OPTION = "SNIPPETS_MODE"
"""Option that fuses chains of elementwise nodes into one kernel."""
QUANTIZED_INPUTS_OPTION = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""Option for the number of inputs of products with packed weights to quantize together; 0: none."""
MAX_SNIPPET_NODES = 128
"""Longest chain to fuse, which takes a second to build; three times the length takes 27 s."""


@calls_libraries("__init__")
class CompiledModel:
    """OpenVINO's compiled model of a graph, with its ports and weights.

    Args:
        graph: The graph; the model accepts all sizes of its open dimensions.
        core: The OpenVINO core.
        threads: Threads that compute one run; None for one on each core.
        profiled: Whether OpenVINO is to measure the nodes.

    Attributes:
        core: The OpenVINO core.
        threads: The argument.
        lowered: The ONNX model, if it is profiled.
        compiled: OpenVINO's compiled model.
        inputs: Input ports in the graph's order; None for an unused input.
        outputs: Output ports in the graph's order; None for a constant result.
        fixed: Index and port of each constant result.
        weights: Arrays whose addresses the model uses.

    Raises:
        NotLowered: ONNX cannot express the graph for all open sizes.
    """

    def __init__(
        self, graph: Graph, core: Any, threads: int | None, profiled: bool = False
    ) -> None:
        graph = alias_transposed_weights(graph)
        names = numbered_nodes(graph) if profiled else numbered(graph)
        lowered = lower_graph(graph, names, external=True, instead=INSTEAD)
        self.weights = list(lowered.external.values())
        lowered.refer(
            {
                name: (IN_MEMORY, array.ctypes.data, array.nbytes)
                for name, array in lowered.external.items()
            }
        )
        model = core.read_model(lowered.model.SerializeToString())
        settings = _settings(threads, graph)
        if profiled:
            settings[PROFILE_OPTION] = "YES"
        self.core, self.threads = core, threads
        self.lowered = lowered.model if profiled else None
        self.compiled = core.compile_model(model, "CPU", settings)
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
    """A compiled model for fixed sizes, with one inference request for each thread.

    Args:
        model: The compiled model.
        graph: The graph that it computes, without open dimensions.
    """

    def __init__(self, model: CompiledModel, graph: Graph) -> None:
        self._model = model
        self._local = threading.local()
        self._graph = graph
        self._step_times: tuple[StepTime, ...] | None = None

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run this thread's request; bind the arrays unless they are those of its last run."""
        places = [array.__array_interface__["data"][0] for array in (*inputs, *outputs)]
        local: Any = self._local
        if getattr(local, "places", None) != places:
            self._bind(local, places, [*inputs, *outputs])
        local.request.infer()
        for i, port in self._model.fixed:  # OpenVINO does not write constant results to our arrays
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
        """Return the graph's listing."""
        return str(self._graph)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """Run once and measure the time; the first call has OpenVINO measure its nodes."""
        if self._step_times is None:
            self._step_times = self._profiled_steps(inputs, outputs)
        return RunTime(self._step_times, timed(lambda: self.run(inputs, outputs)), "host")

    def _profiled_steps(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> tuple[StepTime, ...]:
        """Measure the nodes with a model of its own, because measuring takes time in each run."""
        model = CompiledModel(self._graph, self._model.core, self._model.threads, profiled=True)
        executable = OpenVinoExecutable(model, self._graph)
        times = []
        for _ in range(1 + PROFILED_RUNS):
            executable.run(inputs, outputs)
            times += [
                NodeTime(
                    node.node_name, node.node_name, node.node_type, node.real_time.total_seconds()
                )
                for node in executable._local.request.get_profiling_info()
                if node.status == openvino.ProfilingInfo.Status.EXECUTED
            ]
        assert model.lowered is not None
        return steps_of("openvino", self._graph, model.lowered, times)

    def memory_use(self) -> MemoryUse:
        """Return the memory of the weights, which the executables of all sizes share."""
        return {id(array): array.nbytes for array in self._model.weights}


def alias_transposed_weights(graph: Graph) -> Graph:
    """Give transposed uses of weights constants of their own, which share the arrays.

    OpenVINO caches the weights it has laid out by constant and layout only. For a square matrix it
    would mistake the plain one for the transposed one.
    """
    aliases: dict[Value, MLOperand] = {}

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        name = _transposed_operand(node)
        weights = node.inputs[1] if name else None
        if weights is None or weights not in graph.constants or graph.uses[weights] == 1:
            return None
        if weights not in aliases:
            aliases[weights] = rewriter.add_constant(graph.constants[weights], weights.data_type)
        return rewriter.apply_again(node, None, **{name: aliases[weights]})

    return Rewriter(graph).run(rule)


def _transposed_operand(node: Node) -> str:
    """Return the name of the operand that OpenVINO reads transposed, or ""."""
    if node.op == "conv_transpose2d":
        return "filter"
    return "b" if node.op == "gemm" and node.attrs["b_transpose"] else ""


def _settings(threads: int | None, graph: Graph) -> dict[str, str]:
    """Return OpenVINO's options: one stream for each run that fits the processor's cores."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"}
    settings[QUANTIZED_INPUTS_OPTION] = "0"
    if _longest_chain(graph) > MAX_SNIPPET_NODES and not any(map(is_exact_fused, graph.nodes)):
        settings[SNIPPETS_OPTION] = "DISABLE"
    if graph.open_sizes:
        capacity = min(MAX_CACHED_KERNELS_PER_NODE * len(graph.nodes), MAX_CACHED_KERNELS)
        settings[CACHE_CAPACITY_OPTION] = str(capacity)
    if threads is not None:
        streams = max((os.cpu_count() or 1) // threads, 1)
        settings["NUM_STREAMS"] = str(streams)
        settings["INFERENCE_NUM_THREADS"] = str(threads * streams)
    return settings


def _longest_chain(graph: Graph) -> int:
    """Return the length of the longest chain of elementwise and movement nodes."""
    lengths: dict[Value, int] = {}
    for node in graph.nodes:
        op = REGISTRY[node.op]
        if op.elementwise or op.family == "movement":
            before = max((lengths.get(value, 0) for value in node.operands), default=0)
            lengths.update(dict.fromkeys(node.outputs, before + 1))
    return max(lengths.values(), default=0)


def _by_name(ports: Sequence[Any]) -> dict[str, Any]:
    """Return a model's ports by their names; an unused input has no port."""
    return {name: port for port in reversed(ports) for name in port.names}


def _constant_results(graph: Graph) -> set[int]:
    """Return the indices of results that depend on no input."""
    dependent: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        if not dependent.isdisjoint(node.operands):
            dependent.update(node.outputs)
    return {i for i, (_, value) in enumerate(graph.outputs) if value not in dependent}


class _Writable:
    """A writable view of a read-only array, because OpenVINO refuses read-only memory."""

    __slots__ = ("__array_interface__",)

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _tensor(array: Array) -> Any:
    """Create an OpenVINO tensor that shares an array's memory."""
    writable = array if array.flags.writeable else np.asarray(_Writable(array))
    return openvino.Tensor(writable, shared_memory=True)


class OpenVinoEngine(HostEngine):
    """The engine for nodes that OpenVINO's CPU plugin computes as WebNN specifies.

    Args:
        threads: Threads that compute one run; default: one on each core.

    Raises:
        ValidationError: `threads` is not a positive integer.
        InvalidStateError: This is a forked child process whose parent had imported OpenVINO.
    """

    name = "openvino"
    passes = PRODUCTS
    stays_open = True
    leaves_states = True
    has_own_weights = True

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = checked_threads(threads)
        self._core = new_core()

    def supports(self, node: Node) -> bool:
        """Whether ONNX can express the node and OpenVINO computes it as WebNN specifies."""
        if not is_exact(node):
            return False
        try:
            lower_alone(node, INSTEAD)
        except NotLowered:
            return False
        return True

    def compile(self, graph: Graph) -> HostExecutable:
        """Compile a graph.

        Raises:
            CannotCompile: OpenVINO cannot compile it.
        """
        try:
            return OpenVinoExecutable(CompiledModel(graph, self._core, self._threads), graph)
        except RuntimeError as error:
            raise CannotCompile(describe_error(error)) from error

    def compile_open(self, graph: Graph) -> AtSizes | None:
        """Compile a graph for all sizes; sizes for which OpenVINO is not exact raise CannotCompile.

        Raises:
            NotLowered: ONNX cannot express the graph for all sizes.
        """
        if not all(map(is_exact_open, graph.nodes)):
            return None
        model = CompiledModel(graph, self._core, self._threads)

        def at_sizes(fixed: Graph, sizes: Mapping[str, int]) -> HostExecutable:
            if not all(map(is_exact, fixed.nodes)):
                raise CannotCompile("OpenVINO computes a node otherwise at these sizes")
            return OpenVinoExecutable(model, fixed)

        return at_sizes
