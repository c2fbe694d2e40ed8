"""Files that are cut off or changed: an MLError or a graph, and nothing else."""

from __future__ import annotations

import random
import warnings

import pytest

from tests.onnx.models import small_network
from webnn_py import MLContext, MLError
from webnn_py.onnx import load

WHOLE = small_network().SerializeToString()


def damaged(seed: int) -> bytes:
    rng = random.Random(seed)
    contents = bytearray(WHOLE)
    if seed % 3 == 0:
        return bytes(contents[: rng.randrange(len(contents))])
    # Most of the file is weights, whose changes are no damage: hit what describes them, too.
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(contents) if seed % 2 else 700)
        contents[-place if seed % 5 == 0 else place] = rng.randrange(256)
    return bytes(contents)


@pytest.mark.parametrize("part", range(10))
def test_damage_is_an_error_or_does_no_harm(cpu: MLContext, part: int) -> None:
    refused = 0
    for seed in range(part * 50, part * 50 + 50):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load(damaged(seed), cpu)
            except MLError:
                refused += 1
    assert refused
