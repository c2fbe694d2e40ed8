"""Constant folding: nodes whose operands are all constants are computed at build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.core.dimensions import symbols_of
from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.copy_contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Evaluate, Target

KIND = "evaluate"
"""The first word of what is computed here."""
MAX_GROWTH = 64
"""How many times `fold_limit` all constants of a graph may grow by folding."""
SAMPLE = 1 << 12
"""Bytes of contents that are compared before all of them are."""


def _is_packed(value: Value) -> bool:
    """Whether no identity takes a value's type."""
    return value.data_type in PACKED_4BIT


def fold_constants(graph: Graph, target: Target) -> Graph:
    """Evaluate constant nodes, unless that would grow the weights (an expand of a small one).

    A graph of a few numbers must not fill the memory: each node may add `fold_limit` bytes to those
    of its operands, and all together `MAX_GROWTH` times as many.

    A graph output stays a node's: an identity of what was computed. What depends on open sizes is
    left until they are known.
    """
    room = MAX_GROWTH * target.fold_limit

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        operands = [None if v is None else rewriter.map[v] for v in node.inputs]
        arrays = [rewriter.array_of(operand) for operand in operands]
        if any(a is None and o is not None for a, o in zip(arrays, operands, strict=True)):
            return None
        is_result = not graph.results.isdisjoint(node.outputs)
        if is_result and (node.op == "identity" or any(map(_is_packed, node.outputs))):
            return None
        if graph.open_sizes and _is_open(node):
            return None
        nonlocal room
        before = {id(array): array.nbytes for array in arrays if array is not None}
        growth = sum(output.byte_length for output in node.outputs) - sum(before.values())
        if growth > min(room, target.fold_limit):
            return None
        room -= max(0, growth)
        there = [operand for operand in operands if operand is not None]
        constants = [
            _constant(rewriter, array, value, there)
            for array, value in zip(derived(target, node, arrays), node.outputs, strict=True)
        ]
        if not is_result:
            return constants
        return [rewriter.identity(constant) for constant in constants]

    return Rewriter(graph).run(rule)


def _is_open(node: Node) -> bool:
    """Whether what a node does depends on open sizes."""
    shapes = [value.shape for value in (*node.operands, *node.outputs)]
    return bool(symbols_of([*shapes, *node.attrs.values()]))


def derived(target: Target, node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    """The outputs of a node, each an array of its own."""
    what = KIND, told(node)
    return target.derive(
        what, arrays, lambda: evaluated(target.evaluate, node, arrays, target.threads)
    )


def evaluated(
    evaluate: Evaluate, node: Node, arrays: Sequence[Array | None], threads: int
) -> tuple[Array, ...]:
    """The outputs of a node of these operands, each an array of its own."""
    return tuple(
        made if made.flags.owndata and made.flags.c_contiguous else contiguous(made, threads)
        for made in evaluate(node, arrays)
    )


def told(node: Node) -> str:
    """All that what a node computes follows from, besides its operands' contents."""
    ends = [
        [None if value is None else (value.data_type, value.shape) for value in values]
        for values in (node.inputs, node.outputs)
    ]
    return repr((node.op, dict(node.attrs), *ends))


def node_of(found: Any) -> Node:
    """A node of which `told` says the same."""
    op, attrs, inputs, outputs = found
    operands = tuple(None if end is None else Value(*end) for end in inputs)
    return Node(op, operands, attrs, tuple(Value(*end) for end in outputs))


def _constant(
    rewriter: Rewriter, array: Array, value: Value, operands: Sequence[MLOperand]
) -> MLOperand:
    """The operand that has just these contents, if there is one, or a new constant."""
    for operand in operands:
        if (operand.data_type, operand.shape) == (value.data_type, value.shape):
            known = rewriter.array_of(operand)
            if known is array or _is_same(_bytes_of(known), _bytes_of(array)):
                return operand
    return rewriter.add_constant(array, value.data_type)


def _is_same(contents: Array, others: Array) -> bool:
    """Whether contents are equal; most are seen to differ at once."""
    return np.array_equal(contents[:SAMPLE], others[:SAMPLE]) and np.array_equal(contents, others)


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
