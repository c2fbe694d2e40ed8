"""Convolution and pooling in NumPy, as operations on views of sliding windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.engines.reference.parts import TILE_BYTES
from webnn_py.ops import numeric
from webnn_py.ops.convolution import transposed_sizes, window_sizes
from webnn_py.ops.windows import Windows, sliding

Array = np.ndarray[Any, Any]
MAX_TAPS_ONE_BY_ONE = 64
"""Most taps of a window for which one step for each tap is faster than reducing each window."""


def _by_samples(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a function to compute large batches in parts; the batch is first in every layout."""

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


def _windows(x: Array, along: Sequence[Windows], fill: float) -> Array:
    """Return [n, c, h, w] with padding as windows [n, c, out_h, out_w, kh, kw].

    The result is a view of the input or of a copy. Along each dimension the copy contains the
    padded input, or the taps of each window if these are fewer elements.
    """
    steps = [(windows.stride, windows.dilation) for windows in along]
    slid: dict[int, Windows] = {}
    for axis, windows in enumerate(along, start=2):
        if windows.count * windows.taps >= windows.span:
            slid[axis] = windows
        else:
            x = _gather_taps(x, axis, windows, fill)
            steps[axis - 2] = windows.taps, 1
    x = _pad(x, slid, fill)
    n, c, *own = x.strides
    shape = (*x.shape[:2], *(w.count for w in along), *(w.taps for w in along))
    strides = [[stride * step[i] for stride, step in zip(own, steps, strict=True)] for i in (0, 1)]
    return np.lib.stride_tricks.as_strided(
        x, shape, (n, c, *strides[0], *strides[1]), writeable=False
    )


def _pad(x: Array, slid: Mapping[int, Windows], fill: float) -> Array:
    """Pad an array along the dimensions in `slid` to the windows' span."""
    sizes, places = list(x.shape), [slice(None)] * x.ndim
    for axis, windows in slid.items():
        sizes[axis] = max(windows.span, windows.padding + windows.size)
        places[axis] = slice(windows.padding, windows.padding + windows.size)
    if sizes == list(x.shape):
        return x
    wide = np.full(sizes, fill, x.dtype)
    wide[tuple(places)] = x
    return wide


def _gather_taps(x: Array, axis: int, windows: Windows, fill: float) -> Array:
    """Return the array with the taps of each window along a dimension, window by window."""
    first = np.arange(windows.count)[:, np.newaxis] * windows.stride - windows.padding
    places = (first + np.arange(windows.taps) * windows.dilation).reshape(-1)
    inside = (places >= 0) & (places < windows.size)
    taken = np.take(x, np.clip(places, 0, windows.size - 1), axis)
    shape = [1] * x.ndim
    shape[axis] = places.size
    result: Array = np.where(inside.reshape(shape), taken, taken.dtype.type(fill))
    return result


def _permuted(x: Array, source: str, target: str) -> Array:
    return np.transpose(x, [source.index(letter) for letter in target])


