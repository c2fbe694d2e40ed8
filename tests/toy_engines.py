"""Engines for tests, which compute as the reference does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from webnn_py import MLContext
from webnn_py.api.session import Session
from webnn_py.engines import HostEngine, HostExecutable
from webnn_py.engines.reference import ReferenceEngine
from webnn_py.ir import Array, Graph, Node


class Partial(HostEngine):
    """The reference, for some nodes only; what it is given must fit what it asks for.

    Attributes:
        compiled: The graphs that it was given.
    """

    def __init__(self, name: str, supports: Callable[[Node], bool], crossing_cost: int = 0) -> None:
        self.name = name
        self.crossing_cost = crossing_cost
        self.compiled: list[Graph] = []
        self._supports = supports

    def supports(self, node: Node) -> bool:
        return self._supports(node)

    def compile(self, graph: Graph) -> HostExecutable:
        assert all(map(self._supports, graph.nodes))
        self.compiled.append(graph)
        return Careful(ReferenceEngine().compile(graph))


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


def running(*operators: str) -> Callable[[Node], bool]:
    """That a node is one of these operators."""
    return lambda node: node.op in operators


@contextlib.contextmanager
def context_on(engine: HostEngine) -> Iterator[MLContext]:
    """A CPU context of an engine, with the reference behind it."""
    with MLContext(Session(engine, "cpu")) as context:
        yield context
