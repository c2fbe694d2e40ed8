"""Pass that computes in float32 instead of float16, for devices without float16.

On such devices a word packs two float16 numbers, which most kernels cannot write. Inputs and
outputs stay float16, and so do values that the graph itself casts to float16, because the cast
rounds.
"""

from __future__ import annotations

import math

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes import fold
from webnn_py.passes.rewrite import Rewriter, as_list
from webnn_py.passes.target import Target


def widen_halves(graph: Graph, target: Target) -> Graph:
    """Replace float16 operators by float32 ones between casts; unused casts become dead nodes."""
    wide: dict[Value, MLOperand] = {}  # the float32 operand of each float16 value

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

    def narrowed(rewriter: Rewriter, made: MLOperand, original: Value) -> MLOperand:
        if made.data_type == original.data_type:
            return made
        half = rewriter.cast(made, original.data_type)
        wide[value_of(half)] = made
        return half

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if not any(value.data_type == "float16" for value in node.operands):
            return None
        numbers = {n: node.attrs[n] for n in node.given if isinstance(node.attrs[n], float)}
        if any(math.isinf(cast) and cast != node.given[n] for n, cast in numbers.items()):
            return None  # an option overflows in float16: only the float16 operator has that result
        operands = {value: widened(rewriter, rewriter.map[value]) for value in node.operands}
        # `numbers` are the options rounded to float16, as the original node has them.
        made = as_list(rewriter.apply_again(node, operands, **numbers))
        return [narrowed(rewriter, m, v) for m, v in zip(made, node.outputs, strict=True)]

    return Rewriter(graph).run(rule)
