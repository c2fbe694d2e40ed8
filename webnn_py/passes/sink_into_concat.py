"""What is computed of each element of a concat is computed of its operands, before they are joined.

Whatever makes an operand then does so as it writes it, straight into its part of the concat.
"""

from __future__ import annotations

from webnn_py.ir import Graph, Node
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

LOOPING = frozenset({"conv2d", "matmul", "average_pool2d", "l2_pool2d", "max_pool2d"})


def compute_parts_first(graph: Graph, target: Target) -> Graph:
    """Put elementwise operators of one operand before a concat that only they read."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        declared = REGISTRY[node.op]
        if declared.wgsl is None or len(node.inputs) > 1:
            return None
        concat = graph.producers.get(next(node.operands))
        if concat is None or concat.op != "concat" or graph.uses[concat.output] > 1:
            return None
        if not all(_is_made(graph, concat, place) for place in range(len(concat.inputs))):
            return None
        made = [
            rewriter.apply_again(node, {concat.output: rewriter.map[value]})[0]
            for value in concat.operands
        ]
        return [rewriter.concat(made, concat.attrs["axis"])]

    return Rewriter(graph).run(rule)


def _is_made(graph: Graph, concat: Node, place: int) -> bool:
    """Whether an operand is only read there, and is the result of a loop and what follows it."""
    value = concat.inputs[place]
    while value is not None and graph.uses[value] == 1 and value in graph.producers:
        node = graph.producers[value]
        if node.op in LOOPING:
            return True
        if REGISTRY[node.op].wgsl is None:
            return False
        value = next(node.operands)
    return False
