"""Multi-head attention of encoders and decoders, as ONNX Runtime defines it.

Source: ONNX Runtime, "Contrib Operators".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.attention import (
    attended,
    behind,
    causal_mask,
    divided,
    heads,
    int32,
    masked,
    merged,
    part,
    places,
)
from webnn_py.onnx.handlers.fused import matmul_integer_to_float
from webnn_py.onnx.handlers.linalg import product
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


def _padding(g: Emitter, mask: Tensor, batch: Any, length: Any, like: Tensor, filler: float) -> Any:
    """Return the bias of a key mask: 0 for keys that count, `filler` for padding.

    Args:
        g: The emitter.
        mask: One of five forms. [batch]: the end of the keys. [2 * batch]: the ends, then the
            starts. [3 * batch + 2]: only the ends are read. [batch, length] or
            [batch, rows, length]: positive where keys count. [batch or 1, 1]: no mask.
        batch: Batch size.
        length: Number of keys.
        like: Tensor of the result's data type.
        filler: The number added to the scores of padding.

    Returns:
        [batch, 1, rows or 1, length]; None for no mask.
    """
    if mask.rank == 2 and mask.shape[1] == 1 and length != 1:
        return None
    if mask.rank == 1:
        at = places(g, length, 1, 2)
        ends = g.reshape(g.to(part(g, mask, 0, 0, batch), "int32"), [batch, 1])
        keep = g.lesser(at, ends)
        if mask.shape[0] == 2 * batch:
            first = g.reshape(g.to(part(g, mask, 0, batch, batch), "int32"), [batch, 1])
            keep = g.logical_and(keep, g.greater_or_equal(at, first))
        elif not any(mask.shape[0] == size for size in (batch, 3 * batch + 2)):
            refuse(f"a mask of shape {list(mask.shape)} for {batch} batches")
    elif mask.rank in (2, 3):
        keep = g.greater(mask, g.constant(0, mask))
    else:
        refuse(f"a mask of rank {mask.rank}")
    rows = keep.shape[1] if keep.rank == 3 else 1
    keep = g.reshape(keep, [keep.shape[0], 1, rows, keep.shape[-1]])
    return g.where(keep, g.constant(0, like), g.constant(filler, like))


def _attended(
    g: Emitter,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    before: Any,
    mask: Tensor | None,
    bias: Tensor | None,
    unidirectional: int,
    filler: float,
    scale: float,
) -> Any:
    """Compute attention of all heads, [batch, rows, hidden].

    `before` is the number of past keys; causal queries start at that position.
    """
    (batch, _, rows, _), length = queries.shape, keys.shape[2]
    if mask is not None:
        padding = _padding(g, mask, batch, length, queries, filler)
        bias = padding if bias is None or padding is None else g.add(bias, padding)
    keep = None
    is_causal = bool(unidirectional) and rows != 1
    if unidirectional and before + rows != length:
        is_causal = False
        first = None if before == 0 else g.reshape(int32(g, before), [1, 1])
        keep = causal_mask(g, rows, length, first)
    mask = masked(g, bias, keep)
    return merged(g, attended(g, queries, keys, values, scale=scale, mask=mask, causal=is_causal))


def _packed(g: Emitter, x: Tensor, count: int) -> list[Any]:
    """Split [batch, length, heads, count, each] into tensors [batch, heads, length, each]."""
    batch, length, of, _, each = x.shape
    parts = (g.reshape(part(g, x, 3, i, 1), [batch, length, of, each]) for i in range(count))
    return [g.transpose(one, permutation=[0, 2, 1, 3]) for one in parts]


def _of_heads(
    g: Emitter,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    count: int,
) -> list[Any]:
    """Return queries, keys and values, each [batch, heads, length, each], from any layout."""
    if query.rank == 5 or (key is not None and key.rank == 5):
        if bias is not None:
            refuse("a bias of operands that are packed")
        if query.rank == 5:
            return _packed(g, query, 3)
        assert key is not None
        return [heads(g, query, count), *_packed(g, key, 2)]
    if key is None or value is None:
        refuse("queries, keys and values side by side in three dimensions")
    parts, start = [], 0
    check_rank(3, query=query)
    check_rank(4 if key.rank == 4 else 3, key=key, value=value)
    for one in (query, key, value):
        if one.rank == 4:  # already split into heads
            parts.append(one)
            continue
        size = one.shape[2]
        if bias is not None:
            one = g.add(one, part(g, bias, 0, start, size))
        parts.append(heads(g, one, count))
        start += size
    return parts


@handles("MultiHeadAttention", domain=OWN)
def multi_head_attention(
    g: Emitter,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:
    """Compute attention of projected operands, after adding the projection's biases."""
    if past_sequence_length is not None or cache_indirection is not None:
        refuse("caches that are written in place (past_sequence_length, cache_indirection)")
    check_rank(4, past_key=past_key, past_value=past_value)
    q, k, v = _of_heads(g, query, key, value, bias, num_heads)
    keys, values = behind(g, past_key, k), behind(g, past_value, v)
    made = _attended(
        g,
        q,
        keys,
        values,
        before=0 if past_key is None else past_key.shape[2],
        mask=key_padding_mask,
        bias=attention_bias,
        unidirectional=unidirectional,
        filler=mask_filter_value,
        scale=scale,
    )
    return [made, keys, values]


