"""The engine that runs a graph node by node with NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.errors import OperationError
from webnn_py.core.gil_yield import checkpoint
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.engines.base import HostExecutable
from webnn_py.engines.host import HostEngine
from webnn_py.engines.profile import RunTime, step_of, timed
from webnn_py.engines.reference.functions import FUNCTIONS
from webnn_py.engines.reference.indexing import scatter_rows
from webnn_py.engines.reference.parts import elementwise
from webnn_py.ir import Array, Graph, Node, titled
from webnn_py.memory.overlap import may_overlap, overlap_each_other, same_place
from webnn_py.memory.plan import last_uses
from webnn_py.ops import numeric
from webnn_py.ops.declare import REGISTRY, Operator

NodeFunction = Callable[[Node, Sequence[Any]], Any]


@functools.cache
def function_of(op: Operator) -> NodeFunction:
    """Return the function that computes a node from its operands' arrays."""
    if op.numpy is not None:
        return functools.partial(_elementwise, op.numpy)
    if op.reduce_numpy is not None:
        return functools.partial(_reduce, op.reduce_numpy)
    function = FUNCTIONS[op.name]
    if op.variadic:
        return lambda node, arrays: function(list(arrays), **node.attrs)
    return lambda node, arrays: function(**dict(zip(op.limits, arrays, strict=True)), **node.attrs)


def _elementwise(function: Callable[..., Array], node: Node, arrays: Sequence[Array]) -> Array:
    (output,) = node.outputs

    def compute(*parts: Array) -> Array:
        return _cast(output.data_type, np.asarray(function(*parts, **node.attrs)))

    return elementwise(compute, arrays, dtypes.DTYPES[output.data_type].numpy)


def _reduce(function: Callable[..., Array], node: Node, arrays: Sequence[Array]) -> Array:
    (array,) = arrays
    wide = array.astype(np.float64, order="C") if array.dtype.kind == "f" else array
    axes, keep = node.attrs["axes"], node.attrs["keep_dimensions"]
    if not axes:
        expanded = function(wide[np.newaxis], axis=(0,), keepdims=False)
        return np.asarray(expanded)
    return np.asarray(function(wide, axis=axes, keepdims=keep))


