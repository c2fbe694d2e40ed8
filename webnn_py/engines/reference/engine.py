"""Runs a graph node by node with NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.cooperation import checkpoints
from webnn_py.core.errors import OperationError
from webnn_py.engines.base import HostExecutable
from webnn_py.engines.host import HostEngine
from webnn_py.engines.reference.functions import FUNCTIONS
from webnn_py.ir import Array, Graph, Node, Value, titled
from webnn_py.memory.plan import last_uses
from webnn_py.ops import numeric
from webnn_py.ops.declare import REGISTRY, Operator


@functools.cache
def function_of(op: Operator) -> Callable[[Node, Sequence[Any]], Any]:
    """What computes a node of `op` from its operands' arrays, in declaration order."""
    if op.numpy is not None:
        numpy = op.numpy
        return lambda node, arrays: numpy(*arrays, **node.attrs)
    if op.reduce_numpy is not None:
        return functools.partial(_reduce, op.reduce_numpy)
    function = FUNCTIONS[op.name]
    if op.variadic:
        return lambda node, arrays: function(list(arrays), **node.attrs)
    return lambda node, arrays: function(**dict(zip(op.limits, arrays, strict=True)), **node.attrs)


def _reduce(function: Callable[..., Array], node: Node, arrays: Sequence[Array]) -> Array:
    (array,) = arrays
    wide = array.astype(np.float64) if array.dtype.kind == "f" else array
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
    try:
        with np.errstate(all="ignore"):
            made = function_of(REGISTRY[node.op])(node, arrays)
            results = made if isinstance(made, (list, tuple)) else (made,)
            return tuple(
                _as(value.data_type, np.asarray(result))
                for result, value in zip(results, node.outputs, strict=True)
            )
    except (MemoryError, ValueError, FloatingPointError) as error:
        raise OperationError(f"{titled(node.op, node.label)}: {error}") from error


def _as(data_type: str, array: Array) -> Array:
    wanted = dtypes.DTYPES[data_type].numpy
    return array if array.dtype == wanted else numeric.cast(array, data_type)


class ReferenceExecutable(HostExecutable):
    """A graph and the steps after which each intermediate array is dropped."""

    any_memory = True  # outputs are copied into when all is computed

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        steps = [(tuple(node.operands), node.outputs) for node in graph.nodes]
        last = last_uses(steps)
        kept = {value for _, value in graph.outputs} | set(graph.constants)
        self._drops: list[list[Value]] = [[] for _ in graph.nodes]
        for value, step in last.items():
            if value not in kept:
                self._drops[step].append(value)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute node by node; nothing is shared between calls."""
        graph = self._graph
        arrays: dict[Value, Array] = dict(graph.constants)
        arrays.update(zip(graph.inputs, inputs, strict=True))
        for node, drops in checkpoints(zip(graph.nodes, self._drops, strict=True)):
            operands = [None if value is None else arrays[value] for value in node.inputs]
            arrays.update(zip(node.outputs, evaluate(node, operands), strict=True))
            for value in drops:
                del arrays[value]
        for target, (_, value) in zip(outputs, graph.outputs, strict=True):
            np.copyto(target, arrays[value])

    def describe(self) -> str:
        """The graph's listing."""
        return str(self._graph)


class ReferenceEngine(HostEngine):
    """Runs every operator on every data type that the specification allows."""

    name = "reference"

    def compile(self, graph: Graph) -> HostExecutable:
        """Nothing to compile; work out when arrays can be dropped."""
        return ReferenceExecutable(graph)
