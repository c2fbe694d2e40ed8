"""Lowerings of gemm, normalizations and quantization; forms that ONNX lacks are decomposed."""

from __future__ import annotations

import math

from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.engines.onnx_lowering.emitter import (
    ONNX_RUNTIME_DOMAIN,
    Emitter,
    NotLowered,
    Tensor,
    lowering,
)
from webnn_py.ir import Node, Value


def _shape(node: Node, number: int) -> tuple[int, ...]:
    value = node.inputs[number]
    assert value is not None
    return value.shape


@lowering
def gemm(e: Emitter, node: Node, a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
    """Write Gemm, which has the same options."""
    attrs = node.attrs
    left, right = int(attrs["a_transpose"]), int(attrs["b_transpose"])
    return e.op(
        "Gemm", a, b, c, alpha=attrs["alpha"], beta=attrs["beta"], transA=left, transB=right
    )


def _filled(e: Emitter, x: Tensor | None, number: float, like: Tensor, size: int) -> Tensor:
    return e.constant([number] * size, like.data_type) if x is None else x


@lowering
def batch_normalization(
    e: Emitter,
    node: Node,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Write BatchNormalization, which normalizes along the second dimension."""
    if node.attrs["axis"] != 1:
        raise NotLowered("ONNX normalizes batches along their second dimension alone")
    (size,) = _shape(node, 1)
    factor, summand = _filled(e, scale, 1, x, size), _filled(e, bias, 0, x, size)
    operands = (x, factor, summand, mean, variance)
    return e.op("BatchNormalization", *operands, epsilon=node.attrs["epsilon"])


@lowering
def instance_normalization(
    e: Emitter, node: Node, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Write InstanceNormalization in NCHW."""
    layout = node.attrs["layout"]
    size = _shape(node, 0)[layout.index("c")]
    factor, summand = _filled(e, scale, 1, x, size), _filled(e, bias, 0, x, size)
    moved = e.reorder(x, layout, "nchw")
    made = e.op("InstanceNormalization", moved, factor, summand, epsilon=node.attrs["epsilon"])
    return e.reorder(made, "nchw", layout)


@lowering
def layer_normalization(
    e: Emitter, node: Node, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Write LayerNormalization, which normalizes over the last dimensions."""
    axes = node.attrs["axes"]
    rank = node.output.rank
    if not axes or list(axes) != list(range(rank - len(axes), rank)):
        raise NotLowered("ONNX normalizes layers over their last dimensions alone")
    if scale is None:
        sizes = [node.output.shape[axis] for axis in axes]
        scale = e.op("Expand", e.like(1, x), e.constant(sizes))
    return e.op("LayerNormalization", x, scale, bias, axis=axes[0], epsilon=node.attrs["epsilon"])


def _scales(
    e: Emitter, node: Node, quantized: Value, scale: Tensor, zero: Tensor
) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Return scale and zero point in ONNX's shapes, and the attributes that place them.

    Blocks along one axis are written only for 4-bit integers, which only the exporter writes; with
    8 bits they are decomposed.
    """
    if quantized.data_type not in ("int8", "uint8", *PACKED_4BIT):
        raise NotLowered(f"ONNX does not quantize to {quantized.data_type} so")
    shape, blocks = node.output.shape, _shape(node, 1)
    if quantized.data_type in PACKED_4BIT and blocks not in ((), (1,)):
        (axis, *others) = [i for i, n in enumerate(shape) if n != blocks[i]] or [0]
        if not others:
            return scale, zero, {"axis": axis, "block_size": shape[axis] // blocks[axis]}
    if math.prod(blocks) == 1:
        return e.reshape(scale, []), e.reshape(zero, []), {}
    (axis, *others) = [i for i, count in enumerate(blocks) if count != 1]
    if others or blocks[axis] != shape[axis]:
        raise NotLowered("ONNX has other blocks")
    return e.reshape(scale, [-1]), e.reshape(zero, [-1]), {"axis": axis}


@lowering
def dequantize_linear(e: Emitter, node: Node, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Write DequantizeLinear."""
    value = node.inputs[0]
    assert value is not None
    factor, offset, where = _scales(e, node, value, scale, zero)
    return e.op("DequantizeLinear", x, factor, offset, to=scale.data_type, **where)


@lowering
def quantize_linear(e: Emitter, node: Node, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Write QuantizeLinear."""
    factor, offset, where = _scales(e, node, node.output, scale, zero)
    return e.op("QuantizeLinear", x, factor, offset, to=zero.data_type, **where)


@lowering
def matmul_integer(
    e: Emitter, node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None
) -> Tensor:
    """Write MatMulInteger, with one zero point of `a` and one for all or each column of `b`."""
    # A scalar stays as it is: ONNX Runtime fuses what is quantized and multiplied only then.
    if a_zero is not None and (shape := _shape(node, 2)):
        if math.prod(shape) != 1:
            raise NotLowered("ONNX Runtime has one zero point for all rows alone")
        a_zero = e.reshape(a_zero, [])
    if b_zero is not None and (shape := _shape(node, 3)):
        is_scalar = math.prod(shape) == 1
        if not is_scalar and (math.prod(shape[:-1]) != 1 or len(_shape(node, 1)) > 2):
            raise NotLowered("ONNX Runtime has zero points of columns for one matrix alone")
        b_zero = e.reshape(b_zero, [] if is_scalar else [shape[-1]])
    return e.op("MatMulInteger", a, b, a_zero, b_zero, to="int32")


MIN_BLOCK_ELEMENTS = 16
"""Least number of elements with one scale; ONNX Runtime accepts powers of 2 from here."""


def matmul_n_bits(
    e: Emitter, node: Node, x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None
) -> Tensor:
    """Write `matmul_packed` as ONNX Runtime's MatMulNBits, for engines that have it.

    Codes of other layouts are dequantized. float16 is computed in float32.
    """
    (columns, *layout), size = _shape(node, 1), node.attrs["block_size"]
    rows = _shape(node, 0)
    if len(layout) != 2 or len(rows) < 2:
        raise NotLowered("MatMulNBits takes the bytes of blocks alone")
    if size < MIN_BLOCK_ELEMENTS or size & (size - 1):
        raise NotLowered(f"MatMulNBits has no blocks of {size} weights")
    # Of scales and zero points that are no constants, ONNX Runtime's 8-bit products know nothing.
    are_constant = all(x is None or x.name in e.arrays for x in (scales, zeros))
    made = e.op(
        "MatMulNBits",
        e.cast(x, "float32"),
        codes,
        e.cast(scales, "float32"),
        zeros,
        K=rows[-1],
        N=columns,
        accuracy_level=4 if node.attrs["accuracy"] == "int8" and are_constant else 0,
        bits=node.attrs["bits"],
        block_size=size,
    )
    e.nodes[-1].domain = ONNX_RUNTIME_DOMAIN
    return e.cast(made, x.data_type)


def simplified_layer_normalization(e: Emitter, node: Node, x: Tensor, scale: Tensor) -> Tensor:
    """Write `rms_normalization` as ONNX Runtime's SimplifiedLayerNormalization."""
    axes, rank = node.attrs["axes"], node.output.rank
    if not axes or list(axes) != list(range(rank - len(axes), rank)):
        raise NotLowered("SimplifiedLayerNormalization takes the last dimensions alone")
    return e.op(
        "SimplifiedLayerNormalization", x, scale, axis=axes[0], epsilon=node.attrs["epsilon"]
    )


@lowering
def dynamic_quantize_linear(e: Emitter, node: Node, x: Tensor) -> list[Tensor]:
    """Write DynamicQuantizeLinear."""
    made = e.ops("DynamicQuantizeLinear", [x], [output.data_type for output in node.outputs])
    return [one for one in made if one is not None]
