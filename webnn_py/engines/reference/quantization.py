"""Linear quantization in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _blockwise(blocks: Array, shape: tuple[int, ...]) -> Array:
    """Repeat the elements of `blocks` along each axis to reach `shape`."""
    for axis, size in enumerate(shape):
        blocks = np.repeat(blocks, size // blocks.shape[axis], axis=axis)
    return blocks


def dequantize_linear(input: Array, scale: Array, zero_point: Array) -> Array:
    """Compute (input - zero_point) * scale."""
    zero = _blockwise(zero_point.astype(np.float64), input.shape)
    return (input - zero) * _blockwise(scale.astype(np.float64), input.shape)


def quantize_linear(input: Array, scale: Array, zero_point: Array) -> Array:
    """Compute round(input / scale) + zero_point; the engine's conversion then clamps it.

    The quotient is rounded to float32, as in every engine, so that all agree on which are halves.
    """
    quotient = input.astype(np.float32) / _blockwise(scale.astype(np.float32), input.shape)
    return np.rint(quotient) + _blockwise(zero_point.astype(np.float64), input.shape)


def dynamic_quantize_linear(input: Array) -> list[Array]:
    """Quantize by the range, extended to include 0; scale and quotients are float32."""
    low, high = min(input.min(), np.float32(0)), max(input.max(), np.float32(0))
    scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    codes = np.rint(input / scale) + zero_point
    return [np.clip(codes, 0, 255), np.asarray(scale), np.asarray(zero_point)]
