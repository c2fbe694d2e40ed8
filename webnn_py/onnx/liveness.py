"""Liveness analysis for dead code elimination: the nodes that a model's outputs depend on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from webnn_py.onnx.functions import Key, called_by, is_standard


class LiveNode(NamedTuple):
    """Live node, on which an output of the model depends.

    Attributes:
        node: The onnx.NodeProto.
        inputs: The names that it reads; "" for inputs that its live outputs do not depend on.
        outputs: For each output, whether something reads it.
    """

    node: Any
    inputs: list[str]
    outputs: list[bool]


Live = tuple[list[LiveNode], set[str]]
"""Live nodes in order, and all names that the live nodes or the callers read."""


class Liveness:
    """Liveness analysis of a model's graphs and functions, cached.

    Args:
        functions: The model's local functions, none of which calls itself.
    """

    def __init__(self, functions: Mapping[Key, Any]) -> None:
        self._functions = functions
        self._of_calls: dict[tuple[Key, tuple[bool, ...]], set[str]] = {}
        self._of_graphs: dict[tuple[int, tuple[bool, ...] | None], tuple[Any, Live]] = {}

    def of(self, nodes: Sequence[Any], wanted: Iterable[str]) -> Live:
        """Return the live nodes in order, and all names that are read.

        Args:
            nodes: Nodes of a graph or function in topological order.
            wanted: The names of its results; they count as read.
        """
        read = {name for name in wanted if name}
        live = []
        for node in reversed(nodes):
            outputs = [name in read for name in node.output]
            if any(outputs):
                inputs = self._inputs(node, outputs)
                live.append(LiveNode(node, inputs, outputs))
                read.update(filter(None, inputs))
                read.update(self._captured(node, outputs))
        return live[::-1], read

    def of_graph(self, graph: Any, needed: Sequence[bool] | None) -> Live:
        """Return the live nodes of a subgraph and all names that are read.

        The result is cached, because every level of nested subgraphs asks for all levels below.

        Args:
            graph: The onnx.GraphProto.
            needed: For each output, whether something reads it; None means all.
        """
        key = id(graph), None if needed is None else tuple(needed)
        if key not in self._of_graphs:
            live = self.of(graph.node, _chosen(graph.output, needed))
            self._of_graphs[key] = graph, live  # a reference to the graph keeps its id unique
        return self._of_graphs[key][1]

    def needed_outputs(self, node: Any, outputs: Sequence[bool]) -> list[bool] | None:
        """Return which outputs of its subgraphs a node needs; None means all.

        Args:
            node: Any node; only If, Loop and Scan can need fewer than all.
            outputs: For each output of the node, whether something reads it.
        """
        if not is_standard(node) or called_by(node) in self._functions:
            return None
        if node.op_type == "If":
            return list(outputs)
        body = _body_of(node)
        if body is None:
            return None
        first = [True] if node.op_type == "Loop" else []  # the condition is always needed
        needed = [*first, *outputs, *[False] * len(body.output)][: len(body.output)]
        state = list(_state(node, body))
        while True:  # add loop-carried states that needed results read, up to a fixed point
            read = self.of_graph(body, needed)[1]
            more = [made for _, name, made in state if not needed[made] and name in read]
            if not more:
                return needed
            for made in more:
                needed[made] = True

    def _inputs(self, node: Any, outputs: Sequence[bool]) -> list[str]:
        names = list(node.input)
        function = self._functions.get(called_by(node))
        if function is not None:
            key = called_by(node), tuple(outputs)
            if key not in self._of_calls:
                wanted = _chosen(function.output, outputs)
                self._of_calls[key] = self.of(function.node, wanted)[1]
            unread = [name not in self._of_calls[key] for name in function.input]
            for place in range(min(len(names), len(unread))):
                names[place] = "" if unread[place] else names[place]
            return names
        needed = self.needed_outputs(node, outputs)
        body = _body_of(node) if needed is not None else None
        if needed is not None and body is not None:
            for given, _, made in _state(node, body):
                names[given] = names[given] if needed[made] else ""
        return names

    def _captured(self, node: Any, outputs: Sequence[bool]) -> Iterator[str]:
        """Yield the names that the subgraphs of a node read."""
        needed = self.needed_outputs(node, outputs)
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from self.of_graph(graph, needed)[1]


def _body_of(node: Any) -> Any:
    """Return the body of a Loop or Scan, or None."""
    if node.op_type not in ("Loop", "Scan"):
        return None
    return next((one.g for one in node.attribute if one.name == "body"), None)


def _state(node: Any, body: Any) -> Iterator[tuple[int, str, int]]:
    """Yield each loop-carried state: its input index, and its name and output index in the body."""
    if node.op_type == "Loop":  # the body's first inputs are the iteration and the condition
        first, made, before, scans = 2, 1, 0, 0
    else:  # the first input of version 8 is the lengths of sequences
        first, made, before = 0, 0, len(node.input) - len(body.input)
        scans = next((one.i for one in node.attribute if one.name == "num_scan_inputs"), 0)
    for i in range(len(body.input) - first - max(scans, 0)):
        given = before + first + i
        if 0 <= given < len(node.input) and made + i < len(body.output):
            yield given, body.input[first + i].name, made + i


def _chosen(outputs: Sequence[Any], needed: Sequence[bool] | None) -> Iterator[str]:
    """Yield the names of the needed outputs of a function or graph."""
    for i, output in enumerate(outputs):
        if needed is None or (i < len(needed) and needed[i]):
            yield output if isinstance(output, str) else output.name
