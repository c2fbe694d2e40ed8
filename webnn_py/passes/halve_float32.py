"""Pass that multiplies float32 as float16, with sums in float32, for devices with tensor cores.

An operand is scaled so that the largest element of each row lies at the top of float16's range,
and rounded, which leaves 11 bits. The graph stays a graph of WebNN: a product of operands that are
cast from float16. Its kernel reads the float16. Attention and small products stay exact, as they
gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

TOP = 2.0**15
"""Magnitude of the largest scaled element of a row; float16 ends at 65504."""

LEAST = 1e-30
"""Least magnitude that rows are scaled for, so that scales stay finite."""

MIN_MULTIPLICATIONS = 1 << 29
"""Multiplications from which a product of float16 takes less time than the exact one.

The scales and the rounding of its operands take up to four small kernels.
"""

MIN_EXTENT = 16
"""Rows, columns and depth of a subgroup matrix."""

MAX_STEPS_TO_SOFTMAX = 6
"""Operators between a product of an attention and its softmax, at most."""


def multiply_by_halves(graph: Graph, target: Target) -> Graph:
    """Multiply large products and convolutions of float32 as products of float16.

    A graph with open dimensions stays as it is.
    """
    if graph.open_sizes:
        return graph
    attention = AttentionProducts(graph)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if not is_large_product(node, MIN_MULTIPLICATIONS) or attention.holds(node):
            return None
        factors = _Factors(rewriter)
        made = factors.matmul(node) if node.op == "matmul" else factors.conv2d(node)
        return [made]

    return Rewriter(graph).run(rule)


def is_large_product(node: Node, least: int) -> bool:
    """Whether a node is a product of float32 with so many multiplications at least."""
    if node.op not in ("matmul", "conv2d") or node.output.data_type != "float32":
        return False
    if node.op == "matmul":
        a, b = node.operands
        rows, columns, depth = a.shape[-2], b.shape[-1], a.shape[-1]
        count = node.output.size * depth
    else:
        if node.attrs["groups"] != 1:
            return False
        filter_ = node.inputs[1]
        assert filter_ is not None
        columns, *rest = dims(filter_.shape, node.attrs["filter_layout"], "oihw")
        depth = math.prod(rest)
        rows = node.output.size // columns
        count = node.output.size * depth
    return min(rows, columns, depth) >= MIN_EXTENT and count >= least


class AttentionProducts:
    """Tells which products belong to an attention, which one exact kernel computes."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in node.operands:
                self._readers.setdefault(value, []).append(node)

    def holds(self, node: Node) -> bool:
        """Whether a softmax follows a product, or precedes it."""
        if node.op != "matmul":
            return False
        left = next(node.operands)
        return self._comes_from(left, MAX_STEPS_TO_SOFTMAX) or self._leads_to(
            node.output, MAX_STEPS_TO_SOFTMAX
        )

    def _comes_from(self, value: Value, steps: int) -> bool:
        node = self._producers.get(value)
        if node is None or not steps:
            return False
        if node.op in ("softmax", "exp"):
            return True
        if node.op not in ("cast", "div", "mul", "reshape", "transpose"):
            return False
        return any(self._comes_from(operand, steps - 1) for operand in node.operands)

    def _leads_to(self, value: Value, steps: int) -> bool:
        for node in self._readers.get(value, ()) if steps else ():
            if node.op in ("softmax", "reduce_max"):
                return True
            passes_on = node.op in ("cast", "div", "mul", "add", "where", "reshape", "tanh")
            if passes_on and self._leads_to(node.output, steps - 1):
                return True
        return False


class _Factors:
    """Emitter of one product of float16."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._b = rewriter

    def matmul(self, node: Node) -> MLOperand:
        """Return the product of two matrices."""
        a, b = (self._b.map[value] for value in node.operands)
        rank = len(a.shape)
        left, left_top = self._rounded(a, [rank - 1])
        rank = len(b.shape)
        right, right_top = self._rounded(b, [rank - 2])
        return self._restored(self._b.matmul(left, right), left_top, right_top)

    def conv2d(self, node: Node) -> MLOperand:
        """Return a convolution; images and output channels have a scale each."""
        data, filter_, bias = node.inputs
        assert data is not None
        assert filter_ is not None
        layout, filters = node.attrs["input_layout"], node.attrs["filter_layout"]
        x, x_top = self._rounded(self._b.map[data], [1, 2, 3])
        out = filters.index("o")
        others = [axis for axis in range(4) if axis != out]
        w, w_top = self._rounded(self._b.map[filter_], others)
        channels = w_top.shape[out]
        shape = [channels if letter == "c" else 1 for letter in layout]
        operands = {data: x, filter_: w}
        if bias is not None:
            operands[bias] = self._b.map[bias]
        (made,) = self._b.apply_again(node, operands, bias=None)
        made = self._restored(made, x_top, self._b.reshape(w_top, shape))
        if bias is None:
            return made
        return self._b.add(made, self._b.reshape(self._b.map[bias], shape))

    def _restored(self, made: MLOperand, *tops: MLOperand) -> MLOperand:
        """Undo the scales of both operands, one after the other as their product may overflow."""
        for top in tops:
            made = self._b.mul(made, self._scaled_by(top, 1 / TOP))
        return made

    def _scaled_by(self, operand: MLOperand, factor: float) -> MLOperand:
        array = self._b.array_of(operand)
        if array is not None:
            return self._b.add_constant(np.asarray(array * np.float32(factor)), "float32")
        return self._b.mul(operand, self._b.constant_of(factor, operand))

    def _rounded(self, operand: MLOperand, axes: Sequence[int]) -> tuple[MLOperand, MLOperand]:
        """Return an operand rounded to float16, cast to float32, and its largest magnitudes.

        Args:
            operand: The operand.
            axes: Axes over which elements share a scale.
        """
        b = self._b
        array = b.array_of(operand)
        if array is not None:
            largest = np.maximum(np.abs(array).max(tuple(axes), keepdims=True), np.float32(LEAST))
            half = np.ascontiguousarray((array * (np.float32(TOP) / largest)).astype(np.float16))
            constant = b.add_constant(half, "float16")
            return b.cast(constant, "float32"), b.add_constant(largest, "float32")
        top = b.reduce_max(b.abs(operand), axes=list(axes), keep_dimensions=True)
        top = b.max(top, b.constant_of(LEAST, operand))
        scaled = b.mul(operand, b.div(b.constant_of(TOP, operand), top))
        return b.cast(b.cast(scaled, "float16"), "float32"), top
