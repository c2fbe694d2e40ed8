"""Attention and rotary position embeddings in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.gil_yield import checkpoint
from webnn_py.engines.reference.parts import TILE_ELEMENTS

Array = np.ndarray[Any, Any]

BLOCK_KEYS = 1024
"""Most keys whose scores are in memory at once."""


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    lengths: Array | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> Array:
    """Compute attention block by block with an online softmax, which never stores all scores."""
    batch, heads, rows, _ = query.shape
    shared, keys = key.shape[1:3]
    group = heads // shared
    given = np.full(1, keys) if lengths is None else lengths.astype(np.int64)
    ends = np.broadcast_to(given, batch)
    masks = None if mask is None else np.broadcast_to(mask, (batch, heads, rows, keys))
    step = max(1, TILE_ELEMENTS // (group * min(keys, BLOCK_KEYS)))
    made = np.empty((batch, heads, rows, value.shape[3]), query.dtype)

    def visible(end: int, first: int, count: int, start: int, stop: int) -> Array:
        """Return whether rows first to first + count see keys start to stop, [count, keys]."""
        at = np.arange(start, stop)
        own = end - rows + np.arange(first, first + count)[:, None]
        seen = np.broadcast_to(at < end, (count, stop - start))
        if causal:
            seen = seen & (at <= own)
        return seen if window is None else seen & (at > own - window)

    for one in range(batch):
        for head in range(shared):
            k, v = key[one, head], value[one, head]
            of = slice(head * group, (head + 1) * group)
            for first in range(0, rows, step):
                q = query[one, of, first : first + step].astype(np.float64) * scale
                online = _OnlineSoftmax(q.shape[:2], v.shape[1])
                for start in range(0, keys, BLOCK_KEYS):
                    checkpoint()
                    stop = min(start + BLOCK_KEYS, keys)
                    seen = visible(int(ends[one]), first, q.shape[1], start, stop)
                    if not seen.any():
                        continue
                    scores = q @ k[start:stop].T.astype(np.float64)
                    if softcap is not None:
                        scores = softcap * np.tanh(scores / softcap)
                    if masks is not None:
                        part = masks[one, of, first : first + step, start:stop]
                        if part.dtype == np.uint8:
                            seen = seen & (part != 0)
                        else:
                            scores = scores + part
                            seen = seen & (part != -np.inf)
                    online.add(np.where(seen, scores, -np.inf), v[start:stop])
                made[one, of, first : first + step] = online.result()
    return made


class _OnlineSoftmax:
    """The weighted sum of values so far, by softmax weights of the scores so far.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """

    def __init__(self, rows: tuple[int, ...], width: int) -> None:
        self._top = np.full((*rows, 1), -np.inf)
        self._total = np.zeros((*rows, 1))
        self._sums = np.zeros((*rows, width))

    def add(self, scores: Array, values: Array) -> None:
        """Add keys: their scores [..., keys], -infinity for keys to ignore, and values."""
        top = np.maximum(self._top, np.max(scores, axis=-1, keepdims=True))
        finite = np.where(top == -np.inf, 0, top)
        weights = np.exp(scores - finite)
        before = np.exp(self._top - finite)
        self._total = self._total * before + np.sum(weights, axis=-1, keepdims=True)
        self._sums = self._sums * before + weights @ values.astype(np.float64)
        self._top = top

    def result(self) -> Array:
        """Return the weighted means, 0 for rows without keys."""
        nothing = np.zeros_like(self._sums)
        return np.divide(self._sums, self._total, out=nothing, where=self._total != 0)


def rotary_embedding(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None,
    interleaved: bool,
) -> Array:
    """Rotate pairs of elements by the angles of their positions."""
    if positions is not None:
        signed = positions.astype(np.int64)
        count = len(cos)
        inside = np.clip(np.where(signed < 0, signed + count, signed), 0, count - 1)
        cos, sin = cos[inside], sin[inside]
    wide, (c, s) = x.astype(np.float64), (one.astype(np.float64) for one in (cos, sin))
    if c.ndim == 3:
        c, s = c[:, None], s[:, None]
    pairs = cos.shape[-1]
    of = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    other = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    a, b = wide[..., of].copy(), wide[..., other].copy()
    wide[..., of], wide[..., other] = a * c - b * s, b * c + a * s
    return wide
