"""Normalizations before convolutions and poolings become convolutions; others stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.reference import evaluate
from webnn_py.passes import Target
from webnn_py.passes.scale_channels import scale_channels, scale_channels_by_convolutions

SHAPE = (2, 32, 5, 4)
Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def floats(b: MLGraphBuilder, *shape: int, low: float = -1) -> MLOperand:
    array = np.random.default_rng(len(shape)).uniform(low, 1, shape)
    return b.constant(array.astype(np.float32))


def normalized(b: MLGraphBuilder, x: MLOperand, axis: int = 1) -> MLOperand:
    size = x.shape[axis]
    mean, variance = floats(b, size), floats(b, size, low=0.5)
    scale, bias = floats(b, size), floats(b, size)
    return b.batch_normalization(x, mean, variance, scale=scale, bias=bias, axis=axis)


def convolved(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.conv2d(x, floats(b, 8, x.shape[1], 3, 3), padding=[1, 1, 1, 1])


STEPS: dict[str, Step] = {
    "alone": normalized,
    "before relu": lambda b, x: b.relu(normalized(b, x)),
    "before scale and shift": lambda b, x: b.relu(
        b.add(b.mul(normalized(b, x), floats(b, x.shape[1], 1, 1)), floats(b, 1, x.shape[1], 1, 1))
    ),
    "before numbers": lambda b, x: b.relu(
        b.sub(b.constant(2.0, "float32"), b.linear(normalized(b, x), alpha=3, beta=1))
    ),
    "without scale": lambda b, x: b.batch_normalization(
        x, floats(b, x.shape[1]), floats(b, x.shape[1], low=0.5)
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_normalizations_are_convolutions(name: str) -> None:
    graph = recorded(lambda b, x: convolved(b, STEPS[name](b, x)), SHAPE)
    made = after(scale_channels_by_convolutions, graph)
    relu = ["relu"] * any(node.op == "relu" for node in graph.nodes)
    assert [node.op for node in made.nodes] == ["conv2d", *relu, "conv2d"]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_those_of_halves_are_a_product_and_a_sum_of_floats() -> None:
    """Wherever they stand, with what scales and shifts channels behind them."""
    halves = [b.astype(np.float16) for b in np.random.default_rng(0).uniform(0.5, 1, (6, 3))]

    def build(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        mean, variance, scale, bias = (b.constant(array) for array in halves[:4])
        y = b.batch_normalization(b.cast(x, "float16"), mean, variance, scale=scale, bias=bias)
        for op, array in zip((b.mul, b.add), halves[4:], strict=True):
            y = op(y, b.constant(array.reshape(3, 1, 1)))
        return b.relu(y)

    graph = recorded(build, (2, 3, 5, 4))
    target = Target(lambda node: node.op != "batch_normalization", evaluate)
    made = scale_channels(graph, target)
    assert [node.op for node in made.nodes] == ["cast", "cast", "mul", "add", "cast", "relu"]
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    np.testing.assert_allclose(*results(graph, x), *results(made, x), rtol=4e-3, atol=2e-3)
    assert_keeps(scale_channels, graph)


@pytest.mark.parametrize("name", STEPS)
def test_normalizations_without_a_kernel_are_products(name: str) -> None:
    graph = recorded(lambda b, x: convolved(b, STEPS[name](b, x)), (2, 3, 5, 4))
    target = Target(lambda node: node.op != "batch_normalization", evaluate)
    made = scale_channels(graph, target)
    relu = ["relu"] * any(node.op == "relu" for node in graph.nodes)
    assert [node.op for node in made.nodes] == ["mul", "add", *relu, "conv2d"]
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert_keeps(scale_channels, graph)
    assert_keeps(lambda g, _: scale_channels(g, target), recorded(STEPS[name], (2, 3, 5, 4)))


def test_poolings_may_read_them() -> None:
    graph = recorded(lambda b, x: b.average_pool2d(b.relu(normalized(b, x))), SHAPE)
    made = after(scale_channels_by_convolutions, graph)
    assert [node.op for node in made.nodes] == ["conv2d", "relu", "average_pool2d"]


def two(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    made = b.relu(normalized(b, x))
    return b.concat([convolved(b, made), convolved(b, made)], 1)


def test_several_convolutions_may_read_one() -> None:
    made = after(scale_channels_by_convolutions, recorded(two, SHAPE))
    assert [node.op for node in made.nodes][:2] == ["conv2d", "relu"]


STAYING: dict[str, Step] = {
    "nothing in blocks reads it": lambda b, x: b.relu(normalized(b, x)),
    "others read it, too": lambda b, x: b.add(y := normalized(b, x), convolved_as(b, y)),
    "another dimension": lambda b, x: convolved(b, normalized(b, x, axis=3)),
    "channels that fill no blocks": lambda b, x: convolved(
        b, normalized(b, b.slice(x, [0, 0, 0, 0], [2, 24, 5, 4]))
    ),
    "weights": lambda b, x: b.conv2d(
        floats(b, *SHAPE), normalized(b, b.slice(x, [0, 0, 0, 0], [2, 32, 1, 1]))
    ),
    "numbers out of range": lambda b, x: convolved(
        b, b.mul(b.mul(normalized(b, x), b.constant(1e38, "float32")), b.constant(1e38, "float32"))
    ),
}


def convolved_as(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.conv2d(x, floats(b, x.shape[1], x.shape[1], 1, 1))


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    assert_keeps(scale_channels_by_convolutions, recorded(STAYING[name], SHAPE))


def test_sizes_of_images_may_be_open() -> None:
    graph = recorded(lambda b, x: convolved(b, normalized(b, x)), ["n", 32, 5, "w"])
    made = after(scale_channels_by_convolutions, graph)
    assert [node.op for node in made.nodes] == ["conv2d", "conv2d"]
