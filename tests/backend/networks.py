"""A graph with something of everything, and an encoder of text, for tests of the modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graphs import normal
from webnn_py import MLGraphBuilder, MLOperand


def network(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Two inputs, two outputs, intermediates and constants."""
    x = builder.input("x", "float32", [2, 3, 8, 8])
    scale = builder.input("scale", "float32", [3, 1, 1])
    filters = builder.constant(normal(4, 3, 3, 3, seed=1))
    hidden = builder.relu(builder.conv2d(builder.mul(x, scale), filters, padding=[1, 1, 1, 1]))
    flat = builder.reshape(hidden, [2, 256])
    scores = builder.matmul(flat, builder.constant(normal(256, 5, seed=2)))
    return {
        "p": builder.softmax(scores, 1),
        "mean": builder.reduce_mean(hidden, axes=[2, 3]),
    }


def network_inputs(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": normal(2, 3, 8, 8, seed=seed), "scale": normal(3, 1, 1, seed=seed + 100)}


def encoder(
    builder: MLGraphBuilder, batch: Any, length: Any, layers: int, width: int, heads: int
) -> MLOperand:
    """Layers of attention and of a network for each position, of inputs "x" and "mask".

    Args:
        builder: What records it.
        batch: Size of the first dimension of both inputs.
        length: Of the second one.
        layers: Their number.
        width: Size of the last dimension of "x".
        heads: Parts of the width that attend apart.
    """
    rng = np.random.default_rng(layers)
    y = builder.input("x", "float32", [batch, length, width])
    mask = builder.input("mask", "float32", [batch, length])
    rows, steps = y.shape[:2]
    mask = builder.reshape(mask, [rows, 1, 1, steps])

    def constant(*shape: int) -> MLOperand:
        return builder.constant((rng.normal(size=shape) * shape[-1] ** -0.5).astype(np.float32))

    def dense(x: MLOperand, size: int) -> MLOperand:
        weights = builder.transpose(constant(size, x.shape[2]))
        return builder.add(builder.matmul(x, weights), constant(size))

    def heads_of(x: MLOperand) -> MLOperand:
        parts = builder.reshape(x, [rows, steps, heads, width // heads])
        return builder.transpose(parts, permutation=[0, 2, 1, 3])

    def normalized(x: MLOperand) -> MLOperand:
        return builder.layer_normalization(x, axes=[2], scale=constant(width), bias=constant(width))

    for _ in range(layers):
        query, key, value = (heads_of(dense(y, width)) for _ in range(3))
        scores = builder.matmul(query, builder.transpose(key, permutation=[0, 1, 3, 2]))
        scores = builder.linear(scores, alpha=(width // heads) ** -0.5)
        mixed = builder.matmul(builder.softmax(builder.add(scores, mask), 3), value)
        joined = builder.transpose(mixed, permutation=[0, 2, 1, 3])
        y = normalized(builder.add(y, dense(builder.reshape(joined, [rows, steps, width]), width)))
        y = normalized(builder.add(y, dense(builder.gelu(dense(y, 4 * width)), width)))
    return y


def assert_like(results: Any, wanted: Any) -> None:
    assert results.keys() == wanted.keys()
    for name, array in wanted.items():
        assert results[name].dtype == array.dtype
        np.testing.assert_allclose(results[name], array, rtol=2e-4, atol=1e-5, err_msg=name)
