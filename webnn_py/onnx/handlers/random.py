"""Random numbers: a graph has none of its own, so that its noise becomes an input.

The input is named after the node, with ":noise" at its end. Whoever runs the graph draws it, by a
seed if runs are to repeat: standard normal for RandomNormal and RandomNormalLike, otherwise uniform
from 0 to below 1.
"""

from __future__ import annotations

from typing import Any

import onnx

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import Tensor, check_rank, webnn_type


def _noise(g: Emitter, shape: Any, elem: int) -> Any:
    """Add the input."""
    return g.input(f"{g.label}:noise", webnn_type(elem), list(shape))


def _scaled(g: Emitter, noise: Any, factor: float, offset: float) -> Any:
    return g.add(g.mul(noise, float(factor)), float(offset))


@handles("RandomNormalLike")
def random_normal_like(
    g: Emitter,
    x: Tensor,
    *,
    dtype: int = 0,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float = 0.0,
) -> Any:
    """Return normal numbers of the shape of `x`."""
    return _scaled(g, _noise(g, x.shape, dtype or x.elem), scale, mean)


@handles("RandomNormal")
def random_normal(
    g: Emitter,
    *,
    shape: list[int],
    dtype: int = onnx.TensorProto.FLOAT,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float = 0.0,
) -> Any:
    """Return normal numbers."""
    return _scaled(g, _noise(g, shape, dtype), scale, mean)


@handles("RandomUniformLike")
def random_uniform_like(
    g: Emitter,
    x: Tensor,
    *,
    dtype: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    seed: float = 0.0,
) -> Any:
    """Return uniform numbers of the shape of `x`."""
    return _scaled(g, _noise(g, x.shape, dtype or x.elem), high - low, low)


@handles("RandomUniform")
def random_uniform(
    g: Emitter,
    *,
    shape: list[int],
    dtype: int = onnx.TensorProto.FLOAT,
    low: float = 0.0,
    high: float = 1.0,
    seed: float = 0.0,
) -> Any:
    """Return uniform numbers."""
    return _scaled(g, _noise(g, shape, dtype), high - low, low)


@handles("Multinomial")
def multinomial(
    g: Emitter,
    x: Tensor,
    *,
    dtype: int = onnx.TensorProto.INT32,
    sample_size: int = 1,
    seed: float = 0.0,
) -> Any:
    """Draw classes by their unnormalized log-probabilities: [batch, classes] to [batch, samples].

    A sample is the first class whose cumulative probability is above the noise.
    """
    check_rank(2, x=x)
    batch, classes = x.shape
    noise = _noise(g, [batch, sample_size], x.elem)
    wide = g.to(x, "float32")
    below = g.cumulative_sum(g.softmax(wide, 1), 1)
    passed = g.greater_or_equal(
        g.reshape(g.to(noise, "float32"), [batch, sample_size, 1]),
        g.reshape(below, [batch, 1, classes]),
    )
    places = g.reduce_sum(g.cast(passed, "float32"), axes=[2])
    last = g.constant(classes - 1, places)  # sums may end a rounding below 1
    return g.cast(g.min(places, last), webnn_type(dtype))
