"""Grouped-query attention and rotary embeddings of decoders, as ONNX Runtime defines them.

Source: ONNX Runtime, "Contrib Operators".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, span
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.attention import (
    attended,
    behind,
    causal_mask,
    check_int32,
    divided,
    heads,
    int32,
    masked,
    merged,
    part,
    places,
    rotated,
    with_sink,
)
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


@handles("RotaryEmbedding", domain=OWN)
def own_rotary_embedding(
    g: Emitter,
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """Rotate pairs of elements in each head by the angles of their positions (RoPE).

    Ignore `scale`, as ONNX Runtime does.
    """
    if is_packed_batching:
        refuse("batches of several lengths in one (is_packed_batching = 1)")
    if x.rank not in (3, 4):
        raise BrokenModelError(f"its input has rank {x.rank}, expected 3 or 4")
    check_rank(2, cos_cache=cos_cache, sin_cache=sin_cache)
    parts = x
    if x.rank == 3:
        each = 2 * cos_cache.shape[-1]
        if rotary_embedding_dim and num_heads < 1:
            raise BrokenModelError("num_heads must be given with rotary_embedding_dim")
        parts = heads(g, x, num_heads if rotary_embedding_dim else divided(x.shape[2], each, "x"))
    length = parts.shape[2]
    positions = position_ids
    if position_ids.rank == 1:  # the position of the first token alone
        first = g.reshape(g.to(position_ids, "int32"), [1, 1])
        positions = g.add(first, places(g, length, 1, 2))
    made = rotated(g, parts, cos_cache, sin_cache, positions, interleaved=bool(interleaved))
    return merged(g, made) if x.rank == 3 else made


@handles("RotaryEmbedding", since=23)
def rotary_embedding(
    g: Emitter,
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    """Rotate pairs of elements in each head by the angles of their positions (RoPE).

    The caches are tables for `position_ids`; without these, they have a row for each token.
    """
    if x.rank not in (3, 4):
        raise BrokenModelError(f"its input has rank {x.rank}, expected 3 or 4")
    check_rank(2 if position_ids is not None else 3, cos_cache=cos_cache, sin_cache=sin_cache)
    parts = heads(g, x, num_heads) if x.rank == 3 else x
    turned = rotary_embedding_dim or parts.shape[3]
    if 2 * cos_cache.shape[-1] != turned:
        raise BrokenModelError(
            f"cos_cache is {list(cos_cache.shape)}, expected half of {turned} columns"
        )
    options: dict[str, Any] = {"interleaved": bool(interleaved)}
    if position_ids is not None:
        options["positions"] = position_ids
    made = g.rotary_embedding(parts, cos_cache, sin_cache, **options)
    return merged(g, made) if x.rank == 3 else made


@dataclass(frozen=True, slots=True)
class _Cache:
    """Layout of the key-value cache after this step.

    Attributes:
        past: Capacity of the past cache in keys; 0 without a past cache.
        new: Number of new keys.
        length: Capacity of the present cache in keys.
        start: Position of the first new key, int32 [batch or 1]; None for position 0.
        follows: Whether the new keys come directly after the whole past cache in every batch.
    """

    past: Any
    new: Any
    length: Any
    start: Tensor | None
    follows: bool


def _number(tensor: Tensor) -> Any:
    """Return the first element, an integer or open dimension; None if the import cannot know it."""
    contents = tensor.array if tensor.sizes is None else tensor.sizes
    if contents is None or not contents.size:
        return None
    first = contents.reshape(-1)[0]
    return first if is_dimension(first) else int(first)


def _room(past: Any, new: Any, total: Any) -> Any:
    """Return the capacity of the present cache in keys.

    The past cache keeps its capacity if `total` keys always fit into it. A shared buffer of the
    maximum length is such a case. Otherwise the capacity grows by the `new` keys.

    Raises:
        BrokenModelError: `total` always exceeds the past and new keys together.
    """
    if total is None or total == past + new:
        return past + new
    low, high = span(total - past)
    if high <= 0:
        return past
    if low > span(new)[1]:
        raise BrokenModelError(
            f"total_sequence_length is {total}, of {past} keys before and {new} new ones"
        )
    return past + new


def _cache(
    g: Emitter, past: Tensor | None, new: Any, batch: Any, seqlens: Tensor, total: Tensor
) -> _Cache:
    """Return the cache layout that follows from the past, new and total lengths.

    Args:
        g: The emitter.
        past: Past keys, [batch, heads, past length, each]; None without a cache.
        new: Number of new keys.
        batch: Batch size.
        seqlens: Number of keys of each batch minus 1, [batch].
        total: Maximum number of keys of all batches, a scalar.
    """
    if past is None or past.shape[2] == 0:
        return _Cache(0, new, new, None, follows=True)
    before, most = past.shape[2], _number(total)
    length = _room(before, new, most)
    if most is not None and most == new:
        return _Cache(before, new, length, None, follows=False)
    known = seqlens.array if seqlens.sizes is None else seqlens.sizes
    whole = before + new
    if known is not None:
        follows = all(one + 1 == whole for one in known.reshape(-1).tolist())
    else:
        follows = batch == 1 and most is not None and most == whole
    if follows:
        return _Cache(before, new, length, g.reshape(int32(g, before), [1]), follows=True)
    ends = g.add(g.reshape(g.to(seqlens, "int32"), [batch]), int32(g, 1))
    start = g.max(g.sub(ends, int32(g, new)), int32(g, 0))  # padded prompts have fewer keys
    return _Cache(before, new, length, start, follows=False)


def _stored(g: Emitter, cache: _Cache, past: Tensor | None, new: Tensor) -> Any:
    """Return the cache with new keys or values written to it, [batch, heads, length, each]."""
    if cache.follows:
        return behind(g, past, new)
    room = past if cache.length == cache.past else behind(g, past, new)
    start = g.array(np.zeros(1, np.int32)) if cache.start is None else cache.start
    return g.scatter_rows(room, new, start, axis=2)


def _seen(
    g: Emitter, cache: _Cache, seqlens: Tensor, batch: Any, is_causal: bool, window: int
) -> dict[str, Any]:
    """Return the options of attention that say which keys each query sees."""
    if not is_causal:
        ends = g.add(g.reshape(g.to(seqlens, "int32"), [batch]), int32(g, 1))
        return {"lengths": ends}
    check_int32(window)
    options: dict[str, Any] = {"causal": True, "window": None if window < 0 else window}
    if not cache.follows:
        new = g.reshape(int32(g, cache.new), [1])
        options["lengths"] = new if cache.start is None else g.add(cache.start, new)
    elif cache.new == 1:  # the query at the last key
        options["causal"] = False
    return options


def _positions(g: Emitter, cache: _Cache, given: Tensor | None) -> Any:
    """Return the positions of the new keys, [batch or 1, new].

    If `cache.start` is None, count up from the first element of `given` and ignore the rest.
    """
    if given is not None and cache.start is not None:
        return given
    own = places(g, cache.new, 1, 2)
    start = cache.start if given is None else part(g, part(g, given, 0, 0, 1), 1, 0, 1)
    if start is None:
        return own
    return g.add(own, g.reshape(g.to(start, "int32"), [start.shape[0], 1]))


@handles("GroupQueryAttention", domain=OWN)
def group_query_attention(
    g: Emitter,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    query_seqlens: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float = 0.0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    local_window_size: int = -1,
    q_norm_epsilon: float = 0.0,
    qk_norm_epsilon: float = 0.0,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> Any:
    """Compute grouped-query attention (GQA) and return it with the updated key-value cache.

    `seqlens_k` holds the number of keys of each batch minus 1, read when the graph runs. Later
    keys of the batch are padding.
    """
    for name, given in (
        ("k_quant_type", k_quant_type != "NONE"),
        ("v_quant_type", v_quant_type != "NONE"),
        ("sliding_window_cache", sliding_window_cache),
        ("qk_output", qk_output),
        ("q_norm_weight", q_norm_weight is not None or k_norm_weight is not None),
        ("query_seqlens", query_seqlens is not None),
    ):
        if given:
            refuse(f"{name}, which it has no counterpart for")
    if (past_key is None) != (past_value is None):
        raise BrokenModelError("past_key and past_value must be given together")
    check_rank(3, query=query)
    check_rank(4, past_key=past_key, past_value=past_value)
    check_rank(2, position_ids=position_ids)
    q, k, v = _in_heads(g, query, key, value, num_heads, kv_num_heads)
    batch, new = query.shape[:2]
    before = 0 if past_key is None else past_key.shape[2]
    of = seqlens_k, total_sequence_length, str((before, new, batch))  # of a layer as of all others
    cache = g.once(
        ("cache", *of), lambda: _cache(g, past_key, new, batch, seqlens_k, total_sequence_length)
    )
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise BrokenModelError("do_rotary needs cos_cache and sin_cache")
        positions = g.once(
            ("positions", position_ids, *of), lambda: _positions(g, cache, position_ids)
        )
        interleaved = bool(rotary_interleaved)
        q, k = (
            rotated(g, x, cos_cache, sin_cache, positions, interleaved=interleaved) for x in (q, k)
        )
    keys, values = _stored(g, cache, past_key, k), _stored(g, cache, past_value, v)
    if head_sink is None and smooth_softmax:
        head_sink = g.expand(g.constant(0, query), [num_heads])
    options = g.once(
        ("seen", causal, local_window_size, *of),
        lambda: _seen(g, cache, seqlens_k, batch, bool(causal), local_window_size),
    )
    seen: tuple[Any, Any, Any] = keys, values, attention_bias
    if head_sink is not None:
        seen, options = _behind_sink(g, cache, *seen, head_sink, options)
    *both, mask = seen
    made = attended(g, q, *both, scale=scale, softcap=softcap, mask=mask, **options)
    return [merged(g, made), keys, values]


def _in_heads(
    g: Emitter,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    count: int,
    shared: int,
) -> tuple[Any, Any, Any]:
    """Return queries in `count` heads, keys and values in `shared` ones.

    Without keys and values, the queries hold all three side by side.
    """
    if (key is None) != (value is None):
        raise BrokenModelError("key and value must be given together")
    check_rank(3, key=key, value=value)
    if key is None or value is None:
        packed = heads(g, query, count + 2 * shared)
        k, v = (part(g, packed, 1, count + i * shared, shared) for i in range(2))
        return part(g, packed, 1, 0, count), k, v
    if key.shape[1] != query.shape[1]:
        refuse(f"{key.shape[1]} keys for {query.shape[1]} queries")
    return heads(g, query, count), heads(g, key, shared), heads(g, value, shared)


def _behind_sink(
    g: Emitter,
    cache: _Cache,
    keys: Any,
    values: Any,
    mask: Tensor | None,
    sink: Tensor,
    options: Mapping[str, Any],
) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Return keys, values and mask behind a sink, and the options of the attention to them."""
    options = dict(options)
    if (window := options.pop("window", None)) is not None:  # it would hide the sink
        start = None if cache.start is None else g.reshape(cache.start, [cache.start.shape[0], 1])
        mask = masked(g, mask, causal_mask(g, cache.new, cache.length, start, window))
    behind_sink = with_sink(g, keys, values, mask, sink)
    if "lengths" in options:
        options["lengths"] = g.add(options["lengths"], int32(g, 1))
    return behind_sink, options
