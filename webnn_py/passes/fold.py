"""Pass that folds constants: it computes nodes whose operands are all constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.core.dimensions import symbols_of
from webnn_py.core.dtypes import FLOATS, PACKED_4BIT
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.copy_contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Evaluate, Target

KIND = "evaluate"
"""Name of this computation in `constant_replay.KINDS`."""
MAX_GROWTH_FACTOR = 64
"""Most growth of all constants of a graph by folding, in multiples of `Target.fold_limit`."""
MAX_WIDER_FACTOR = 4
"""Most growth of all constants by widened 8-bit integers, in multiples of `Target.widen_limit`."""
SAMPLE_BYTES = 1 << 12
"""Bytes compared first, because most unequal arrays differ there."""


def _is_packed(value: Value) -> bool:
    """Whether a value's data type is packed, which `identity` does not accept."""
    return value.data_type in PACKED_4BIT


def fold_constants(graph: Graph, target: Target) -> Graph:
    """Evaluate nodes whose operands are all constants, and replace them by constants.

    Folding must not fill memory, for example with a large `expand` of a scalar. A node's outputs
    may exceed its operands by `fold_limit` bytes, and all folded nodes together by
    MAX_GROWTH_FACTOR times that.

    A folded graph output becomes an `identity` of the constant, because a graph output must be a
    node's. Nodes that depend on open dimensions stay.
    """
    room = MAX_GROWTH_FACTOR * target.fold_limit
    wider_room = max(room, MAX_WIDER_FACTOR * target.widen_limit)

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
        nonlocal room, wider_room
        before = {id(array): array.nbytes for array in arrays if array is not None}
        growth = sum(output.byte_length for output in node.outputs) - sum(before.values())
        is_wider = _widens_bytes(node)
        limit = max(target.fold_limit, target.widen_limit if is_wider else 0)
        if growth > min(wider_room if is_wider else room, limit):
            return None
        if is_wider:
            wider_room -= max(0, growth)
        else:
            room -= max(0, growth)
        present = [operand for operand in operands if operand is not None]
        constants = [
            _constant(rewriter, array, value, present)
            for array, value in zip(derived(target, node, arrays), node.outputs, strict=True)
        ]
        if not is_result:
            return constants
        return [rewriter.identity(constant) for constant in constants]

    return Rewriter(graph).run(rule)


def _widens_bytes(node: Node) -> bool:
    """Whether a node makes floats of the 8-bit integers that are its first operand."""
    return (
        node.op in ("cast", "dequantize_linear")
        and next(node.operands).data_type in ("int8", "uint8")
        and node.output.data_type in FLOATS
    )


def _is_open(node: Node) -> bool:
    """Whether a node's shapes or attributes contain open dimensions."""
    shapes = [value.shape for value in (*node.operands, *node.outputs)]
    return bool(symbols_of([*shapes, *node.attrs.values()]))


def derived(target: Target, node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    """Return a node's outputs for constant operands, from the target's cache if it has them."""
    what = KIND, describe_node(node)
    return target.derive(
        what, arrays, lambda: evaluated(target.evaluate, node, arrays, target.threads)
    )


def evaluated(
    evaluate: Evaluate, node: Node, arrays: Sequence[Array | None], threads: int
) -> tuple[Array, ...]:
    """Compute a node's outputs as contiguous arrays that own their memory."""
    return tuple(
        made if made.flags.owndata and made.flags.c_contiguous else contiguous(made, threads)
        for made in evaluate(node, arrays)
    )


def describe_node(node: Node) -> str:
    """Return operator, attributes, data types and shapes of a node as a Python literal."""
    ends = [
        [None if value is None else (value.data_type, value.shape) for value in values]
        for values in (node.inputs, node.outputs)
    ]
    return repr((node.op, dict(node.attrs), *ends))


def node_of(description: Any) -> Node:
    """Build a node from the parsed literal of `describe_node`."""
    op, attrs, inputs, outputs = description
    operands = tuple(None if end is None else Value(*end) for end in inputs)
    return Node(op, operands, attrs, tuple(Value(*end) for end in outputs))


def _constant(
    rewriter: Rewriter, array: Array, value: Value, operands: Sequence[MLOperand]
) -> MLOperand:
    """Return an operand with the same contents as `array`, or a new constant."""
    for operand in operands:
        if (operand.data_type, operand.shape) == (value.data_type, value.shape):
            contents = rewriter.array_of(operand)
            if contents is array or _is_same(_bytes_of(contents), _bytes_of(array)):
                return operand
    return rewriter.add_constant(array, value.data_type)


def _is_same(contents: Array, others: Array) -> bool:
    """Whether two byte arrays are equal; compare a sample first."""
    first = slice(SAMPLE_BYTES)
    return np.array_equal(contents[first], others[first]) and np.array_equal(contents, others)


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
