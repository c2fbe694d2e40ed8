"""Moving elements in NumPy."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.ops.movement import split_sizes

Array = np.ndarray[Any, Any]

_PAD_MODES: dict[str, Any] = {"constant": "constant", "edge": "edge", "reflection": "reflect"}


def concat(inputs: Sequence[Array], axis: int) -> Array:
    """Join arrays along an axis."""
    return np.concatenate(inputs, axis=axis)


def expand(input: Array, new_shape: Sequence[int]) -> Array:
    """Broadcast to a shape."""
    return np.broadcast_to(input, new_shape)


def pad(
    input: Array,
    beginning_padding: Sequence[int],
    ending_padding: Sequence[int],
    mode: str,
    value: float,
) -> Array:
    """Add elements around the input."""
    if input.ndim == 0:
        return input
    widths = list(zip(beginning_padding, ending_padding, strict=True))
    extra = {"constant_values": value} if mode == "constant" else {}
    return np.pad(input, widths, mode=_PAD_MODES[mode], **extra)


def reshape(input: Array, new_shape: Sequence[int]) -> Array:
    """Change the shape."""
    return input.reshape(new_shape)


def reverse(input: Array, axes: Sequence[int]) -> Array:
    """Reverse the order along axes."""
    return np.flip(input, tuple(axes))


def slice(
    input: Array, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> Array:
    """Cut out a window with strides."""
    windows = zip(starts, sizes, strides, strict=True)
    return input[tuple(builtins.slice(i, i + size, step) for i, size, step in windows)]


def split(input: Array, splits: int | Sequence[int], axis: int) -> list[Array]:
    """Split along an axis."""
    ends = np.cumsum(split_sizes(input.shape[axis], splits))
    return np.split(input, ends[:-1], axis=axis)


def tile(input: Array, repetitions: Sequence[int]) -> Array:
    """Repeat the whole input along each dimension."""
    pairs = list(zip(repetitions, input.shape, strict=True))
    result = np.empty([times * size for times, size in pairs], input.dtype)
    split = [size for pair in pairs for size in pair]
    once = [one for size in input.shape for one in (1, size)]
    np.copyto(result.reshape(split), input.reshape(once))  # np.tile does not release the GIL
    return result


def transpose(input: Array, permutation: Sequence[int]) -> Array:
    """Permute the dimensions."""
    return np.transpose(input, permutation)


def triangular(input: Array, upper: bool, diagonal: int) -> Array:
    """Keep a triangle of each matrix."""
    return np.triu(input, diagonal) if upper else np.tril(input, diagonal)
