"""Products of float32 that kernels split into float16 halves, for `float32_precision="high"`.

A kernel scales each row of the left operand and each column of the right one by a power of 2, which
it takes from the row's largest magnitude. A constant operand is scaled and split now. The nodes
exist between `legalize` and the kernels only; `op_traits` tells fusion about them.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.halve_float32 import AttentionProducts, is_large_product
from webnn_py.passes.rewrite import Rewriter

SPLIT_PRODUCT = "matmul_split"
"""Operands: [..., m, k] and [..., k, n] of float32, and the largest magnitudes [..., m, 1] and
[..., 1, n]. An operand of float16 is a constant in halves: [2, m, k] or [2, k, n]."""
SPLIT_CONVOLUTION = "conv2d_split"
"""Operands: those of conv2d, and the largest magnitudes of images [n, 1, 1, 1] and of output
channels, in the layout of the filter. A filter of float16 has halves along a first dimension, too.
Attributes: those of conv2d."""

MIN_MULTIPLICATIONS = 1 << 31
"""Multiplications from which a product by halves takes less time than the exact one."""

HALF_VECTOR = 8
"""Float16 that kernels load at a time."""

TOP_EXPONENT = 14
"""Exponent of the largest magnitude of a scaled row; float16 ends at 65504."""
LEAST_EXPONENT = 15
"""Least biased exponent of a row that is scaled to the top, so that scales are finite."""


class SplitProducts:
    """Rule that replaces large products and convolutions of float32 by those in halves."""

    def __init__(self, graph: Graph, features: Features) -> None:
        is_high = features.float32_precision == "high" and features.f16_matrix is not None
        self._attention = AttentionProducts(graph) if is_high and not graph.open_sizes else None
        self._features = features
        self._tops: dict[tuple[Value, tuple[int, ...]], MLOperand] = {}

    def __call__(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Return the product in halves; None for another node."""
        if self._attention is None or not is_large_product(node, MIN_MULTIPLICATIONS):
            return None
        ends = (*node.operands, node.output)
        if any(buffer_bytes(one) > self._features.binding_bytes for one in ends):
            return None
        if self._attention.holds(node):
            return None
        return self._matmul(rewriter, node) if node.op == "matmul" else self._conv2d(rewriter, node)

    def _matmul(self, rewriter: Rewriter, node: Node) -> list[MLOperand]:
        operands, tops = [], []
        for value, axis in zip(node.operands, (-1, -2), strict=True):
            operand = rewriter.map[value]
            top = self._top(rewriter, operand, (operand.rank + axis,))
            operands.append(_halves(rewriter, operand, top) if operand.rank == 2 else operand)
            tops.append(top)
        return _emitted(rewriter, SPLIT_PRODUCT, node, *operands, *tops)

    def _conv2d(self, rewriter: Rewriter, node: Node) -> list[MLOperand]:
        x, w, bias = (None if one is None else rewriter.map[one] for one in node.inputs)
        assert x is not None
        assert w is not None
        x_top = self._top(rewriter, x, (1, 2, 3))
        filters = node.attrs["filter_layout"]
        out = filters.index("o")
        w_top = self._top(rewriter, w, tuple(axis for axis in range(4) if axis != out))
        channels, taps = w.shape[out], w.size // w.shape[out]
        # Only kernels of NHWC load the filter in eights.
        loads_eights = node.attrs["input_layout"] == "nhwc" and filters[-1] != "o"
        if loads_eights and taps % HALF_VECTOR == 0:
            w = _halves(rewriter, w, w_top)
        made = _emitted(rewriter, SPLIT_CONVOLUTION, node, x, w, None, x_top, w_top)
        if bias is None:
            return made
        shape = [channels if letter == "c" else 1 for letter in node.attrs["input_layout"]]
        return [rewriter.add(made[0], rewriter.reshape(bias, shape))]

    def _top(self, rewriter: Rewriter, operand: MLOperand, axes: tuple[int, ...]) -> MLOperand:
        """Return the largest magnitudes of an operand over some axes, which keep the extent 1."""
        key = value_of(operand), axes
        if key not in self._tops:
            array = rewriter.array_of(operand)
            if array is not None:
                top = np.abs(array).max(axes, keepdims=True)
                made = rewriter.add_constant(np.ascontiguousarray(top), "float32")
            else:
                made = rewriter.reduce_max(rewriter.abs(operand), axes=axes, keep_dimensions=True)
            self._tops[key] = made
        return self._tops[key]


def _emitted(rewriter: Rewriter, op: str, node: Node, *inputs: MLOperand | None) -> list[MLOperand]:
    values = tuple(None if one is None else value_of(one) for one in inputs)
    output = Value("float32", node.output.shape)
    return rewriter.emit(Node(op, values, dict(node.attrs), (output,), node.label))


def _halves(rewriter: Rewriter, operand: MLOperand, top: MLOperand) -> MLOperand:
    """Return a constant's halves, the high ones first; any other operand as it is."""
    array, tops = rewriter.array_of(operand), rewriter.array_of(top)
    if array is None or tops is None or (operand.shape[-1] % HALF_VECTOR and operand.rank == 2):
        return operand
    with np.errstate(invalid="ignore"):  # of infinite elements
        scaled = array / unit(tops)
        high = scaled.astype(np.float16)
        low = (scaled - high.astype(np.float32)).astype(np.float16)
    return rewriter.add_constant(np.stack([high, low]), "float16")


def unit(top: Array) -> Array:
    """Return the powers of 2 that kernels divide rows with these largest magnitudes by."""
    exponent = np.maximum(top.view(np.uint32) >> np.uint32(23) & np.uint32(255), LEAST_EXPONENT)
    bits = (exponent.astype(np.uint32) - np.uint32(TOP_EXPONENT)) << np.uint32(23)
    units: Array = bits.view(np.float32)
    return units


def flops_of_split(node: Node) -> int:
    """Return the floating-point operations of the float32 product that a split one computes."""
    left, top = node.inputs[0], node.inputs[-1]
    assert left is not None
    assert top is not None
    if node.op == SPLIT_PRODUCT:
        return 2 * node.output.size * left.shape[-1]
    filter_ = node.inputs[1]
    assert filter_ is not None
    return 2 * node.output.size * (math.prod(filter_.shape[-4:]) // top.size)
