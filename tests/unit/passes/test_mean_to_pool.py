"""Means of images become poolings where channels fill blocks; other means stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py.passes.mean_to_pool import mean_to_pool

SHAPE = (2, 32, 5, 4)


@pytest.mark.parametrize("axes", [[2, 3], [3, 2]])
@pytest.mark.parametrize("kept", [True, False])
def test_means_are_poolings(axes: list[int], kept: bool) -> None:
    graph = recorded(lambda b, x: b.reduce_mean(x, axes=axes, keep_dimensions=kept), SHAPE)
    made = after(mean_to_pool, graph)
    assert [node.op for node in made.nodes] == ["average_pool2d", *(() if kept else ["reshape"])]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axes", "data_type"),
    [
        (SHAPE, [1, 2], "float32"),
        (SHAPE, [3], "float32"),
        (SHAPE, None, "float32"),
        (SHAPE[1:], [1, 2], "float32"),
        ((2, 33, 5, 4), [2, 3], "float32"),
        ((2, "c", 5, 4), [2, 3], "float32"),
        (SHAPE, [2, 3], "float16"),
    ],
)
def test_others_stay(shape: Sequence[int], axes: list[int] | None, data_type: str) -> None:
    graph = recorded(lambda b, x: b.reduce_mean(x, axes=axes), shape, data_type)
    assert_keeps(mean_to_pool, graph)
