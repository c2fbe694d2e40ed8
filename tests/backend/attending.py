"""A graph of one open size, the length, and what it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from tests.graphs import awaited, normal
from webnn_py import MLContext, MLGraph, MLGraphBuilder

WIDTH = 16
WEIGHTS = normal(WIDTH, WIDTH, seed=1)
MET = 80, 85
"""The first has kernels of its own, which serve no others. The second divides by nothing."""
FAR = 181
Later = deque[Callable[[], None]]


def attending(context: MLContext) -> MLGraph:
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [2, "length", WIDTH])
    keys = b.matmul(x, b.constant(WEIGHTS))
    scores = b.softmax(b.matmul(keys, b.transpose(x, permutation=[0, 2, 1])), 2)
    return b.build_sync({"y": b.layer_normalization(b.matmul(scores, x), axes=[2])})


def met(context: MLContext) -> MLGraph:
    """With sizes that it was compiled for."""
    graph = attending(context)
    for length in MET:
        check(graph, length)
    return graph


def check(graph: MLGraph, length: int) -> None:
    """It computes what NumPy does."""
    x = normal(2, length, WIDTH, seed=length)
    scores = x @ WEIGHTS @ x.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    y = weights / weights.sum(2, keepdims=True) @ x
    y = (y - y.mean(2, keepdims=True)) / np.sqrt(y.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(awaited(graph, {"x": x})["y"], y, rtol=1e-3, atol=1e-4)
