"""Formulas that stay within the range of floats, for operators whose plain one leaves it."""

from __future__ import annotations

from webnn_py.ir import Node
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter


def stabilize(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """The node by a formula that stays within the range, or None if its own does."""
    if node.op != "reduce_log_sum_exp":
        return None
    return [_log_sum_exp(rewriter, node)]


def _log_sum_exp(rewriter: Rewriter, node: Node) -> MLOperand:
    """log(sum(exp(x - top))) + top, where top is the greatest element, or 0 if that is infinite."""
    x = wide(rewriter, rewriter.map[next(node.operands)])
    axes = node.attrs["axes"]
    greatest = rewriter.reduce_max(x, axes=axes, keep_dimensions=True, label=node.label)
    none = rewriter.constant_of(0.0, x)
    top = rewriter.where(rewriter.is_infinite(greatest), none, greatest)
    total = rewriter.reduce_sum(
        rewriter.exp(rewriter.sub(x, top)), axes=axes, keep_dimensions=True, label=node.label
    )
    result = rewriter.add(rewriter.log(total), top)
    shaped = rewriter.reshape(result, node.output.shape)
    return narrow(rewriter, shaped, node.output.data_type)
