"""Products of rows and large weights as convolutions of one element, where these gain on the way.

An engine that lays out channels in blocks for convolutions reads weights from one end to the other.
Two products in a row stay in the blocks between them; columns that are apart as the heads of
attention come out in the order in which heads are multiplied. Laid out for one product alone, rows
take what it gains.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.multiply_rows import LARGE, convolved
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK
from webnn_py.passes.target import Target

FUNCTIONS = ("gelu", "leaky_relu", "relu", "tanh")
"""What is computed in blocks, too."""

MANY = 1 << 17
"""Weights from which on heads are convolved; to lay out rows for fewer takes what that gains."""


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times weights, and a summand of each column."""

    rows: Value
    weights: Array
    summand: Array | None = None

    def of(self, rewriter: Rewriter, target: Target, image: MLOperand) -> MLOperand:
        """The product, rows and columns as places and channels."""
        return convolved(rewriter, target, image, self.weights, self.summand)


def convolve_products(graph: Graph, target: Target) -> Graph:
    """Put conv2d in the place of matmul and add with constants."""
    images: dict[Value, MLOperand] = {}

    def image_of(rewriter: Rewriter, rows: Value) -> MLOperand:
        """Rows as places, columns as channels: once for all products that read them."""
        if rows not in images:
            *sizes, columns = rows.shape
            places = [*[1] * (2 - len(sizes)), *sizes, 1][:3]
            laid = rewriter.reshape(rewriter.map[rows], [*places, columns])
            images[rows] = rewriter.transpose(laid, permutation=[0, 3, 1, 2])
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
        last = _product_of(graph, node, LARGE)
        if last is None or _has_summand(graph, node.output):
            return None
        function = _maker(graph, last.rows)
        if function is not None and function.op in FUNCTIONS:
            (between,) = function.operands
        else:
            function, between = None, last.rows
        first = _product_of(graph, _maker(graph, between), LARGE)
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


def _maker(graph: Graph, value: Value) -> Node | None:
    """What makes a value that nothing else needs."""
    return graph.producers.get(value) if graph.uses[value] == 1 else None


def _heads_of(graph: Graph, node: Node) -> Product | None:
    """The product whose columns a transpose puts apart for others to multiply."""
    if tuple(node.attrs["permutation"]) not in ((0, 2, 1, 3), (0, 2, 3, 1)):
        return None
    apart = _maker(graph, next(node.operands))
    if apart is None or apart.op != "reshape":
        return None
    product = _product_of(graph, _maker(graph, next(apart.operands)), MANY)
    if product is None or product.rows.shape[:-1] != apart.output.shape[:2]:
        return None
    readers = graph.readers.get(node.output, ())
    multiplied = readers and all(reader.op == "matmul" for reader in readers)
    return product if multiplied and node.output not in graph.results else None


def _product_of(graph: Graph, node: Node | None, least: int) -> Product | None:
    """A node as a product of several rows and so many weights, with its summand."""
    if node is None or node.op not in ("add", "matmul"):
        return None
    if node.op == "add":
        made, summand = _summed(graph, node)
        alone = None if made is None else _product_of(graph, _maker(graph, made), least)
        if alone is None or alone.summand is not None:
            return None
        return replace(alone, summand=summand)
    rows, given = node.operands
    weights = graph.constants.get(given)
    if (
        weights is None
        or weights.ndim != 2
        or weights.size < least
        or any(size % BLOCK for size in weights.shape)
        or rows.data_type != "float32"
        or not 2 <= rows.rank <= 4
        or math.prod(rows.shape[:-1]) == 1
    ):
        return None
    return Product(rows, weights)


def _summed(graph: Graph, node: Node) -> tuple[Value | None, Array | None]:
    """What an addition adds a constant to each column of, and that."""
    for made, given in itertools.permutations(node.operands):
        array = graph.constants.get(given)
        if array is not None and array.shape == made.shape[-1:] and made.rank > 1:
            return made, array
    return None, None


def _has_summand(graph: Graph, value: Value) -> bool:
    """Whether a product is but the first part of one with a summand."""
    readers = graph.readers.get(value, ())
    return graph.uses[value] == 1 and any(
        reader.op == "add" and _summed(graph, reader)[0] is value for reader in readers
    )
