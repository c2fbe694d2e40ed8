"""Linear quantization in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _blockwise(blocks: Array, shape: tuple[int, ...]) -> Array:
    """Each element repeated until the shape is met."""
    for axis, size in enumerate(shape):
        blocks = np.repeat(blocks, size // blocks.shape[axis], axis=axis)
    return blocks


def dequantize_linear(input: Array, scale: Array, zero_point: Array) -> Array:
    """(input - zero_point) * scale."""
    zero = _blockwise(zero_point.astype(np.float64), input.shape)
    return (input - zero) * _blockwise(scale.astype(np.float64), input.shape)


def quantize_linear(input: Array, scale: Array, zero_point: Array) -> Array:
    """round(input / scale) + zero_point; the conversion to the output's type holds its range.

    The quotient is rounded to float32, as every engine does, so that halves are the same ones.
    """
    quotient = input.astype(np.float32) / _blockwise(scale.astype(np.float32), input.shape)
    return np.rint(quotient) + _blockwise(zero_point.astype(np.float64), input.shape)
