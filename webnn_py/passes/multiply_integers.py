"""Pass that multiplies quantized operands as the integers that they are.

The product of dequantized operands, (a - za) * sa and (b - zb) * sb, is the product of the integers
times sa * sb. Engines with kernels for `matmul_integer` and `conv2d_integer` read a quarter of the
bytes so, and sum exactly. The pass looks for dequantize_linear, and for casts of bytes from which a
zero point may be subtracted, as importers write them.

Requires: quantized weights are no floats yet, so it runs before `fold_constants`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.core.dtypes import DTYPES
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

BYTES = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class _Codes:
    """A quantized operand: (codes - zero_point) * scale.

    Attributes:
        codes: 8-bit integers.
        zero_point: Of the rank of the codes, or one number; None for 0.
        scale: The same; None for 1.
    """

    codes: MLOperand
    zero_point: MLOperand | None = None
    scale: MLOperand | None = None

    @property
    def parameters(self) -> list[MLOperand]:
        """The scale and the zero point, those that there are."""
        return [one for one in (self.scale, self.zero_point) if one is not None]

    def is_one_along(self, *axes: int) -> bool:
        """Whether scale and zero point are the same along some axes of the codes."""
        rank = self.codes.rank
        return all(
            one.size == 1 or (one.rank == rank and all(one.shape[axis] == 1 for axis in axes))
            for one in self.parameters
        )


def multiply_integers(graph: Graph, target: Target) -> Graph:
    """Multiply and convolve quantized operands as integers, where the engine has a kernel."""
    producers = graph.producers

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        emit = _RULES.get(node.op)
        if emit is None:
            return None
        operands = [value for value in node.inputs[:2] if value is not None]
        found = [_codes_of(rewriter, producers, value) for value in operands]
        left, right = found
        if left is None or right is None:
            return None
        made = emit(rewriter, node, left, _without_zeros(rewriter, right))
        if made is None or not target.has_kernel(made.integers):
            return None
        return [made.output]

    return Rewriter(graph).run(rule)


@dataclass(frozen=True, slots=True)
class _Product:
    """The node of a product of integers, and the operand that replaces the product of floats."""

    integers: Node
    output: MLOperand


def _codes_of(rewriter: Rewriter, producers: Mapping[Value, Node], value: Value) -> _Codes | None:
    """Return the quantized operand that a value dequantizes, or None."""
    node = producers.get(value)
    if node is None:
        return None
    operands = list(node.operands)
    codes = rewriter.map[operands[0]]
    match node.op:
        case "dequantize_linear" if codes.data_type in BYTES:
            scale, zero = (rewriter.map[operand] for operand in operands[1:])
            return _Codes(codes, _unless_zeros(rewriter, zero), scale)
        case "cast" if codes.data_type in BYTES:
            return _Codes(codes)
        case "sub" if node.output.shape == operands[0].shape:
            made = _codes_of(rewriter, producers, operands[0])
            zero_of = _codes_of(rewriter, producers, operands[1])
            if made is None or made.parameters or zero_of is None or zero_of.parameters:
                return None
            if zero_of.codes.data_type != made.codes.data_type:
                return None
            return replace(made, zero_point=_unless_zeros(rewriter, zero_of.codes))
        case "transpose":
            made = _codes_of(rewriter, producers, operands[0])
            if made is None or any(one.size != 1 for one in made.parameters):
                return None
            order = node.attrs["permutation"]
            return replace(made, codes=rewriter.transpose(made.codes, permutation=order))
    return None


def _known(rewriter: Rewriter, operand: MLOperand | None) -> Array | None:
    """Return the array of a constant, which may be reshaped; else None."""
    if operand is None:
        return None
    array: Array | None = rewriter.array_of(operand)
    node = rewriter.producer_of(operand)
    if node is None or node.op != "reshape":
        return array
    array = _known(rewriter, rewriter.map[next(node.operands)])
    return None if array is None else array.reshape(operand.shape)


def _unless_zeros(rewriter: Rewriter, zero_point: MLOperand) -> MLOperand | None:
    array = _known(rewriter, zero_point)
    return zero_point if array is None or array.any() else None


def _without_zeros(rewriter: Rewriter, weights: _Codes) -> _Codes:
    """Return constant weights as int8 whose zero point is 0, if they all fit into int8."""
    array, zero = _known(rewriter, weights.codes), weights.zero_point
    zeros = _known(rewriter, zero)
    if array is None or (zero is not None and zeros is None):
        return weights
    moved: Array = array.astype(np.int16)
    if zeros is not None:
        moved = moved - zeros.astype(np.int16)
    info = DTYPES["int8"]
    if moved.shape != array.shape or moved.min() < info.min or moved.max() > info.max:
        return weights
    codes = weights.codes
    if zeros is not None or codes.data_type != "int8":
        codes = rewriter.add_constant(moved.astype(np.int8), "int8")
    return replace(weights, codes=codes, zero_point=None)


def _scaled(
    rewriter: Rewriter, node: Node, sums: MLOperand, scales: list[MLOperand | None], alpha: float
) -> _Product:
    """Multiply sums of integers by the scales, in float32."""
    integers = rewriter.producer_of(sums)
    assert integers is not None
    made, factor = rewriter.cast(sums, "float32"), None
    for scale in scales:
        if scale is not None:
            wide = rewriter.cast(scale, "float32") if scale.data_type != "float32" else scale
            factor = wide if factor is None else rewriter.mul(factor, wide)
    if alpha != 1:
        number = rewriter.constant_of(alpha, made)
        factor = number if factor is None else rewriter.mul(factor, number)
    if factor is not None:
        made = rewriter.mul(made, factor)
    if node.output.data_type != "float32":
        made = rewriter.cast(made, node.output.data_type)
    return _Product(integers, made)


def _convolution(rewriter: Rewriter, node: Node, data: _Codes, filters: _Codes) -> _Product | None:
    """Return a convolution, whose input has one scale and whose output channels have one each."""
    layout, filter_layout = node.attrs["input_layout"], node.attrs["filter_layout"]
    out = filter_layout.index("o")
    others = [axis for axis in range(4) if axis != out]
    if not data.is_one_along(0, 1, 2, 3) or not filters.is_one_along(*others):
        return None
    shape = [filters.codes.shape[out] if letter == "c" else 1 for letter in layout]
    options = {name: value for name, value in node.given.items() if name != "bias"}
    sums = rewriter.conv2d_integer(
        data.codes,
        filters.codes,
        input_zero_point=_flat(rewriter, data.zero_point),
        filter_zero_point=_flat(rewriter, filters.zero_point),
        **options,
    )
    by_channel = filters.scale
    if by_channel is not None:
        by_channel = rewriter.reshape(by_channel, shape if by_channel.size > 1 else [1] * 4)
    scale = data.scale
    if scale is not None and scale.rank != 4:
        scale = rewriter.reshape(scale, [1] * 4)
    made = _scaled(rewriter, node, sums, [scale, by_channel], 1)
    bias = node.inputs[2]
    if bias is None:
        return made
    added = rewriter.reshape(rewriter.map[bias], shape)
    return replace(made, output=rewriter.add(made.output, added))


def _flat(rewriter: Rewriter, zero_point: MLOperand | None) -> MLOperand | None:
    """Return a zero point as one number, or as [n]."""
    if zero_point is None or zero_point.rank == 0:
        return zero_point
    return rewriter.reshape(zero_point, [] if zero_point.size == 1 else [zero_point.size])


def _matmul(rewriter: Rewriter, node: Node, a: _Codes, b: _Codes) -> _Product | None:
    """Return a product whose rows on the left and columns on the right have one scale each."""
    return _multiplied(rewriter, node, a, b, 1)


def _multiplied(
    rewriter: Rewriter, node: Node, a: _Codes, b: _Codes, alpha: float
) -> _Product | None:
    if is_open([*a.codes.shape[-1:], *b.codes.shape]):
        return None
    if min(a.codes.rank, b.codes.rank) < 2 or not (a.is_one_along(-1) and b.is_one_along(-2)):
        return None
    zeros = [
        _flat(rewriter, zero) if zero is not None and zero.size == 1 else zero
        for zero in (a.zero_point, b.zero_point)
    ]
    sums = rewriter.matmul_integer(a.codes, b.codes, a_zero_point=zeros[0], b_zero_point=zeros[1])
    scales = [
        rewriter.reshape(scale, []) if scale is not None and scale.size == 1 else scale
        for scale in (a.scale, b.scale)
    ]
    return _scaled(rewriter, node, sums, scales, alpha)


def _gemm(rewriter: Rewriter, node: Node, a: _Codes, b: _Codes) -> _Product | None:
    """Return a product and its sum with a third operand."""
    attrs = node.attrs
    if attrs["a_transpose"]:
        a = _transposed(rewriter, a)
    if attrs["b_transpose"]:
        b = _transposed(rewriter, b)
    made = _multiplied(rewriter, node, a, b, attrs["alpha"])
    third = node.inputs[2]
    if made is None or third is None:
        return made
    added = rewriter.map[third]
    if attrs["beta"] != 1:
        added = rewriter.mul(added, rewriter.constant_of(attrs["beta"], added))
    return replace(made, output=rewriter.add(made.output, added))


def _transposed(rewriter: Rewriter, matrix: _Codes) -> _Codes:
    def turned(one: MLOperand | None) -> MLOperand | None:
        return one if one is None or one.rank < 2 else rewriter.transpose(one)

    codes = rewriter.transpose(matrix.codes)
    return _Codes(codes, turned(matrix.zero_point), turned(matrix.scale))


_RULES = {"conv2d": _convolution, "matmul": _matmul, "gemm": _gemm}
