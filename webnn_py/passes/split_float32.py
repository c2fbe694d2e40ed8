"""Passes that multiply float32 as float16, with sums in float32, for devices with tensor cores.

An operand is scaled so that the largest element of each row lies at the top of float16's range,
and rounded: its high half. What that loses is the low half, rounded as well. One product of high
halves is precise to 11 bits. Three, of which two take one low half each, are precise to 21; they
are one product of three times the depth (Markidis et al., 2018). Those with a low half come first:
tensor cores truncate each sum that they add to, and these are small.

The graphs stay graphs of WebNN: a product of operands that are cast from float16. Its kernel reads
the float16. Attention and small products stay exact, as they gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

TOP = 2.0**15
"""Magnitude of the largest scaled element of a row; float16 ends at 65504."""

LEAST = 1e-30
"""Least magnitude that rows are scaled for, so that scales stay finite."""

MIN_MULTIPLICATIONS = {1: 1 << 29, 3: 1 << 31}
"""Multiplications from which a product in so many parts takes less time than the exact one.

The scales and halves of its operands take up to five small kernels.
"""

MIN_EXTENT = 16
"""Rows, columns and depth of a subgroup matrix."""

MAX_STEPS_TO_SOFTMAX = 6
"""Operators between a product of an attention and its softmax, at most."""


def multiply_by_halves(graph: Graph, target: Target) -> Graph:
    """Multiply large products and convolutions of float32 as one product of float16."""
    return _split(graph, parts=1)


def multiply_by_split_halves(graph: Graph, target: Target) -> Graph:
    """Multiply large products and convolutions of float32 as three products of float16."""
    return _split(graph, parts=3)


def _split(graph: Graph, parts: Literal[1, 3]) -> Graph:
    """Replace the products of a graph without open dimensions."""
    if graph.open_sizes:
        return graph
    attention = _Attention(graph)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if not _is_large(node, MIN_MULTIPLICATIONS[parts]) or attention.holds(node):
            return None
        factors = _Factors(rewriter, parts)
        made = factors.matmul(node) if node.op == "matmul" else factors.conv2d(node)
        return [made]

    return Rewriter(graph).run(rule)


def _is_large(node: Node, least: int) -> bool:
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


class _Attention:
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
    """Emitter of one product in halves.

    Args:
        rewriter: The rewriter of the graph.
        parts: Products of float16 for one of float32.
    """

    def __init__(self, rewriter: Rewriter, parts: Literal[1, 3]) -> None:
        self._b = rewriter
        self._parts = parts

    def matmul(self, node: Node) -> MLOperand:
        """Return the product of two matrices."""
        a, b = (self._b.map[value] for value in node.operands)
        rank = len(a.shape)
        left, left_top = self._halves(a, [rank - 1], rank - 1, is_left=True)
        rank = len(b.shape)
        right, right_top = self._halves(b, [rank - 2], rank - 2, is_left=False)
        return self._restored(self._b.matmul(left, right), left_top, right_top)

    def conv2d(self, node: Node) -> MLOperand:
        """Return a convolution; images and output channels have a scale each."""
        data, filter_, bias = node.inputs
        assert data is not None
        assert filter_ is not None
        layout, filters = node.attrs["input_layout"], node.attrs["filter_layout"]
        x, x_top = self._halves(self._b.map[data], [1, 2, 3], layout.index("c"), is_left=True)
        out = filters.index("o")
        others = [axis for axis in range(4) if axis != out]
        w, w_top = self._halves(self._b.map[filter_], others, filters.index("i"), is_left=False)
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

    def _halves(
        self, operand: MLOperand, axes: Sequence[int], depth: int, is_left: bool
    ) -> tuple[MLOperand, MLOperand]:
        """Return an operand's halves along `depth`, cast to float32, and its largest magnitudes.

        Args:
            operand: The operand.
            axes: Axes over which elements share a scale.
            depth: Axis along which the halves lie: low, high, high of a left operand, and high,
                low, high of a right one.
            is_left: Which of the two it is.
        """
        array = self._b.array_of(operand)
        if array is not None:
            return self._constant_halves(array, tuple(axes), depth, is_left)
        b = self._b
        top = b.reduce_max(b.abs(operand), axes=list(axes), keep_dimensions=True)
        top = b.max(top, b.constant_of(LEAST, operand))
        scaled = b.mul(operand, b.div(b.constant_of(TOP, operand), top))
        high = b.cast(scaled, "float16")
        if self._parts == 1:
            return b.cast(high, "float32"), top
        low = b.cast(b.sub(scaled, b.cast(high, "float32")), "float16")
        again = b.cast(scaled, "float16")  # not `high` twice: each part is written in its place
        order = [low, high, again] if is_left else [high, low, again]
        return b.cast(b.concat(order, depth), "float32"), top

    def _constant_halves(
        self, array: Array, axes: tuple[int, ...], depth: int, is_left: bool
    ) -> tuple[MLOperand, MLOperand]:
        """Return the same of a constant, computed now."""
        top = np.maximum(np.abs(array).max(axes, keepdims=True), np.float32(LEAST))
        scaled = array * (np.float32(TOP) / top)
        high = scaled.astype(np.float16)
        halves = high
        if self._parts == 3:
            low = (scaled - high.astype(np.float32)).astype(np.float16)
            halves = np.concatenate([low, high, high] if is_left else [high, low, high], depth)
        b = self._b
        constant = b.add_constant(np.ascontiguousarray(halves), "float16")
        return b.cast(constant, "float32"), b.add_constant(top, "float32")
