"""What passes share: a rewriter with every operator's method, walking a graph node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webnn_py.core.cooperation import checkpoints
from webnn_py.ir import Graph, Node, Value, make_graph
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import Inferred, MLOperand


class Rewriter(GraphBuilder):
    """Copies a graph; a rule may put something else in a node's place."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self._inputs = list(graph.inputs)
        self._constants = dict(graph.constants)
        self.map: dict[Value, MLOperand] = {
            value: MLOperand(self, value) for value in (*graph.inputs, *graph.constants)
        }
        self._producers: dict[Value, Node] = {}

    def emit(
        self,
        op: str,
        operands: Sequence[MLOperand | None],
        given: Mapping[str, Any],
        inferred: Inferred,
        label: str,
    ) -> list[MLOperand]:
        """Add a node and return its outputs."""
        made = super().emit(op, operands, given, inferred, label)
        self._producers.update((operand.value, self._nodes[-1]) for operand in made)
        return made

    def array_of(self, operand: MLOperand | None) -> Any:
        """The contents of an operand if it is a constant, else None."""
        return None if operand is None else self._constants.get(operand.value)

    def producer_of(self, operand: MLOperand) -> Node | None:
        """The new node that makes an operand; None for an input or a constant."""
        return self._producers.get(operand.value)

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

    def copy(self, node: Node) -> list[MLOperand]:
        """The node as it was, over rewritten operands of the same data types and shapes."""
        operands = [None if value is None else self.map[value] for value in node.inputs]
        inferred = Inferred(node.outputs, node.inferred)
        return self.emit(node.op, operands, node.given, inferred, node.label)

    def run(self, rule: Callable[[Rewriter, Node], list[MLOperand] | None]) -> Graph:
        """Apply `rule` to each node in order; None keeps the node.

        A node that makes a graph output is kept too, where an input or constant would replace it.
        """
        results = {value for _, value in self.graph.outputs}
        for node in checkpoints(self.graph.nodes):
            made = rule(self, node)
            if made is not None and not results.isdisjoint(node.outputs):
                made = made if all(map(self.producer_of, made)) else None
            outputs = self.copy(node) if made is None else made
            self.map.update(zip(node.outputs, outputs, strict=True))
        named = [(name, self.map[value].value) for name, value in self.graph.outputs]
        return make_graph(self._inputs, self._constants, self._nodes, named)


def as_list(made: MLOperand | list[MLOperand]) -> list[MLOperand]:
    """What an operator's method returned, as a list."""
    return made if isinstance(made, list) else [made]
