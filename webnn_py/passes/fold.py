"""Nodes whose operands are all constants, computed now."""

from __future__ import annotations

import numpy as np

from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.ir import Graph, Node, Value
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
        made = target.evaluate(node, arrays)
        constants = [
            rewriter.add_constant(np.array(array, order="C", copy=True), value.data_type)
            for array, value in zip(made, node.outputs, strict=True)
        ]
        if not is_result:
            return constants
        return [rewriter.identity(constant, label=node.label) for constant in constants]

    return Rewriter(graph).run(rule)
