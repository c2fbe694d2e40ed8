"""Pass that replaces products with large weights by 1 x 1 convolutions.

Reading the weights from memory dominates a product of few rows. An engine with the NCHWc layout
streams the weights of convolutions, which is faster than its gemm. The change of layout costs what
one product of several rows gains. So the pass takes, besides products of one row, two products in
a row, which stay in the layout between them, and products whose columns become attention heads,
which come out in the right order.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.convolution import Conv2dFilterLayout
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK_CHANNELS
from webnn_py.passes.target import Target

FUNCTIONS = ("gelu", "leaky_relu", "relu", "tanh")
"""Functions that may stand between two products, because the engine computes them in blocks."""

MIN_WEIGHTS = 1 << 19
"""Least number of weights; fewer stay in the processor's caches from one run to the next."""

MIN_HEAD_WEIGHTS = 1 << 17
"""Least number of weights of a product of heads; with fewer, the change of layout costs more."""


def convolve_products(graph: Graph, target: Target) -> Graph:
    """Replace gemm of one row, and chains and attention heads of matmul and add, by conv2d.

    Requires: float32, 2-D constant weights and constant summands, and whole blocks of columns.
    """
    return Rewriter(graph).run(_Convolutions(graph, target).rule)


@dataclass(frozen=True, slots=True)
class _Product:
    """Rows times a weight matrix, with an optional summand for each column."""

    rows: Value
    weights: Array
    summand: Array | None = None


class _Convolutions:
    """The products of a graph that become convolutions of images: rows are pixels.

    Args:
        graph: The graph.
        target: The target, whose cache holds the reshaped weights.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        self._graph = graph
        self._target = target
        self._images: dict[Value, MLOperand] = {}

    def rule(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Return the results of a convolution in a node's place; None if the node stays."""
        makers = {"gemm": self._row, "transpose": self._heads}
        return makers.get(node.op, self._chain)(rewriter, node)

    def _row(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Replace gemm with one row by reshape, conv2d and reshape."""
        if not _is_row(node):
            return None
        row, weights, bias = (None if v is None else rewriter.map[v] for v in node.inputs)
        assert row is not None
        array, shift = rewriter.array_of(weights), rewriter.array_of(bias)
        outer, inner = node.output.shape[1], row.shape[1]
        if array is None or (bias is not None and shift is None):
            return None
        image = rewriter.reshape(row, [1, inner, 1, 1])
        summand = None if shift is None else np.broadcast_to(shift.reshape(-1), (outer,)).copy()
        transposed = bool(node.attrs["b_transpose"])
        made = self._convolved(rewriter, image, array, summand, transposed)
        return [rewriter.reshape(made, [1, outer])]

    def _heads(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Replace a product, and the transpose that makes its columns attention heads."""
        product = _heads_of(self._graph, node)
        if product is None:
            return None
        order = node.attrs["permutation"]
        batch, length, count, size = (node.output.shape[order.index(axis)] for axis in range(4))
        made = self._multiplied(rewriter, product, self._image(rewriter, product.rows))
        made = rewriter.reshape(made, [batch, count, size, length])
        return [made if order[-1] == 1 else rewriter.transpose(made, permutation=[0, 1, 3, 2])]

    def _chain(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Replace two products, with a function between them or without."""
        graph = self._graph
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
        made = self._multiplied(rewriter, first, self._image(rewriter, first.rows))
        if function is not None:
            (made,) = rewriter.apply_again(function, {between: made})
        made = self._multiplied(rewriter, last, made)
        made = rewriter.transpose(made, permutation=[0, 2, 3, 1])
        return [rewriter.reshape(made, node.output.shape)]

    def _image(self, rewriter: Rewriter, rows: Value) -> MLOperand:
        """Return rows as an NCHW image, once for all products that read them."""
        if rows not in self._images:
            *sizes, columns = rows.shape
            pixels = [*[1] * (2 - len(sizes)), *sizes, 1][:3]
            nhwc = rewriter.reshape(rewriter.map[rows], [*pixels, columns])
            self._images[rows] = rewriter.transpose(nhwc, permutation=[0, 3, 1, 2])
        return self._images[rows]

    def _multiplied(self, rewriter: Rewriter, product: _Product, image: MLOperand) -> MLOperand:
        """Build a product of an image."""
        return self._convolved(rewriter, image, product.weights, product.summand)

    def _convolved(
        self,
        rewriter: Rewriter,
        image: MLOperand,
        weights: Array,
        summand: Array | None,
        transposed: bool = False,
    ) -> MLOperand:
        """Build a 1 x 1 convolution that multiplies channels by weights, without copying these.

        Args:
            rewriter: The rewriter of the graph.
            image: The rows as an NCHW image.
            weights: [input channels, output channels], or the reverse if `transposed`.
            summand: One number for each output channel.
            transposed: Whether the weights are [output channels, input channels].
        """
        layout: Conv2dFilterLayout = "oihw" if transposed else "ihwo"
        first, last = weights.shape
        shape = (first, last, 1, 1) if transposed else (first, 1, 1, last)
        (filters,) = self._target.derive(layout, [weights], lambda: (weights.reshape(shape),))
        return rewriter.conv2d(
            image,
            rewriter.add_constant(filters, "float32"),
            bias=None if summand is None else rewriter.add_constant(summand, "float32"),
            filter_layout=layout,
        )


def _is_row(node: Node) -> bool:
    """Whether a gemm multiplies one row by large weights, and adds the summand unscaled."""
    row, weights, *_ = node.operands
    attrs = node.attrs
    return (
        row.data_type == "float32"
        and row.shape[0] == 1
        and not any(map(is_dimension, (*row.shape, *weights.shape)))
        and row.shape[1] % BLOCK_CHANNELS == 0
        and math.prod(weights.shape) >= MIN_WEIGHTS
        and (attrs["alpha"], attrs["beta"], attrs["a_transpose"]) == (1, 1, False)
    )


def _sole_producer(graph: Graph, value: Value) -> Node | None:
    """Return the producer of a value that has one use, or None."""
    return graph.producers.get(value) if graph.uses[value] == 1 else None


def _heads_of(graph: Graph, node: Node) -> _Product | None:
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


def _product_of(graph: Graph, node: Node | None, least: int) -> _Product | None:
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
    return _Product(rows, weights)


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
