"""Compilation of the segments of a graph by their engines, and their execution in order.

Engines receive arrays that any library accepts, whatever arrays users pass. Errors of engines
become OperationErrors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.errors import MLError, OperationError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.core.messages import LOG, describe_error, type_name
from webnn_py.engines.base import AtSizes, CannotCompile, Engine, Executable, HostExecutable
from webnn_py.engines.device import DeviceExecutable
from webnn_py.engines.host import HostEngine
from webnn_py.engines.partition import Part, Segment, segments, split
from webnn_py.engines.profile import RunTime, StepTime, step_of
from webnn_py.ir import Array, Graph, Node, Value, format_graph
from webnn_py.memory.allocation import OutputSpecs, new_array
from webnn_py.memory.overlap import may_overlap, same_place
from webnn_py.memory.plan import last_uses
from webnn_py.passes.cached_attention import writes_state

S = TypeVar("S")
T = TypeVar("T")
Compile = Callable[[Graph, Mapping[str, int]], "tuple[Listing, Executable]"]
CompileBy = Callable[[Engine, Graph], Executable]


@dataclass(frozen=True, slots=True)
class Listing:
    """Printable listing of a graph as it runs.

    Attributes:
        graph: The graph, with its nodes in the order of the segments.
        engines: Engine name of each segment, by the segment's first node. Empty if there is only
            one engine.
        remark: One more line, such as the use of tuned kernels.
    """

    graph: Graph
    engines: Mapping[Node, str]
    remark: str = ""

    def __str__(self) -> str:
        names = {node: f"engine {name}" for node, name in self.engines.items()}
        return "\n".join(filter(None, (format_graph(self.graph, names), self.remark)))


def by_compile(engine: Engine, graph: Graph) -> Executable:
    """Compile a graph with `Engine.compile`."""
    return engine.compile(graph)


def compile_on(
    graph: Graph, engines: Sequence[Engine], compile_by: CompileBy = by_compile
) -> tuple[Listing, Executable]:
    """Compile a graph, each segment for the first engine that supports it.

    Args:
        graph: Graph to compile.
        engines: Engines in order of preference; the last one is the fallback.
        compile_by: Compiles a graph for an engine, by default with the engine's `compile`.

    Returns:
        The listing with the engine of each segment, and the executable.

    Raises:
        NotSupportedError: No engine supports some node.
        OperationError: An engine failed.
    """
    found = segments(graph, _parts(graph, engines))
    compiled = [_compiled(segment, engines[-1], compile_by) for segment in found]
    return _joined(graph, engines, compiled)


def compile_open(graph: Graph, sample: Graph, engines: Sequence[Engine]) -> Compile | None:
    """Compile the segments of a graph that can be compiled for all sizes.

    Args:
        graph: Graph with open dimensions.
        sample: The same graph with sample sizes, which determines the engine of each node.
        engines: As in `compile_on`.

    Returns:
        A function that compiles the rest of the graph for a set of sizes, with the results of
        `compile_on`. None if no segment can be compiled for all sizes.

    Raises:
        NotSupportedError: No engine supports some node.
    """
    found = _parts(sample, engines)
    opened = [_opened(segment) for segment in segments(graph, found)]
    if not any(opened):
        return None

    def compile(fixed: Graph, sizes: Mapping[str, int]) -> tuple[Listing, Executable]:
        compiled = [
            _compiled_for_sizes(segment, engines[-1], at, sizes)
            for segment, at in zip(segments(fixed, found), opened, strict=True)
        ]
        return _joined(fixed, engines, compiled)

    return compile


def _parts(graph: Graph, engines: Sequence[Engine]) -> list[Part[Engine]]:
    """Partition the nodes of a graph among the engines.

    Computed 4-bit tensors have one element per byte, but libraries expect two. So the last engine
    runs the nodes that read them. Constants are packed for each engine.
    """
    values = (value for node in graph.nodes for value in node.outputs)
    few_bits = {value for value in values if value.data_type in dtypes.PACKED_4BIT}
    answers = {
        engine: dict(zip(graph.nodes, engine.supports_each(graph.nodes), strict=True))
        for engine in engines
    }

    def supports(engine: Engine, node: Node) -> bool:
        if few_bits and engine is not engines[-1] and not few_bits.isdisjoint(node.operands):
            return False
        if engine.leaves_states and writes_state(graph, node):
            return False
        return answers[engine][node]

    return split(graph, engines, supports, lambda engine: engine.crossing_cost)


def _opened(segment: Segment[Engine]) -> AtSizes | None:
    """Compile a segment for all sizes; return None on failure, to compile for each set."""
    if not segment.graph.open_sizes:
        return None
    try:
        return segment.engine.compile_open(segment.graph)
    except Exception as error:  # engines may raise any type
        LOG.info(
            "engine %s compiles for each set of sizes: %s",
            segment.engine.name,
            describe_error(error),
        )
        return None


def _joined(
    graph: Graph,
    engines: Sequence[Engine],
    compiled: Sequence[tuple[Segment[Engine], Executable]],
) -> tuple[Listing, Executable]:
    """Return the listing of a graph, and the executable that runs its segments in order."""
    segments = [segment for segment, _ in compiled]
    executables = [executable for _, executable in compiled]
    listing = _listing(graph, segments) if len(engines) > 1 else Listing(graph, {})
    on_host = [made for made in executables if isinstance(made, HostExecutable)]
    if not on_host:
        (on_device,) = executables
        assert isinstance(on_device, DeviceExecutable)
        return replace(listing, remark=on_device.remark), on_device
    assert len(on_host) == len(segments), "what runs on a device runs alone"
    if len(segments) > 1:
        made = SegmentedExecutable(graph, segments, on_host)
        return listing, PlainMemoryExecutable(made, "", graph.nodes)
    (alone,), engine = on_host, segments[0].engine
    if alone.any_memory:
        return listing, alone
    return listing, PlainMemoryExecutable(alone, engine.name, graph.nodes)


def _compiled(
    segment: Segment[Engine], last: Engine, compile_by: CompileBy = by_compile
) -> tuple[Segment[Engine], Executable]:
    """Compile a segment for its engine, or for the last engine if that cannot."""
    engine = segment.engine
    try:
        made = compile_by(engine, segment.graph)
    except MLError:
        raise
    except CannotCompile as error:
        if engine is last:
            raise OperationError(f"engine {engine.name!r}: {error}") from error
        LOG.warning("engine %s cannot compile, %s runs it: %s", engine.name, last.name, error)
        return _compiled(replace(segment, engine=last), last, compile_by)
    except Exception as error:  # engines may raise any type
        raise OperationError(
            f"engine {engine.name!r} cannot compile: {describe_error(error)}"
        ) from error
    if isinstance(engine, HostEngine) and not isinstance(made, HostExecutable):
        raise OperationError(
            f"engine {engine.name!r}: `compile` gave {type_name(made)}, expected a HostExecutable"
        )
    return segment, made


def _compiled_for_sizes(
    segment: Segment[Engine], last: Engine, at: AtSizes | None, sizes: Mapping[str, int]
) -> tuple[Segment[Engine], Executable]:
    """Compile a segment for a set of sizes, reusing its compilation for all sizes if any."""
    if at is not None:
        with contextlib.suppress(CannotCompile):
            return segment, at(segment.graph, sizes)
    if not all(map(segment.engine.supports, segment.graph.nodes)):
        segment = replace(segment, engine=last)
    return _compiled(segment, last)


def _listing(graph: Graph, segments: Sequence[Segment[Engine]]) -> Listing:
    nodes = [node for segment in segments for node in segment.graph.nodes]
    names = {s.graph.nodes[0]: s.engine.name for s in segments if s.graph.nodes}
    return Listing(graph.replace(nodes=nodes), names)


@dataclass(frozen=True, slots=True)
class _Step:
    """Compiled segment.

    Attributes:
        name: Name of its engine.
        nodes: The nodes that it computes.
        executable: Executable of the segment.
        inputs: The values that it reads.
        outputs: The values that it writes.
        drops: The values that no later segment reads.
    """

    name: str
    nodes: tuple[Node, ...]
    executable: HostExecutable
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    drops: tuple[Value, ...]


class SegmentedExecutable(HostExecutable):
    """Executable of segments of several engines, in topological order."""

    def __init__(
        self,
        graph: Graph,
        segments: Sequence[Segment[Engine]],
        executables: Sequence[HostExecutable],
    ) -> None:
        self._inputs = graph.inputs
        self._outputs = tuple(value for _, value in graph.outputs)
        ends = [
            (segment.graph.inputs, tuple(value for _, value in segment.graph.outputs))
            for segment in segments
        ]
        last = last_uses(ends)
        dropped: list[list[Value]] = [[] for _ in segments]
        for value, number in last.items():
            if value not in graph.results:
                dropped[number].append(value)
        self._steps = [
            _Step(segment.engine.name, segment.graph.nodes, executable, *ends, tuple(drops))
            for segment, executable, ends, drops in zip(
                segments, executables, ends, dropped, strict=True
            )
        ]
        self.in_place = self._states()

    def _states(self) -> dict[int, int]:
        """Return the states that the last reader of their inputs writes in place."""
        found = {}
        for place, step in enumerate(self._steps):
            readers = [value for later in self._steps[place + 1 :] for value in later.inputs]
            for made, given in step.executable.in_place.items():
                output, state = step.outputs[made], step.inputs[given]
                is_last = state in self._inputs and state not in readers
                if is_last and self._outputs.count(output) == 1:
                    found[self._outputs.index(output)] = self._inputs.index(state)
        return found

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run every segment; arrays of this run hold the intermediate values.

        Segments write results directly into the outputs, where later segments read them.
        """
        self._run_steps(
            inputs, outputs, lambda step, *arrays: _call(step.name, step.executable.run, *arrays)
        )

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """Measure the steps of all segments."""
        steps: list[StepTime] = []
        seconds = 0.0

        def run(step: _Step, sources: Sequence[Array], targets: Sequence[Array]) -> None:
            nonlocal seconds
            measured = _profiled(step.name, step.executable, step.nodes, sources, targets)
            steps.extend(measured.steps)
            seconds += measured.seconds

        self._run_steps(inputs, outputs, run)
        return RunTime(tuple(steps), seconds, "host")

    def _run_steps(
        self, inputs: Sequence[Array], outputs: Sequence[Array], run: Callable[..., None]
    ) -> None:
        arrays: dict[Value, Array] = dict(zip(self._inputs, inputs, strict=True))
        targets = dict(zip(self._outputs, outputs, strict=True))
        for step in checkpoints(self._steps):
            for value in step.outputs:
                target = targets.get(value)
                arrays[value] = _new(value) if target is None else target
            run(
                step,
                [arrays[value] for value in step.inputs],
                [arrays[value] for value in step.outputs],
            )
            for value in step.drops:
                del arrays[value]
        for value, target in zip(self._outputs, outputs, strict=True):
            if target is not arrays[value]:  # two outputs have the same value
                np.copyto(target, arrays[value])

    def describe(self) -> str:
        """Return the description of each segment, with its engine."""
        return "\n".join(f"# engine {s.name}\n{s.executable.describe()}" for s in self._steps)

    def code(self) -> str:
        """Return the code that the engines generated."""
        return "\n".join(filter(None, (step.executable.code() for step in self._steps)))

    def memory_use(self) -> MemoryUse:
        """Return the memory pieces of all segments."""
        return {
            piece: size
            for step in self._steps
            for piece, size in step.executable.memory_use().items()
        }


