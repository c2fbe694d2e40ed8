"""Runs a graph node by node with NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from webnn_py.engines.reference.parts import elementwise
from webnn_py.ir import Array, Graph, Node, titled
from webnn_py.memory.plan import last_uses
from webnn_py.ops import numeric
from webnn_py.ops.declare import REGISTRY, Operator

NodeFunction = Callable[[Node, Sequence[Any]], Any]


@functools.cache
def function_of(op: Operator) -> NodeFunction:
    """What computes a node of `op` from its operands' arrays, in declaration order."""
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
        return _exact(output.data_type, np.asarray(function(*parts, **node.attrs)))

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
    """The outputs of one node, each of just its value's data type and shape.

    Raises:
        OperationError: It does not fit into memory, or has no result.
    """
    with np.errstate(all="ignore"):
        return tuple(_computed(function_of(REGISTRY[node.op]), node, arrays))


def _computed(function: NodeFunction, node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """As `evaluate`, with NumPy's warnings off already."""
    try:
        made = function(node, arrays)
        results = made if isinstance(made, (list, tuple)) else (made,)
        return [
            _as(value.data_type, np.asarray(result))
            for result, value in zip(results, node.outputs, strict=True)
        ]
    except (MemoryError, ValueError, FloatingPointError) as error:
        raise OperationError(f"{titled(node.op, node.label)}: {error}") from error


def _as(data_type: str, array: Array) -> Array:
    wanted = dtypes.DTYPES[data_type].numpy
    if array.dtype == wanted:
        return array
    return elementwise(functools.partial(_exact, data_type), [array], wanted)


def _exact(data_type: str, array: Array) -> Array:
    wanted = dtypes.DTYPES[data_type].numpy
    return array if array.dtype == wanted else numeric.cast(array, data_type)


@dataclass(frozen=True, slots=True)
class _Step:
    """One node; values are numbers, their places in a run's list of arrays.

    Attributes:
        node: What is computed.
        function: What computes it.
        reads: Its operands; 0 for one that is not given.
        writes: Its outputs.
        drops: What nobody reads after it.
    """

    node: Node
    function: NodeFunction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    drops: tuple[int, ...]


class ReferenceExecutable(HostExecutable):
    """A graph's nodes, and where a run has their arrays."""

    any_memory = True  # outputs are copied into when all is computed

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
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
        """Compute node by node; nothing is shared between calls."""
        arrays: list[Any] = [None, *inputs, *self._behind_inputs]
        with np.errstate(all="ignore"):
            for step in self._steps:
                checkpoint()
                self._compute(step, arrays)
        over = [array for array in outputs if _overlaps(array, inputs)]
        results = [
            array.copy() if over and _overlaps(array, over) else array
            for array in map(arrays.__getitem__, self._outputs)
        ]
        for target, result in zip(outputs, results, strict=True):
            np.copyto(target, result)

    def _compute(self, step: _Step, arrays: list[Any]) -> None:
        operands = [arrays[place] for place in step.reads]
        results = _computed(step.function, step.node, operands)
        for place, result in zip(step.writes, results, strict=True):
            arrays[place] = result
        for place in step.drops:
            arrays[place] = None

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """A step for each node."""
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
        """The graph's listing."""
        return str(self._graph)

    def memory_use(self) -> MemoryUse:
        """The constants."""
        return {id(array): array.nbytes for array in self._graph.constants.values()}


def _overlaps(array: Array, others: Sequence[Array]) -> bool:
    """Whether an array may share memory with some others, as views of inputs do."""
    return any(np.may_share_memory(array, other) for other in others)


class ReferenceEngine(HostEngine):
    """Runs every operator on every data type that the specification allows."""

    name = "reference"

    def compile(self, graph: Graph) -> HostExecutable:
        """Nothing to compile; work out when arrays can be dropped."""
        return ReferenceExecutable(graph)
