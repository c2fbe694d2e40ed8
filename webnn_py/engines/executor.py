"""Runs a graph's segments one after the other, each on its engine, on host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.errors import OperationError
from webnn_py.engines.base import Engine, Executable, HostExecutable
from webnn_py.engines.segments import Segment, split
from webnn_py.ir import Array, Descriptor, Graph, Value
from webnn_py.memory.plan import last_uses


def compile_on(graph: Graph, engines: Sequence[Engine]) -> Executable:
    """Compile a graph, each part for the first engine that runs it.

    Raises:
        NotSupportedError: No engine runs some node.
        OperationError: An engine failed.
    """
    segments = split(
        graph,
        engines,
        lambda engine, node: engine.supports(node),
        lambda engine: engine.crossing_cost,
    )
    if len(segments) == 1:
        return segments[0].engine.compile(graph)
    return SegmentedExecutable(graph, segments)


@dataclass(frozen=True, slots=True)
class _Step:
    """One segment, compiled.

    Attributes:
        name: Its engine's.
        executable: What runs it.
        inputs: The values that it reads.
        outputs: The values that it makes.
        drops: The values that nobody reads after it.
    """

    name: str
    executable: HostExecutable
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    drops: tuple[Value, ...]


class SegmentedExecutable(HostExecutable):
    """Segments of several engines, in an order in which each finds its inputs."""

    def __init__(self, graph: Graph, segments: Sequence[Segment[Engine]]) -> None:
        self._graph = graph
        ends = [
            (segment.graph.inputs, tuple(value for _, value in segment.graph.outputs))
            for segment in segments
        ]
        last = last_uses(ends)
        results = {value for _, value in graph.outputs}
        self._steps = [
            _Step(
                segment.engine.name,
                _compiled(segment),
                inputs,
                outputs,
                tuple(v for v in last if last[v] == number and v not in results),
            )
            for number, (segment, (inputs, outputs)) in enumerate(zip(segments, ends, strict=True))
        ]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run every segment; what goes from one to another lies in arrays of this run's."""
        graph = self._graph
        arrays: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
        targets: dict[Value, Array] = {}
        for (_, value), target in zip(graph.outputs, outputs, strict=True):
            if _is_apart(target, inputs):
                targets.setdefault(value, target)
        for step in self._steps:
            for value in step.outputs:
                arrays[value] = targets[value] if value in targets else _empty(value)
            step.executable.run(
                [arrays[value] for value in step.inputs], [arrays[value] for value in step.outputs]
            )
            for value in step.drops:
                del arrays[value]
        for (_, value), target in zip(graph.outputs, outputs, strict=True):
            if target is not arrays[value]:
                np.copyto(target, arrays[value])

    def describe(self) -> str:
        """What each engine runs."""
        return "\n".join(f"# {step.name}\n{step.executable.describe()}" for step in self._steps)

    def code(self) -> str:
        """The engines' generated code."""
        return "\n".join(filter(None, (step.executable.code() for step in self._steps)))


def _is_apart(target: Array, inputs: Sequence[Array]) -> bool:
    """Whether a segment may write a result where it is wanted, though others run after it."""
    return target.flags.c_contiguous and not any(np.may_share_memory(target, i) for i in inputs)


def _compiled(segment: Segment[Engine]) -> HostExecutable:
    executable = segment.engine.compile(segment.graph)
    assert isinstance(executable, HostExecutable), f"{segment.engine.name} does not run on the host"
    return executable


def _empty(value: Descriptor) -> Array:
    try:
        return np.empty(value.shape, dtypes.DTYPES[value.data_type].numpy)
    except MemoryError as error:
        raise OperationError(f"allocating {Descriptor.__str__(value)}: {error}") from error
