"""OnnxRuntimeEngine: a graph as one session, on arrays that are neither copied in nor out."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from webnn_py.core import dtypes, fork_guard, gil_yield, thread_priority
from webnn_py.core.dimensions import is_open, least
from webnn_py.core.errors import OperationError
from webnn_py.core.exit_guard import calls_libraries
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.core.messages import describe_error
from webnn_py.core.requirements import check_version
from webnn_py.core.thread_priority import LONG_RUN_SECONDS, call_and_find_threads, lower_priority
from webnn_py.engines.base import AtSizes, HostExecutable
from webnn_py.engines.host import HostEngine, checked_threads
from webnn_py.engines.onnx_lowering import Lowered, NotLowered, lower_alone, lower_graph, numbered
from webnn_py.engines.onnxruntime.int4_matmul import products_of_few_bits
from webnn_py.engines.onnxruntime.kernels import PROVIDERS, SILENT, has_kernel
from webnn_py.engines.onnxruntime.nchwc import in_blocks
from webnn_py.engines.onnxruntime.unsupported import INSTEAD, is_exact, swishes
from webnn_py.engines.profile import RunTime, least_seconds, step_of, timed
from webnn_py.ir import Array, Graph, Node
from webnn_py.memory.allocation import OutputSpecs
from webnn_py.memory.memory_trim import trim_memory
from webnn_py.memory.mmap_lookup import FileRange, find_file_ranges
from webnn_py.passes import BLOCKS

LEFT_OUT = [
    "DoubleQDQPairsRemover",  # makes one quantization of two, with a scale of its own
    "Pad_Fusion",  # makes poolings of more padding than their kernels take
    "SkipLayerNormFusion",  # a kernel that takes two to five times of what it stands for
]
"""Optimizers of ONNX Runtime that make a graph wrong or slower."""

LARGE = 1 << 20
"""Bytes of what nodes make of constants, from which on each run makes them: else a session holds
whatever a few numbers are made into."""

QUANTIZED_AS_WRITTEN = ("session.disable_quant_qdq", "1")
"""Else it computes between dequantization and quantization with integers: the results are others,
int8 is taken for uint8, and some graphs, as with scales by channel, make no session."""

FOLDER = "session.model_external_initializers_file_folder_path"
"""The option that says where files of weights lie."""

check_version(onnxruntime)
fork_guard.keep_alive_in_child(onnxruntime)

SPIN_OPTION = "session.intra_op.spin_duration_us"
SPIN_MICROSECONDS = 50
"""How long a thread that has nothing to do keeps its core: no longer than between two nodes of a
run, as event loops, other contexts and other processes want it, too."""

LONG_SPIN_MICROSECONDS = 100
"""The same where one thread alone copies a value of many elements in the meantime."""

MANY = 1 << 18
"""Elements of such a value."""

MOST_ALONE = 1 << 24
"""Bytes of weights up to which a graph has a session of one thread, too, where that is of use."""

SMALL = 1 << 14
"""Bytes of all inputs and results up to which these are copied."""


@calls_libraries("__init__")
class LoadedModel:
    """A session, and what it is given.

    Args:
        graph: What to run.
        threads: That compute, the calling one included; as many as there are cores if None.

    Attributes:
        session: ONNX Runtime's.
        names: The model's inputs, then its outputs.
        sizes: Inputs that follow from open sizes: see `Lowered`.
        threads: As given.
        alone: The same for one thread, once it is made.

    Raises:
        NotLowered: ONNX does not compute it for all open sizes.
    """

    def __init__(self, graph: Graph, threads: int | None) -> None:
        names = numbered(graph)
        lowered = lower_graph(
            graph,
            names,
            external=True,
            instead=INSTEAD,
            given_sizes=True,
            of_nodes={**swishes(graph), **in_blocks(graph), **products_of_few_bits(graph)},
            # Since version 19 ONNX Runtime averages windows one element at a time.
            older=any(node.op == "average_pool2d" for node in graph.nodes),
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = SILENT
        options.add_session_config_entry(SPIN_OPTION, str(_spin_microseconds(graph)))
        options.add_session_config_entry(*QUANTIZED_AS_WRITTEN)
        if threads is not None:
            options.intra_op_num_threads = threads
        with find_file_ranges(lowered.external) as found:
            in_memory = _take_from_file(lowered, found, options)
            # The session computes with the arrays themselves.
            self.weights = [
                onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in in_memory.values()
            ]
            options.add_external_initializers(list(in_memory), self.weights)
            make = functools.partial(
                onnxruntime.InferenceSession,
                lowered.model.SerializeToString(),
                options,
                providers=PROVIDERS,
                disabled_optimizers=_left_out(graph),
            )
            # Where a build is awaited, its threads compute beside an event loop.
            self.session, self._threads = (
                call_and_find_threads(make) if gil_yield.enabled() else (make(), [])
            )
        # What `run` of the session calls, once it has looked at names that are right here.
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
        self._graph = graph if weights <= MOST_ALONE else None
        self._lock = threading.Lock()

    def make_alone(self) -> None:
        """Make `alone`, where it takes little memory."""
        with self._lock:
            graph, self._graph = self._graph, None
            if graph is not None and self.threads != 1:
                self.alone = alone = LoadedModel(graph, 1)
                self._held = {**alone._held, **self._held}

    def note_duration(self, seconds: float) -> None:
        """A run took so long, or will: the session's threads stand back where that is long."""
        if seconds >= LONG_RUN_SECONDS:
            with contextlib.suppress(IndexError):  # each is taken by one run, and none is left
                while True:
                    lower_priority(self._threads.pop(), slices=True)

    def memory_use(self) -> MemoryUse:
        """The weights, and what the session may have for itself: no more than these."""
        return self._held


