"""Pass that replaces products of rows and large weights by 1 x 1 convolutions.

An engine with the NCHWc layout streams the weights of a convolution from memory. The change of
layout costs what one product gains. So the pass takes two products in a row, which stay in the
layout between them, and products whose columns become attention heads, which come out in the right
order.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.multiply_rows import MIN_WEIGHTS, convolve
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK_CHANNELS
from webnn_py.passes.target import Target

FUNCTIONS = ("gelu", "leaky_relu", "relu", "tanh")
"""Functions that may stand between two products, because the engine computes them in blocks."""

MIN_HEAD_WEIGHTS = 1 << 17
"""Least number of weights of a product of heads; with fewer, the change of layout costs more."""


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times a weight matrix, with an optional summand for each column."""

    rows: Value
    weights: Array
    summand: Array | None = None

    def of(self, rewriter: Rewriter, target: Target, image: MLOperand) -> MLOperand:
        """Build the product as a convolution of an image: rows are pixels, columns channels."""
        return convolve(rewriter, target, image, self.weights, self.summand)


def convolve_products(graph: Graph, target: Target) -> Graph:
    """Replace chains and attention heads of matmul and add with constants by conv2d.

    Requires: float32, 2-D constant weights whose sizes are whole blocks, and more than one row.
    """
    images: dict[Value, MLOperand] = {}

    def image_of(rewriter: Rewriter, rows: Value) -> MLOperand:
        """Return rows as an image, once for all products that read them."""
        if rows not in images:
            *sizes, columns = rows.shape
            pixels = [*[1] * (2 - len(sizes)), *sizes, 1][:3]
            nhwc = rewriter.reshape(rewriter.map[rows], [*pixels, columns])
            images[rows] = rewriter.transpose(nhwc, permutation=[0, 3, 1, 2])
        return images[rows]

    def heads(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        product = _heads_of(graph, node)
        if product is None:
            return None
        order = node.attrs["permutation"]
        batch, length, count, size = (node.output.shape[order.index(axis)] for axis in range(4))
        made = product.of(rewriter, target, image_of(rewriter, product.rows))
        made = rewriter.reshape(made, [batch, count, size, length])
        return [made if order[-1] == 1 else rewriter.transpose(made, permutation=[0, 1, 3, 2])]

    def chain(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        last = _product_of(graph, node, MIN_WEIGHTS)
        if last is None or _has_summand(graph, node.output):
            return None
        function = _sole_producer(graph, last.rows)
        if function is not None and function.op in FUNCTIONS:
            (between,) = function.operands
        else:
            function, between = None, last.rows
        first = _product_of(graph, _sole_producer(graph, between), MIN_WEIGHTS)
        if first is None:
            return None
        made = first.of(rewriter, target, image_of(rewriter, first.rows))
        if function is not None:
            (made,) = rewriter.apply_again(function, {between: made})
        made = rewriter.transpose(last.of(rewriter, target, made), permutation=[0, 2, 3, 1])
        return [rewriter.reshape(made, node.output.shape)]

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        return heads(rewriter, node) if node.op == "transpose" else chain(rewriter, node)

    return Rewriter(graph).run(rule)


def _sole_producer(graph: Graph, value: Value) -> Node | None:
    """Return the producer of a value that has one use, or None."""
    return graph.producers.get(value) if graph.uses[value] == 1 else None


def _heads_of(graph: Graph, node: Node) -> Product | None:
    """Return the product whose columns a transpose splits into heads for other products."""
    if tuple(node.attrs["permutation"]) not in ((0, 2, 1, 3), (0, 2, 3, 1)):
        return None
    split = _sole_producer(graph, next(node.operands))
    if split is None or split.op != "reshape":
        return None
    product = _product_of(graph, _sole_producer(graph, next(split.operands)), MIN_HEAD_WEIGHTS)
    if product is None or product.rows.shape[:-1] != split.output.shape[:2]:
        return None
    readers = graph.readers.get(node.output, ())
    multiplied = readers and all(reader.op == "matmul" for reader in readers)
    return product if multiplied and node.output not in graph.results else None


def _product_of(graph: Graph, node: Node | None, least: int) -> Product | None:
    """Match a product of several rows and at least `least` weights, with its summand."""
    if node is None or node.op not in ("add", "matmul"):
        return None
    if node.op == "add":
        sum_of, summand = _match_sum(graph, node)
        maker = None if sum_of is None else _sole_producer(graph, sum_of)
        product = _product_of(graph, maker, least)
        if product is None or product.summand is not None:
            return None
        return replace(product, summand=summand)
    rows, matrix = node.operands
    weights = graph.constants.get(matrix)
    if (
        weights is None
        or weights.ndim != 2
        or weights.size < least
        or any(size % BLOCK_CHANNELS for size in weights.shape)
        or rows.data_type != "float32"
        or not 2 <= rows.rank <= 4
        or math.prod(rows.shape[:-1]) == 1
    ):
        return None
    return Product(rows, weights)


def _match_sum(graph: Graph, node: Node) -> tuple[Value | None, Array | None]:
    """Match an addition of one constant for each column; return the other operand and it."""
    for matrix, summand in itertools.permutations(node.operands):
        array = graph.constants.get(summand)
        if array is not None and array.shape == matrix.shape[-1:] and matrix.rank > 1:
            return matrix, array
    return None, None


def _has_summand(graph: Graph, value: Value) -> bool:
    """Whether the only reader of a product adds a constant to each column."""
    readers = graph.readers.get(value, ())
    return graph.uses[value] == 1 and any(
        reader.op == "add" and _match_sum(graph, reader)[0] is value for reader in readers
    )
