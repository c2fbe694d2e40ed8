"""Products of 8-bit integers as sums of products of signed codes, for subgroup matrices.

The kernels multiply codes as they are stored; unsigned ones minus 128. Zero points follow from sums
of rows and columns: sum((a - x) * (b - y)) = sum(a * b) - x * sum(b) - y * sum(a) + k * x * y. The
nodes exist between `legalize` and the kernels only; `op_traits` tells fusion about them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter

CODES_PRODUCT = "matmul_codes"
"""Operands: [..., m, k] and [..., k, n] of 8-bit integers. The output is int32."""
CODES_CONVOLUTION = "conv2d_codes"
"""Operands: an image and a filter of 8-bit integers, and the zero point that pads the image, or
None. Attributes: those of conv2d. The output is int32."""

MIN_ROWS = 16
"""Rows of a product from which matrices are not mostly empty."""
MIN_GROUP_CHANNELS = 8
"""Output channels of a group from which a convolution is a matrix product."""
SIGN = 128
"""Difference between unsigned and signed codes."""


def is_integer_product(node: Node, features: Features) -> bool:
    """Whether a device multiplies the integers of a node by subgroup matrices."""
    if features.i8_matrix is None or node.op not in ("conv2d_integer", "matmul_integer"):
        return False
    if not is_open(node.output.shape) and buffer_bytes(node.output) > features.binding_bytes:
        return False
    if node.op == "matmul_integer":
        return True
    right = node.inputs[1]
    assert right is not None
    (out,) = dims(right.shape, node.attrs["filter_layout"], "o")
    has_zero_point = node.inputs[3] is not None
    return out // node.attrs["groups"] >= MIN_GROUP_CHANNELS and not has_zero_point


def fills_matrices(node: Node) -> bool:
    """Whether a node is no product of integers with so few rows that floats are faster.

    Where sizes are open, there may be many rows.
    """
    if node.op != "matmul_integer":
        return True
    left = node.inputs[0]
    assert left is not None
    return is_open(left.shape) or sampled(math.prod(left.shape[:-1])) >= MIN_ROWS


def multiply_codes(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """Return a product of integers as a product of codes and its corrections."""
    if not is_integer_product(node, features):
        return None
    corrected = _Corrected(rewriter)
    return [corrected.matmul(node) if node.op == "matmul_integer" else corrected.conv2d(node)]


class _Corrected:
    """Emitter of products of codes with corrections for zero points."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._b = rewriter

    def _emit(self, op: str, node: Node, attrs: dict[str, Any], *inputs: Any) -> MLOperand:
        values = tuple(None if one is None else value_of(one) for one in inputs)
        output = Value("int32", node.output.shape)
        (made,) = self._b.emit(Node(op, values, attrs, (output,), node.label))
        return made

    def conv2d(self, node: Node) -> MLOperand:
        """Return a convolution; the padding has the input's zero point, too."""
        x, w, zero, _ = (None if one is None else self._b.map[one] for one in node.inputs)
        assert x is not None
        assert w is not None
        layout, filter_layout = node.attrs["input_layout"], node.attrs["filter_layout"]
        x, w = self._in_fours(node, x, w, zero)
        made = self._emit(CODES_CONVOLUTION, node, dict(node.attrs), x, w, zero)
        signed = self._signed_zero(x, zero)
        if signed is None:
            return made
        axes = [axis for axis, letter in enumerate(filter_layout) if letter != "o"]
        shape = [w.shape[filter_layout.index("o")] if letter == "c" else 1 for letter in layout]
        taps = self._shaped(self._sums(w, axes), shape)
        return self._less(made, self._times(taps, self._shaped(signed, [1] * 4)))

    def _in_fours(
        self, node: Node, x: MLOperand, w: MLOperand, zero: MLOperand | None
    ) -> tuple[MLOperand, MLOperand]:
        """Return an image and a filter with channels added up to a multiple of four.

        A kernel loads four neighboring codes at once. The channels add nothing to the sums, as
        those of the filter are 0.
        """
        layout, filter_layout = node.attrs["input_layout"], node.attrs["filter_layout"]
        array, of_zero = self._b.array_of(w), self._b.array_of(zero)
        more = -x.shape[-1] % 4
        if not more or layout != "nhwc" or node.attrs["groups"] != 1 or array is None:
            return x, w
        padded = [(0, more if letter == "i" else 0) for letter in filter_layout]
        w = self._b.add_constant(np.pad(array, padded), w.data_type)
        # The correction of the zero point counts the filter's sums alone: any number does.
        number = 0 if of_zero is None else int(of_zero.reshape(-1)[0])
        return self._b.pad(x, [0, 0, 0, 0], [0, 0, 0, more], value=number), w

    def matmul(self, node: Node) -> MLOperand:
        """Return a product of matrices."""
        a, b, *zeros = (None if one is None else self._b.map[one] for one in node.inputs)
        assert a is not None
        assert b is not None
        made = self._emit(CODES_PRODUCT, node, {}, a, self._along_depth(b))
        rows, columns = zeros
        if rows is not None and rows.rank == 1 and rows.size > 1:
            rows = self._b.reshape(rows, [rows.size, 1])
        left, right = self._signed_zero(a, rows), self._signed_zero(b, columns)
        if left is not None:
            made = self._less(made, self._times(self._sums(b, [b.rank - 2]), left))
        if right is not None:
            sums = self._sums(a, [a.rank - 1])
            if left is not None:
                depth = self._b.constant_of(a.shape[-1], made)
                sums = self._less(sums, self._times(left, depth))
            made = self._less(made, self._times(sums, right))
        return made

    def _along_depth(self, matrix: MLOperand) -> MLOperand:
        """Return a constant matrix as a view of one that is contiguous along k."""
        array = self._b.array_of(matrix)
        if array is None or array.ndim != 2:
            return matrix
        stored = self._b.add_constant(np.ascontiguousarray(array.T), matrix.data_type)
        return self._b.transpose(stored)

    def _signed_zero(self, codes: MLOperand, zero: MLOperand | None) -> MLOperand | None:
        """Return the zero point of signed codes as int32, or None if it is 0."""
        shift = SIGN if codes.data_type == "uint8" else 0
        array = self._b.array_of(zero)
        if zero is None or array is not None:
            number = np.asarray(0 if array is None else array, np.int32) - np.int32(shift)
            return self._constant(number) if number.any() else None
        wide = self._b.cast(zero, "int32")
        return self._b.sub(wide, self._b.constant_of(shift, wide)) if shift else wide

    def _sums(self, codes: MLOperand, axes: list[int]) -> MLOperand:
        """Return sums of signed codes along some axes, as int32."""
        shift = SIGN if codes.data_type == "uint8" else 0
        array, count = self._b.array_of(codes), math.prod(codes.shape[axis] for axis in axes)
        if array is not None:
            sums = array.sum(tuple(axes), np.int32, keepdims=True) - np.int32(shift * count)
            return self._constant(sums)
        wide = self._b.cast(codes, "int32")
        made = self._b.reduce_sum(wide, axes=axes, keep_dimensions=True)
        return self._b.sub(made, self._b.constant_of(shift * count, made)) if shift else made

    def _shaped(self, x: MLOperand, shape: list[int]) -> MLOperand:
        array = self._b.array_of(x)
        return self._b.reshape(x, shape) if array is None else self._constant(array.reshape(shape))

    def _times(self, x: MLOperand, y: MLOperand) -> MLOperand:
        """Multiply, at once if both are constants."""
        arrays = self._b.array_of(x), self._b.array_of(y)
        if arrays[0] is None or arrays[1] is None:
            return self._b.mul(x, y)
        return self._constant(arrays[0] * arrays[1])

    def _less(self, x: MLOperand, y: MLOperand) -> MLOperand:
        arrays = self._b.array_of(x), self._b.array_of(y)
        if arrays[0] is None or arrays[1] is None:
            return self._b.sub(x, y)
        return self._constant(arrays[0] - arrays[1])

    def _constant(self, array: Any) -> MLOperand:
        return self._b.add_constant(np.asarray(array, np.int32), "int32")  # no scalar of NumPy's


def flops_of_codes(node: Node) -> int:
    """Return the operations of a product of codes: two for each pair of codes that meet."""
    left, right = node.inputs[:2]
    assert left is not None
    assert right is not None
    if node.op == CODES_PRODUCT:
        return 2 * node.output.size * left.shape[-1]
    (out,) = dims(right.shape, node.attrs["filter_layout"], "o")
    return 2 * node.output.size * (right.size // out)
