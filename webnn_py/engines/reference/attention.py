"""Attention and rotary position embeddings in NumPy."""

from __future__ import annotations

import itertools
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

    def attend(part: tuple[int, slice, slice], k: Array, v: Array, end: int) -> Array:
        """Return the result of some rows, of heads that share these keys and values."""
        q = query[part].astype(np.float64) * scale
        own = end - rows + np.arange(rows)[part[2], None]
        online = _OnlineSoftmax(q.shape[:2], v.shape[1])
        for start in range(0, keys, BLOCK_KEYS):
            checkpoint()
            block = slice(start, min(start + BLOCK_KEYS, keys))
            at = np.arange(block.start, block.stop)
            seen = np.broadcast_to(at < end, (len(own), len(at)))
            if causal:
                seen = seen & (at <= own)
            if window is not None:
                seen = seen & (at > own - window)
            if not seen.any():
                continue
            scores = q @ k[block].T.astype(np.float64)
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            if masks is not None:
                scores, seen = _masked(scores, seen, masks[(*part, block)])
            online.add(np.where(seen, scores, -np.inf), v[block])
        return online.result()

    for one, head, first in itertools.product(range(batch), range(shared), range(0, rows, step)):
        part = one, slice(head * group, (head + 1) * group), slice(first, first + step)
        made[part] = attend(part, key[one, head], value[one, head], int(ends[one]))
    return made


def _masked(scores: Array, seen: Array, mask: Array) -> tuple[Array, Array]:
    """Apply a mask, of uint8 flags or of numbers to add, to scores and to which keys are seen."""
    if mask.dtype == np.uint8:
        return scores, seen & (mask != 0)
    return scores + mask, seen & (mask != -np.inf)


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