def _sizes(whole: Any, given: Sequence[int] | None) -> Sequence[int]:
    """Return the numbers of columns of queries, keys and values in a projection."""
    sizes = list(given) if given else [divided(whole, 3, "the projection's size")] * 3
    if len(sizes) != 3 or sum(sizes) != whole:
        raise BrokenModelError(f"qkv_hidden_sizes is {sizes}, of a projection of {whole}")
    return sizes


def _projected(
    g: Emitter,
    whole: Tensor,
    *,
    mask: Tensor | None,
    past: Tensor | None,
    bias: Tensor | None = None,
    num_heads: int,
    do_rotary: int,
    mask_filter_value: float,
    past_present_share_buffer: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float,
    unidirectional: int,
) -> Any:
    """Compute attention of a projection that holds queries, keys and values side by side.

    The past and the second output stack keys and values, [2, batch, heads, length, each].
    """
    if do_rotary:
        refuse("do_rotary, which has no places to rotate by")
    if past_present_share_buffer:
        refuse("caches that are written in place (past_present_share_buffer)")
    check_rank(3, projection=whole)
    check_rank(5, past=past)
    parts, start = [], 0
    for size in _sizes(whole.shape[2], qkv_hidden_sizes):
        parts.append(heads(g, part(g, whole, 2, start, size), num_heads))
        start += size
    q, *rest = parts
    if past is not None and past.shape[3] != 0:
        rest = [
            behind(g, g.reshape(part(g, past, 0, i, 1), list(past.shape[1:])), one)
            for i, one in enumerate(rest)
        ]
    made = _attended(
        g,
        q,
        *rest,
        before=0 if past is None else past.shape[3],
        mask=mask,
        bias=bias,
        unidirectional=unidirectional,
        filler=mask_filter_value,
        scale=scale,
    )
    if not any(g.outputs[1:]):
        return made
    return [made, g.concat([g.reshape(one, [1, *one.shape]) for one in rest], 0)]


@handles("Attention", domain=OWN)
def own_attention(
    g: Emitter,
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: list[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:
    """Project the input to queries, keys and values, then compute attention."""
    whole = product(g, x, weights)
    return _projected(
        g,
        whole if bias is None else g.add(whole, bias),
        mask=mask_index,
        past=past,
        bias=attention_bias,
        num_heads=num_heads,
        do_rotary=do_rotary,
        mask_filter_value=mask_filter_value,
        past_present_share_buffer=past_present_share_buffer,
        qkv_hidden_sizes=qkv_hidden_sizes,
        scale=scale,
        unidirectional=unidirectional,
    )


def _buckets(count: int, most: int, both_ways: bool) -> Any:
    """Return the row of T5's bias table for each distance of a key from a query, -most to most."""
    distance = np.arange(-most, most + 1)
    rows, first = (count // 2, np.where(distance > 0, count // 2, 0)) if both_ways else (count, 0)
    far = np.abs(distance) if both_ways else np.maximum(-distance, 0)
    near = rows // 2
    part = np.log(np.maximum(far, 1) / near) / np.log(most / near)
    beyond = np.minimum(near + (part * (rows - near)).astype(np.int64), rows - 1)
    return (first + np.where(far < near, far, beyond)).astype(np.int32)


@handles("RelativePositionBias", domain=OWN)
def relative_position_bias(
    g: Emitter,
    bias_table: Tensor,
    query_length: Tensor,
    key_length: Tensor,
    *,
    max_distance: int,
    is_bidirectional: int = 0,
) -> Any:
    """Return T5's relative position bias, [1, heads, queries, keys].

    Distances beyond `max_distance` count as `max_distance`. The table has shape [buckets, heads]
    but stores its elements in the order of [heads, buckets].
    """
    check_rank(2, bias_table=bias_table)
    rows, columns = query_length.dimension("query_length"), key_length.dimension("key_length")
    count, of = bias_table.shape
    if max_distance <= count // 2:
        raise BrokenModelError(f"max_distance is {max_distance}, of {count} buckets")
    g.afford(2 * max_distance + 1, f"a max_distance of {max_distance}")
    buckets = g.array(_buckets(count, max_distance, bool(is_bidirectional)))
    by_distance = g.gather(g.reshape(bias_table, [of, count]), buckets, axis=1)
    apart = g.sub(places(g, columns, 1, 2), places(g, rows, 0, 2))
    index = g.add(
        g.clamp(apart, min_value=-max_distance, max_value=max_distance), int32(g, max_distance)
    )
    made = g.gather(by_distance, index, axis=1)
    return g.reshape(made, [1, *made.shape])


@handles("QAttention", domain=OWN)
def quantized_attention(
    g: Emitter,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:
    """Compute attention with a projection of 8-bit integers."""
    zeros = input_zero_point, weight_zero_point
    return _projected(
        g,
        matmul_integer_to_float(g, x, weight, input_scale, weight_scale, *zeros, bias),
        mask=mask_index,
        past=past,
        num_heads=num_heads,
        do_rotary=do_rotary,
        mask_filter_value=mask_filter_value,
        past_present_share_buffer=past_present_share_buffer,
        scale=scale,
        unidirectional=unidirectional,
    )
