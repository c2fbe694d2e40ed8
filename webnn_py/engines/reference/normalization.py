"""Normalizations in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.engines.reference.parts import by_rows

Array = np.ndarray[Any, Any]


def _affine(normal: Array, scale: Array | None, bias: Array | None, axes: Sequence[int]) -> Array:
    """Compute normal * scale + bias; dimension i of scale and bias belongs to axes[i]."""

    def along(operand: Array) -> Array:
        placed = np.transpose(operand.astype(np.float64, order="C"), np.argsort(axes))
        sizes = dict(zip(sorted(axes), placed.shape, strict=True))
        return placed.reshape([sizes.get(i, 1) for i in range(normal.ndim)])

    if scale is not None:
        normal = normal * along(scale)
    return normal if bias is None else normal + along(bias)


def _normalize(x: Array, axes: Sequence[int], epsilon: float) -> Array:
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
    """Normalize by the operands `mean` and `variance` along `axis`."""
    spread = np.sqrt(variance.astype(np.float64, order="C") + epsilon)
    shape = [-1 if i == axis else 1 for i in range(input.ndim)]
    normal = (input.astype(np.float64, order="C") - mean.reshape(shape)) / spread.reshape(shape)
    return _affine(normal, scale, bias, [axis])


def instance_normalization(
    input: Array, scale: Array | None, bias: Array | None, epsilon: float, layout: str
) -> Array:
    """Normalize each sample and channel over height and width."""
    axes = [layout.index("h"), layout.index("w")]
    normal = _normalize(input.astype(np.float64, order="C"), axes, epsilon)
    return _affine(normal, scale, bias, [layout.index("c")])


def layer_normalization(
    input: Array, scale: Array | None, bias: Array | None, axes: Sequence[int], epsilon: float
) -> Array:
    """Normalize over `axes`."""
    return _affine(
        _normalize(input.astype(np.float64, order="C"), axes, epsilon), scale, bias, axes
    )


def rms_normalization(x: Array, scale: Array, axes: Sequence[int], epsilon: float) -> Array:
    """Divide by the root mean square over `axes`."""
    wide = x.astype(np.float64, order="C")
    mean = np.mean(wide * wide, axis=tuple(axes), keepdims=True)
    return _affine(wide / np.sqrt(mean + epsilon), scale, None, axes)


def softmax(input: Array, axis: int) -> Array:
    """Divide exponentials by their sum."""

    def rows(part: Array) -> Array:
        wide = part.astype(np.float64, order="C")
        exponents = np.exp(wide - np.max(wide, axis=axis, keepdims=True))
        normal: Array = exponents / np.sum(exponents, axis=axis, keepdims=True)
        return normal

    return by_rows(rows, [input], [axis], input.dtype)