def _left_out(graph: Graph) -> list[str]:
    """The optimizers to leave out: also that of constants, where passes found these too large."""
    known, made = set(graph.constants), 0
    for node in graph.nodes:
        if not known.issuperset(node.operands):
            continue
        known.update(node.outputs)
        made += sum(v.byte_length for v in node.outputs if not is_open(v.shape))
    return LEFT_OUT if made <= LARGE else [*LEFT_OUT, "ConstantFolding"]


def _spin_microseconds(graph: Graph) -> int:
    """How long an idle thread keeps its core while the graph runs; open sizes count as small."""
    values = (value for node in graph.nodes for value in node.outputs)
    many = any(math.prod(least(value.shape)) >= MANY for value in values)
    return LONG_SPIN_MICROSECONDS if many else SPIN_MICROSECONDS


def _take_from_file(
    lowered: Lowered, found: Mapping[str, FileRange], options: Any
) -> dict[str, Array]:
    """Have a session map weights of files itself, as it copies arrays before it lays them out.

    It takes them from one folder: that with the most.

    Returns:
        The other weights, by name.
    """
    sizes: Counter[str] = Counter()
    for place in found.values():
        sizes[place.folder] += place.length
    folder = max(sizes, key=sizes.__getitem__, default="")
    here = {name: place for name, place in found.items() if place.folder == folder}
    if here:
        options.add_session_config_entry(FOLDER, folder)
        lowered.refer({name: place[1:] for name, place in here.items()})
    return {name: array for name, array in lowered.external.items() if name not in here}


