"""The engine that compiles a graph to one ONNX Runtime session and runs it without copying."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from webnn_py.core import dtypes, fork_guard, gil_yield, thread_priority
from webnn_py.core.dimensions import is_open, least
from webnn_py.core.errors import OperationError
from webnn_py.core.exit_guard import calls_libraries
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.core.messages import describe_error
from webnn_py.core.requirements import check_version
from webnn_py.core.thread_priority import LONG_RUN_SECONDS, call_and_find_threads, lower_priority
from webnn_py.engines.base import AtSizes, HostExecutable
from webnn_py.engines.host import HostEngine, checked_threads
from webnn_py.engines.onnx_lowering import Lowered, NotLowered, lower_alone, lower_graph, numbered
from webnn_py.engines.onnx_lowering.node_times import (
    PROFILED_RUNS,
    NodeTime,
    numbered_nodes,
    steps_of,
)
from webnn_py.engines.onnxruntime.attention import attentions
from webnn_py.engines.onnxruntime.int4_matmul import int4_products
from webnn_py.engines.onnxruntime.kernels import PROVIDERS, SILENT, Typed, has_kernels
from webnn_py.engines.onnxruntime.nchwc import nchwc_lowerings
from webnn_py.engines.onnxruntime.unsupported import INSTEAD, is_exact, swishes
from webnn_py.engines.profile import RunTime, StepTime, least_seconds, timed
from webnn_py.ir import Array, Graph, Node
from webnn_py.memory.allocation import OutputSpecs
from webnn_py.memory.memory_trim import trim_memory
from webnn_py.memory.mmap_lookup import FileRange, find_file_ranges
from webnn_py.memory.overlap import same_place
from webnn_py.passes import BLOCKS

DISABLED_OPTIMIZERS = [
    "DoubleQDQPairsRemover",  # merges two quantizations into one with a different scale
    "Pad_Fusion",  # gives poolings more padding than their kernels accept
    "SkipLayerNormFusion",  # its kernel takes 2 to 5 times as long as the nodes it replaces
]
"""Optimizers of ONNX Runtime that make a graph wrong or slower."""

MAX_FOLDED_BYTES = 1 << 20
"""Most bytes of results of constant nodes for which ONNX Runtime may fold constants.

With more, each run computes them, because a session would keep them in memory."""

MAX_WIDENED_BYTES = 1 << 26
"""Most bytes by which an 8-bit weight may grow when a build widens it to floats.

ONNX Runtime widens all of them; otherwise each run of MiniLM with 8-bit weights would repeat 1.5
times the work of its products."""

NO_INTEGER_FUSION = ("session.disable_quant_qdq", "1")
"""Option that keeps ONNX Runtime from fusing dequantize, operator and quantize into integers.

