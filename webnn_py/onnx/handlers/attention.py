"""Attention as ONNX defines it, and its building blocks: heads, rotary embeddings, causal masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


def divided(whole: Any, parts: int, what: str) -> Any:
    """Return whole / parts, such as a hidden size divided by a number of heads.

    Args:
        whole: The size; divisibility of open dimensions is not checked.
        parts: The divisor.
        what: The name of the size, for the error message.

    Raises:
        BrokenModelError: The division leaves a remainder, or `parts` is below 1.
    """
    if parts < 1 or (not is_dimension(whole) and whole % parts):
        raise BrokenModelError(f"{what} is {whole}, expected a multiple of {parts}")
    return whole // parts


def heads(g: Emitter, x: Tensor, count: int) -> Any:
    """Split [batch, length, hidden] into heads: [batch, count, length, hidden / count]."""
    batch, length, hidden = x.shape
    each = divided(hidden, count, "its hidden size")
    return g.transpose(g.reshape(x, [batch, length, count, each]), permutation=[0, 2, 1, 3])


def merged(g: Emitter, x: Tensor) -> Any:
    """Merge heads: [batch, count, length, each] to [batch, length, count * each]."""
    batch, count, length, each = x.shape
    turned = g.transpose(x, permutation=[0, 2, 1, 3])
    return g.reshape(turned, [batch, length, count * each])


def part(g: Emitter, x: Tensor, axis: int, start: int, size: Any) -> Any:
    """Slice `size` elements from index `start` of an axis; return x if that is all of it."""
    if start == 0 and x.shape[axis] == size:
        return x
    starts = [start if i == axis else 0 for i in range(x.rank)]
    sizes = [size if i == axis else n for i, n in enumerate(x.shape)]
    return g.slice(x, starts, sizes)


def behind(g: Emitter, past: Tensor | None, new: Tensor) -> Any:
    """Concatenate cached keys or values with new ones along the length, axis 2."""
    return new if past is None or past.shape[2] == 0 else g.concat([past, new], 2)


def int32(g: Emitter, value: Any) -> Any:
    """Return an int32 scalar for a size or index, which may contain open dimensions."""
    if is_dimension(value):
        return g.to(g.size(value), "int32")
    check_int32(value)
    return g.array(np.asarray(value, np.int32))


def check_int32(value: int) -> None:
    """Raise a BrokenModelError for a number that is no int32."""
    if not -(2**31) <= value < 2**31:
        raise BrokenModelError(f"a size or place of it is {value}, expected an int32")


def places(g: Emitter, count: Any, axis: int = 0, rank: int = 1) -> Any:
    """Return the int32 indices 0 to count - 1 along one axis, with size 1 along the others."""
    made = g.places(count, axis, rank)
    return g.array(made.array.astype(np.int32)) if made.array is not None else g.to(made, "int32")


def rotated(
    g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor, *, interleaved: bool
) -> Any:
    """Apply rotary position embeddings: rotate pairs of elements by angles of their positions.

    Args:
        g: The emitter.
        x: Queries or keys, [batch, heads, length, each].
        cosines: Cosines of the angles, [positions, pairs]; elements after 2 * pairs stay as is.
        sines: Sines of the angles, [positions, pairs].
        positions: Rows of the two tables, [batch or 1, length].
        interleaved: Whether the two elements of a pair are adjacent, or one from each half.
    """
    check_rank(4, x=x)
    check_rank(2, positions=positions, cos_cache=cosines, sin_cache=sines)
    each, pairs = x.shape[3], cosines.shape[-1]
    if cosines.rank != 2 or cosines.shape != sines.shape or 2 * pairs > each:
        raise BrokenModelError(
            f"cos_cache is {list(cosines.shape)} and sin_cache {list(sines.shape)}, expected two"
            f" alike, of up to {each // 2} columns"
        )
    return g.rotary_embedding(x, cosines, sines, positions=positions, interleaved=interleaved)


def causal_mask(g: Emitter, new: Any, length: Any, first: Tensor | None, window: int = -1) -> Any:
    """Return a causal mask, [batch or 1, 1, new, length]: keys up to the query's position.

    Args:
        g: The emitter.
        new: The number of queries.
        length: The number of keys.
        first: Position of the first query, int32 [batch or 1, 1]; None means 0.
        window: Largest number of keys that a query sees, including its own; -1 means all.
    """
    at, own = places(g, length, 3, 4), places(g, new, 2, 4)
    if first is not None:
        own = g.add(own, g.reshape(first, [first.shape[0], 1, 1, 1]))
    keep = g.lesser_or_equal(at, own)
    if window < 0:
        return keep
    return g.logical_and(keep, g.greater(at, g.sub(own, int32(g, window))))


def masked(g: Emitter, bias: Tensor | None, keep: Tensor | None) -> Any:
    """Return one mask for a bias and a mask of the scores that count; None for neither."""
    if bias is None or keep is None:
        return keep if bias is None else bias
    return g.where(keep, bias, g.constant(-np.inf, bias))


def attended(
    g: Emitter,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float | None,
    softcap: float | None = None,
    **options: Any,
) -> Any:
    """Emit `scaled_dot_product_attention`, [batch, heads, rows, width].

    Args:
        g: The emitter.
        queries: [batch, heads, rows, each].
        keys: [batch, shared, columns, each]; heads / shared query heads use each key head.
        values: [batch, shared, columns, width].
        scale: Factor of the scores; None or 0 means 1 / sqrt(each).
        softcap: Bound of the scores; None or 0 means none.
        options: Other options of the composite.
    """
    if is_dimension(queries.shape[3]):
        refuse(f"heads of open size, {queries.shape[3]}")
    divided(queries.shape[1], keys.shape[1], "its number of heads")
    options |= {"scale": scale or None, "softcap": softcap or None}
    return g.scaled_dot_product_attention(queries, keys, values, **options)


def with_sink(
    g: Emitter, keys: Tensor, values: Tensor, mask: Tensor | None, sink: Tensor
) -> tuple[Any, Any, Any]:
    """Return keys, values and a mask with a key before all others that has fixed scores.

    Args:
        g: The emitter.
        keys: [batch, shared, columns, each].
        values: [batch, shared, columns, width].
        mask: Bias of the scores, which broadcasts to [batch, heads, rows, columns].
        sink: The score of each head's queries, [heads]; its value is 0.
    """
    (heads,), (batch, shared, columns, _) = sink.shape, keys.shape
    if mask is None:
        mask = g.expand(g.constant(0, keys), [1, 1, 1, columns])
    elif not mask.is_float:
        mask = g.where(mask, g.constant(0, keys), g.constant(-np.inf, keys))
    lead, _, rows, _ = [1] * (4 - mask.rank) + list(mask.shape)
    score = g.expand(g.reshape(sink, [1, heads, 1, 1]), [lead, heads, rows, 1])
    mask = g.concat([score, g.expand(mask, [lead, heads, rows, columns])], 3)
    keys, values = (
        g.concat([g.expand(g.constant(0, x), [batch, shared, 1, x.shape[3]]), x], 2)
        for x in (keys, values)
    )
    return keys, values, mask


@handles("Attention", since=23)
def attention(
    g: Emitter,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float = 0.0,
    softcap: float = 0.0,
    softmax_precision: int = 0,
) -> Any:
    """Compute attention of all heads; None for ONNX's own body, where that says more.

    The softmax is computed in float32 at least, whatever `softmax_precision` is.
    """
    split = q.rank == 3
    if split:
        q, k, v = heads(g, q, q_num_heads), heads(g, k, kv_num_heads), heads(g, v, kv_num_heads)
    check_rank(4, Q=q, K=k, V=v, past_key=past_key, past_value=past_value)
    keys, values = behind(g, past_key, k), behind(g, past_value, v)
    rows, length = q.shape[2], keys.shape[2]
    is_short = attn_mask is not None and attn_mask.shape[-1] != length
    has_window = max(left_window_size, right_window_size) >= 0
    if is_short or has_window or any(g.outputs[3:]):
        return None
    options: dict[str, Any] = {"causal": bool(is_causal), "mask": attn_mask}
    if nonpad_kv_seqlen is not None:
        options["lengths"] = g.to(nonpad_kv_seqlen, "int32")
    before = 0 if past_key is None else past_key.shape[2]
    if is_causal and nonpad_kv_seqlen is None and before + rows != length:
        first = None if before == 0 else g.reshape(int32(g, before), [1, 1])
        keep, bias = causal_mask(g, rows, length, first), attn_mask
        if bias is not None and not bias.is_float:
            keep, bias = g.logical_and(keep, bias), None
        options = {"mask": masked(g, bias, keep)}
    made = attended(g, q, keys, values, scale=scale, softcap=softcap, **options)
    return [merged(g, made) if split else made, keys, values]