class PlainMemoryExecutable(HostExecutable):
    """Wrapper that accepts any user memory, copying it where the engine could not use it.

    Args:
        executable: Executable with the requirements of `HostExecutable.run`.
        engine: Name of its engine.
        nodes: The nodes that it computes.
    """

    any_memory = True

    def __init__(self, executable: HostExecutable, engine: str, nodes: Sequence[Node]) -> None:
        self._executable = executable
        self._engine = engine
        self._nodes = nodes
        self._alone: HostExecutable | None = None

    @property
    def alone(self) -> HostExecutable | None:
        """Return the single-threaded executable, wrapped, or None."""
        return self if self._executable.alone is self._executable else self._alone

    def make_alone(self) -> None:
        """Create the single-threaded executable, and wrap it."""
        self._executable.make_alone()
        alone = self._executable.alone
        if alone is not None:
            self._alone = PlainMemoryExecutable(alone, self._engine, self._nodes)

    def maker(self) -> Callable[[], PlainMemoryExecutable]:
        """Return a function that makes other wrappers of the same executable."""
        executable, engine, nodes = self._executable, self._engine, self._nodes
        return lambda: PlainMemoryExecutable(executable, engine, nodes)

    def ran(self, seconds: float) -> None:
        """Note the duration of a run, here and in the wrapped executable."""
        super().ran(seconds)
        self._executable.ran(seconds)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the executable, through copies of unsuitable arrays.

        Raises:
            OperationError: The engine failed; the contents of the outputs are undefined.
        """
        sources = _aligned(inputs)
        targets = self._targets(sources, outputs)
        _call(self._engine, self._executable.run, sources, targets)
        for target, written in zip(outputs, targets, strict=True):
            if written is not target:
                np.copyto(target, written)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Bind the executable to the arrays."""
        used = [*_aligned(inputs), *self._targets(inputs, outputs)]
        if any(one is not other for one, other in zip((*inputs, *outputs), used, strict=True)):
            return super().bind(inputs, outputs)  # a run copies some arrays
        run, engine = self._executable.bind(inputs, outputs), self._engine
        return lambda: _call(engine, lambda *_: run(), inputs, outputs)

    def _targets(self, sources: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """Return the arrays to write: new ones where the engine cannot write the outputs."""
        states = {
            given
            for made, given in self._executable.in_place.items()
            if same_place(outputs[made], sources[given])
        }
        others = [source for number, source in enumerate(sources) if number not in states]
        return [
            target if _is_plain(target) and not overlaps else new_array(target.shape, target.dtype)
            for target, overlaps in zip(outputs, may_overlap(outputs, others), strict=True)
        ]

    def new_results(self, inputs: Sequence[Array], ends: OutputSpecs) -> Sequence[Array]:
        """Run the wrapped executable, which allocates the outputs."""
        return _call(self._engine, self._executable.new_results, inputs, ends)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """Measure the wrapped executable on copies of the arguments."""
        sources = [array.copy() for array in inputs]
        targets = [np.empty_like(array) for array in outputs]
        return _profiled(self._engine, self._executable, self._nodes, sources, targets)

    def describe(self) -> str:
        """Return the description of the wrapped executable."""
        return self._executable.describe()

    def code(self) -> str:
        """Return the code of the wrapped executable."""
        return self._executable.code()

    def memory_use(self) -> MemoryUse:
        """Return the memory pieces of the wrapped executable."""
        return self._executable.memory_use()


def _call(
    engine: str,
    function: Callable[[Sequence[Array], S], T],
    inputs: Sequence[Array],
    outputs: S,
) -> T:
    try:
        return function(inputs, outputs)
    except MLError:
        raise
    except Exception as error:  # engines may raise any type
        raise OperationError(f"engine {engine!r}: {describe_error(error)}") from error


def _profiled(
    engine: str,
    executable: HostExecutable,
    nodes: Sequence[Node],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> RunTime:
    """Measure a run; an engine that reports no steps counts as one step."""
    measured = _call(engine, executable.profile, inputs, outputs)
    steps = measured.steps or (step_of(engine, nodes, measured.seconds),)
    return replace(measured, steps=steps)


def _aligned(arrays: Sequence[Array]) -> list[Array]:
    return [array if array.flags.aligned else array.copy() for array in arrays]


def _is_plain(target: Array) -> bool:
    """Whether any library can write into an array."""
    return bool(target.flags.c_contiguous and target.flags.aligned)


def _new(value: Value) -> Array:
    return new_array(value.shape, dtypes.DTYPES[value.data_type].numpy)
