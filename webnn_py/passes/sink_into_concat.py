"""Pass that applies elementwise operators behind a concat to the operands of the concat instead.

The kernel that produces an operand then fuses the operator, and writes straight into its part of
the concat.
"""

from __future__ import annotations

from webnn_py.ir import Graph, Node
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

LOOPING = frozenset({"conv2d", "matmul", "average_pool2d", "l2_pool2d", "max_pool2d"})
"""Operators whose kernels loop over several elements and fuse elementwise operators behind them."""


def sink_into_concat(graph: Graph, target: Target) -> Graph:
    """Move elementwise operators of one operand before the concat that only they read.

    Requires: every operand of the concat comes from a looping kernel and has no other reader.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        declared = REGISTRY[node.op]
        if declared.wgsl is None or len(node.inputs) > 1:
            return None
        concat = graph.producers.get(next(node.operands))
        if concat is None or concat.op != "concat" or graph.uses[concat.output] > 1:
            return None
        if not all(_is_fusible(graph, concat, place) for place in range(len(concat.inputs))):
            return None
        made = [
            rewriter.apply_again(node, {concat.output: rewriter.map[value]})[0]
            for value in concat.operands
        ]
        return [rewriter.concat(made, concat.attrs["axis"])]

    return Rewriter(graph).run(rule)


def _is_fusible(graph: Graph, concat: Node, place: int) -> bool:
    """Whether a looping kernel makes the operand and only the concat reads it."""
    value = concat.inputs[place]
    while value is not None and graph.uses[value] == 1 and value in graph.producers:
        node = graph.producers[value]
        if node.op in LOOPING:
            return True
        if REGISTRY[node.op].wgsl is None:
            return False
        value = next(node.operands)
    return False
