"""Engines for tests, which compute as the reference does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.public import OPERANDS
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml
from webnn_py.engines import HostEngine, HostExecutable, register_engine

Array = np.ndarray[Any, Any]
REFERENCE = ml.create_context_sync(engine="reference")


class Partial(HostEngine):
    """The reference, for some nodes only; what it is given must fit what it asks for.

    Attributes:
        compiled: The graphs that it was given.
    """

    def __init__(self, name: str, supports: Callable[[Any], bool], crossing_cost: int = 0) -> None:
        self.name = name
        self.crossing_cost = crossing_cost
        self.compiled: list[Any] = []
        self._supports = supports

    def supports(self, node: Any) -> bool:
        return self._supports(node)

    def compile(self, graph: Any) -> HostExecutable:
        assert all(map(self._supports, graph.nodes))
        self.compiled.append(graph)
        return Careful(Computed(graph))


class Computed(HostExecutable):
    """Runs each node by the same operator on the reference, alone, so that no pass changes it."""

    def __init__(self, graph: Any) -> None:
        self._graph, self._listing = graph, str(graph)
        self._alone = [_alone(node, graph.constants) for node in graph.nodes]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        execution = MLExecution(REFERENCE, allow_blocking=True)
        arrays: dict[Any, Any] = {**dict(zip(self._graph.inputs, inputs, strict=True))}
        for node, alone in zip(self._graph.nodes, self._alone, strict=True):
            given = {name: arrays[node.inputs[int(name)]] for name in alone.inputs}
            results = execution.compute(alone, given)
            arrays.update(zip(node.outputs, results.values(), strict=True))
        for (_, value), target in zip(self._graph.outputs, outputs, strict=True):
            np.copyto(target, arrays[value])

    def describe(self) -> str:
        return self._listing


def _alone(node: Any, constants: Mapping[Any, Array]) -> MLGraph:
    """A graph of one node, whose inputs have their places as names."""
    builder = MLGraphBuilder(REFERENCE)
    operands: list[Any] = []
    for place, value in enumerate(node.inputs):
        if value is None:
            operands.append(None)
        elif value in constants:
            operands.append(builder.constant(constants[value]))
        else:
            operands.append(builder.input(str(place), value.data_type, value.shape))
    names = OPERANDS[node.op]
    several = "inputs" in names
    given = {"inputs": operands} if several else dict(zip(names, operands, strict=True))
    made = getattr(builder, node.op)(**given, **node.attrs)
    results = made if isinstance(made, list) else [made]
    return builder.build_sync({str(i): result for i, result in enumerate(results)})


class Careful(HostExecutable):
    """Writes at once, and fails where memory is not as `HostExecutable.run` says."""

    def __init__(self, executable: HostExecutable) -> None:
        self._executable = executable

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for array in (*inputs, *outputs):
            assert array.flags.c_contiguous
            assert array.flags.aligned
        for i, output in enumerate(outputs):
            assert not any(np.may_share_memory(output, o) for o in (*inputs, *outputs[:i]))
            output.reshape(-1).view(np.uint8)[:] = 0xA5
        self._executable.run(inputs, outputs)

    def describe(self) -> str:
        return self._executable.describe()


def running(*operators: str) -> Callable[[Any], bool]:
    """That a node is one of these operators."""
    return lambda node: node.op in operators


@contextlib.contextmanager
def context_on(engine: HostEngine) -> Iterator[MLContext]:
    """A CPU context of an engine, with the reference behind it."""
    register_engine(engine.name, lambda: engine)
    with ml.create_context_sync(device_type="cpu", engine=engine.name) as context:
        yield context
