"""Partitions a graph into parts, each for one engine.

The parts run one after the other, each as a whole. So each part is convex: no path between two of
its nodes leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from webnn_py.core.errors import NotSupportedError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.ir import Graph, Node, Value, make_graph, titled
from webnn_py.passes.cached_attention import writes_state

E = TypeVar("E")
"""An engine, or a placeholder in tests."""


@dataclass(frozen=True, slots=True)
class Segment(Generic[E]):
    """A part of a graph as a graph.

    Attributes:
        engine: The engine that runs it.
        graph: Its nodes; inputs and outputs are values of the whole graph.
    """

    engine: E
    graph: Graph


@dataclass(frozen=True, slots=True)
class Part(Generic[E]):
    """The nodes of a segment by their indices.

    Attributes:
        engine: The engine that runs it.
        places: Indices of its nodes in the graph, in order.
    """

    engine: E
    places: Sequence[int]


def split(
    graph: Graph,
    engines: Sequence[E],
    supports: Callable[[E, Node], bool],
    crossing_cost: Callable[[E], int],
) -> list[Part[E]]:
    """Partition a graph; return the parts in the order of execution.

    Each node goes to the first engine that supports it. A part with fewer elements than its
    engine's crossing cost goes to the next engines, if they support all its nodes.

    Args:
        graph: The graph to partition.
        engines: The engines in order of preference.
        supports: Whether an engine supports a node.
        crossing_cost: Returns `Engine.crossing_cost` of an engine.

    Raises:
        NotSupportedError: No engine supports a node.
    """
    choices = [_supporting(node, engines, supports) for node in checkpoints(graph.nodes)]
    costs = [crossing_cost(engine) for engine in engines]
    order = _Order(graph)
    sizes = [_elements(node) for node in graph.nodes] if any(costs) else []
    while True:
        chosen = [choice[0] for choice in choices]
        found = order.parts(chosen)
        small: dict[int, list[int]] = {}
        for part in found if any(costs) and len(found) > 1 else ():
            engine = chosen[part[0]]
            movable = all(len(choices[place]) > 1 for place in part)
            if movable and sum(sizes[place] for place in part) < costs[engine]:
                small.setdefault(engine, []).extend(part)
        if not small:
            return [Part(engines[chosen[part[0]]], part) for part in found]
        # Move one engine's small parts at a time: they may make other engines' parts large enough.
        for place in small[min(small)]:
            choices[place] = choices[place][1:]


def _supporting(node: Node, engines: Sequence[E], supports: Callable[[E, Node], bool]) -> list[int]:
    found = [number for number, engine in enumerate(engines) if supports(engine, node)]
    if not found:
        raise NotSupportedError(f"{titled(node.op, node.label)}: no engine of this context runs it")
    return found


def _elements(node: Node) -> int:
    """Return the number of elements of a node's operands and outputs."""
    return sum(math.prod(value.shape) for value in (*node.operands, *node.outputs))


class _Order:
    """The dependences between the nodes of a graph, which are referred to by index."""

    def __init__(self, graph: Graph) -> None:
        made_at = {v: place for place, node in enumerate(graph.nodes) for v in node.outputs}
        self._readers: list[list[int]] = [[] for _ in graph.nodes]
        self._waits = [0] * len(graph.nodes)
        for place, node in enumerate(graph.nodes):
            for value in node.operands:
                if value in made_at:
                    self._add(made_at[value], place)
        writes = {n for n, node in enumerate(graph.nodes) if writes_state(graph, node)}
        for place in writes:  # behind all that reads the state, so that it can be in place
            state = next(graph.nodes[place].operands)
            readers = set(graph.readers[state])
            for before, node in enumerate(graph.nodes):
                if node in readers and before not in writes:
                    self._add(before, place)

    def _add(self, before: int, place: int) -> None:
        """Have a node wait for another."""
        self._readers[before].append(place)
        self._waits[place] += 1

    def parts(self, chosen: Sequence[int]) -> list[list[int]]:
        """Group the nodes into parts and return these in a valid order of execution.

        Each part takes all ready nodes of its engine. The next engine is the one whose ready nodes
        have the most engine changes ahead of them. With two engines this gives the fewest parts.

        Args:
            chosen: Index of each node's engine.
        """
        changes = self._changes(chosen)
        waits = list(self._waits)
        ready: dict[int, list[int]] = {}
        most: dict[int, int] = {}

        def add(place: int) -> None:
            engine = chosen[place]
            ready.setdefault(engine, []).append(place)
            most[engine] = max(most.get(engine, 0), changes[place])

        for place, count in enumerate(waits):
            if not count:
                add(place)
        parts = []
        while ready:
            engine = min(ready, key=lambda number: (-most[number], number))
            part = ready[engine]
            for place in part:  # `add` appends to this list
                for reader in self._readers[place]:
                    waits[reader] -= 1
                    if not waits[reader]:
                        add(reader)
            del ready[engine], most[engine]
            parts.append(sorted(part))
        return parts

    def _changes(self, chosen: Sequence[int]) -> list[int]:
        """Return for each node the most engine changes on any path from it to the end."""
        changes = [0] * len(chosen)
        for place in reversed(range(len(chosen))):
            for reader in self._readers[place]:
                found = changes[reader] + (chosen[reader] != chosen[place])
                changes[place] = max(changes[place], found)
        return changes


def segments(graph: Graph, parts: Sequence[Part[E]]) -> list[Segment[E]]:
    """Return the parts as graphs; `graph` may also be a copy with the same order of nodes."""
    if len(parts) == 1:
        return [Segment(parts[0].engine, graph)]
    read_in = _reading_parts(graph, parts)
    made_of = []
    for number, part in enumerate(parts):
        nodes = [graph.nodes[place] for place in part.places]
        made = dict.fromkeys(value for node in nodes for value in node.outputs)
        read = dict.fromkeys(value for node in nodes for value in node.operands)
        inputs = [v for v in read if v not in graph.constants and v not in made]
        constants = {v: graph.constants[v] for v in read if v in graph.constants}
        outputs = [v for v in made if v in graph.results or read_in.get(v, number) != number]
        named = [(str(place), value) for place, value in enumerate(outputs)]
        made_of.append(Segment(part.engine, make_graph(inputs, constants, nodes, named)))
    return made_of


def _reading_parts(graph: Graph, parts: Sequence[Part[E]]) -> Mapping[Value, int]:
    """Return the index of the last part that reads each value."""
    return {
        value: number
        for number, part in enumerate(parts)
        for place in part.places
        for value in graph.nodes[place].operands
    }
