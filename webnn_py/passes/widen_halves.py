"""float16 as float32 between a graph's ends, for devices that have no float16.

There two numbers lie in each word, which most kernels cannot write. What the ends are, constants
aside, stays float16; so does what the graph itself casts to float16, which rounds.
"""

from __future__ import annotations

import math

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes import fold
from webnn_py.passes.rewrite import Rewriter, as_list
from webnn_py.passes.target import Target


def widen_halves(graph: Graph, target: Target) -> Graph:
    """Apply operators on float16 to float32, and cast what they make, for whoever wants it so."""
    wide: dict[Value, MLOperand] = {}  # by the float16 that stands for it

    def widened(rewriter: Rewriter, operand: MLOperand) -> MLOperand:
        half = value_of(operand)
        if half.data_type != "float16":
            return operand
        if half not in wide:
            made = rewriter.cast(operand, "float32")
            array, node = rewriter.array_of(operand), rewriter.producer_of(made)
            if array is not None and node is not None:
                (array,) = fold.derived(target, node, [array])
                made = rewriter.add_constant(array, "float32")
            wide[half] = made
        return wide[half]

    def narrowed(rewriter: Rewriter, made: MLOperand, wanted: Value) -> MLOperand:
        if made.data_type == wanted.data_type:
            return made
        half = rewriter.cast(made, wanted.data_type)
        wide[value_of(half)] = made
        return half

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if not any(value.data_type == "float16" for value in node.operands):
            return None
        numbers = {n: node.attrs[n] for n in node.given if isinstance(node.attrs[n], float)}
        if any(math.isinf(held) and held != node.given[n] for n, held in numbers.items()):
            return None  # float16 cannot hold it, which only an operator on float16 may find out
        operands = {value: widened(rewriter, rewriter.map[value]) for value in node.operands}
        made = as_list(rewriter.apply_again(node, operands, **numbers))  # as float16 holds them
        return [narrowed(rewriter, m, v) for m, v in zip(made, node.outputs, strict=True)]

    return Rewriter(graph).run(rule)
