"""Passes that lay out constant filters and matrices as tiled kernels read them.

A tiled kernel reads many output channels of one tap at once, so filters store these side by side
(HWIO). Kernels for float16 multiply pairs of input channels and load eight at once, so their
operands store the dimension of the sum last.
"""

from __future__ import annotations

import functools
import math

from webnn_py.core.dimensions import is_dimension
from webnn_py.core.parallel_map import parallel_map
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.convolution import Conv2dFilterLayout
from webnn_py.ops.operand import MLOperand
from webnn_py.passes import transposes
from webnn_py.passes.copy_contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

FLOAT16_VECTOR = 8
"""Number of float16 elements that a kernel loads at once."""

MIN_ROWS = 16
"""Least rows of a product for which the layout pays; with fewer, a kernel reads the matrix once."""

MAX_SMALL_PRODUCT = 1 << 21
"""Elements of a product up to which tiles of tensor cores are small and deep.

Large tiles step along k by 32 elements, and read lines of columns 5 to 11 % faster. 128 of them, of
128 x 128 elements, occupy a large GPU.
"""

KIND = "filter"
"""Name of this computation in `constant_replay.KINDS`."""


def lay_out_filters(graph: Graph, target: Target) -> Graph:
    """Change the layout of the constant filters of convolutions.

    Requires: layouts of images are final, because the filter's layout depends on them.
    """
    filters = {node: array for node in graph.nodes if (array := _filter(graph, node)) is not None}
    made = parallel_map(
        [functools.partial(_derived, target, array, _layout_of(n)) for n, array in filters.items()],
        sum(array.nbytes for array in filters.values()),
        target.threads,
    )
    by_node = dict(zip(filters, made, strict=True))

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node not in by_node:
            return None
        filter_ = node.inputs[1]
        assert filter_ is not None
        moved = rewriter.add_constant(by_node[node], filter_.data_type)
        return rewriter.apply_again(node, filter=moved, filter_layout=_layout_of(node))

    return Rewriter(graph).run(rule)


def _filter(graph: Graph, node: Node) -> Array | None:
    """Return the constant filter of a convolution whose layout should change."""
    if node.op not in ("conv2d", "conv2d_integer"):
        return None
    filter_ = node.inputs[1]
    if filter_ is None or node.attrs["filter_layout"] != "oihw":
        return None
    channels, ins = filter_.shape[:2]
    if channels // node.attrs["groups"] < 4 or ins * channels % 4:
        return None
    return graph.constants.get(filter_)


def _layout_of(node: Node) -> Conv2dFilterLayout:
    """Return the best layout for a convolution's filter."""
    filter_ = node.inputs[1]
    assert filter_ is not None
    pairs = filter_.data_type == "float16" and filter_.shape[1] % FLOAT16_VECTOR == 0
    pairs = pairs or node.op == "conv2d_integer"
    return "ohwi" if pairs and node.attrs["input_layout"] == "nhwc" else "hwio"


def _derived(target: Target, array: Array, layout: Conv2dFilterLayout) -> Array:
    (made,) = target.derive((KIND, repr(layout)), [array], lambda: (laid_out(array, layout),))
    return made


def laid_out(array: Array, layout: str) -> Array:
    """Transpose a filter from OIHW to another layout."""
    return contiguous(array.transpose(["oihw".index(letter) for letter in layout]))


def transpose_float16_matrices(graph: Graph, target: Target) -> Graph:
    """Store constant float16 matrices transposed, so that the dimension of the sum is last.

    For tensor cores, matrices of products above MAX_SMALL_PRODUCT stay as they are.
    """
    max_product = MAX_SMALL_PRODUCT if target.has_tensor_cores else math.inf

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        array = _matrix(graph, node, max_product)
        if array is None:
            return None
        a, b = node.operands
        what = (transposes.KIND, repr((1, 0)))
        (made,) = target.derive(what, [array], lambda: (transposes.transposed(array, (1, 0)),))
        stored = rewriter.add_constant(made, b.data_type)
        matrix = rewriter.transpose(stored, permutation=(1, 0))
        return [rewriter.matmul(rewriter.map[a], matrix)]

    return Rewriter(graph).run(rule)


def _matrix(graph: Graph, node: Node, max_product: float) -> Array | None:
    """Return the constant float16 matrix of a product that should be stored transposed."""
    if node.op != "matmul":
        return None
    a, b = node.operands
    rows = a.shape[:-1]
    if any(map(is_dimension, rows)) or math.prod(rows) < MIN_ROWS:
        return None
    if b.rank == 2 and b.shape[1] % FLOAT16_VECTOR == 0 and node.output.size > max_product:
        return None
    pairs = b.data_type == "float16" and b.rank == 2 and b.shape[0] % FLOAT16_VECTOR == 0
    return graph.constants.get(b) if pairs else None
