"""Two products of rows and large weights, one after the other, as convolutions of one element.

An engine that lays out channels in blocks for convolutions reads weights from one end to the other,
and stays in the blocks between the two. Laid out for one product alone, rows take what it gains.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.multiply_rows import LARGE
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK
from webnn_py.passes.target import Target

FUNCTIONS = ("gelu", "leaky_relu", "relu", "tanh")
"""What is computed in blocks, too."""


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times weights, and a summand of each column."""

    rows: Value
    weights: Array
    summand: Array | None = None

    def of(self, rewriter: Rewriter, image: MLOperand) -> MLOperand:
        """The product, rows and columns as places and channels."""
        filters = rewriter.add_constant(self.weights.reshape(1, 1, *self.weights.shape), "float32")
        bias = None if self.summand is None else rewriter.add_constant(self.summand, "float32")
        return rewriter.conv2d(image, filters, bias=bias, filter_layout="hwio")


def chain_products_by_convolutions(graph: Graph, target: Target) -> Graph:
    """Put conv2d in the place of matmul and add with constants, where another one reads them."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        last = _product_of(graph, node)
        if last is None or _has_summand(graph, node.output):
            return None
        function = _maker(graph, last.rows)
        if function is not None and function.op in FUNCTIONS:
            (between,) = function.operands
        else:
            function, between = None, last.rows
        first = _product_of(graph, _maker(graph, between))
        if first is None:
            return None
        *rows, inner = first.rows.shape
        places = [*[1] * (2 - len(rows)), *rows, 1][:3]
        laid = rewriter.reshape(rewriter.map[first.rows], [*places, inner])
        made = first.of(rewriter, rewriter.transpose(laid, permutation=[0, 3, 1, 2]))
        if function is not None:
            (made,) = rewriter.apply_again(function, {between: made})
        made = rewriter.transpose(last.of(rewriter, made), permutation=[0, 2, 3, 1])
        return [rewriter.reshape(made, node.output.shape)]

    return Rewriter(graph).run(rule)


def _maker(graph: Graph, value: Value) -> Node | None:
    """What makes a value that nothing else needs."""
    return graph.producers.get(value) if graph.uses[value] == 1 else None


def _product_of(graph: Graph, node: Node | None) -> Product | None:
    """A node as a product of several rows and weights of many blocks, with its summand."""
    if node is None or node.op not in ("add", "matmul"):
        return None
    if node.op == "add":
        made, summand = _summed(graph, node)
        alone = None if made is None else _product_of(graph, _maker(graph, made))
        if alone is None or alone.summand is not None:
            return None
        return replace(alone, summand=summand)
    rows, given = node.operands
    weights = graph.constants.get(given)
    if (
        weights is None
        or weights.ndim != 2
        or weights.size < LARGE
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
