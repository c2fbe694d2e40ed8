"""Handlers of ONNX Runtime's embedding operators, plain and quantized.

Source: ONNX Runtime, "Contrib Operators".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.core.dtypes import pack_4bit
from webnn_py.onnx.emitter import FOUR_BITS, Emitter
from webnn_py.onnx.handlers.attention import part
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, axis_in, check_rank, refuse


def _normalized(
    g: Emitter,
    ids: Tensor,
    rows: list[Any],
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    epsilon: float,
) -> list[Any]:
    """Return the layer-normalized sum of `rows`, the unmasked words per text, and the sum.

    Args:
        g: The emitter.
        ids: The word indices, [batch, length].
        rows: Tensors to add, which broadcast to [batch, length, hidden].
        gamma: Scale of the normalization, [hidden].
        beta: Bias of the normalization, [hidden].
        mask: 1 for words that count, [batch, length]; without a mask, the numbers are 0.
        epsilon: Term added to the variance.
    """
    total, *others = rows
    for one in others:
        total = g.add(total, one)
    made = g.layer_normalization(total, axes=[2], scale=gamma, bias=beta, epsilon=epsilon)
    if not any(g.outputs[1:2]):
        return [made, None, total]
    if mask is None:
        return [made, g.expand(g.array(np.zeros(1, np.int32)), [ids.shape[0]]), total]
    ones = g.to(g.equal(mask, g.constant(1, mask)), "int32")
    return [made, g.reduce_sum(ones, axes=[1]), total]


@handles("EmbedLayerNormalization", domain=OWN)
def embed_layer_normalization(
    g: Emitter,
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> Any:
    """Emit EmbedLayerNormalization: normalize the sum of word, position and segment embeddings."""
    check_rank(2, input_ids=input_ids)
    rows = [g.gather(word_embedding, input_ids)]
    if position_ids is None:
        rows.append(part(g, position_embedding, 0, 0, input_ids.shape[1]))
    else:
        rows.append(g.gather(position_embedding, position_ids))
    if segment_ids is not None and segment_embedding is not None:
        rows.append(g.gather(segment_embedding, segment_ids))
    return _normalized(g, input_ids, rows, gamma, beta, mask, epsilon)


@handles("QEmbedLayerNormalization", domain=OWN)
def quantized_embed_layer_normalization(
    g: Emitter,
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_scale: Tensor,
    position_scale: Tensor,
    segment_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_zero: Tensor,
    position_zero: Tensor,
    segment_zero: Tensor | None,
    gamma_zero: Tensor,
    beta_zero: Tensor,
    *,
    epsilon: float = 1e-12,
) -> Any:
    """Emit QEmbedLayerNormalization: gather rows of 8-bit tables, dequantize and normalize them.

    Only the gathered rows become floats.
    """

    def floats(x: Tensor, scale: Tensor, zero: Tensor) -> Any:
        apart = g.sub(g.to(x, scale.data_type), g.to(zero, scale.data_type))
        return g.mul(apart, scale)

    check_rank(2, input_ids=input_ids)
    places = part(g, position_embedding, 0, 0, input_ids.shape[1])
    rows = [
        floats(g.gather(word_embedding, input_ids), word_scale, word_zero),
        floats(places, position_scale, position_zero),
    ]
    if segment_ids and segment_embedding and segment_scale and segment_zero:
        rows.append(floats(g.gather(segment_embedding, segment_ids), segment_scale, segment_zero))
    factor, shift = floats(gamma, gamma_scale, gamma_zero), floats(beta, beta_scale, beta_zero)
    return _normalized(g, input_ids, rows, factor, shift, mask, epsilon)


def _unpacked(g: Emitter, x: Tensor, bits: int, data_type: str) -> Any:
    """Unpack bytes into floats along the last axis, 8 / bits per byte, the low bits first."""
    wide = g.to(x, data_type)
    if bits == 8:
        return wide
    parts, rest = [], wide
    for _ in range(8 // bits - 1):
        high = g.floor(g.mul(rest, 0.5**bits))
        parts.append(g.sub(rest, g.mul(high, float(2**bits))))
        rest = high
    apart = [g.reshape(one, [*x.shape, 1]) for one in [*parts, rest]]
    return g.reshape(g.concat(apart, x.rank), [*x.shape[:-1], x.shape[-1] * len(apart)])


def _as_bytes(g: Emitter, x: Tensor, bits: int) -> tuple[Tensor, int, int]:
    """Return the bytes of a table: two 4-bit elements per byte, or one if the columns are odd.

    Returns:
        The bytes, the bits per element in them, and the offset that makes int4 elements unsigned. A
        tensor of bytes is returned as is, with `bits` and offset 0.
    """
    if x.elem not in FOUR_BITS:
        return x, bits, 0
    moved = 8 if FOUR_BITS[x.elem] == "int4" else 0
    numbers = (x.known("4-bit contents").astype(np.int8) + moved).astype(np.uint8)
    if numbers.shape[-1] % 2:
        return g.array(numbers), 8, moved
    packed = pack_4bit(numbers).reshape(*numbers.shape[:-1], -1)
    return g.array(packed), 4, moved


def _each(g: Emitter, x: Tensor, axis: int, block: int, size: Any) -> Any:
    """Repeat each element `block` times along an axis, and crop the axis to `size`."""
    shape = list(x.shape)
    apart = g.reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    wide = g.expand(apart, [*shape[: axis + 1], block, *shape[axis + 1 :]])
    whole = g.reshape(wide, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]])
    return part(g, whole, axis, 0, size)


@handles("GatherBlockQuantized", domain=OWN)
def gather_block_quantized(
    g: Emitter,
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Any:
    """Emit GatherBlockQuantized: gather rows of a block-quantized table and dequantize them.

    Only the gathered rows become floats.
    """
    check_rank(data.rank, scales=scales, zero_points=zero_points)
    taken_at, axis = axis_in(gather_axis, data.rank), axis_in(quantize_axis, data.rank)
    is_typed = data.elem in FOUR_BITS
    if not is_typed and data.data_type != "uint8":
        refuse(f"a table of {data.data_type}")
    if taken_at == axis or taken_at == data.rank - 1:
        refuse(f"a table that is taken along axis {taken_at}, and quantized along axis {axis}")
    if bits not in (2, 4, 8) or block_size < 1:
        raise BrokenModelError(f"bits is {bits} and block_size {block_size}")

    def taken(x: Tensor) -> Any:
        return g.gather(x, indices, axis=taken_at)

    def numbers(x: Tensor, columns: Any) -> Any:
        packed, each, moved = _as_bytes(g, x, bits)
        made = _unpacked(g, taken(packed), each, scales.data_type)
        made = part(g, made, made.rank - 1, 0, columns)
        return g.sub(made, float(moved)) if moved else made

    columns = data.shape[-1] * (1 if is_typed else 8 // bits)
    made = numbers(data, columns)
    behind = axis + indices.rank - 1 if axis > taken_at else axis
    size = made.shape[behind]
    if is_dimension(size):
        refuse("a table of open size along the axis that it is quantized along")
    if zero_points is not None:
        zeros = numbers(zero_points, scales.shape[-1])
        made = g.sub(made, _each(g, zeros, behind, block_size, size))
    elif not is_typed:
        made = g.sub(made, float(2 ** (bits - 1)))
    return g.mul(made, _each(g, taken(scales), behind, block_size, size))
