"""A graph with something of everything, for tests of the modes."""

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


def assert_like(results: Any, wanted: Any) -> None:
    assert results.keys() == wanted.keys()
    for name, array in wanted.items():
        assert results[name].dtype == array.dtype
        np.testing.assert_allclose(results[name], array, rtol=2e-4, atol=1e-5, err_msg=name)
