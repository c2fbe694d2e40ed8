"""Constant operands of products as kernels read them that multiply through tiles.

Filters have their output channels side by side: such kernels read many channels of one tap at once,
and all taps of one place in the window, which lie in the image side by side, one after the other.
Halves are multiplied in pairs of taps, and loaded eight at a time along those of one place.
"""

from __future__ import annotations

import functools
import math

from webnn_py.core.dimensions import is_dimension
from webnn_py.core.parallel_map import at_once
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.convolution import Conv2dFilterLayout
from webnn_py.ops.operand import MLOperand
from webnn_py.passes import transposes
from webnn_py.passes.copy_contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

EIGHT = 8
"""Halves that are loaded at once."""

FEW_ROWS = 16
"""Of a product that reads a matrix as it comes, once."""

KIND = "filter"
"""The first word of what is computed here."""


def put_channels_last(graph: Graph, target: Target) -> Graph:
    """Lay out the constant filters of convolutions anew."""
    filters = {node: array for node in graph.nodes if (array := _filter(graph, node)) is not None}
    made = at_once(
        [functools.partial(_derived, target, array, _wanted(n)) for n, array in filters.items()],
        sum(array.nbytes for array in filters.values()),
        target.threads,
    )
    laid_out = dict(zip(filters, made, strict=True))

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node not in laid_out:
            return None
        filter_ = node.inputs[1]
        assert filter_ is not None
        moved = rewriter.add_constant(laid_out[node], filter_.data_type)
        return rewriter.apply_again(node, filter=moved, filter_layout=_wanted(node))

    return Rewriter(graph).run(rule)


def _filter(graph: Graph, node: Node) -> Array | None:
    """The filter of a convolution that is to be laid out anew."""
    if node.op != "conv2d":
        return None
    filter_ = node.inputs[1]
    if filter_ is None or node.attrs["filter_layout"] != "oihw":
        return None
    channels, ins = filter_.shape[:2]
    if channels // node.attrs["groups"] < 4 or ins * channels % 4:
        return None
    return graph.constants.get(filter_)


def _wanted(node: Node) -> Conv2dFilterLayout:
    """The layout of a convolution's filter."""
    filter_ = node.inputs[1]
    assert filter_ is not None
    pairs = filter_.data_type == "float16" and filter_.shape[1] % EIGHT == 0
    return "ohwi" if pairs and node.attrs["input_layout"] == "nhwc" else "hwio"


def _derived(target: Target, array: Array, layout: Conv2dFilterLayout) -> Array:
    (made,) = target.derive((KIND, repr(layout)), [array], lambda: (laid_out(array, layout),))
    return made


def laid_out(array: Array, layout: str) -> Array:
    """OIHW in another layout."""
    return contiguous(array.transpose(["oihw".index(letter) for letter in layout]))


def turn_matrices_of_halves(graph: Graph, target: Target) -> Graph:
    """Lay out constant matrices of float16 along the dimension that is added up."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        array = _matrix(graph, node)
        if array is None:
            return None
        a, b = node.operands
        what = (transposes.KIND, repr((1, 0)))
        (made,) = target.derive(what, [array], lambda: (transposes.transposed(array, (1, 0)),))
        turned = rewriter.transpose(rewriter.add_constant(made, b.data_type), permutation=(1, 0))
        return [rewriter.matmul(rewriter.map[a], turned)]

    return Rewriter(graph).run(rule)


def _matrix(graph: Graph, node: Node) -> Array | None:
    """The constant matrix that many rows are multiplied with."""
    if node.op != "matmul":
        return None
    a, b = node.operands
    rows = a.shape[:-1]
    if any(map(is_dimension, rows)) or math.prod(rows) < FEW_ROWS:
        return None
    pairs = b.data_type == "float16" and b.rank == 2 and b.shape[0] % EIGHT == 0
    return graph.constants.get(b) if pairs else None
