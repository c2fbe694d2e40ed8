"""Pass that multiplies an operand by several constant matrices in one product.

Queries, keys and values of an attention are such products. One large product fills the processors
of a GPU better than three, and no kernel copies the parts of its result: those that read them
address it by strides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.fold import derived
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

MIN_ROWS = 64
"""Minimum number of rows: fewer gain nothing, as reading the matrices takes most of the time."""

VECTOR = 8
"""Float16 that a kernel loads at once; parts of the result begin at multiples of it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A product with its bias.

    Attributes:
        product: The product.
        matrix: Its constant matrix.
        bias: What is added to each row, or None.
        end: The result.
    """

    product: Node
    matrix: Array
    bias: Array | None
    end: Value


def join_products(graph: Graph, target: Target) -> Graph:
    """Join products of one operand by constant matrices, whose results only reshapes read.

    Requires: float16, tensor cores, no open dimensions.
    """
    if not target.has_tensor_cores or graph.open_sizes:
        return graph
    groups = {part.product: group for group in _groups(graph) for part in group}
    made: dict[Value, MLOperand] = {}

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node in groups and node.output not in made:
            group = groups[node]
            for part, result in zip(group, _joined(rewriter, target, group), strict=True):
                made[part.product.output] = made[part.end] = result
        return [made[node.output]] if len(node.outputs) == 1 and node.output in made else None

    return Rewriter(graph).run(rule)


def _groups(graph: Graph) -> Iterator[list[_Part]]:
    """Yield the products of each operand that can be joined, at least two."""
    parts: dict[Value, list[_Part]] = {}
    for node in graph.nodes:
        if (part := _part(graph, node)) is not None:
            parts.setdefault(next(node.operands), []).append(part)
    yield from (group for group in parts.values() if len(group) > 1)


def _part(graph: Graph, node: Node) -> _Part | None:
    """Return a product that can be joined to others."""
    if node.op != "matmul" or node.output.data_type != "float16":
        return None
    left, right = node.operands
    matrix = graph.constants.get(right)
    if matrix is None or right.rank != 2 or right.shape[1] % VECTOR:
        return None
    if left.rank < 2 or math.prod(left.shape[:-1]) < MIN_ROWS:
        return None
    bias, end = _bias(graph, node.output)
    readers = graph.readers.get(end, ())
    is_inner = end not in graph.results and all(reader.op == "reshape" for reader in readers)
    return _Part(node, matrix, bias, end) if is_inner else None


def _bias(graph: Graph, result: Value) -> tuple[Array | None, Value]:
    """Return the bias that alone reads a result, if any, and the sum; else None and the result."""
    readers = graph.readers.get(result, ())
    if result in graph.results or len(readers) != 1 or readers[0].op != "add":
        return None, result
    (other,) = [value for value in readers[0].operands if value is not result] or [result]
    bias, total = graph.constants.get(other), readers[0].output
    is_row = other.shape[-1:] == result.shape[-1:] and other.size == result.shape[-1]
    if bias is None or not is_row or total.shape != result.shape:
        return None, result
    return bias.reshape(-1), total


def _joined(rewriter: Rewriter, target: Target, group: Sequence[_Part]) -> list[MLOperand]:
    """Emit the joined product; return the results of its parts."""
    left = rewriter.map[next(group[0].product.operands)]
    matrix = _concat(target, [part.matrix for part in group], 1)
    made = rewriter.matmul(left, rewriter.add_constant(matrix, "float16"))
    if any(part.bias is not None for part in group):
        biases = [
            np.zeros(part.matrix.shape[1], np.float16) if part.bias is None else part.bias
            for part in group
        ]
        bias = _concat(target, biases, 0)
        made = rewriter.add(made, rewriter.add_constant(bias, "float16"))
    widths = [part.matrix.shape[1] for part in group]
    return rewriter.split(made, widths, axis=made.rank - 1)


def _concat(target: Target, arrays: Sequence[Array], axis: int) -> Array:
    """Return constants joined along an axis, from the target's cache if it has them."""
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    inputs = tuple(Value("float16", array.shape) for array in arrays)
    node = Node("concat", inputs, {"axis": axis}, (Value("float16", tuple(shape)),))
    (made,) = derived(target, node, arrays)
    return made
