"""hard_swish where it is spelled out, as ONNX models from before it had an operator have it.

An engine may compute it with the convolution before, and leave channels in blocks.
"""

from __future__ import annotations

import numpy as np

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target


def join_hard_swishes(graph: Graph, target: Target) -> Graph:
    """Put hard_swish in the place of x * clamp(x + 3, 0, 6) / 6."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        source = _source(graph, node)
        return None if source is None else [rewriter.hard_swish(rewriter.map[source])]

    return Rewriter(graph).run(rule)


def _source(graph: Graph, node: Node) -> Value | None:
    """The x of which a node makes hard_swish."""
    if node.op not in ("div", "mul") or node.output.data_type != "float32":
        return None
    product = _beside(graph, node, 6 if node.op == "div" else 1 / 6)
    made = graph.producers.get(product) if product is not None else None
    if made is None or made.op != "mul":
        return None
    one, other = made.operands
    for source, held in ((one, other), (other, one)):
        clamp = graph.producers.get(held)
        if clamp is None or clamp.op != "clamp" or source.shape != node.output.shape:
            continue
        bounds = clamp.attrs["min_value"], clamp.attrs["max_value"]
        moved = graph.producers.get(next(clamp.operands))
        if moved is not None and moved.op == "add" and bounds == (0, 6):
            return source if _beside(graph, moved, 3) is source else None
    return None


def _beside(graph: Graph, node: Node, number: float) -> Value | None:
    """The operand of a node whose other one is a number; of a quotient the first one."""
    one, other = node.operands
    pairs = ((one, other),) if node.op == "div" else ((one, other), (other, one))
    for value, beside in pairs:
        array = graph.constants.get(beside)
        if array is not None and array.size == 1 and array.item() == np.float32(number):
            return value
    return None
