"""Pass that recognizes hard_swish in the operators of older ONNX models.

An engine can then fuse it with the convolution before it and stay in the NCHWc layout.
"""

from __future__ import annotations

import numpy as np

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target


def fuse_hard_swish(graph: Graph, target: Target) -> Graph:
    """Replace x * clamp(x + 3, 0, 6) / 6 in float32 by hard_swish(x)."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        source = _source(graph, node)
        return None if source is None else [rewriter.hard_swish(rewriter.map[source])]

    return Rewriter(graph).run(rule)


def _source(graph: Graph, node: Node) -> Value | None:
    """Return x if a node computes x * clamp(x + 3, 0, 6) / 6."""
    if node.op not in ("div", "mul") or node.output.data_type != "float32":
        return None
    product = _other_operand(graph, node, 6 if node.op == "div" else 1 / 6)
    made = graph.producers.get(product) if product is not None else None
    if made is None or made.op != "mul":
        return None
    one, other = made.operands
    for source, clamped in ((one, other), (other, one)):
        clamp = graph.producers.get(clamped)
        if clamp is None or clamp.op != "clamp" or source.shape != node.output.shape:
            continue
        bounds = clamp.attrs["min_value"], clamp.attrs["max_value"]
        moved = graph.producers.get(next(clamp.operands))
        if moved is not None and moved.op == "add" and bounds == (0, 6):
            return source if _other_operand(graph, moved, 3) is source else None
    return None


def _other_operand(graph: Graph, node: Node, number: float) -> Value | None:
    """Return a node's operand if the other one is the scalar constant `number`.

    For a quotient, the constant must be the divisor.
    """
    one, other = node.operands
    pairs = ((one, other),) if node.op == "div" else ((one, other), (other, one))
    for value, constant in pairs:
        array = graph.constants.get(constant)
        if array is not None and array.size == 1 and array.item() == np.float32(number):
            return value
    return None