@calls_libraries("run", "new_results")
class OnnxRuntimeExecutable(HostExecutable):
    """A model at some sizes, and for each thread what binds arrays to it.

    Args:
        model: What to run.
        graph: What it computes, without open dimensions.
        sizes: Those of the model's graph.
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
        self.any_memory = sum(value.byte_length for value in values) <= SMALL
        self._local = threading.local()
        self._graph = graph
        self._seconds = least_seconds(graph.nodes)
        model.note_duration(self._seconds)
        self._alone: HostExecutable | None = None

    @property
    def alone(self) -> HostExecutable | None:
        """By a session of one thread."""
        return self if self._model.threads == 1 else self._alone

    def make_alone(self) -> None:
        """Make that session, if weights are small."""
        self._model.make_alone()
        if self._model.alone is not None:
            self._alone = OnnxRuntimeExecutable(self._model.alone, self._graph, self._numbers)

    def ran(self, seconds: float) -> None:
        """The session's threads stand back where that is long."""
        super().ran(seconds)
        self._model.note_duration(seconds)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the session on the arrays; small ones are copied, which takes less than to bind.

        A thread that has the same large arrays again binds none anew.
        """
        thread_priority.note_duration(self._seconds)
        if self.any_memory:
            self._run_on_copies(inputs, outputs)
            return
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

    def new_results(self, inputs: Sequence[Array], ends: OutputSpecs) -> Sequence[Array]:
        """As the session has it, in memory that it has at hand."""
        thread_priority.note_duration(self._seconds)
        given = dict(zip(self._inputs, inputs, strict=True))
        if self._sizes:
            given |= self._sizes
        try:
            made: list[Array] = self._model.run(self._outputs, given, None)
        except Exception as error:  # of ONNX Runtime's own kinds
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
        except Exception as error:  # of ONNX Runtime's own kinds
            raise _failure(error) from error
        for array, target in zip(outputs, targets, strict=True):
            array[...] = target

    def _new_copies(self) -> tuple[Any, list[Array], list[Array]]:
        """Arrays of this thread's own, and what binds them."""
        arrays = [np.empty(shape, dtype) for _, dtype, shape in self._ends]
        binding = self._new_binding()
        for i, array in enumerate(arrays):
            self._bind(binding, i, array.ctypes.data)
        return binding, arrays[: len(self._inputs)], arrays[len(self._inputs) :]

    def _new_binding(self) -> Any:
        """What has no arrays bound to it yet but the sizes."""
        binding = self._session.io_binding()
        for name, array in self._sizes.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return binding

    def _bind(self, binding: Any, number: int, place: int) -> None:
        name, dtype, shape = self._ends[number]
        bind = binding.bind_input if number < len(self._inputs) else binding.bind_output
        bind(name, "cpu", 0, dtype, shape, place)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """All as one step."""
        seconds = timed(lambda: self.run(inputs, outputs))
        return RunTime((step_of("onnxruntime", self._graph.nodes, seconds),), seconds, "host")

    def memory_use(self) -> MemoryUse:
        """What the model has, which all sizes share."""
        return self._model.memory_use()

    def describe(self) -> str:
        """The graph's listing."""
        return str(self._graph)


_SUPPORTED: dict[Hashable, bool] = {}
"""What is known of nodes, by their forms: most graphs have many alike."""

MOST_FORMS = 1 << 12


def _form(node: Node) -> Hashable:
    """All of a node but which values it reads."""
    values = (*node.inputs, None, *node.outputs)
    descriptors = tuple(None if v is None else (v.data_type, v.shape) for v in values)
    return node.op, repr(node.attrs), descriptors


def _is_supported(node: Node) -> bool:
    if not is_exact(node):
        return False
    try:
        made = lower_alone(node, INSTEAD)
    except NotLowered:
        return False
    asked = zip(made.nodes, made.types, strict=True)
    return all(has_kernel(written, *types) for written, types in asked)


def _failure(error: Exception) -> OperationError:
    return OperationError(f"engine 'onnxruntime': {describe_error(error)}")


@calls_libraries("supports", "compile", "compile_open")
class OnnxRuntimeEngine(HostEngine):
    """Runs what ONNX Runtime's CPU kernels compute as WebNN says.

    Args:
        threads: That compute one run, the calling one included; as many as there are cores if not
            given.

    Raises:
        ValidationError: `threads` is no number from 1.
    """

    name = "onnxruntime"
    passes = BLOCKS
    stays_open = True
    has_own_weights = True

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = checked_threads(threads)

    def supports(self, node: Node) -> bool:
        """Whether ONNX has operators for the node, and ONNX Runtime kernels for all of these."""
        form = _form(node)
        found = _SUPPORTED.get(form)
        if found is None:
            if len(_SUPPORTED) >= MOST_FORMS:
                _SUPPORTED.clear()
            found = _SUPPORTED[form] = _is_supported(node)
        return found

    def compile(self, graph: Graph) -> HostExecutable:
        """Make a session."""
        return OnnxRuntimeExecutable(LoadedModel(graph, self._threads), graph, {})

    def compile_open(self, graph: Graph) -> AtSizes:
        """Make a session for all sizes.

        Raises:
            NotLowered: ONNX does not compute it for all sizes.
        """
        return functools.partial(OnnxRuntimeExecutable, LoadedModel(graph, self._threads))
