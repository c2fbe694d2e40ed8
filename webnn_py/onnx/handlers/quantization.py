"""Quantized operators, computed in floats or exact integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from webnn_py.core.dtypes import DTYPES
from webnn_py.onnx.emitter import FOUR_BITS, Emitter
from webnn_py.onnx.handlers import windows
from webnn_py.onnx.handlers.convolution import convolved
from webnn_py.onnx.handlers.linalg import product
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import (
    Array,
    BrokenModelError,
    Tensor,
    at_least,
    check_rank,
    of_array,
    refuse,
    webnn_type,
)

EXACT_PRODUCTS = (1 << 24) // (255 * 255)
"""Maximum number of products of 8-bit integers (258) whose sum is exact in float32."""


def _blocked(g: Emitter, part: Any, x: Tensor, axis: int, block_size: int) -> Any:
    """Reshape a scale or zero point for WebNN: the rank of `x`, sizes that divide its sizes."""
    at_least("block_size", block_size, 0)
    if block_size and part.rank == x.rank:
        at = x.axis(axis)
        if part.shape[at] * block_size != x.shape[at]:
            return _repeated(g, part, x, at, block_size)
        return part
    if part.rank == 0 or (part.rank == 1 and part.shape[0] == 1):
        return g.moved(part, [1] * x.rank)
    if part.rank == 1:
        at = x.axis(axis)
        return g.moved(part, [n if i == at else 1 for i, n in enumerate(x.shape)])
    return part


def _repeated(g: Emitter, part: Any, x: Tensor, axis: int, block_size: int) -> Any:
    count = x.shape[axis]
    g.afford(count, f"the blocks of axis {axis}")
    if part.shape[axis] != -(-count // block_size):
        raise BrokenModelError(
            f"its scale or zero point has shape {list(part.shape)}, expected one for each"
            f" {block_size} of {count} elements along axis {axis}"
        )
    places = np.arange(count, dtype=np.int64) // block_size
    return g.gather(part, g.array(places.astype(np.int32)), axis=axis)


def _zero_point(g: Emitter, like: Any, elem: int) -> Tensor:
    g.afford(math.prod(like.shape), "a zero point for each scale")
    dtype = np.dtype(webnn_type(elem))
    return g.array(np.zeros(like.shape, dtype))


@handles("QuantizeLinear")
def quantize_linear(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Any:
    """Return round(x / scale) + zero point, clamped to the range of the data type."""
    target = zero_point.elem if zero_point is not None else output_dtype or onnx.TensorProto.UINT8
    webnn_type(target)
    if not x.is_float:
        x = g.to(x, scale.data_type)
    scales = _blocked(g, g.to(scale, x.data_type), x, axis, block_size)
    zeros = (
        _zero_point(g, scales, target)
        if zero_point is None
        else _blocked(g, zero_point, x, axis, block_size)
    )
    return g.quantize_linear(x, scales, zeros)


@handles("DequantizeLinear")
def dequantize_linear(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Any:
    """Return (x - zero point) * scale."""
    scales = _blocked(g, scale, x, axis, block_size)
    if x.elem in FOUR_BITS:
        return _from_four_bits(g, x, scales, zero_point, axis)
    zeros = (
        _zero_point(g, scales, x.elem)
        if zero_point is None
        else _blocked(g, zero_point, x, axis, block_size)
    )
    made = g.dequantize_linear(x, scales, zeros)
    return g.to(made, webnn_type(output_dtype)) if output_dtype else made


def _from_four_bits(
    g: Emitter, x: Tensor, scales: Tensor, zero_point: Tensor | None, axis: int
) -> Any:
    """Dequantize 4-bit constants; give WebNN zero points in the shape of the scales."""
    kind = FOUR_BITS[x.elem]
    g.afford(math.prod(scales.shape), "a zero point for each scale")
    zeros = np.zeros(scales.shape, np.int8)
    if zero_point is not None:
        given = zero_point.known("zero_point").astype(np.int8)
        zeros = np.broadcast_to(given.reshape(zeros.shape), zeros.shape)
    contents = x.known("4-bit contents").astype(np.int8)
    return g.dequantize_linear(g.packed(contents, kind, x.name), scales, g.packed(zeros, kind))


def _in_rows(x: Tensor, what: str, rows: int, columns: int, sizes: str) -> Array:
    """Return constant bytes as [rows, columns].

    Raises:
        BrokenModelError: The contents are not that many bytes; `sizes` names the attributes.
    """
    contents = x.known(what)
    if contents.size != rows * columns or contents.dtype != np.uint8:
        raise BrokenModelError(
            f"{what} are {x.data_type} {list(x.shape)}, expected {rows} x {columns}"
            f" bytes for {sizes}"
        )
    return contents.reshape(rows, columns)


@handles("MatMulNBits", domain=OWN)
def matmul_n_bits(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,  # noqa: N803 - ONNX Runtime's name
    N: int,  # noqa: N803
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
) -> Any:
    """Multiply by 4-bit or 8-bit weights, [N, blocks, bytes]; each block has a scale.

    Source: ONNX Runtime, "com.microsoft.MatMulNBits".
    """
    if g_idx is not None:
        refuse("weights in another order (g_idx)")
    if bits not in (4, 8):
        refuse(f"weights of {bits} bits")
    for name, size in {"K": K, "N": N, "block_size": block_size}.items():
        at_least(name, size, 1)
    blocks = -(-K // block_size)
    sizes = f"K = {K}, N = {N} and block_size = {block_size}"
    whole = _in_rows(b, "its weights", N, blocks * block_size * bits // 8, sizes)
    if zero_points is not None and zero_points.is_float:
        refuse("zero points that are floats")
    zeros = None
    if zero_points is not None:
        zeros = _in_rows(zero_points, "its zero_points", N, -(-blocks * bits // 8), sizes)
    made = g.matmul_packed(
        a,
        of_array(whole.reshape(N, blocks, -1), b.name),
        g.moved(scales, [N, blocks]),
        None if zeros is None else of_array(zeros),
        block_size=block_size,
        accuracy=_ACCURACY.get(accuracy_level, "float32"),
    )
    return made if bias is None else g.add(made, bias)


_ACCURACY = {2: "float16", 4: "int8"}
"""Data types by the `accuracy_level` of MatMulNBits."""
_POSITIVE_FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
# fmt: off
_OF_FOUR_BITS = {
    0: (*_POSITIVE_FP4, *(-number for number in _POSITIVE_FP4)),
    1: (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ),
}
# fmt: on
"""Values of the codes by `quant_type`, as in bitsandbytes: FP4 and NF4 (normal distribution)."""


@handles("MatMulBnb4", domain=OWN)
def matmul_bnb4(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    absmax: Tensor,
    *,
    K: int,  # noqa: N803 - ONNX Runtime's name
    N: int,  # noqa: N803
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,  # noqa: N803
) -> Any:
    """Multiply by weights of 4-bit codes, [N, K], which the import converts to floats.

    Source: ONNX Runtime, "com.microsoft.MatMulBnb4".
    """
    if not transB or quant_type not in _OF_FOUR_BITS:
        refuse(f"transB = {transB} and quant_type = {quant_type}")
    table = np.asarray(_OF_FOUR_BITS[quant_type], np.float32)
    for name, size in {"K": K, "N": N, "block_size": block_size}.items():
        at_least(name, size, 1)
    sizes = f"K = {K}, N = {N} and block_size = {block_size}"
    packed = _in_rows(b, "its weights", 1, -(-K * N // 2), sizes).reshape(-1)
    scales = absmax.known("absmax").reshape(-1)
    if len(scales) * block_size < K * N:
        raise BrokenModelError(f"absmax has {len(scales)} elements, too few for {sizes}")
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: K * N]
    wide = table[codes] * scales[np.arange(K * N) // block_size]
    weights = of_array(wide.astype(scales.dtype).reshape(N, K), b.name)
    return product(g, a, g.transpose(weights))


def _without_zero(g: Emitter, x: Any, zero_point: Any, data_type: str, axis: int | None) -> Any:
    """Subtract the zero point, one number or one for each position along an axis."""
    wide = g.cast(x, data_type)
    if zero_point is None:
        return wide
    if zero_point.rank == 1 and axis is not None and zero_point.shape[0] > 1:
        shape = [-1 if i == axis % x.rank else 1 for i in range(x.rank)]
        shape[axis % x.rank] = zero_point.shape[0]
        zero_point = g.reshape(zero_point, shape)
    elif zero_point.rank == 1:
        zero_point = g.reshape(zero_point, [1] * x.rank)
    return g.sub(wide, g.cast(zero_point, data_type))


def _int_matmul(g: Emitter, a: Any, b: Any, a_zero: Tensor | None, b_zero: Tensor | None) -> Any:
    """Multiply 8-bit integers exactly; a vector counts as a matrix of one row or column."""
    check_rank(1, 8, a=a, b=b)
    left = g.reshape(a, [1, a.shape[0]]) if a.rank == 1 else a
    right = g.reshape(b, [b.shape[0], 1]) if b.rank == 1 else b
    zeros = {"a_zero_point": a_zero, "b_zero_point": b_zero}
    given = {name: zero for name, zero in zeros.items() if zero is not None}
    made = g.matmul_integer(left, right, **given)
    shape = list(made.shape)
    if a.rank == 1:
        del shape[-2]
    if b.rank == 1:
        del shape[-1]
    return g.moved(made, shape)


@handles("MatMulInteger")
def matmul_integer(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
) -> Any:
    """Multiply 8-bit integer matrices into int32."""
    return _int_matmul(g, a, b, a_zero_point, b_zero_point)


def _requantized(g: Emitter, total: Any, factor: Any, scale: Any, zero_point: Tensor) -> Any:
    """Multiply sums by a factor and quantize them to the zero point's data type."""
    info = DTYPES[zero_point.data_type]
    wide = g.mul(g.cast(total, "float32"), factor)
    rounded = g.round_even(g.div(wide, scale))
    moved = g.add(rounded, g.cast(zero_point, "float32"))
    return g.cast(g.clamp(moved, min_value=info.min, max_value=info.max), info.name)


