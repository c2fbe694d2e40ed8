"""Filters that are constant are laid out for tiles; what else there is stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.filter_layouts import put_channels_last

SHAPE = (2, 6, 5, 4)


def convolved(b: MLGraphBuilder, x: MLOperand, *shape: int, **options: Any) -> MLOperand:
    weights = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    bias = b.constant(np.arange(8, dtype=np.float32))
    return b.conv2d(x, b.constant(weights), bias=bias, **options)


@pytest.mark.parametrize(
    "options", [{}, {"groups": 2, "padding": [1, 0, 2, 1]}, {"input_layout": "nhwc"}]
)
def test_channels_come_last(options: dict[str, Any]) -> None:
    ins = SHAPE[options.get("input_layout", "nchw").index("c")] // options.get("groups", 1)
    graph = recorded(lambda b, x: convolved(b, x, 8, ins, 3, 2, **options), SHAPE)
    made = after(put_channels_last, graph)
    (node,) = made.nodes
    assert node.attrs["filter_layout"] == "hwio"
    assert node.inputs[1] is not None
    assert node.inputs[1].shape == (3, 2, ins, 8)
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_stays() -> None:
    def computed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.conv2d(x, b.reshape(b.slice(x, [0, 0, 0, 0], [1, 6, 2, 4]), [8, 6, 1, 1]))

    assert_keeps(put_channels_last, recorded(computed, SHAPE))
