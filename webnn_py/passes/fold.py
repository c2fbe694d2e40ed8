"""Constant folding: nodes whose operands are all constants are computed at build."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target


def _is_packed(value: Value) -> bool:
    """Whether no identity takes a value's type."""
    return value.data_type in PACKED_4BIT


def fold_constants(graph: Graph, target: Target) -> Graph:
    """Evaluate constant nodes, unless that would grow the weights (an expand of a small one).

    A graph output stays a node's: an identity of what was computed.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        operands = [None if v is None else rewriter.map[v] for v in node.inputs]
        arrays = [rewriter.array_of(operand) for operand in operands]
        if any(a is None and o is not None for a, o in zip(arrays, operands, strict=True)):
            return None
        is_result = not graph.results.isdisjoint(node.outputs)
        if is_result and (node.op == "identity" or any(map(_is_packed, node.outputs))):
            return None
        before = sum(array.nbytes for array in arrays if array is not None)
        if sum(output.byte_length for output in node.outputs) > before + target.fold_limit:
            return None
        there = [operand for operand in operands if operand is not None]
        constants = [
            _constant(rewriter, array, value, there)
            for array, value in zip(target.evaluate(node, arrays), node.outputs, strict=True)
        ]
        if not is_result:
            return constants
        return [rewriter.identity(constant) for constant in constants]

    return Rewriter(graph).run(rule)


def _constant(
    rewriter: Rewriter, array: Array, value: Value, operands: Sequence[MLOperand]
) -> MLOperand:
    """The operand that has just these contents, if there is one, or a new constant."""
    for operand in operands:
        if (operand.data_type, operand.shape) == (value.data_type, value.shape):
            known = rewriter.array_of(operand)
            if known is array or np.array_equal(_bytes_of(known), _bytes_of(array)):
                return operand
    whole = array.flags.owndata and array.flags.c_contiguous
    return rewriter.add_constant(array if whole else array.copy(order="C"), value.data_type)


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