def _tiles(windows: Array) -> Iterator[slice]:
    """Yield slices of rows whose windows take about TILE_BYTES as columns (im2col)."""
    rows = windows.shape[2]
    high = max(1, TILE_BYTES * rows // windows.nbytes)
    for top in range(0, rows, high):
        yield slice(top, top + high)


def _convolved(
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
    """Convolve by im2col and one matrix product for each group."""
    x = _permuted(input, input_layout, "nchw").astype(np.float64, order="C")
    taps = _permuted(filter, filter_layout, "oihw").astype(np.float64, order="C")
    how = (x.shape[2:], taps.shape[2:], padding, strides, dilations)
    sizes, _ = window_sizes(*how)
    windows = _windows(x, sliding(*how, sizes), 0.0)
    batch, outs, ins = x.shape[0], taps.shape[0], taps.shape[1]
    kernels = taps.reshape(groups, outs // groups, -1)
    result = np.empty((batch, groups, outs // groups, *sizes))
    by_group = windows.reshape(batch, groups, ins, *windows.shape[2:])
    for rows in _tiles(windows):
        columns = by_group[:, :, :, rows].transpose(0, 1, 2, 5, 6, 3, 4)
        product = np.matmul(kernels, columns.reshape(batch, groups, kernels.shape[2], -1))
        result[:, :, :, rows] = product.reshape(*product.shape[:3], -1, sizes[1])
    result = result.reshape(batch, outs, *sizes)
    if bias is not None:
        result = result + bias.astype(np.float64, order="C").reshape(-1, 1, 1)
    return _permuted(result, "nchw", input_layout)


conv2d = _by_samples(_convolved)


def conv2d_integer(
    input: Array,
    filter: Array,
    input_zero_point: Array | None,
    filter_zero_point: Array | None,
    filter_layout: str,
    **options: Any,
) -> Array:
    """Convolve in float64, whose sums of such products cannot round; wrap to int32."""
    x, taps = input.astype(np.float64), filter.astype(np.float64)
    if input_zero_point is not None:
        x -= input_zero_point.astype(np.float64).reshape(())
    if filter_zero_point is not None:
        shape = [-1 if letter == "o" else 1 for letter in filter_layout]
        taps -= filter_zero_point.astype(np.float64).reshape(shape)
    layout = filter_layout
    images = [_convolved(one[None], taps, None, filter_layout=layout, **options) for one in x]
    return np.concatenate(images).astype(np.int64).astype(np.int32)


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
    """Convolve transposed: each tap adds the weighted input to a strided part of the output."""
    x = _permuted(input, input_layout, "nchw").astype(np.float64, order="C")
    taps = _permuted(filter, filter_layout, "iohw").astype(np.float64, order="C")
    n, c, h, w = x.shape
    _, o, *window = taps.shape
    if c % groups:
        raise ValueError(f"{c} input channels do not divide into {groups} groups")
    least = transposed_sizes((h, w), window, padding, strides, dilations)
    added = [size + extra for size, extra in zip(least, output_padding, strict=True)]
    sizes = added if output_sizes is None else output_sizes
    result = np.zeros((n, groups, o, *sizes))
    parts = x.reshape(n, groups, c // groups, h, w)
    kernels = taps.reshape(groups, c // groups, o, *window)
    along = sliding(sizes, window, padding, strides, dilations, (h, w))
    for place in np.ndindex(*window):
        tap = kernels[..., place[0], place[1]]
        (rows, to_rows), (columns, to_columns) = map(_inside, along, place)
        part = parts[..., rows, columns]
        result[..., to_rows, to_columns] += np.einsum("ngchw,gco->ngohw", part, tap, optimize=True)
    result = result.reshape(n, -1, *sizes)
    if bias is not None:
        result = result + bias.astype(np.float64, order="C").reshape(-1, 1, 1)
    return _permuted(result, "nchw", input_layout)


def _inside(windows: Windows, tap: int) -> tuple[slice, slice]:
    """Return the windows whose tap lies inside the tensor, and its positions there."""
    behind = windows.padding - tap * windows.dilation
    first = max(0, -(-behind // windows.stride))
    last = min(windows.count - 1, (windows.size - 1 + behind) // windows.stride)
    if last < first:
        return slice(0), slice(0)
    start, end = (i * windows.stride - behind for i in (first, last))
    return slice(first, last + 1), slice(start, end + 1, windows.stride)


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
) -> tuple[Array, list[Windows]]:
    """Return views of the windows, and their geometry along height and width."""
    x = _permuted(input, layout, "nchw")
    how = (x.shape[2:], window_dimensions, padding, strides, dilations)
    floors, ceils = window_sizes(*how)
    sizes = output_sizes or (ceils if output_shape_rounding == "ceil" else floors)
    along = [windows.cropped() for windows in sliding(*how, sizes)]
    return _windows(x, along, fill), along


def _reduce_taps(function: np.ufunc, windows: Array) -> Array:
    """Reduce each window to one element, tap by tap if windows are small."""
    if windows.shape[4] * windows.shape[5] > MAX_TAPS_ONE_BY_ONE:
        return np.asarray(function.reduce(windows, axis=(4, 5)))
    taps = (windows[..., row, column] for row, column in np.ndindex(*windows.shape[4:]))
    result = next(taps).copy()
    for tap in taps:
        function(result, tap, out=result)
    return result


@_by_samples
def average_pool2d(input: Array, layout: str, **options: Any) -> Array:
    """Compute the mean of each window's elements, without padding."""
    windows, along = _pool(input.astype(np.float64, order="C"), layout=layout, fill=0.0, **options)
    inside = _windows(np.ones((1, 1, *(w.size for w in along))), along, 0.0)
    mean = _reduce_taps(np.add, windows) / _reduce_taps(np.add, inside)
    return _permuted(mean, "nchw", layout)


@_by_samples
def l2_pool2d(input: Array, layout: str, **options: Any) -> Array:
    """Compute the square root of the sum of squares in each window."""
    wide = input.astype(np.float64, order="C")
    windows, _ = _pool(wide * wide, layout=layout, fill=0.0, **options)
    return _permuted(np.sqrt(_reduce_taps(np.add, windows)), "nchw", layout)


@_by_samples
def max_pool2d(input: Array, layout: str, **options: Any) -> Array:
    """Return the greatest element of each window."""
    lowest = -np.inf if input.dtype.kind == "f" else np.iinfo(input.dtype).min
    windows, _ = _pool(input, layout=layout, fill=lowest, **options)
    return _permuted(_reduce_taps(np.maximum, windows), "nchw", layout)
