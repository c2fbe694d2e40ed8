"""Poolings move before concats and convolutions, convolutions of each channel before shuffles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.ir import Graph
from webnn_py.passes.pool_before_concat import pool_before_concat

SHAPE = (2, 6, 8, 7)
Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def floats(b: MLGraphBuilder, *shape: int) -> MLOperand:
    array = np.random.default_rng(len(shape)).normal(size=shape)
    return b.constant(array.astype(np.float32))


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def assert_computes_the_same(one: Graph, other: Graph) -> None:
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for a, b in zip(results(one, x), results(other, x), strict=True):
        np.testing.assert_array_equal(a, b)


def joined(b: MLGraphBuilder, x: MLOperand, axis: int = 1) -> MLOperand:
    return b.concat([b.relu(x), b.neg(x)], axis)


POOLED: dict[str, Step] = {
    "maxima": lambda b, x: b.max_pool2d(
        joined(b, x), window_dimensions=[3, 3], strides=[2, 2], padding=[1, 0, 1, 0]
    ),
    "all means": lambda b, x: b.average_pool2d(joined(b, x)),
    "channels last": lambda b, x: b.l2_pool2d(
        joined(b, x, 3), window_dimensions=[2, 2], strides=[2, 2], layout="nhwc"
    ),
}


@pytest.mark.parametrize("name", POOLED)
def test_parts_are_pooled(name: str) -> None:
    graph = recorded(POOLED[name], SHAPE)
    made = after(pool_before_concat, graph)
    pooling = graph.nodes[-1].op
    assert operators(made) == ["relu", "neg", pooling, pooling, "concat"]
    assert_computes_the_same(graph, made)


def projected(b: MLGraphBuilder, x: MLOperand, **options: Any) -> MLOperand:
    return b.conv2d(x, floats(b, 4, 6, 1, 1), bias=floats(b, 4), **options)


MEANS: dict[str, Step] = {
    "windows": lambda b, x: b.average_pool2d(
        projected(b, x), window_dimensions=[2, 2], strides=[2, 2]
    ),
    "windows over the border": lambda b, x: b.average_pool2d(
        projected(b, x), window_dimensions=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]
    ),
    "all": lambda b, x: b.average_pool2d(b.conv2d(x, floats(b, 4, 3, 1, 1), groups=2)),
    "channels last": lambda b, x: b.average_pool2d(
        b.conv2d(x, floats(b, 2, 7, 1, 1), input_layout="nhwc"), layout="nhwc"
    ),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_are_convolved(name: str) -> None:
    graph = recorded(MEANS[name], SHAPE)
    made = after(pool_before_concat, graph)
    assert operators(made) == ["average_pool2d", "conv2d"]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def shuffled(
    b: MLGraphBuilder,
    x: MLOperand,
    parts: tuple[int, ...] = (2, 3),
    order: tuple[int, ...] = (0, 2, 1, 3, 4),
) -> MLOperand:
    batch, _, *images = x.shape
    return b.reshape(
        b.transpose(b.reshape(x, [batch, *parts, *images]), permutation=order), x.shape
    )


def convolved(b: MLGraphBuilder, x: MLOperand, **changes: Any) -> MLOperand:
    options = {"groups": 6, "strides": [2, 2], "padding": [1, 1, 1, 1], "bias": floats(b, 6)}
    return b.conv2d(x, floats(b, 6, 1, 3, 3), **options | changes)


SHUFFLED: dict[str, Step] = {
    "two ways": lambda b, x: convolved(b, shuffled(b, x)),
    "three ways": lambda b, x: convolved(b, shuffled(b, x, (2, 1, 3), (0, 3, 1, 2, 4, 5))),
    "without bias": lambda b, x: convolved(b, shuffled(b, x), bias=None),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_results_are_shuffled(name: str) -> None:
    graph = recorded(SHUFFLED[name], SHAPE)
    made = after(pool_before_concat, graph)
    assert operators(made) == ["conv2d", "reshape", "transpose", "reshape"]
    assert_computes_the_same(graph, made)


STAYING: dict[str, Step] = {
    "a pooling that makes nothing smaller": lambda b, x: b.max_pool2d(
        joined(b, x), window_dimensions=[3, 3], padding=[1, 1, 1, 1]
    ),
    "rows joined": lambda b, x: b.average_pool2d(joined(b, x, 2)),
    "joined for others, too": lambda b, x: b.add(y := joined(b, x), b.average_pool2d(y)),
    "maxima of products": lambda b, x: b.max_pool2d(projected(b, x)),
    "means of what others read": lambda b, x: b.add(y := projected(b, x), b.average_pool2d(y)),
    "means of windows of several elements": lambda b, x: b.average_pool2d(
        b.conv2d(x, floats(b, 4, 6, 3, 3))
    ),
    "means of some places": lambda b, x: b.average_pool2d(projected(b, x, strides=[2, 2])),
    "means of what is padded": lambda b, x: b.average_pool2d(projected(b, x, padding=[1, 0, 0, 0])),
    "means of other layouts": lambda b, x: b.average_pool2d(projected(b, x), layout="nhwc"),
    "a convolution that makes nothing smaller": lambda b, x: convolved(
        b, shuffled(b, x), strides=[1, 1]
    ),
    "a convolution of several channels": lambda b, x: b.conv2d(
        shuffled(b, x), floats(b, 6, 2, 3, 3), groups=3
    ),
    "filters that are computed": lambda b, x: b.conv2d(
        shuffled(b, x), b.slice(b.exp(x), [0, 0, 0, 0], [1, 6, 3, 3]), groups=1
    ),
    "rows turned": lambda b, x: convolved(
        b, b.reshape(b.transpose(b.reshape(x, [2, 6, 7, 8]), permutation=[0, 1, 3, 2]), SHAPE)
    ),
    "images among channels": lambda b, x: convolved(b, shuffled(b, x, (2, 3), (0, 2, 1, 4, 3))),
    "shuffled for others, too": lambda b, x: b.add(
        b.slice(y := shuffled(b, x), [0, 0, 0, 0], [2, 6, 4, 4]), convolved(b, y)
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    assert_keeps(pool_before_concat, recorded(STAYING[name], SHAPE))


def test_open_sizes_stay() -> None:
    assert_keeps(pool_before_concat, recorded(POOLED["maxima"], ["n", 6, 8, 7]))
