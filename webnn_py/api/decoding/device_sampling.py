"""The choice of tokens as a graph: `sampling.py` for a device, in float32.

Tokens are kept by a threshold of their logits, which a search over 32 candidates at a time finds:
devices sort slowly. The draw runs through the kept tokens in the order of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webnn_py.api.builder import MLGraphBuilder
from webnn_py.ops.operand import MLOperand

DEEPEST = -64.0
"""Least scaled logit below the greatest one: less likely tokens are never drawn in float32."""
CANDIDATES = 32
ROUNDS = 6
"""Rounds of the search: 32**6 candidates are closer than float32's steps."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The inputs of a draw, each float32 [rows] unless it says otherwise.

    Attributes:
        temperature: Divisor of the logits; 1 for rows that take the most likely token.
        top_k: Number of most likely tokens to draw from, at least 1.
        top_p: Smallest probability that the tokens to draw from have together.
        penalty: Divisor of positive logits of tokens so far, factor of negative ones.
        noise: Number from 0 up to 1, which chooses the token.
        seen: 1 for each token so far, uint8 [rows, vocabulary].
    """

    temperature: MLOperand
    top_k: MLOperand
    top_p: MLOperand
    penalty: MLOperand
    noise: MLOperand
    seen: MLOperand


def drawn_token(b: MLGraphBuilder, logits: MLOperand, draw: Draw) -> MLOperand:
    """Return the token of each row, int32 [rows].

    Args:
        b: The builder.
        logits: Logits [rows, vocabulary].
        draw: The inputs of the draw.
    """
    rows = logits.shape[0]
    zero, one = b.constant(0.0, "float32"), b.constant(1.0, "float32")

    def column(x: MLOperand) -> MLOperand:
        return b.reshape(x, [rows, 1])

    x, penalty = b.cast(logits, "float32"), column(draw.penalty)
    punished = b.where(b.greater(x, zero), b.div(x, penalty), b.mul(x, penalty))
    x = b.where(draw.seen, punished, x)
    top = b.reduce_max(x, axes=[1], keep_dimensions=True)
    scaled = b.div(b.sub(x, top), column(draw.temperature))
    deepest = b.constant(DEEPEST, "float32")
    scaled = b.max(scaled, deepest)
    weights = b.where(b.greater(scaled, deepest), b.exp(scaled), zero)
    least = _threshold(b, scaled, None, column(draw.top_k))
    weights = b.where(b.greater_or_equal(scaled, least), weights, zero)
    needed = b.mul(b.reduce_sum(weights, axes=[1], keep_dimensions=True), column(draw.top_p))
    least = _threshold(b, scaled, weights, needed)
    weights = b.where(b.greater_or_equal(scaled, least), weights, zero)
    ends = b.cumulative_sum(weights, 1)
    total = b.reduce_sum(weights, axes=[1], keep_dimensions=True)
    is_behind = b.greater(ends, b.mul(total, column(draw.noise)))
    is_kept = b.greater(weights, zero)
    # Where rounding leaves none behind the number drawn, the most likely token is taken.
    wanted = b.where(b.logical_and(is_behind, is_kept), b.add(one, one), weights)
    return b.arg_max(wanted, 1)


def _threshold(
    b: MLGraphBuilder, scaled: MLOperand, weights: MLOperand | None, needed: MLOperand
) -> MLOperand:
    """Return the greatest threshold from which on the weights add up to enough, [rows, 1].

    Args:
        b: The builder.
        scaled: Scaled logits from `DEEPEST` to 0, [rows, vocabulary].
        weights: Their weights; None for 1 each.
        needed: The sum that is enough, [rows, 1].
    """
    rows, count = scaled.shape
    steps = b.constant(np.arange(CANDIDATES, dtype=np.float32).reshape(1, CANDIDATES))
    one = b.constant(1.0, "float32")
    each = b.reshape(scaled, [rows, 1, count])
    low = b.expand(b.constant(np.full((1, 1), DEEPEST, np.float32)), [rows, 1])
    width = -DEEPEST
    for _ in range(ROUNDS):
        width /= CANDIDATES
        step = b.constant(width, "float32")
        candidates = b.add(low, b.mul(steps, step))
        is_kept = b.greater_or_equal(each, b.reshape(candidates, [rows, CANDIDATES, 1]))
        kept = b.cast(is_kept, "float32")
        if weights is not None:
            kept = b.mul(kept, b.reshape(weights, [rows, 1, count]))
        sums = b.reduce_sum(kept, axes=[2])
        enough = b.cast(b.greater_or_equal(sums, needed), "float32")
        found = b.reduce_sum(enough, axes=[1], keep_dimensions=True)
        low = b.add(low, b.mul(b.max(b.sub(found, one), b.constant(0.0, "float32")), step))
    return low
