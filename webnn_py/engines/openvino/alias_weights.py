"""Gives weights that are used both plain and transposed a separate constant for each use.

OpenVINO caches the weights it has laid out by constant and layout only. For a square matrix it
would mistake the plain one for the transposed one.
"""

from __future__ import annotations

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter


def name_turned_weights_apart(graph: Graph) -> Graph:
    """Give transposed uses of weights constants of their own, which share the arrays."""
    aliases: dict[Value, MLOperand] = {}

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        name = _transposed_operand(node)
        weights = node.inputs[1] if name else None
        if weights is None or weights not in graph.constants or graph.uses[weights] == 1:
            return None
        if weights not in aliases:
            aliases[weights] = rewriter.add_constant(graph.constants[weights], weights.data_type)
        return rewriter.apply_again(node, None, **{name: aliases[weights]})

    return Rewriter(graph).run(rule)


def _transposed_operand(node: Node) -> str:
    """Return the name of the operand that OpenVINO reads transposed, or ""."""
    if node.op == "conv_transpose2d":
        return "filter"
    return "b" if node.op == "gemm" and node.attrs["b_transpose"] else ""