@handles("QLinearMatMul")
def qlinear_matmul(
    g: Emitter,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Any:
    """Multiply quantized matrices and quantize the product."""
    total = _int_matmul(g, a, b, a_zero_point, b_zero_point)
    scales = [g.to(one, "float32") for one in (a_scale, b_scale, y_scale)]
    column = scales[0]
    if column.rank == 1 and column.shape[0] > 1:
        column = g.reshape(column, [column.shape[0], 1])
    return _requantized(g, total, g.mul(column, scales[1]), scales[2], y_zero_point)


def _int_conv(
    g: Emitter, x: Any, w: Any, x_zero: Any, w_zero: Any, options: dict[str, Any], group: int
) -> Any:
    check_rank(3, 10, x=x)
    check_rank(x.rank, w=w)
    at_least("group", group, 1)
    over = windows.placed(x, w.shape[2:], **options)
    left = _without_zero(g, x, x_zero, "float32", 1)
    right = _without_zero(g, w, w_zero, "float32", 0)
    return convolved(g, left, right, None, over, group)


@handles("ConvInteger")
def conv_integer(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Convolve 8-bit integers into int32.

    Channels are split into parts whose sums are exact in float32.
    """
    options = {"strides": strides, "dilations": dilations, "auto_pad": auto_pad, "pads": pads}
    check_rank(3, 10, x=x)
    check_rank(x.rank, w=w)
    at_least("group", group, 1)
    taps = int(np.prod(w.shape[2:]))
    per_part = EXACT_PRODUCTS // taps
    if w.shape[1] <= per_part:
        return g.cast(_int_conv(g, x, w, x_zero_point, w_zero_point, options, group), "int32")
    if group != 1 or not per_part:
        refuse(f"sums of {taps * w.shape[1]} products of 8-bit integers are not exact in float32")
    total: Any = None
    for start in range(0, w.shape[1], per_part):
        count = min(per_part, w.shape[1] - start)
        left, right = (
            g.slice(one, [0, start, *[0] * (x.rank - 2)], [one.shape[0], count, *one.shape[2:]])
            for one in (x, w)
        )
        made = g.cast(_int_conv(g, left, right, x_zero_point, w_zero_point, options, 1), "int32")
        total = made if total is None else g.add(total, made)
    return total


@handles("QLinearConv")
def qlinear_conv(
    g: Emitter,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Convolve quantized numbers and quantize the result; sums are rounded to float32."""
    options = {"strides": strides, "dilations": dilations, "auto_pad": auto_pad, "pads": pads}
    total = _int_conv(g, x, w, x_zero_point, w_zero_point, options, group)
    channels = [1, w.shape[0], *[1] * (x.rank - 2)]
    if b is not None:
        total = g.add(total, g.reshape(g.cast(b, "float32"), channels))
    scale = w_scale
    if w_scale.rank == 1 and w_scale.shape[0] > 1:
        scale = g.reshape(w_scale, channels)
    return _requantized(g, total, g.mul(x_scale, scale), y_scale, y_zero_point)


@handles("DynamicQuantizeLinear")
def dynamic_quantize_linear(g: Emitter, x: Tensor) -> Any:
    """Quantize to uint8 by the input's own range, extended to include 0."""
    return g.dynamic_quantize_linear(x)
