"""Building blocks of attention: heads, rotary embeddings, causal masks, and attention itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, undecided
from webnn_py.core.dtypes import DTYPES
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


def same(a: Any, b: Any) -> bool:
    """Return whether two sizes are equal for all values of the open dimensions."""
    return not undecided(a, b) and bool(a == b)


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
    if start == 0 and same(x.shape[axis], size):
        return x
    starts = [start if i == axis else 0 for i in range(x.rank)]
    sizes = [size if i == axis else n for i, n in enumerate(x.shape)]
    return g.slice(x, starts, sizes)


def behind(g: Emitter, past: Tensor | None, new: Tensor) -> Any:
    """Concatenate cached keys or values with new ones along the length, axis 2."""
    return new if past is None or same(past.shape[2], 0) else g.concat([past, new], 2)


def int32(g: Emitter, value: Any) -> Any:
    """Return an int32 scalar for a size or index, which may contain open dimensions."""
    if is_dimension(value):
        return g.to(g.size(value), "int32")
    if not -(2**31) <= value < 2**31:
        raise BrokenModelError(f"a size or place of it is {value}, expected an int32")
    return g.array(np.asarray(value, np.int32))


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


def causal(g: Emitter, new: Any, length: Any, first: Tensor | None, window: int = -1) -> Any:
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


def _for_groups(g: Emitter, x: Tensor, shared: int, group: int) -> Any:
    """Reshape a bias or mask for grouped queries: [batch, shared, group * rows, columns].

    Queries that share keys are rows of one matrix product.

    Args:
        g: The emitter.
        x: The bias or mask, which broadcasts to [batch, heads, rows, columns].
        shared: The number of heads of keys.
        group: The number of query heads per head of keys.
    """
    batch, count, rows, columns = [1] * (4 - x.rank) + list(x.shape)
    if group == 1 or (count == 1 and same(rows, 1)):
        return g.moved(x, [batch, count, rows, columns])
    if count == 1:
        x = g.expand(g.reshape(x, [batch, 1, rows, columns]), [batch, group, rows, columns])
        return g.reshape(x, [batch, 1, group * rows, columns])
    return g.reshape(x, [batch, shared, group * rows, columns])


def attended(
    g: Emitter,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float | None,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> Any:
    """Emit grouped-query attention: softmax(scale * q · kᵀ + bias) · v.

    Args:
        g: The emitter.
        queries: [batch, heads, length, each].
        keys: [batch, shared, columns, each]; heads / shared query heads use each key head.
        values: [batch, shared, columns, width].
        scale: Factor of the scores; None or 0 means 1 / sqrt(each).
        bias: Term added to the scores; it broadcasts to [batch, heads, length, columns].
        keep: Mask of the scores that count; it broadcasts to the same shape.
        softcap: Bound of the scores, as softcap * tanh(score / softcap); 0 means none.
        sink: One more score per query of a head, [heads]; its value is 0.

    Returns:
        [batch, heads, length, width].
    """
    batch, count, length, each = queries.shape
    shared, width = keys.shape[1], values.shape[3]
    if is_dimension(each):
        refuse(f"heads of open size, {each}")
    group = divided(count, shared, "its number of heads")
    # Scale queries instead of scores: float16 products could overflow, and scores are more.
    rows = g.mul(queries, float(scale) if scale else each**-0.5)
    rows = g.moved(rows, [batch, shared, group * length, each])
    scores = g.matmul(rows, g.transpose(keys, permutation=[0, 1, 3, 2]))
    if softcap:
        scores = g.mul(g.tanh(g.div(scores, float(softcap))), float(softcap))
    if bias is not None:
        scores = g.add(scores, _for_groups(g, bias, shared, group))
    if keep is not None:
        lowest = g.constant(float(DTYPES[scores.data_type].min), scores)
        scores = g.where(_for_groups(g, keep, shared, group), scores, lowest)
    if sink is None:
        weights = g.softmax(scores, 3)
    else:
        extra = _for_groups(
            g, g.expand(g.reshape(sink, [1, count, 1, 1]), [1, count, length, 1]), shared, group
        )
        extra = g.expand(extra, [*scores.shape[:3], 1])
        weights = part(g, g.softmax(g.concat([scores, extra], 3), 3), 3, 0, scores.shape[3])
    made = g.matmul(weights, values)
    return g.moved(made, [batch, count, length, width])
