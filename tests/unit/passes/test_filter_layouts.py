"""Filters that are constant are laid out for tiles; what else there is stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.passes.internal_listings import TENSOR_CORES, after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.filter_layouts import (
    MAX_SMALL_PRODUCT,
    lay_out_filters,
    transpose_float16_matrices,
)

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
    made = after(lay_out_filters, graph)
    (node,) = made.nodes
    assert node.attrs["filter_layout"] == "hwio"
    assert node.inputs[1] is not None
    assert node.inputs[1].shape == (3, 2, ins, 8)
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_array_equal(one, other)


def _halves(b: MLGraphBuilder, *shape: int) -> MLOperand:
    return b.constant(np.random.default_rng(0).normal(size=shape).astype(np.float16))


@pytest.mark.parametrize(
    ("layout", "ins", "wanted"), [("nhwc", 8, "ohwi"), ("nhwc", 4, "hwio"), ("nchw", 8, "hwio")]
)
def test_halves_lie_as_they_are_loaded(layout: Any, ins: int, wanted: str) -> None:
    shape = (1, 6, 5, ins) if layout == "nhwc" else (1, ins, 6, 5)

    def convolved(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.conv2d(b.cast(x, "float16"), _halves(b, 12, ins, 3, 2), input_layout=layout)

    graph = recorded(convolved, shape)
    made = after(lay_out_filters, graph)
    assert made.nodes[-1].attrs["filter_layout"] == wanted
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_matrices_of_halves_are_turned() -> None:
    def product(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.matmul(b.cast(x, "float16"), _halves(b, 16, 20))

    graph = recorded(product, (3, 8, 16))
    made = after(transpose_float16_matrices, graph)
    assert [node.op for node in made.nodes] == ["cast", "transpose", "matmul"]
    assert made.nodes[1].inputs[0] in made.constants
    x = np.random.default_rng(1).normal(size=(3, 8, 16)).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("columns", "stays"), [(64, True), (63, False), (32, False)])
def test_matrices_of_large_products_stay_for_tensor_cores(columns: int, stays: bool) -> None:
    """But not those whose rows have no eights."""

    def product(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.matmul(b.cast(x, "float16"), _halves(b, 8, columns))

    graph = recorded(product, (MAX_SMALL_PRODUCT // 64 + 1, 8))
    made = after(transpose_float16_matrices, graph, TENSOR_CORES)
    assert (made is graph) == stays


@pytest.mark.parametrize("shape", [(1, 16), (32, 12)])
def test_matrices_that_stay(shape: tuple[int, int]) -> None:
    """One row reads its matrix once, and an inner size of 12 has no eights."""

    def product(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.matmul(b.cast(x, "float16"), _halves(b, shape[1], 20))

    assert_keeps(transpose_float16_matrices, recorded(product, shape))


def test_what_stays() -> None:
    def computed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.conv2d(x, b.reshape(b.slice(x, [0, 0, 0, 0], [1, 6, 2, 4]), [8, 6, 1, 1]))

    assert_keeps(lay_out_filters, recorded(computed, SHAPE))
