"""Convolutions of joined channels become sums where that copies less; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.convolve_parts import convolve_parts

SHAPE = (2, 16, 5, 4)
Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def floats(b: MLGraphBuilder, *shape: int) -> MLOperand:
    array = np.random.default_rng(len(shape)).normal(size=shape)
    return b.constant(array.astype(np.float32))


def joined(b: MLGraphBuilder, x: MLOperand, axis: int = 1) -> MLOperand:
    return b.concat([b.relu(x), b.neg(x)], axis)


def convolved(b: MLGraphBuilder, x: MLOperand, made: int = 16, **options: Any) -> MLOperand:
    inside = x.shape[1] // options.get("groups", 1)
    return b.conv2d(x, floats(b, made, inside, 3, 2), **{"bias": floats(b, made)} | options)


PARTED: dict[str, Step] = {
    "alone": lambda b, x: convolved(b, joined(b, x)),
    "without bias": lambda b, x: convolved(b, joined(b, x), bias=None, padding=[1, 1, 0, 1]),
    "with options": lambda b, x: convolved(b, joined(b, x), strides=[2, 1], dilations=[1, 2]),
}


@pytest.mark.parametrize("name", PARTED)
def test_parts_are_convolved(name: str) -> None:
    graph = recorded(PARTED[name], SHAPE)
    made = after(convolve_parts, graph)
    assert [node.op for node in made.nodes] == ["relu", "neg", "conv2d", "conv2d", "add"]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


STAYING: dict[str, Step] = {
    "many results": lambda b, x: convolved(b, joined(b, x), 17),
    "joined for others, too": lambda b, x: b.add(b.reduce_sum(y := joined(b, x)), convolved(b, y)),
    "rows joined": lambda b, x: convolved(b, joined(b, x, 2), 4),
    "parts that fill no blocks": lambda b, x: convolved(
        b, b.concat([x, b.slice(x, [0, 0, 0, 0], [2, 8, 5, 4])], 1), 4
    ),
    "groups": lambda b, x: convolved(b, joined(b, x), groups=2),
    "filters that are computed": lambda b, x: b.conv2d(
        joined(b, x), b.exp(b.slice(joined(b, x), [0, 0, 0, 0], [1, 32, 3, 3]))
    ),
    "channels last": lambda b, x: b.conv2d(
        b.concat([x, x], 3), floats(b, 1, 8, 1, 1), input_layout="nhwc"
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    assert_keeps(convolve_parts, recorded(STAYING[name], SHAPE))
