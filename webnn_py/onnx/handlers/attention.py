"""What operators of attention are made of: heads, rotations, positions, and attention itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, undecided
from webnn_py.core.dtypes import DTYPES
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal, whatever the open ones are."""
    return not undecided(a, b) and bool(a == b)


def divided(whole: Any, parts: int, what: str) -> Any:
    """A size by a number of heads or the like.

    Raises:
        BrokenModelError: It leaves a rest.
    """
    if parts < 1 or (not is_dimension(whole) and whole % parts):
        raise BrokenModelError(f"{what} is {whole}, expected a multiple of {parts}")
    return whole // parts


def heads(g: Emitter, x: Tensor, count: int) -> Any:
    """[batch, length, hidden] to [batch, heads, length, each]."""
    batch, length, hidden = x.shape
    each = divided(hidden, count, "its hidden size")
    return g.transpose(g.reshape(x, [batch, length, count, each]), permutation=[0, 2, 1, 3])


def merged(g: Emitter, x: Tensor) -> Any:
    """The way back."""
    batch, count, length, each = x.shape
    turned = g.transpose(x, permutation=[0, 2, 1, 3])
    return g.reshape(turned, [batch, length, count * each])


def part(g: Emitter, x: Tensor, axis: int, start: int, size: Any) -> Any:
    """Some places of an axis."""
    if start == 0 and same(x.shape[axis], size):
        return x
    starts = [start if i == axis else 0 for i in range(x.rank)]
    sizes = [size if i == axis else n for i, n in enumerate(x.shape)]
    return g.slice(x, starts, sizes)


def behind(g: Emitter, past: Tensor | None, new: Tensor) -> Any:
    """Keys or values with those of a cache before them."""
    return new if past is None or same(past.shape[2], 0) else g.concat([past, new], 2)


def int32(g: Emitter, value: Any) -> Any:
    """A scalar that is a size or place, which may be open."""
    if is_dimension(value):
        return g.to(g.size(value), "int32")
    if not -(2**31) <= value < 2**31:
        raise BrokenModelError(f"a size or place of it is {value}, expected an int32")
    return g.array(np.asarray(value, np.int32))


def places(g: Emitter, count: Any, axis: int = 0, rank: int = 1) -> Any:
    """0, 1, 2 and so on along one of several axes, as int32."""
    made = g.places(count, axis, rank)
    return g.array(made.array.astype(np.int32)) if made.array is not None else g.to(made, "int32")


def rotated(
    g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor, *, interleaved: bool
) -> Any:
    """Pairs of numbers turned by the angles of their positions.

    Args:
        g: The emitter.
        x: [batch, heads, length, each].
        cosines: By position, of each pair; pairs that there are none of stay.
        sines: The same.
        positions: [batch or 1, length].
        interleaved: Whether pairs lie side by side, else in two halves.
    """
    check_rank(4, x=x)
    check_rank(2, positions=positions, cos_cache=cosines, sin_cache=sines)
    batch, count, length, each = x.shape
    pairs = cosines.shape[-1]
    if cosines.rank != 2 or cosines.shape != sines.shape or 2 * pairs > each:
        raise BrokenModelError(
            f"cos_cache is {list(cosines.shape)} and sin_cache {list(sines.shape)}, expected two"
            f" alike, of up to {each // 2} columns"
        )
    cos, sin = (
        g.reshape(g.gather(one, positions), [positions.shape[0], 1, length, pairs])
        for one in (cosines, sines)
    )
    turned = part(g, x, 3, 0, 2 * pairs)
    if interleaved:
        turned = g.reshape(turned, [batch, count, length, pairs, 2])
        a, b = (
            g.reshape(part(g, turned, 4, i, 1), [batch, count, length, pairs]) for i in range(2)
        )
    else:
        a, b = part(g, turned, 3, 0, pairs), part(g, turned, 3, pairs, pairs)
    made = [g.sub(g.mul(a, cos), g.mul(b, sin)), g.add(g.mul(b, cos), g.mul(a, sin))]
    if interleaved:
        made = [g.reshape(one, [batch, count, length, pairs, 1]) for one in made]
        made = [g.reshape(g.concat(made, 4), [batch, count, length, 2 * pairs])]
    if 2 * pairs < each:
        made.append(part(g, x, 3, 2 * pairs, each - 2 * pairs))
    return g.concat(made, 3) if len(made) > 1 else made[0]


def causal(g: Emitter, new: Any, length: Any, first: Tensor | None, window: int = -1) -> Any:
    """Which keys each query sees, [batch or 1, 1, new, length]: those up to its own place.

    Args:
        g: The emitter.
        new: How many queries there are.
        length: How many keys.
        first: [batch or 1, 1], int32: the place of the first query; None for 0.
        window: How many keys each query sees at most, its own among them; -1 for all.
    """
    at, own = places(g, length, 3, 4), places(g, new, 2, 4)
    if first is not None:
        own = g.add(own, g.reshape(first, [first.shape[0], 1, 1, 1]))
    keep = g.lesser_or_equal(at, own)
    if window < 0:
        return keep
    return g.logical_and(keep, g.greater(at, g.sub(own, int32(g, window))))


def _for_groups(g: Emitter, x: Tensor, shared: int, group: int) -> Any:
    """What broadcasts to [batch, heads, rows, columns], as [batch, shared, group * rows, columns].

    As queries that share their keys are rows of one product.
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
    """Attention: softmax(scale * q · kᵀ + bias) · v, where each key is for as many queries.

    Args:
        g: The emitter.
        queries: [batch, heads, length, each].
        keys: [batch, shared, columns, each], each head of them for heads / shared of the queries.
        values: [batch, shared, columns, width].
        scale: Of scores; None or 0 for what the depth wants.
        bias: Added to the scores; broadcasts to [batch, heads, length, columns].
        keep: Which scores count; broadcasts to the same.
        softcap: If it is not 0, what scores stay within, by way of tanh.
        sink: [heads], one more score of each query, whose value is 0.

    Returns:
        [batch, heads, length, width].
    """
    batch, count, length, each = queries.shape
    shared, width = keys.shape[1], values.shape[3]
    if is_dimension(each):
        refuse(f"heads of open size, {each}")
    group = divided(count, shared, "its number of heads")
    # Queries are scaled, as products of float16 may overflow; besides, they are fewer than scores.
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
