"""What passes share: a rewriter with every operator's method, walking a graph node by node."""

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
    """What stands for each value; what nothing was put in the place of stands for itself."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter

    def __missing__(self, value: Value) -> MLOperand:
        return MLOperand(self._rewriter, value)


class Rewriter(GraphBuilder):
    """Walks a graph; a rule may put something else in a node's place.

    Attributes:
        graph: What is rewritten.
        map: The operand that stands for each of the graph's values.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self._inputs = list(graph.inputs)
        self._constants = dict(graph.constants)
        self.map: dict[Value, MLOperand] = _Replacements(self)
        self._producers: dict[Value, Node] = {}
        self._place, self._differs = 0, False  # the node that is looked at, and what is made so far

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node and return its outputs as operands."""
        self._differ()
        self._producers.update(dict.fromkeys(node.outputs, node))
        return super().emit(node)

    def producer_of(self, operand: MLOperand) -> Node | None:
        """The new node that makes an operand; None for an input or a constant."""
        value = value_of(operand)
        return self._producers.get(value) or self.graph.producers.get(value)

    def arguments(self, node: Node) -> dict[str, Any]:
        """Operands (already rewritten) and attributes of a node, by name: to decompose it."""
        return REGISTRY[node.op].arguments(node, self.map)

    def apply_again(
        self, node: Node, operands: Mapping[Value, MLOperand] | None = None, **changes: Any
    ) -> list[MLOperand]:
        """A node's operator on rewritten operands, with the options that the node was given.

        Args:
            node: A node of the graph that is rewritten.
            operands: What stands for the node's operands, if not what they were rewritten to.
            **changes: Operands and options, by name, to take in place of the node's.
        """
        op = REGISTRY[node.op]
        arguments = op.given_arguments(node, self.map if operands is None else operands)
        return as_list(getattr(self, node.op)(**(arguments | changes), label=node.label))

    def run(self, rule: Callable[[Rewriter, Node], list[MLOperand] | None]) -> Graph:
        """Apply `rule` to each node in order; None keeps the node, and the values that it makes.

        A node that makes a graph output is kept too, where an input or constant would replace it.
        What takes a node's place has the node's label, unless it is given another one.

        Returns:
            The graph without what is dead by now; the same object if no rule changed anything.
        """
        try:
            return self._run(rule)
        finally:
            self.map = {}  # whose operands have this object: it would stay, and its constants

    def _run(self, rule: Callable[[Rewriter, Node], list[MLOperand] | None]) -> Graph:
        graph = self.graph
        if self.map:
            self._differ()
        for place, node in enumerate(checkpoints(graph.nodes)):
            self._place, self.outer_label = place, node.label
            made = rule(self, node)
            if made is not None and not graph.results.isdisjoint(node.outputs):
                made = made if all(map(self.producer_of, made)) else None
            if made is not None:
                self._differ()
                self.map.update(zip(node.outputs, made, strict=True))
            elif self._differs:
                self._keep(node)
        same = not self._differs or tuple(self._nodes) == graph.nodes
        return graph if same else self._rewritten()

    def _differ(self) -> None:
        """From here on the graph is another one; up to here it was the same."""
        if not self._differs:
            self._differs = True
            self._nodes = [*self.graph.nodes[: self._place]]

    def _rewritten(self) -> Graph:
        named = [(name, value_of(self.map[value])) for name, value in self.graph.outputs]
        whole = make_graph(self._inputs, self._constants, self._nodes, named)
        made = without_dead_nodes(whole)
        # A rule may have added nodes, and then kept the old one.
        return self.graph if made.nodes == self.graph.nodes else made

    def _keep(self, node: Node) -> None:
        """The node as it is, over what stands for its operands."""
        if self.map and not self.map.keys().isdisjoint(node.inputs):
            inputs = tuple(None if v is None else value_of(self.map[v]) for v in node.inputs)
            node = replace(node, inputs=inputs)
        self._nodes.append(node)
        self._producers.update(dict.fromkeys(node.outputs, node))


def as_list(made: MLOperand | list[MLOperand]) -> list[MLOperand]:
    """What an operator's method returned, as a list."""
    return made if isinstance(made, list) else [made]


def in_layout(rewriter: Rewriter, x: MLOperand, given: str, wanted: str) -> MLOperand:
    """An operand whose dimensions have letters, with these in another order."""
    if given == wanted:
        return x
    return rewriter.transpose(x, permutation=[given.index(letter) for letter in wanted])
