"""Means of neighbouring channels become products; nothing else that looks alike does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.pool_channels import pool_channels

SHAPE = (2, 6, 3, 4)


def means(
    b: MLGraphBuilder, x: MLOperand, before: int = 2, behind: int = 2, **changes: Any
) -> MLOperand:
    """As the importer writes them."""
    window = before + behind + 1
    batch, channels, height, width = x.shape
    pad = {"beginning_padding": [0, before, 0, 0], "ending_padding": [0, behind, 0, 0]}
    padded = b.pad(x, **pad | changes.pop("pad", {}))
    laid = b.reshape(padded, [batch, 1, channels + window - 1, height * width])
    pooled = b.average_pool2d(laid, **{"window_dimensions": [window, 1]} | changes)
    return b.reshape(pooled, x.shape)


@pytest.mark.parametrize(("before", "behind"), [(2, 2), (1, 2), (0, 1), (3, 0), (7, 8)])
def test_means_are_a_product(before: int, behind: int) -> None:
    graph = recorded(lambda b, x: means(b, b.mul(x, x), before, behind), SHAPE)
    made = after(pool_channels, graph)
    assert [node.op for node in made.nodes] == ["mul", "conv2d"]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"pad": {"value": 1}},
        {"pad": {"mode": "edge"}, "before": 1, "behind": 1},
        {"window_dimensions": [3, 1], "dilations": [2, 1]},
    ],
)
def test_what_looks_alike_stays(changes: dict[str, Any]) -> None:
    def record(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return means(b, b.mul(x, x), **changes)

    assert_keeps(pool_channels, recorded(record, SHAPE))


def test_what_others_read_stays() -> None:
    def record(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        padded = b.pad(x, [0, 2, 0, 0], [0, 2, 0, 0])
        pooled = b.average_pool2d(b.reshape(padded, [2, 1, 10, 12]), window_dimensions=[5, 1])
        return b.add(b.reshape(pooled, SHAPE), b.slice(padded, [0, 0, 0, 0], SHAPE))

    assert_keeps(pool_channels, recorded(record, SHAPE))


def test_other_data_types_and_many_channels_stay() -> None:
    for shape, data_type in ((SHAPE, "float16"), ((1, 600, 2, 2), "float32")):
        assert_keeps(pool_channels, recorded(means, shape, data_type))
