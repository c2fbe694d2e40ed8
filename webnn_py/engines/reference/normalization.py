"""Normalizations in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.engines.reference.parts import by_rows

Array = np.ndarray[Any, Any]


def _affine(normal: Array, scale: Array | None, bias: Array | None, axes: Sequence[int]) -> Array:
    """Normal * scale + bias, whose i-th dimension belongs to axes[i]."""

    def along(operand: Array) -> Array:
        placed = np.transpose(operand.astype(np.float64, order="C"), np.argsort(axes))
        sizes = dict(zip(sorted(axes), placed.shape, strict=True))
        return placed.reshape([sizes.get(i, 1) for i in range(normal.ndim)])

    if scale is not None:
        normal = normal * along(scale)
    return normal if bias is None else normal + along(bias)


def _normalized(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    centered = x - np.mean(x, axis=tuple(axes), keepdims=True)
    variance = np.mean(centered * centered, axis=tuple(axes), keepdims=True)
    normal: Array = centered / np.sqrt(variance + epsilon)
    return normal


def batch_normalization(
    input: Array,
    mean: Array,
    variance: Array,
    scale: Array | None,
    bias: Array | None,
    axis: int,
    epsilon: float,
) -> Array:
    """Normalized by given moments along `axis`."""
    spread = np.sqrt(variance.astype(np.float64, order="C") + epsilon)
    shape = [-1 if i == axis else 1 for i in range(input.ndim)]
    normal = (input.astype(np.float64, order="C") - mean.reshape(shape)) / spread.reshape(shape)
    return _affine(normal, scale, bias, [axis])


def instance_normalization(
    input: Array, scale: Array | None, bias: Array | None, epsilon: float, layout: str
) -> Array:
    """Each sample and channel normalized by itself."""
    axes = [layout.index("h"), layout.index("w")]
    normal = _normalized(input.astype(np.float64, order="C"), axes, epsilon)
    return _affine(normal, scale, bias, [layout.index("c")])


def layer_normalization(
    input: Array, scale: Array | None, bias: Array | None, axes: Sequence[int], epsilon: float
) -> Array:
    """Normalized over `axes`."""
    return _affine(
        _normalized(input.astype(np.float64, order="C"), axes, epsilon), scale, bias, axes
    )


def softmax(input: Array, axis: int) -> Array:
    """Exponentials divided by their sum."""

    def rows(part: Array) -> Array:
        wide = part.astype(np.float64, order="C")
        exponents = np.exp(wide - np.max(wide, axis=axis, keepdims=True))
        normal: Array = exponents / np.sum(exponents, axis=axis, keepdims=True)
        return normal

    return by_rows(rows, [input], [axis], input.dtype)
