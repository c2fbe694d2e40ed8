"""A decoder made by hand: each token's logits depend on all keys before it and on their order."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py import MLContext, MLDecoder, MLGraph, MLGraphBuilder

WORDS, WIDE, KEYS = 23, 4, 16
_RNG = np.random.default_rng(5)
EMBEDDINGS = _RNG.normal(size=(WORDS, WIDE)).astype(np.float32)
HEAD = (4 * _RNG.normal(size=(WIDE, WORDS))).astype(np.float32)
INPUTS = {
    "ids": "token",
    "mask": "seen",
    "positions": "place",
    "lengths": "before",
    "caches": ["state"],
}
OUTPUTS = {"logits": "scores", "caches": ["state after"]}


def graph_by_hand(context: MLContext, batch: Any = "rows", keys: int = KEYS) -> MLGraph:
    """A graph that reads one token of each row; keys are embeddings times their position."""
    b = MLGraphBuilder(context)
    token = b.input("token", "int32", [batch, 1])
    seen = b.input("seen", "int32", [batch, keys])
    place = b.input("place", "int32", [batch, 1])
    before = b.input("before", "int32", [batch])
    state = b.input("state", "float32", [batch, 1, keys, WIDE])
    rows = token.shape[0]
    factor = b.add(b.cast(place, "float32"), b.constant(1.0, "float32"))
    key = b.mul(b.gather(b.constant(EMBEDDINGS), token), b.reshape(factor, [rows, 1, 1]))
    at = b.constant(np.arange(keys, dtype=np.int32).reshape(1, 1, keys, 1))
    is_new = b.equal(at, b.reshape(before, [rows, 1, 1, 1]))
    after = b.where(is_new, b.reshape(key, [rows, 1, 1, WIDE]), state)
    weights = b.reshape(b.cast(seen, "float32"), [rows, 1, keys, 1])
    total = b.reduce_sum(b.mul(after, weights), axes=[1, 2])
    scores = b.matmul(b.sin(total), b.constant(HEAD))
    return b.build_sync({"scores": scores, "state after": after})


def decoder_by_hand(context: MLContext, slots: int = 3, **options: Any) -> MLDecoder:
    """A decoder over `graph_by_hand`."""
    graph = graph_by_hand(context, **options)
    return MLDecoder.from_graph(graph, inputs=INPUTS, outputs=OUTPUTS, slots=slots)


def logits_after(ids: Any) -> np.ndarray[Any, Any]:
    """What the decoder made by hand should give."""
    total = (EMBEDDINGS[list(ids)] * np.arange(1, len(ids) + 1)[:, None]).sum(0)
    scores: np.ndarray[Any, Any] = np.sin(total) @ HEAD
    return scores


def tokens_after(ids: Any, count: int) -> list[int]:
    """The most likely tokens, one by one."""
    text = [*ids]
    for _ in range(count):
        text.append(int(logits_after(text).argmax()))
    return text[len(ids) :]
