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
    """One after the other."""
    return np.concatenate(inputs, axis=axis)


def expand(input: Array, new_shape: Sequence[int]) -> Array:
    """Repeat dimensions of size 1."""
    return np.broadcast_to(input, new_shape)


def pad(
    input: Array,
    beginning_padding: Sequence[int],
    ending_padding: Sequence[int],
    mode: str,
    value: float,
) -> Array:
    """Elements added around."""
    if input.ndim == 0:
        return input
    widths = list(zip(beginning_padding, ending_padding, strict=True))
    extra = {"constant_values": value} if mode == "constant" else {}
    return np.pad(input, widths, mode=_PAD_MODES[mode], **extra)


def reshape(input: Array, new_shape: Sequence[int]) -> Array:
    """Another shape."""
    return input.reshape(new_shape)


def reverse(input: Array, axes: Sequence[int]) -> Array:
    """The opposite order."""
    return np.flip(input, tuple(axes))


def slice(
    input: Array, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> Array:
    """A window."""
    windows = zip(starts, sizes, strides, strict=True)
    return input[tuple(builtins.slice(i, i + size, step) for i, size, step in windows)]


def split(input: Array, splits: int | Sequence[int], axis: int) -> list[Array]:
    """Parts along an axis."""
    ends = np.cumsum(split_sizes(input.shape[axis], splits))
    return np.split(input, ends[:-1], axis=axis)


def tile(input: Array, repetitions: Sequence[int]) -> Array:
    """Repeated as a whole."""
    pairs = list(zip(repetitions, input.shape, strict=True))
    result = np.empty([times * size for times, size in pairs], input.dtype)
    apart = [size for pair in pairs for size in pair]
    once = [one for size in input.shape for one in (1, size)]
    np.copyto(result.reshape(apart), input.reshape(once))  # np.tile keeps the interpreter
    return result


def transpose(input: Array, permutation: Sequence[int]) -> Array:
    """Dimensions permuted."""
    return np.transpose(input, permutation)


def triangular(input: Array, upper: bool, diagonal: int) -> Array:
    """A triangle of each matrix."""
    return np.triu(input, diagonal) if upper else np.tril(input, diagonal)
