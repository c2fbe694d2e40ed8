"""Matrix products that read their operands through what only moves elements."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.backend.compared import assert_close
from tests.graphs import awaited, build, expected, normal
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
W = np.arange(20, dtype=np.float32).reshape(4, 5)


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (lambda b, x: b.reverse(x, axes=[1, 2]), X[:, ::-1, ::-1]),
        (lambda b, x: b.reverse(x, axes=[0]), X[::-1]),
        (lambda b, x: b.tile(x, [3, 2, 1]), np.tile(X, [3, 2, 1])),
        (lambda b, x: b.slice(x, [1, 0, 0], [1, 3, 4], strides=[1, 2, 1]), X[1:, ::2]),
        (lambda b, x: b.expand(b.slice(x, [0, 1, 0], [2, 1, 4]), [2, 6, 4]), X[:, [1] * 6]),
        (lambda b, x: b.split(x, [1, 2], axis=1)[1], X[:, 1:]),
        (lambda b, x: b.slice(x, [0, 1, 0], [2, 1, 4]), X[:, 1:2]),
        (lambda b, x: b.slice(x, [1, 1, 0], [1, 2, 4]), X[1:, 1:]),
        (lambda b, x: b.transpose(x, permutation=[1, 0, 2]), X.transpose(1, 0, 2)),
        (lambda b, x: b.reshape(x, [3, 1, 2, 1, 4]), X.reshape(3, 1, 2, 1, 4)),
        (lambda b, x: b.reshape(b.neg(x), [3, 2, 4]), -X.reshape(3, 2, 4)),
    ],
)
def test_operands_that_are_views(
    gpu: MLContext, view: Callable[[MLGraphBuilder, MLOperand], MLOperand], wanted: np.ndarray
) -> None:
    builder = MLGraphBuilder(gpu)
    x = view(builder, builder.input("x", "float32", X.shape))
    product = builder.matmul(x, builder.input("w", "float32", W.shape))
    alike = builder.matmul(x, builder.reshape(builder.input("w1", "float32", W.shape), [1, 4, 5]))
    graph = builder.build_sync({"y": product, "alike": alike})
    results = asyncio.run(MLAwaitedExecution(gpu).compute(graph, {"x": X, "w": W, "w1": W}))
    for result in results.values():
        np.testing.assert_array_equal(result, wanted @ W)


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_an_operand_read_once_more_behind_its_product(
    as_device: Callable[..., MLContext], kind: str
) -> None:
    """By vectors for the product and one by one behind it: no device need bind so many buffers."""

    def product(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, w, z = (b.input(name, "float32", [64, 64]) for name in "xwz")
        rows = [b.input(name, "float32", [64, 1]) for name in "rstu"]
        made = b.add(b.matmul(x, b.transpose(w)), z)
        return {"y": b.add(functools.reduce(b.mul, rows, made), b.transpose(w))}

    inputs = {name: normal(64, 64, seed=seed) for seed, name in enumerate("xwz")}
    inputs |= {name: normal(64, 1, seed=seed) for seed, name in enumerate("rstu")}
    context = as_device(kind=kind, max_bindings=8)
    assert_close(awaited(build(context, product), inputs)["y"], expected(product, inputs)["y"])
