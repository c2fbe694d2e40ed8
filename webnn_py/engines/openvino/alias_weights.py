"""Weights that are read as they are and turned, under a name for each.

OpenVINO lays out weights for its kernels, and finds again what it has laid out by the weights and
the layout that is wanted alone: of a square matrix, it takes the one for the other.
"""

from __future__ import annotations

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter


def name_turned_weights_apart(graph: Graph) -> Graph:
    """The graph, with constants of their own for what turns them; they share the arrays."""
    apart: dict[Value, MLOperand] = {}

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        name = _turned(node)
        weights = node.inputs[1] if name else None
        if weights is None or weights not in graph.constants or graph.uses[weights] == 1:
            return None
        if weights not in apart:
            apart[weights] = rewriter.add_constant(graph.constants[weights], weights.data_type)
        return rewriter.apply_again(node, None, **{name: apart[weights]})

    return Rewriter(graph).run(rule)


def _turned(node: Node) -> str:
    """The operand whose rows OpenVINO reads as columns, if there is one."""
    if node.op == "conv_transpose2d":
        return "filter"
    return "b" if node.op == "gemm" and node.attrs["b_transpose"] else ""
