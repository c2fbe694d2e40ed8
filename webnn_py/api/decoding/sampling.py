"""Choice of the next token from logits: penalties, filters, and draws that a seed repeats."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.api.graph import MLGraph
from webnn_py.core.errors import OperationError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.ir import Array

Adjust = Callable[[Array, Sequence[int]], Array]
"""Function that returns new logits of [vocabulary], given the logits and the ids so far."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Checked options of a generation.

    Attributes:
        temperature: Divisor of the logits; 0 takes the most likely token.
        top_k: Number of most likely tokens to draw from; 0 for all.
        top_p: Smallest probability that the tokens to draw from have together.
        repetition_penalty: Divisor of positive logits of tokens so far, factor of negative ones.
        seed: Seed of the draws; None for one from the system.
        adjust: Changes the logits before anything else; None for no change.
        graph: The graph that `adjust` runs, which a device may run instead; None for a function.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    adjust: Adjust | None = None
    graph: MLGraph | None = None

    def __post_init__(self) -> None:
        for name, fits, expected in (
            ("temperature", 0 <= self.temperature < np.inf, "a finite number from 0"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0, at most 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < np.inf, "a number above 0"),
        ):
            if not fits:
                raise ValidationError(
                    f"option {name!r}: got {shown(getattr(self, name))}, expected {expected}"
                )


class Sampler:
    """Chooses the tokens of one generation.

    Args:
        options: The options.

    Attributes:
        options: The options.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        self._random = np.random.default_rng(options.seed)

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the most likely token by the adjusted logits."""
        return self.options.temperature == 0 and self.options.repetition_penalty == 1

    @property
    def calls_function(self) -> bool:
        """Whether a function of the user's changes the logits."""
        return self.options.adjust is not None and self.options.graph is None

    def noise(self, count: int) -> Array:
        """Return the numbers of the next draws, float32 [count] from 0 up to 1."""
        if self.options.temperature == 0:
            return np.zeros(count, np.float32)
        drawn = self._random.random(count).astype(np.float32)
        return np.minimum(drawn, np.nextafter(np.float32(1), np.float32(0)))

    def choose(self, logits: Array, ids: Sequence[int]) -> int:
        """Return the next token.

        Args:
            logits: Logits of the next token, float32 [vocabulary]; not changed.
            ids: The ids so far, those of the prompt included.

        Raises:
            ValidationError: The user's function returned no logits of this shape.
            OperationError: A logit is NaN, or all are -infinity.
        """
        options = self.options
        if options.adjust is not None:
            logits = _checked(options.adjust(logits.copy(), ids), logits)
        if options.repetition_penalty != 1 and len(ids):
            logits = penalized(logits, ids, options.repetition_penalty)
        best = int(logits.argmax())
        _check_best(float(logits[best]), options)
        if options.temperature == 0 or np.isinf(logits[best]):
            return best
        tokens, chances = filtered(logits, options.temperature, options.top_k, options.top_p)
        order = np.argsort(tokens)  # as devices do, which do not sort by likelihood
        tokens, ends = tokens[order], np.cumsum(chances[order])
        place = int(np.searchsorted(ends, self._random.random() * ends[-1], side="right"))
        return int(tokens[min(place, len(tokens) - 1)])


def _checked(made: Any, logits: Array) -> Array:
    """Return the result of the user's function as an array of float32."""
    array = np.asarray(made)
    if array.size != logits.size or array.dtype.kind != "f":
        raise ValidationError(
            f"option 'logits': the function returned {array.dtype}{list(array.shape)}, expected"
            f" float32{list(logits.shape)}"
        )
    return array.reshape(logits.shape).astype(np.float32, copy=False)


def _check_best(logit: float, options: SamplingOptions) -> None:
    """Check the largest logit, which is NaN if any is."""
    if np.isnan(logit) or logit == -np.inf:
        what = "a logit is NaN" if np.isnan(logit) else "all logits are -infinity"
        source = "the model computed" if options.adjust is None else "option 'logits' returned"
        raise OperationError(f"no token can follow, as {what}, which {source}")


def penalized(logits: Array, ids: Sequence[int], penalty: float) -> Array:
    """Return logits that make tokens that occurred less likely.

    Source: Keskar et al., "CTRL", 2019, section 4.1, with the sign rule that is in use since.
    """
    seen = np.unique(np.asarray(ids, np.int64))
    values = logits[seen]
    changed = logits.copy()
    changed[seen] = np.where(values > 0, values / penalty, values * penalty)
    return changed


def filtered(logits: Array, temperature: float, top_k: int, top_p: float) -> tuple[Array, Array]:
    """Return the tokens to draw from, the most likely first, and their probabilities.

    `top_k` is applied before `top_p`. Equal logits are ordered by token.
    """
    scaled = logits.astype(np.float64) / temperature
    count = min(top_k or len(scaled), len(scaled))
    if count < len(scaled):
        least = np.partition(scaled, len(scaled) - count)[len(scaled) - count]
        tokens = np.flatnonzero(scaled >= least)
    else:
        tokens = np.arange(len(scaled))
    tokens = tokens[np.argsort(-scaled[tokens], kind="stable")][:count]
    chances = np.exp(scaled[tokens] - scaled[tokens[0]])
    chances /= chances.sum()
    if top_p < 1:
        before = np.cumsum(chances) - chances
        kept = max(1, int(np.count_nonzero(before < top_p)))
        tokens, chances = tokens[:kept], chances[:kept]
    return tokens, chances


def calls_with_ids(function: Callable[..., Any]) -> Adjust:
    """Return a function of logits, or of logits and ids, as a function of both.

    Raises:
        ValidationError: It takes neither one nor two positional arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins may have none
        return lambda logits, ids: function(logits)
    for count in (1, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return function if count == 2 else lambda logits, ids: function(logits)
    raise ValidationError(
        f"option 'logits': got {shown(function)}, expected a function of the logits, or of the"
        " logits and the ids so far"
    )
