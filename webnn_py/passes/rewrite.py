"""The rewriter that passes share: it applies a rule to every node of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from webnn_py.core.gil_yield import checkpoints
from webnn_py.ir import Graph, Node, Value, make_graph, without_dead_nodes
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand, value_of


class _Replacements(dict[Value, MLOperand]):
    """The replacement of each value; a value without one is its own replacement."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter

    def __missing__(self, value: Value) -> MLOperand:
        return MLOperand(self._rewriter, value)


class Rewriter(GraphBuilder):
    """A graph builder that rewrites a graph by a rule.

    Attributes:
        graph: The graph to rewrite.
        map: The operand in the new graph for each value of the old one.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self._inputs = list(graph.inputs)
        self._constants = dict(graph.constants)
        self.map: dict[Value, MLOperand] = _Replacements(self)
        self._producers: dict[Value, Node] = {}
        self._place = 0  # index of the current node
        self._differs = False  # whether the new graph differs from the old one so far

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node and return its outputs as operands."""
        self._start_new_list()
        self._producers.update(dict.fromkeys(node.outputs, node))
        return super().emit(node)

    def producer_of(self, operand: MLOperand) -> Node | None:
        """Return the node that produces an operand; None for an input or a constant."""
        value = value_of(operand)
        return self._producers.get(value) or self.graph.producers.get(value)

    def arguments(self, node: Node) -> dict[str, Any]:
        """Return a node's rewritten operands and its attributes by name."""
        return REGISTRY[node.op].arguments(node, self.map)

    def apply_again(
        self, node: Node, operands: Mapping[Value, MLOperand] | None = None, **changes: Any
    ) -> list[MLOperand]:
        """Apply a node's operator to rewritten operands with the node's own options.

        Args:
            node: A node of the old graph.
            operands: Replacements of the node's operands; default: `map`.
            **changes: Operands and options, by name, that override the node's.
        """
        op = REGISTRY[node.op]
        arguments = op.given_arguments(node, self.map if operands is None else operands)
        return as_list(getattr(self, node.op)(**(arguments | changes), label=node.label))

    def run(self, rule: Callable[[Rewriter, Node], list[MLOperand] | None]) -> Graph:
        """Apply `rule` to each node in order and return the new graph.

        The rule returns the operands that replace the node's outputs, or None to keep the node. A
        node whose output is a graph output stays if an input or a constant would replace it. New
        nodes get the old node's label unless the rule sets another.

        Returns:
            The graph without dead nodes; the same object if nothing changed.
        """
        try:
            return self._run(rule)
        finally:
            self.map = {}  # break the reference cycle, which would keep the constants alive

    def _run(self, rule: Callable[[Rewriter, Node], list[MLOperand] | None]) -> Graph:
        graph = self.graph
        if self.map:
            self._start_new_list()
        for place, node in enumerate(checkpoints(graph.nodes)):
            self._place, self.outer_label = place, node.label
            made = rule(self, node)
            if made is not None and not graph.results.isdisjoint(node.outputs):
                made = made if all(map(self.producer_of, made)) else None
            if made is not None:
                self._start_new_list()
                self.map.update(zip(node.outputs, made, strict=True))
            elif self._differs:
                self._keep(node)
        same = not self._differs or tuple(self._nodes) == graph.nodes
        return graph if same else self._rewritten()

    def _start_new_list(self) -> None:
        """Copy the nodes before the current one, at the first change; before, nothing is copied."""
        if not self._differs:
            self._differs = True
            self._nodes = [*self.graph.nodes[: self._place]]

    def _rewritten(self) -> Graph:
        named = [(name, value_of(self.map[value])) for name, value in self.graph.outputs]
        whole = make_graph(self._inputs, self._constants, self._nodes, named)
        made = without_dead_nodes(whole)
        # A rule may add nodes and then keep the old one, which leaves the new nodes dead.
        return self.graph if made.nodes == self.graph.nodes else made

    def _keep(self, node: Node) -> None:
        """Add the node with its operands replaced."""
        if self.map and not self.map.keys().isdisjoint(node.inputs):
            inputs = tuple(None if v is None else value_of(self.map[v]) for v in node.inputs)
            node = replace(node, inputs=inputs)
        self._nodes.append(node)
        self._producers.update(dict.fromkeys(node.outputs, node))


def as_list(made: MLOperand | list[MLOperand]) -> list[MLOperand]:
    """Return the result of a builder method as a list."""
    return made if isinstance(made, list) else [made]


def in_layout(rewriter: Rewriter, x: MLOperand, source: str, target: str) -> MLOperand:
    """Transpose an operand from one layout, such as "nchw", to another."""
    if source == target:
        return x
    return rewriter.transpose(x, permutation=[source.index(letter) for letter in target])
