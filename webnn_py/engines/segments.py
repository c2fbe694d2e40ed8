"""A graph in parts, each for one engine; knows engines by what they say alone.

The parts are convex: no value leaves a part and comes back into it. So they can run one after the
other, each as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from webnn_py.core.errors import NotSupportedError
from webnn_py.ir import Graph, Node, Value, make_graph, titled

E = TypeVar("E")
"""An engine, or what stands for one."""


@dataclass(frozen=True, slots=True)
class Segment(Generic[E]):
    """A part of a graph.

    Attributes:
        engine: What runs it.
        graph: Its nodes. Inputs and outputs are values of the whole graph.
    """

    engine: E
    graph: Graph


def split(
    graph: Graph,
    engines: Sequence[E],
    supports: Callable[[E, Node], bool],
    crossing_cost: Callable[[E], int],
) -> list[Segment[E]]:
    """The parts of a graph, in the order in which they run.

    Each node goes to the first engine that supports it. A part that makes fewer elements than
    crossing over to its engine takes time for goes to the engines after it.

    Args:
        graph: What to split.
        engines: In the order of preference.
        supports: Whether an engine runs a node.
        crossing_cost: See `Engine.crossing_cost`.

    Raises:
        NotSupportedError: No engine runs some node.
    """
    choices = [_supporting(node, engines, supports) for node in graph.nodes]
    while True:
        chosen = [choice[0] for choice in choices]
        groups = _groups(graph, chosen)
        small = [
            group
            for group in groups
            if len(groups) > 1
            and _elements(graph, group) < crossing_cost(engines[chosen[group[0]]])
            and all(len(choices[place]) > 1 for place in group)
        ]
        if not small:
            return _segments(graph, groups, [engines[number] for number in chosen])
        for place in small[0]:
            choices[place] = choices[place][1:]


def _supporting(node: Node, engines: Sequence[E], supports: Callable[[E, Node], bool]) -> list[int]:
    found = [number for number, engine in enumerate(engines) if supports(engine, node)]
    if not found:
        raise NotSupportedError(f"{titled(node.op, node.label)}: no engine of this context runs it")
    return found


def _elements(graph: Graph, group: Sequence[int]) -> int:
    return sum(math.prod(v.shape) for place in group for v in graph.nodes[place].outputs)


def _groups(graph: Graph, chosen: Sequence[int]) -> list[list[int]]:
    """The places of nodes that run together, in an order in which they can.

    A node's step counts the changes of engine on the way to it. Nodes of one step and one engine
    run together: what lies between two of them would be of a later step than the first.
    """
    made_in: dict[Value, tuple[int, int]] = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (node, engine) in enumerate(zip(graph.nodes, chosen, strict=True)):
        before = [made_in[value] for value in node.operands if value in made_in]
        step = max((step + (other != engine) for step, other in before), default=0)
        groups.setdefault((step, engine), []).append(place)
        made_in.update(dict.fromkeys(node.outputs, (step, engine)))
    return [groups[key] for key in sorted(groups)]


def _segments(
    graph: Graph, groups: Sequence[Sequence[int]], engines: Sequence[E]
) -> list[Segment[E]]:
    if len(groups) == 1:
        return [Segment(engines[groups[0][0]], graph)]
    readers = _reading_groups(graph, groups)
    results = {value for _, value in graph.outputs}
    segments = []
    for number, group in enumerate(groups):
        nodes = [graph.nodes[place] for place in group]
        made = [value for node in nodes for value in node.outputs]
        read = dict.fromkeys(value for node in nodes for value in node.operands)
        inputs = [v for v in read if v not in graph.constants and v not in set(made)]
        constants = {v: graph.constants[v] for v in read if v in graph.constants}
        outputs = [v for v in made if v in results or readers.get(v, {number}) != {number}]
        named = [(str(place), value) for place, value in enumerate(outputs)]
        segments.append(Segment(engines[group[0]], make_graph(inputs, constants, nodes, named)))
    return segments


def _reading_groups(graph: Graph, groups: Sequence[Sequence[int]]) -> Mapping[Value, set[int]]:
    readers: dict[Value, set[int]] = {}
    for number, group in enumerate(groups):
        for place in group:
            for value in graph.nodes[place].operands:
                readers.setdefault(value, set()).add(number)
    return readers
