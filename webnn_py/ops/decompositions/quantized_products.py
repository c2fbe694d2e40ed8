"""Decompositions of products of quantized matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.core.dimensions import fixed, span
from webnn_py.core.dtypes import PACKED_4BIT, MLOperandDataType, unpack_4bit
from webnn_py.core.errors import NotSupportedError
from webnn_py.ops.convolution import Conv2dFilterLayout, InputLayout, dims
from webnn_py.ops.decompositions.casts import wide
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand

MAX_EXACT_SUM = 1 << 24
"""Greatest magnitude up to which float32 sums of integers cannot round."""


@decomposition
def matmul_packed(
    g: GraphBuilder,
    x: MLOperand,
    codes: MLOperand,
    scales: MLOperand,
    zero_points: MLOperand | None,
    block_size: int,
    accuracy: str,
    bits: int,
    zero_point: int,
) -> MLOperand:
    """Dequantize the weights block by block, then multiply."""
    columns, blocks = scales.shape
    depth = x.shape[-1]
    whole = [columns, blocks, block_size]
    packed = bits == 4 and codes.rank == 3
    stored = [one for one in (codes, zero_points) if one is not None]
    is_known = all(g.array_of(one) is not None for one in stored)
    kind: MLOperandDataType = "uint4" if is_known else "uint8"
    numbers = _unpacked(g, codes, whole, kind) if packed else _in_blocks(g, codes, whole)
    each = [columns, blocks, 1]
    if zero_points is None:
        zeros = _filled(g, zero_point, numbers.data_type, each)
    elif packed:
        zeros = _unpacked(g, zero_points, each, kind)
    else:
        zeros = _in_blocks(g, zero_points, each)
    weights = g.dequantize_linear(numbers, g.reshape(scales, each), zeros)
    weights = g.reshape(weights, [columns, blocks * block_size])
    if blocks * block_size != depth:
        weights = g.slice(weights, [0, 0], [columns, depth])
    rows = g.reshape(x, [1, depth]) if x.rank == 1 else x
    made = g.matmul(rows, g.transpose(weights))
    return g.reshape(made, [columns]) if x.rank == 1 else made


def _filled(
    g: GraphBuilder, value: int, data_type: MLOperandDataType, shape: list[int]
) -> MLOperand:
    sizes = [fixed(size, "a dimension of the codes") for size in shape]
    return g.add_constant(np.full(sizes, value, _numpy_type(data_type)), data_type)


def _numpy_type(data_type: str) -> str:
    return "uint8" if data_type.startswith("u") else "int8"


def _in_blocks(g: GraphBuilder, x: MLOperand, shape: list[int]) -> MLOperand:
    """Reshape one integer an element to [columns, blocks, elements]; zeros fill the last block."""
    _, blocks, each = shape
    array, depth = g.array_of(x), blocks * each
    if x.rank == 3 or (x.data_type not in PACKED_4BIT and x.shape[1] == depth):
        return g.reshape(x, shape)
    if array is not None:
        filled = np.pad(array, [(0, 0), (0, depth - array.shape[1])])
        return g.add_constant(filled.reshape(shape), x.data_type)
    if x.data_type in PACKED_4BIT:
        raise NotSupportedError(
            f"operand of {x.data_type} that is no constant, expected a constant"
        )
    return g.reshape(g.pad(x, [0, 0], [0, depth - x.shape[1]]), shape)


def _unpacked(
    g: GraphBuilder, x: MLOperand, shape: list[int], data_type: MLOperandDataType
) -> MLOperand:
    """Unpack two unsigned 4-bit integers a byte to [columns, blocks, elements].

    Constants get `data_type`, uint4 or uint8; others become uint8.
    """
    columns, blocks, each = shape
    array = g.array_of(x)
    if array is not None:
        halves = unpack_4bit(array, "uint4", array.size * 2).reshape(len(array), -1)
        contents = np.ascontiguousarray(halves[:, : blocks * each]).reshape(shape)
        return g.add_constant(contents, data_type)
    pairs = wide(g, g.reshape(x, [columns, x.size // columns, 1]))
    sixteen = g.constant_of(16, pairs)
    high = g.floor(g.div(pairs, sixteen))
    both = g.concat([g.sub(pairs, g.mul(high, sixteen)), high], 2)
    rows = g.reshape(g.cast(both, "uint8"), [columns, 2 * (x.size // columns)])
    if rows.shape[1] != blocks * each:
        rows = g.slice(rows, [0, 0], [columns, blocks * each])
    return g.reshape(rows, shape)


@decomposition
def matmul_integer(
    g: GraphBuilder,
    a: MLOperand,
    b: MLOperand,
    a_zero_point: MLOperand | None,
    b_zero_point: MLOperand | None,
) -> MLOperand:
    """Multiply float32 parts whose sums cannot round, cast each to int32 and add them."""
    if a_zero_point is not None and a_zero_point.rank == 1:
        a_zero_point = g.reshape(a_zero_point, [a_zero_point.shape[0], 1])
    left, most_left = _shifted(g, a, a_zero_point)
    right, most_right = _shifted(g, b, b_zero_point)
    step, depth = MAX_EXACT_SUM // (most_left * most_right), a.shape[-1]
    if span(depth)[1] <= step:
        return g.cast(g.matmul(left, right), "int32")
    total = None
    for start in range(0, fixed(depth, "the columns of operand 'a'"), step):
        stop = min(start + step, depth)
        product = g.matmul(
            _part(g, left, left.rank - 1, start, stop), _part(g, right, right.rank - 2, start, stop)
        )
        made = g.cast(product, "int32")
        total = made if total is None else g.add(total, made)
    assert total is not None
    return total


@decomposition
def conv2d_integer(
    g: GraphBuilder,
    input: MLOperand,
    filter: MLOperand,
    input_zero_point: MLOperand | None,
    filter_zero_point: MLOperand | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: InputLayout,
    filter_layout: Conv2dFilterLayout,
) -> MLOperand:
    """Convolve float32 parts of the channels whose sums cannot round, and add them as int32."""
    if filter_zero_point is not None and filter_zero_point.rank == 1:
        shape = [filter_zero_point.size if letter == "o" else 1 for letter in filter_layout]
        filter_zero_point = g.reshape(filter_zero_point, shape)
    if input_zero_point is not None:
        input_zero_point = g.reshape(input_zero_point, [1] * 4)
    left, most_left = _shifted(g, input, input_zero_point)
    right, most_right = _shifted(g, filter, filter_zero_point)
    options: dict[str, Any] = {
        "padding": padding,
        "strides": strides,
        "dilations": dilations,
        "groups": groups,
        "input_layout": input_layout,
        "filter_layout": filter_layout,
    }
    channels, height, width = dims(filter.shape, filter_layout, "ihw")
    most = max(1, MAX_EXACT_SUM // (most_left * most_right * height * width))
    if channels <= most:
        return g.cast(g.conv2d(left, right, **options), "int32")
    axis = input_layout.index("c")
    # Between groups and their channels, so that a part holds some channels of each group.
    split = [*left.shape[:axis], groups, channels, *left.shape[axis + 1 :]]
    by_group = g.reshape(left, split)
    total = None
    for start in range(0, channels, most):
        stop = min(start + most, channels)
        part = _part(g, by_group, axis + 1, start, stop)
        part = g.reshape(
            part, [*left.shape[:axis], groups * (stop - start), *left.shape[axis + 1 :]]
        )
        taps = _part(g, right, filter_layout.index("i"), start, stop)
        made = g.cast(g.conv2d(part, taps, **options), "int32")
        total = made if total is None else g.add(total, made)
    assert total is not None
    return total


def _shifted(g: GraphBuilder, x: MLOperand, zero: MLOperand | None) -> tuple[MLOperand, int]:
    """Subtract the zero point in float32; return the greatest magnitude, too."""
    if zero is None:
        return wide(g, x), 128 if x.data_type == "int8" else 255
    return g.sub(wide(g, x), wide(g, zero)), 255


def _part(g: GraphBuilder, x: MLOperand, axis: int, start: int, stop: int) -> MLOperand:
    starts = [start if i == axis else 0 for i in range(x.rank)]
    return g.slice(x, starts, [stop - start if i == axis else n for i, n in enumerate(x.shape)])