The fusion changes results, takes int8 for uint8, and fails for some graphs, such as with scales for
each channel."""

WEIGHTS_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
"""Option for the folder of files with weights."""

check_version(onnxruntime)
fork_guard.keep_alive_in_child(onnxruntime)

SPIN_OPTION = "session.intra_op.spin_duration_us"
SPIN_MICROSECONDS = 50
"""Time that an idle thread spins: long enough for the gap between two nodes, but no longer, because
event loops, other contexts and other processes need the core."""

LONG_SPIN_MICROSECONDS = 100
"""Spin time for graphs with large values, which a single thread copies between two nodes."""

LARGE_VALUE_ELEMENTS = 1 << 18
"""Least number of elements of a large value."""

MAX_SINGLE_THREAD_WEIGHT_BYTES = 1 << 24
"""Most bytes of weights for which a graph may get a second, single-threaded session."""

KERNEL_TIME_SUFFIX = "_kernel_time"
"""End of the names of a session's profile that stand for a node's kernel."""

MAX_COPIED_BYTES = 1 << 14
"""Most bytes of all inputs and outputs for which a run copies them instead of binding arrays."""


@calls_libraries("__init__")
class LoadedModel:
    """An ONNX Runtime session of a graph, with its names and weights.

    Args:
        graph: The graph.
        threads: Threads that compute, with the calling one; None for one on each core.
        profile_prefix: Path and first part of the name of the file for ONNX Runtime's own profile;
            None for no profile.

    Attributes:
        session: The session.
        names: Names of the model's inputs, then of its outputs.
        sizes: Inputs that depend on open sizes, see `Lowered`.
        states: Index of the input with which an output must share memory, by the output's index.
        threads: The argument.
        alone: The same model with one thread, after `make_alone`.
        profiled_model: The ONNX model, if there is a profile.

    Raises:
        NotLowered: ONNX cannot express the graph for all open sizes.
    """

    def __init__(
        self, graph: Graph, threads: int | None, profile_prefix: str | None = None
    ) -> None:
        names = numbered(graph) if profile_prefix is None else numbered_nodes(graph)
        attended, self.states = attentions(graph)
        lowered = lower_graph(
            graph,
            names,
            external=True,
            instead=INSTEAD,
            given_sizes=True,
            of_nodes={
                **swishes(graph),
                **nchwc_lowerings(graph),
                **int4_products(graph),
                **attended,
            },
            # From operator version 19 on, ONNX Runtime averages windows one element at a time.
            older=any(node.op == "average_pool2d" for node in graph.nodes),
        )
        options = _session_options(graph, threads)
        if profile_prefix is not None:
            options.enable_profiling = True
            options.profile_file_prefix = profile_prefix
            self.profiled_model = lowered.model
        with find_file_ranges(lowered.external) as found:
            in_memory = _take_from_file(lowered, found, options)
            # The session uses the arrays without copying them.
            self.weights = [
                onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in in_memory.values()
            ]
            options.add_external_initializers(list(in_memory), self.weights)
            make = functools.partial(
                onnxruntime.InferenceSession,
                lowered.model.SerializeToString(),
                options,
                providers=PROVIDERS,
                disabled_optimizers=_disabled_optimizers(graph),
            )
            # In an awaited build, the session's threads run beside an event loop.
            self.session, self._threads = (
                call_and_find_threads(make) if gil_yield.enabled() else (make(), [])
            )
        # The inner method that the session's `run` calls after it has checked the names.
        self.run = getattr(self.session, "_sess", self.session).run
        fork_guard.keep_alive_in_child(self.session)
        trim_memory(graph.constants.values())
        self.names = (*names.inputs, *names.outputs)
        self.sizes = lowered.sizes
        arrays = graph.constants.values()
        self._held: dict[Hashable, int] = {id(array): array.nbytes for array in arrays}
        weights = self._held[id(self)] = sum(self._held.values())
        self.threads = threads
        self.alone: LoadedModel | None = None
        self._graph = graph if weights <= MAX_SINGLE_THREAD_WEIGHT_BYTES else None
        self._lock = threading.Lock()

    def make_alone(self) -> None:
        """Create `alone`, once, if the weights are small."""
        with self._lock:
            graph, self._graph = self._graph, None
            if graph is not None and self.threads != 1:
                self.alone = alone = LoadedModel(graph, 1)
                self._held = {**alone._held, **self._held}

    def note_duration(self, seconds: float) -> None:
        """Lower the priority of the session's threads if a run takes long."""
        if seconds >= LONG_RUN_SECONDS:
            with contextlib.suppress(IndexError):  # another run may pop the last thread
                while True:
                    lower_priority(self._threads.pop(), slices=True)

    def memory_use(self) -> MemoryUse:
        """Return the memory of the weights, twice: the session may copy them to its own layout."""
        return self._held


