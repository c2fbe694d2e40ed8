"""How the next token is chosen from logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from webnn_py import OperationError, ValidationError
from webnn_py.api.decoding.sampling import (
    Sampler,
    SamplingOptions,
    calls_with_ids,
    filtered,
    penalized,
)

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


@pytest.mark.parametrize(
    ("top_k", "top_p", "tokens"),
    [
        (0, 1.0, [1, 3, 2, 0]),
        (2, 1.0, [1, 3]),
        (9, 1.0, [1, 3, 2, 0]),
        (0, 0.3, [1]),
        (0, 0.41, [1, 3]),
        (0, 0.95, [1, 3, 2, 0]),
        (2, 0.5, [1]),  # of the two that are left, the first has 4 of 7
    ],
)
def test_the_most_likely_tokens_are_kept(top_k: int, top_p: float, tokens: list[int]) -> None:
    kept, chances = filtered(LOGITS, 1.0, top_k, top_p)
    assert kept.tolist() == tokens
    np.testing.assert_allclose(chances / chances[0], np.exp(LOGITS[kept] - LOGITS[1]), rtol=1e-6)


def test_equal_logits_are_ordered_by_token() -> None:
    assert filtered(np.zeros(6, np.float32), 1.0, 3, 1.0)[0].tolist() == [0, 1, 2]
    assert Sampler(SamplingOptions()).choose(np.zeros(6, np.float32), []) == 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_chances_of_the_logits(temperature: float) -> None:
    sampler = Sampler(SamplingOptions(temperature=temperature, seed=1))
    drawn = np.bincount([sampler.choose(LOGITS, []) for _ in range(8000)], minlength=4) / 8000
    chances = np.exp(LOGITS / temperature)
    np.testing.assert_allclose(drawn, chances / chances.sum(), atol=0.02)


def test_a_token_without_a_chance_is_never_drawn() -> None:
    logits = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=3))
    assert {sampler.choose(logits, []) for _ in range(200)} == {1, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize(
    ("logits", "message"),
    [([1, np.nan, 2], "a logit is NaN"), ([-np.inf] * 3, "all logits are -infinity")],
)
def test_logits_that_no_token_follows_are_an_error(
    logits: list[float], message: str, temperature: float, top_k: int
) -> None:
    array = np.array(logits, np.float32)
    for adjust, source in ((None, "the model"), (lambda logits, ids: logits, "option 'logits'")):
        options = SamplingOptions(temperature=temperature, top_k=top_k, adjust=adjust)
        with pytest.raises(OperationError, match=f"{message}, which {source}"):
            Sampler(options).choose(array, [])


def test_an_infinite_logit_is_certain() -> None:
    logits = np.array([3, np.inf, 2, np.inf], np.float32)
    options = SamplingOptions(temperature=1.0, repetition_penalty=2.0, top_k=3, top_p=0.9)
    assert {Sampler(options).choose(logits, [1, 2]) for _ in range(20)} == {1}


def test_repeated_tokens_become_less_likely() -> None:
    logits = np.array([2, -2, 4, 1], np.float32)
    assert penalized(logits, [0, 1, 0], 2.0).tolist() == [1, -4, 4, 1]
    assert logits.tolist() == [2, -2, 4, 1]
    sampler = Sampler(SamplingOptions(repetition_penalty=3.0))
    assert sampler.choose(logits, [2]) == 0


def test_functions_of_logits_take_the_ids_too() -> None:
    assert calls_with_ids(lambda logits: logits + 1)(LOGITS, [1])[0] == LOGITS[0] + 1
    assert calls_with_ids(lambda logits, ids: logits + len(ids))(LOGITS, [1, 2])[0] == LOGITS[0] + 2
    assert calls_with_ids(np.negative)(LOGITS, [1])[0] == -LOGITS[0]

    def three(logits: Any, ids: Any, more: Any) -> Any:
        return logits

    with pytest.raises(ValidationError, match="expected a function of the logits"):
        calls_with_ids(three)
