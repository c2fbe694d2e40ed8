"""Normalizations that a GPU has no kernel for become a product and a sum; halves in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.passes.listings import Built, assert_keeps, normal, operators
from tests.unit.passes.test_blocks import NORMALIZED, convolved
from webnn_py import MLGraphBuilder, MLOperand

STAGE = "scale_channels"
SHAPE = (2, 3, 5, 4)
Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]

pytestmark = pytest.mark.usefixtures("gpu")


def before_a_convolution(step: Step) -> Step:
    return lambda b, x: convolved(b, step(b, x))


@pytest.mark.parametrize("name", NORMALIZED)
def test_normalizations_without_a_kernel_are_products(name: str) -> None:
    step, between = NORMALIZED[name]
    built = Built(before_a_convolution(step), SHAPE, engine="gpu")
    assert operators(built.after(STAGE)) == ["mul", "add", *between, "conv2d"]
    built.assert_computes(normal(*SHAPE), rtol=1e-4, atol=1e-4)
    assert_keeps(STAGE, before_a_convolution(step), SHAPE)
    assert_keeps(STAGE, step, SHAPE, engine="gpu")


def test_those_of_halves_are_a_product_and_a_sum_of_floats() -> None:
    """Wherever they stand, with what scales and shifts channels behind them."""
    halves = [b.astype(np.float16) for b in np.random.default_rng(0).uniform(0.5, 1, (6, 3))]

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        mean, variance, scale, bias = (b.constant(array) for array in halves[:4])
        y = b.batch_normalization(b.cast(x, "float16"), mean, variance, scale=scale, bias=bias)
        for op, array in zip((b.mul, b.add), halves[4:], strict=True):
            y = op(y, b.constant(array.reshape(3, 1, 1)))
        return b.relu(y)

    built = Built(body, SHAPE, engine="gpu")
    left = [op for op in operators(built.after(STAGE)) if op != "cast"]
    assert left == ["mul", "add", "relu"]
    built.assert_computes(normal(*SHAPE), rtol=4e-3, atol=2e-3)
    assert_keeps(STAGE, body, SHAPE)