def _session_options(graph: Graph, threads: int | None) -> Any:
    """Return the options of a session for a graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.add_session_config_entry(SPIN_OPTION, str(_spin_microseconds(graph)))
    options.add_session_config_entry(*NO_INTEGER_FUSION)
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def _disabled_optimizers(graph: Graph) -> list[str]:
    """Return the optimizers to disable, with constant folding if its results would be large."""
    constant, folded_bytes = set(graph.constants), 0
    for node in graph.nodes:
        if not constant.issuperset(node.operands):
            continue
        constant.update(node.outputs)
        folded_bytes += sum(v.byte_length for v in node.outputs if not is_open(v.shape))
    if folded_bytes <= MAX_FOLDED_BYTES:
        return DISABLED_OPTIMIZERS
    return [*DISABLED_OPTIMIZERS, "ConstantFolding"]


def _spin_microseconds(graph: Graph) -> int:
    """Return the time that idle threads spin; open sizes count with their least value."""
    values = (value for node in graph.nodes for value in node.outputs)
    has_large = any(math.prod(least(value.shape)) >= LARGE_VALUE_ELEMENTS for value in values)
    return LONG_SPIN_MICROSECONDS if has_large else SPIN_MICROSECONDS


def _take_from_file(
    lowered: Lowered, found: Mapping[str, FileRange], options: Any
) -> dict[str, Array]:
    """Let the session map weights from files itself, which saves a copy of each.

    A session reads files from one folder only: the one with the most bytes.

    Returns:
        The other weights by name.
    """
    sizes: Counter[str] = Counter()
    for place in found.values():
        sizes[place.folder] += place.length
    folder = max(sizes, key=sizes.__getitem__, default="")
    here = {name: place for name, place in found.items() if place.folder == folder}
    if here:
        options.add_session_config_entry(WEIGHTS_FOLDER_OPTION, folder)
        lowered.refer({name: place[1:] for name, place in here.items()})
    return {name: array for name, array in lowered.external.items() if name not in here}


@calls_libraries("run", "new_results")
class OnnxRuntimeExecutable(HostExecutable):
    """A session for fixed sizes, with one I/O binding for each thread.

    Args:
        model: The session.
        graph: The graph that it computes, without open dimensions.
        sizes: Sizes of the open dimensions, by name.
    """

    def __init__(self, model: LoadedModel, graph: Graph, sizes: Mapping[str, int]) -> None:
        self._model, self._session = model, model.session
        self._numbers = sizes
        self._sizes = {name: given.array(sizes) for name, given in model.sizes.items()}
        values = [*graph.inputs, *(value for _, value in graph.outputs)]
        self._ends = [
            (name, dtypes.DTYPES[value.data_type].numpy, value.shape)
            for name, value in zip(model.names, values, strict=True)
        ]
        self._inputs = model.names[: len(graph.inputs)]
        self._outputs = model.names[len(graph.inputs) :]
        self.any_memory = sum(value.byte_length for value in values) <= MAX_COPIED_BYTES
        self._local = threading.local()
        self.in_place = model.states
        self._graph = graph
        self._seconds = least_seconds(graph.nodes)
        model.note_duration(self._seconds)
        self._alone: HostExecutable | None = None
        self._step_times: tuple[StepTime, ...] | None = None

    @property
    def alone(self) -> HostExecutable | None:
        """The executable of the single-threaded session, if there is one."""
        return self if self._model.threads == 1 else self._alone

    def make_alone(self) -> None:
        """Create the single-threaded session if the weights are small."""
        self._model.make_alone()
        if self._model.alone is not None:
            self._alone = OnnxRuntimeExecutable(self._model.alone, self._graph, self._numbers)

    def ran(self, seconds: float) -> None:
        """Note a run's duration; lower the priority of the session's threads if it was long."""
        super().ran(seconds)
        self._model.note_duration(seconds)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the session on the arrays; copy small ones, which is faster than binding them.

        A thread binds an array only if it differs from that of its last run.
        """
        thread_priority.note_duration(self._seconds)
        if self.any_memory:
            self._run_on_copies(inputs, outputs)
            return
        if self.in_place:
            inputs = self._moved_states(inputs, outputs)
        local: Any = self._local
        if not hasattr(local, "binding"):
            local.binding = self._new_binding()
            local.places = [None] * len(self._ends)
        for i, array in enumerate((*inputs, *outputs)):
            place = array.__array_interface__["data"][0]
            if place != local.places[i]:
                local.places[i] = None
                self._bind(local.binding, i, place)
                local.places[i] = place
        begun = time.perf_counter()
        self._session.run_with_iobinding(local.binding)
        self._model.note_duration(time.perf_counter() - begun)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Bind the arrays to the session once."""
        if not all(same_place(outputs[made], inputs[i]) for made, i in self.in_place.items()):
            return super().bind(inputs, outputs)
        binding = self._new_binding()
        for number, array in enumerate((*inputs, *outputs)):
            self._bind(binding, number, array.ctypes.data)
        thread_priority.note_duration(self._seconds)

        def run() -> None:
            begun = time.perf_counter()
            self._session.run_with_iobinding(binding)
            self._model.note_duration(time.perf_counter() - begun)

        return run

    def _moved_states(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """Copy each state to where its successor is written; return the inputs to read."""
        read = list(inputs)
        for made, given in self.in_place.items():
            if not same_place(outputs[made], inputs[given]):
                np.copyto(outputs[made], inputs[given])
                read[given] = outputs[made]
        return read

    def new_results(self, inputs: Sequence[Array], ends: OutputSpecs) -> Sequence[Array]:
        """Compute the outputs into arrays that the session allocates."""
        if self.in_place:
            return super().new_results(inputs, ends)
        thread_priority.note_duration(self._seconds)
        feeds = dict(zip(self._inputs, inputs, strict=True))
        if self._sizes:
            feeds |= self._sizes
        try:
            made: list[Array] = self._model.run(self._outputs, feeds, None)
        except Exception as error:  # ONNX Runtime has its own exception classes
            raise _failure(error) from error
        return made

    def _run_on_copies(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            binding, sources, targets = self._local.copies
        except AttributeError:
            binding, sources, targets = self._local.copies = self._new_copies()
        try:
            for source, array in zip(sources, inputs, strict=True):
                source[...] = array
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime has its own exception classes
            raise _failure(error) from error
        for array, target in zip(outputs, targets, strict=True):
            array[...] = target

    def _new_copies(self) -> tuple[Any, list[Array], list[Array]]:
        """Allocate arrays for this thread and bind them."""
        arrays = [np.empty(shape, dtype) for _, dtype, shape in self._ends]
        for made, given in self.in_place.items():
            arrays[len(self._inputs) + made] = arrays[given]
        binding = self._new_binding()
        for i, array in enumerate(arrays):
            self._bind(binding, i, array.ctypes.data)
        return binding, arrays[: len(self._inputs)], arrays[len(self._inputs) :]

    def _new_binding(self) -> Any:
        """Create an I/O binding to which only the sizes are bound."""
        binding = self._session.io_binding()
        for name, array in self._sizes.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return binding

    def _bind(self, binding: Any, number: int, place: int) -> None:
        name, dtype, shape = self._ends[number]
        bind = binding.bind_input if number < len(self._inputs) else binding.bind_output
        bind(name, "cpu", 0, dtype, shape, place)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """Run once and measure the time; the first call has ONNX Runtime measure its nodes."""
        if self._step_times is None:
            self._step_times = self._profiled_steps(inputs, outputs)
        return RunTime(self._step_times, timed(lambda: self.run(inputs, outputs)), "host")

    def _profiled_steps(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> tuple[StepTime, ...]:
        """Measure the nodes with a session of its own, because a profile is read once."""
        with tempfile.TemporaryDirectory(prefix="webnn-") as folder:
            model = LoadedModel(self._graph, self._model.threads, os.path.join(folder, "profile"))
            executable = OnnxRuntimeExecutable(model, self._graph, self._numbers)
            for _ in range(1 + PROFILED_RUNS):
                executable.run(inputs, outputs)
            with open(model.session.end_profiling(), encoding="utf-8") as file:
                events = json.load(file)
        times = [
            NodeTime(
                (event["name"], event["args"]["node_index"]),
                event["name"].removesuffix(KERNEL_TIME_SUFFIX),
                event["args"]["op_name"],
                event["dur"] * 1e-6,
            )
            for event in events
            if event["cat"] == "Node" and event["name"].endswith(KERNEL_TIME_SUFFIX)
        ]
        return steps_of("onnxruntime", self._graph, model.profiled_model, times)

    def memory_use(self) -> MemoryUse:
        """Return the memory of the session, which the executables of all sizes share."""
        return self._model.memory_use()

    def describe(self) -> str:
        """Return the graph's listing."""
        return str(self._graph)