def evaluate(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    """Compute the outputs of one node, in their declared data types and shapes.

    Raises:
        OperationError: The node needs too much memory, or has no result.
    """
    with np.errstate(all="ignore"):
        return tuple(_compute(function_of(REGISTRY[node.op]), node, arrays))


def _compute(function: NodeFunction, node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """Compute a node as `evaluate` does; the caller has disabled NumPy's warnings."""
    try:
        made = function(node, arrays)
        results = made if isinstance(made, (list, tuple)) else (made,)
        return [
            _cast_by_parts(value.data_type, np.asarray(result))
            for result, value in zip(results, node.outputs, strict=True)
        ]
    except (MemoryError, ValueError, FloatingPointError) as error:
        raise OperationError(f"{titled(node.op, node.label)}: {error}") from error


def _cast_by_parts(data_type: str, array: Array) -> Array:
    dtype = dtypes.DTYPES[data_type].numpy
    if array.dtype == dtype:
        return array
    return elementwise(functools.partial(_cast, data_type), [array], dtype)


def _cast(data_type: str, array: Array) -> Array:
    dtype = dtypes.DTYPES[data_type].numpy
    return array if array.dtype == dtype else numeric.cast(array, data_type)


@dataclass(frozen=True, slots=True)
class _Step:
    """A node whose values are indices into a run's list of arrays.

    Attributes:
        node: The node.
        function: The function that computes it.
        reads: Indices of its operands; 0 for an absent one.
        writes: Indices of its outputs.
        drops: Indices of the values that no later step reads.
    """

    node: Node
    function: NodeFunction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    drops: tuple[int, ...]


def _is_written_last(graph: Graph, write: Node) -> bool:
    """Whether a node writes into an input that no later node reads, and that is no result."""
    cache = next(write.operands)
    readers = graph.readers.get(cache, ())
    *_, last = (node for node in graph.nodes if node in readers)
    return cache in graph.inputs and cache not in graph.results and last is write


NO_STATES: Mapping[int, Array] = MappingProxyType({})


class ReferenceExecutable(HostExecutable):
    """A graph as a list of steps."""

    any_memory = True  # outputs are copied at the end of a run

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        ends = [value for _, value in graph.outputs]
        self.in_place = {
            ends.index(node.output): graph.inputs.index(next(node.operands))
            for node in graph.nodes
            if node.op == "scatter_rows"
            and ends.count(node.output) == 1
            and _is_written_last(graph, node)
        }
        made = [value for node in graph.nodes for value in node.outputs]
        values = [None, *graph.inputs, *graph.constants, *made]
        number = {value: place for place, value in enumerate(values)}
        self._behind_inputs = [*graph.constants.values(), *[None] * len(made)]
        self._outputs = [number[value] for _, value in graph.outputs]
        drops: list[list[int]] = [[] for _ in graph.nodes]
        for value, step in last_uses(
            [(tuple(node.operands), node.outputs) for node in graph.nodes]
        ).items():
            if value not in graph.results and value not in graph.constants:
                drops[step].append(number[value])
        self._steps = [
            _Step(
                node,
                function_of(REGISTRY[node.op]),
                tuple(number[value] for value in node.inputs),
                tuple(number[value] for value in node.outputs),
                tuple(dropped),
            )
            for node, dropped in zip(graph.nodes, drops, strict=True)
        ]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute node by node; calls share no state."""
        arrays: list[Any] = [None, *inputs, *self._behind_inputs]
        states = self._states_to_write(inputs, outputs)
        with np.errstate(all="ignore"):
            for step in self._steps:
                checkpoint()
                self._compute(step, arrays, states)
        results = [arrays[place] for place in self._outputs]
        if states:
            left = [n for n, target in enumerate(outputs) if target is not results[n]]
            outputs, results = ([one[n] for n in left] for one in (outputs, results))
        overlaps = zip(outputs, may_overlap(outputs, inputs), strict=True)
        over = [array for array, is_over in overlaps if is_over]
        if over:
            copied = zip(results, may_overlap(results, over), strict=True)
            results = [array.copy() if is_over else array for array, is_over in copied]
        for target, result in zip(outputs, results, strict=True):
            np.copyto(target, result)

    def _states_to_write(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> dict[int, Array]:
        """Return the outputs that are written row by row, by the index of their value.

        They hold the state already: each has its input's memory, or gets a copy of it.
        """
        targets = [outputs[made] for made in self.in_place]
        moves = {
            given: target.strides != inputs[given].strides or not same_place(target, inputs[given])
            for given, target in zip(self.in_place.values(), targets, strict=True)
        }
        others = [array for place, array in enumerate(inputs) if moves.get(place, True)]
        shared = may_overlap(targets, others), overlap_each_other(targets)
        found = {}
        for made, target, *overlaps in zip(self.in_place, targets, *shared, strict=True):
            if any(overlaps):
                continue
            if moves[self.in_place[made]]:
                np.copyto(target, inputs[self.in_place[made]])
            found[self._outputs[made]] = target
        return found

    def _compute(
        self, step: _Step, arrays: list[Any], states: Mapping[int, Array] = NO_STATES
    ) -> None:
        operands = [arrays[place] for place in step.reads]
        target = states.get(step.writes[0])
        if target is None:
            results = _compute(step.function, step.node, operands)
        else:
            _, rows, starts = operands
            axis = step.node.attrs["axis"]
            results = [scatter_rows(target, rows, starts, axis, output=target)]
        for place, result in zip(step.writes, results, strict=True):
            arrays[place] = result
        for place in step.drops:
            arrays[place] = None

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """Run once and measure each node as a step."""
        arrays: list[Any] = [None, *inputs, *self._behind_inputs]
        with np.errstate(all="ignore"):
            steps = tuple(
                step_of(
                    step.node.op,
                    [step.node],
                    timed(functools.partial(self._compute, step, arrays)),
                )
                for step in self._steps
            )
        return RunTime(steps, timed(lambda: self.run(inputs, outputs)), "host")

    def describe(self) -> str:
        """Return the graph's listing."""
        return str(self._graph)

    def memory_use(self) -> MemoryUse:
        """Return the memory of the constants."""
        return {id(array): array.nbytes for array in self._graph.constants.values()}


class ReferenceEngine(HostEngine):
    """The engine that runs every operator on every data type that the specification allows."""

    name = "reference"

    def compile(self, graph: Graph) -> HostExecutable:
        """Return the executable, which knows after which step each array can be freed."""
        return ReferenceExecutable(graph)
