"""Sliding windows in NumPy: convolution and pooling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from webnn_py import dtypes
from webnn_py.ops import numeric
from webnn_py.ops.convolution import transposed_sizes

Array = np.ndarray[Any, Any]
TILE_BYTES = 4 << 20
"""About what temporaries take: to free larger ones holds the interpreter for milliseconds."""


def _by_samples(function: Callable[..., Array]) -> Callable[..., Array]:
    """Have a large batch computed in parts; the batch comes first in every layout."""

    @functools.wraps(function)
    def in_parts(input: Array, **options: Any) -> Array:
        deep = max(1, TILE_BYTES // (input[0].size * np.dtype(np.float64).itemsize))
        if deep >= len(input):
            return function(input, **options)
        data_type = dtypes.from_numpy(input.dtype)
        starts = range(0, len(input), deep)
        parts = (function(input[start : start + deep], **options) for start in starts)
        return np.concatenate([numeric.cast(part, data_type) for part in parts])

    return in_parts


def _windows(
    x: Array,
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[int],
) -> Array:
    """View of [n, c, h, w] as [n, c, out_h, out_w, kh, kw]."""
    n, c, h, w = x.strides
    shape = (*x.shape[:2], *sizes, *window)
    steps = (n, c, h * strides[0], w * strides[1], h * dilations[0], w * dilations[1])
    return np.lib.stride_tricks.as_strided(x, shape, steps, writeable=False)


def _padded(x: Array, padding: Sequence[int], value: float) -> Array:
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _permuted(x: Array, layout: str, wanted: str) -> Array:
    return np.transpose(x, [layout.index(letter) for letter in wanted])


def _floor_sizes(
    shape: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, int]:
    height, width = (
        (shape[2 + i] - (window[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in (0, 1)
    )
    return height, width


def _tiles(windows: Array) -> Iterator[slice]:
    """Parts of the rows whose windows, laid out, take `TILE_BYTES`."""
    rows = windows.shape[2]
    high = max(1, TILE_BYTES * rows // windows.nbytes)
    for top in range(0, rows, high):
        yield slice(top, top + high)


@_by_samples
def conv2d(
    input: Array,
    filter: Array,
    bias: Array | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
) -> Array:
    """2-D convolution as one matrix product a group."""
    x = _padded(_permuted(input, input_layout, "nchw").astype(np.float64), padding, 0.0)
    taps = _permuted(filter, filter_layout, "oihw").astype(np.float64)
    sizes = _floor_sizes(x.shape, taps.shape[2:], strides, dilations)
    windows = _windows(x, taps.shape[2:], strides, dilations, sizes)
    result = np.empty((x.shape[0], *sizes, taps.shape[0]))
    outs, ins = taps.shape[0] // groups, taps.shape[1]
    for group in range(groups):
        kernel = taps[group * outs : (group + 1) * outs]
        part = windows[:, group * ins : (group + 1) * ins]
        for rows in _tiles(part):
            product = np.tensordot(part[:, :, rows], kernel, axes=((1, 4, 5), (1, 2, 3)))
            result[:, rows, :, group * outs : (group + 1) * outs] = product
    if bias is not None:
        result = result + bias.astype(np.float64)
    return _permuted(result, "nhwc", input_layout)


@_by_samples
def conv_transpose2d(
    input: Array,
    filter: Array,
    bias: Array | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_padding: Sequence[int],
    output_sizes: Sequence[int] | None,
    groups: int,
    input_layout: str,
    filter_layout: str,
) -> Array:
    """2-D transposed convolution: each tap adds the input to a strided part of the output."""
    x = _permuted(input, input_layout, "nchw").astype(np.float64)
    taps = _permuted(filter, filter_layout, "iohw").astype(np.float64)
    n, c, h, w = x.shape
    _, o, *window = taps.shape
    if c % groups:
        raise ValueError(f"{c} input channels do not divide into {groups} groups")
    least = transposed_sizes((h, w), window, padding, strides, dilations)
    sizes = np.add(least, output_padding) if output_sizes is None else output_sizes
    top, _, left, _ = padding
    reach = transposed_sizes((h, w), window, (0, 0, 0, 0), strides, dilations)
    full = np.zeros((n, groups, o, max(reach[0], top + sizes[0]), max(reach[1], left + sizes[1])))
    parts = x.reshape(n, groups, c // groups, h, w)
    kernels = taps.reshape(groups, c // groups, o, *window)
    for row, column in np.ndindex(*window):
        i, j = row * dilations[0], column * dilations[1]
        rows = slice(i, i + (h - 1) * strides[0] + 1, strides[0])
        columns = slice(j, j + (w - 1) * strides[1] + 1, strides[1])
        tap = kernels[..., row, column]
        full[..., rows, columns] += np.einsum("ngchw,gco->ngohw", parts, tap, optimize=True)
    result = full[..., top : top + sizes[0], left : left + sizes[1]].reshape(n, -1, *sizes)
    if bias is not None:
        result = result + bias.astype(np.float64).reshape(-1, 1, 1)
    return _permuted(result, "nchw", input_layout)


def _pool(
    input: Array,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_shape_rounding: str,
    output_sizes: Sequence[int] | None,
    fill: float,
) -> tuple[Array, Array]:
    """Windows of the input and, of the same shape, where they lie inside it."""
    x = _permuted(input, layout, "nchw")
    inside = np.ones((1, 1, *x.shape[2:]), dtype=np.float64)
    sizes = []
    ends = list(padding)
    for i in (0, 1):
        span = (window_dimensions[i] - 1) * dilations[i] + 1
        total = x.shape[2 + i] + padding[2 * i] + padding[2 * i + 1] - span
        rounded = (
            -(-total // strides[i]) if output_shape_rounding == "ceil" else total // strides[i]
        )
        sizes.append(rounded + 1 if output_sizes is None else output_sizes[i])
        needed = (sizes[i] - 1) * strides[i] + span
        ends[2 * i + 1] = max(padding[2 * i + 1], needed - x.shape[2 + i] - padding[2 * i])
    how = (window_dimensions, strides, dilations, sizes)
    return _windows(_padded(x, ends, fill), *how), _windows(_padded(inside, ends, 0.0), *how)


@_by_samples
def average_pool2d(input: Array, layout: str, **options: Any) -> Array:
    """Mean of each window's elements inside the input."""
    windows, inside = _pool(input.astype(np.float64), layout=layout, fill=0.0, **options)
    mean = windows.sum(axis=(4, 5)) / inside.sum(axis=(4, 5))
    return _permuted(mean, "nchw", layout)


@_by_samples
def l2_pool2d(input: Array, layout: str, **options: Any) -> Array:
    """Root of the sum of squares of each window."""
    windows, _ = _pool(input.astype(np.float64), layout=layout, fill=0.0, **options)
    return _permuted(np.sqrt((windows * windows).sum(axis=(4, 5))), "nchw", layout)


@_by_samples
def max_pool2d(input: Array, layout: str, **options: Any) -> Array:
    """Greatest element of each window."""
    lowest = -np.inf if input.dtype.kind == "f" else np.iinfo(input.dtype).min
    windows, _ = _pool(input, layout=layout, fill=lowest, **options)
    return _permuted(windows.max(axis=(4, 5)), "nchw", layout)