_SUPPORTED: dict[Hashable, bool] = {}
"""Cache of whether a node is supported, by its form."""

MAX_CACHED_FORMS = 1 << 12


def _form(node: Node) -> Hashable:
    """Return a node's operator, attributes, data types and shapes, which many nodes share."""
    values = (*node.inputs, None, *node.outputs)
    descriptors = tuple(None if v is None else (v.data_type, v.shape) for v in values)
    return node.op, repr(node.attrs), descriptors


def _lowered(node: Node) -> Sequence[Typed] | None:
    """Return the ONNX nodes of a node, None if they would not be exact."""
    if not is_exact(node):
        return None
    try:
        made = lower_alone(node, INSTEAD)
    except NotLowered:
        return None
    return [(one, *types) for one, types in zip(made.nodes, made.types, strict=True)]


def _failure(error: Exception) -> OperationError:
    return OperationError(f"engine 'onnxruntime': {describe_error(error)}")


@calls_libraries("supports_each", "compile", "compile_open")
class OnnxRuntimeEngine(HostEngine):
    """The engine for nodes that ONNX Runtime's CPU kernels compute as WebNN specifies.

    Args:
        threads: Threads that compute one run, with the calling one; default: one on each core.

    Raises:
        ValidationError: `threads` is not a positive integer.
    """

    name = "onnxruntime"
    passes = BLOCKS
    stays_open = True
    has_own_weights = True
    leaves_states = True
    widen_limit = MAX_WIDENED_BYTES

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = checked_threads(threads)

    def supports(self, node: Node) -> bool:
        """Whether ONNX can express the node and ONNX Runtime has exact kernels for it."""
        return self.supports_each([node])[0]

    def supports_each(self, nodes: Sequence[Node]) -> list[bool]:
        """Answer for several nodes, with one session that tests all kernels."""
        forms = [_form(node) for node in nodes]
        unknown = {f: node for f, node in zip(forms, nodes, strict=True) if f not in _SUPPORTED}
        known = {form: _SUPPORTED[form] for form in forms if form in _SUPPORTED}
        lowered = {form: _lowered(node) for form, node in checkpoints(unknown.items())}
        parts = [part for made in lowered.values() for part in made or ()]
        answers = iter(has_kernels(parts))
        for form, made in lowered.items():
            own = itertools.islice(answers, len(made or ()))
            known[form] = made is not None and min(own, default=True)
        if len(_SUPPORTED) + len(lowered) > MAX_CACHED_FORMS:
            _SUPPORTED.clear()
        _SUPPORTED.update((form, known[form]) for form in lowered)
        return [known[form] for form in forms]

    def compile(self, graph: Graph) -> HostExecutable:
        """Create a session."""
        return OnnxRuntimeExecutable(LoadedModel(graph, self._threads), graph, {})

    def compile_open(self, graph: Graph) -> AtSizes:
        """Create a session for all sizes.

        Raises:
            NotLowered: ONNX cannot express the graph for all sizes.
        """
        return functools.partial(OnnxRuntimeExecutable, LoadedModel(graph, self._threads))
