"""Resize and Upsample: by WebNN's resample2d, or along each axis by gathers or a matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, is_open, span
from webnn_py.onnx.arithmetic import quotient
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.sampling import taps
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import Array, BrokenModelError, Tensor, choice, listed, refuse

POLICIES = ("stretch", "not_larger", "not_smaller")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MAX_WEIGHTS = 1 << 24
"""Maximum number of weights that the import computes for one axis."""

INTEGERS = ("uint8", "int8", "int32")
"""Integer data types interpolated linearly in float32, as in ONNX Runtime."""
ROUNDING = 2.0**-10
"""Upper bound of float32's rounding error in a weighted sum of 8-bit integers."""


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Interpolation settings; names and values are those of ONNX's attributes."""

    coordinate_transformation_mode: str
    mode: str
    nearest_mode: str
    cubic_coeff_a: float
    antialias: bool
    exclude_outside: bool


def _places(
    kind: str, new: int, old: int, scale: float, roi: tuple[float, float], length: float
) -> Array:
    """Return the coordinate of each new element in the old axis, [new]."""
    x = np.arange(new, dtype=np.float64)
    if kind == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if kind == "half_pixel_symmetric":
        adjustment = new / length
        center = old / 2
        return center * (1 - adjustment) + (x + 0.5) / scale - 0.5
    if kind == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if new > 1 else np.zeros(new)
    if kind == "align_corners":
        return x * (old - 1) / (length - 1) if length > 1 else np.zeros(new)
    if kind == "asymmetric":
        return x / scale
    if kind == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if kind == "tf_crop_and_resize":
        start, end = roi
        if length > 1:
            return start * (old - 1) + x * (end - start) * (old - 1) / (length - 1)
        return np.full(new, 0.5 * (start + end) * (old - 1))
    refuse(f"coordinate_transformation_mode {kind!r}")


def _nearest(places: Array, mode: str) -> Array:
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    if mode == "round_prefer_ceil":
        return np.floor(places + 0.5)
    return np.ceil(places - 0.5)


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _weights(places: Array, old: int, scale: float, how: Interpolation) -> Array:
    """Return the weight of each old element in each new one, [new, old]."""
    matrix = np.zeros((len(places), old))
    rows = np.arange(len(places))
    if how.mode == "nearest":
        near = np.clip(_nearest(places, how.nearest_mode), 0, old - 1).astype(int)
        matrix[rows, near] = 1
        return matrix
    narrow = min(scale, 1.0) if how.antialias else 1.0
    reach = (1 if how.mode == "linear" else 2) / narrow
    taps = np.arange(-math.ceil(reach) - 1, math.ceil(reach) + 2)
    at = np.floor(places)[:, None] + taps
    distance = (at - places[:, None]) * narrow
    if how.mode == "linear":
        weight = np.maximum(0.0, 1 - np.abs(distance))
    else:
        weight = _cubic(distance, how.cubic_coeff_a)
    if how.exclude_outside:
        weight = np.where((at >= 0) & (at < old), weight, 0.0)
    weight /= weight.sum(1, keepdims=True)
    columns = np.clip(at, 0, old - 1).astype(int)
    np.add.at(matrix, (rows[:, None], columns), weight)
    return matrix


def _applied(g: Emitter, x: Any, axis: int, matrix: Array) -> Any:
    count, old = matrix.shape
    picked = matrix.argmax(1)
    ones = matrix[np.arange(count), picked] == 1
    if ones.all() and np.count_nonzero(matrix) == count:
        return g.gather(x, g.array(picked.astype(np.int32)), axis=axis)
    order = [i for i in range(x.rank) if i != axis] + [axis]
    moved = g.transpose(x, permutation=order)
    lead = list(moved.shape[:-1])
    made = g.matmul(g.reshape(moved, [math.prod(lead), old]), g.constant(matrix.T, x))
    back = list(range(x.rank - 1))
    back.insert(axis, x.rank - 1)
    return g.transpose(g.reshape(made, [*lead, count]), permutation=back)


def _fitted(
    shape: Sequence[Any], sizes: Sequence[Any], axes: Sequence[int], policy: str
) -> tuple[list[Any], list[Any]]:
    """Return the new sizes of `axes` and the factor of each, under an aspect ratio policy."""
    sizes = listed("sizes", sizes, len(axes), 1)
    factors = [quotient(size, shape[axis]) for axis, size in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return list(sizes), factors
    if None in factors:
        refuse("a kept aspect ratio with open dimensions")
    scale = (min if policy == "not_larger" else max)(factors)  # type: ignore[type-var]
    return [math.floor(scale * shape[axis] + 0.5) for axis in axes], [scale] * len(axes)


def _scaled(size: Any, factor: float) -> Any:
    """Return a size times a factor, rounded down."""
    if not is_dimension(size):
        return math.floor(size * factor)
    above, below = Fraction(factor).as_integer_ratio()
    return size * above // below


def _repeats(factor: float | None, how: Interpolation) -> bool:
    """Return whether nearest interpolation repeats each element `factor` times."""
    if factor is None or factor < 1 or factor != int(factor):
        return False
    kind, nearest = how.coordinate_transformation_mode, how.nearest_mode
    return (kind, nearest) == ("asymmetric", "floor") or (
        kind == "half_pixel" and nearest.startswith("round")
    )


def _stretched(g: Emitter, x: Any, axis: int, new: Any, factor: Any, how: Interpolation) -> Any:
    """Resize one axis with open sizes: gather the neighbors of each element and weight them."""
    is_default = how.mode != "cubic" or how.cubic_coeff_a == -0.75
    if how.antialias or how.exclude_outside or not is_default:
        refuse("other weights than the default ones, with open dimensions")
    kind, old = how.coordinate_transformation_mode, x.shape[axis]
    numbers = g.places(new, axis, x.rank)
    if how.mode == "nearest" and _repeats(factor, how):  # exact in integers
        return g.gather(x, _flat(g, g.div(numbers, g.size(int(factor)))), axis=axis)
    count, size = (g.to(g.size(n), "float32") for n in (new, old))
    ratio = g.div(size, count) if factor is None else g.array(np.asarray(1 / factor, np.float32))
    place = g.to(numbers, "float32")
    half = g.add(g.mul(g.add(place, 0.5), ratio), -0.5)
    length = count if factor is None else g.mul(size, float(factor))  # unrounded, as in _places
    if kind == "asymmetric":
        place = g.mul(place, ratio)
    elif kind == "align_corners":
        step = g.div(g.add(size, -1.0), g.add(length, -1.0))
        place = g.where(g.greater(length, 1.0), g.mul(place, step), g.mul(place, 0.0))
    elif kind == "pytorch_half_pixel":
        place = g.where(g.greater(count, 1.0), half, g.mul(half, 0.0))
    elif kind == "half_pixel":
        place = half
    else:
        refuse(f"coordinate_transformation_mode {kind!r} with open dimensions")
    last = g.add(size, -1.0)
    total: Any = None
    for tap, weight in _taps(g, place, how):
        inside = g.to(g.max(g.min(tap, last), 0.0), "int64")
        part = g.gather(x, _flat(g, inside), axis=axis)
        part = part if weight is None else g.mul(part, g.to(weight, x.data_type))
        total = part if total is None else g.add(total, part)
    return total


def _resampled(
    g: Emitter,
    x: Tensor,
    axis_sizes: Sequence[tuple[int, Any, Any]],
    how: Interpolation,
) -> Any:
    """Resize by WebNN's resample2d; return None if it interpolates differently."""
    if x.rank != 4 or not x.is_float:
        return None
    new = list(x.shape)
    for axis, size, factor in axis_sizes:
        old = x.shape[axis]
        new[axis] = size
        if factor is not None and quotient(size, old) != factor:
            return None
    changed = {i for i, size in enumerate(new) if size != x.shape[i]}
    pair = next((pair for pair in ([2, 3], [1, 2]) if changed and changed <= {*pair}), None)
    if pair is None:
        return None
    if how.mode == "nearest":
        if not all(_repeats(factor, how) for _, _, factor in axis_sizes):
            return None
        return g.resample2d(x, sizes=[new[i] for i in pair], axes=pair)
    if how.mode != "linear" or how.antialias or how.exclude_outside:
        return None
    kind = how.coordinate_transformation_mode
    grows = all(span(new[i])[0] > 1 or span(new[i] - x.shape[i])[0] >= 0 for i in changed)
    if kind != "half_pixel" and not (kind == "pytorch_half_pixel" and grows):
        return None
    return g.resample2d(x, mode="linear", sizes=[new[i] for i in pair], axes=pair)


def _flat(g: Emitter, places: Any) -> Any:
    return g.reshape(places, [math.prod(places.shape)])


def _taps(g: Emitter, place: Any, how: Interpolation) -> list[tuple[Any, Any]]:
    if how.mode != "nearest":
        return taps(g, place, how.mode)
    if how.nearest_mode in ("floor", "ceil"):
        return [(getattr(g, how.nearest_mode)(place), None)]
    if how.nearest_mode == "round_prefer_ceil":
        return [(g.floor(g.add(place, 0.5)), None)]
    return [(g.ceil(g.add(place, -0.5)), None)]


def _whole(g: Emitter, x: Any, how: Interpolation) -> Any:
    """Adjust a weighted sum so that a cast truncates it to ONNX Runtime's integer.

    ONNX Runtime rounds with `antialias` alone and truncates otherwise. `ROUNDING` offsets float32
    errors, so that a sum of equal elements remains that element.
    """
    if how.antialias:
        return g.round_even(x)
    return g.add(x, g.mul(g.sign(x), ROUNDING))


def _wanted(
    x: Tensor, scales: Tensor | None, sizes: Tensor | None, axes: Sequence[int], policy: str
) -> tuple[list[Any], list[Any]]:
    """Return the new sizes of axes and the factor of each, from `sizes` or `scales`."""
    if sizes is not None and sizes.shape != (0,):
        return _fitted(x.shape, sizes.dimensions("sizes"), axes, policy)
    if scales is None:
        refuse("it has neither scales nor sizes")
    factors = [float(value) for value in scales.known("scales").reshape(-1)]
    factors = listed("scales", factors, len(axes))
    if not all(0 < factor < math.inf for factor in factors):
        raise BrokenModelError(f"its scales are {factors}, expected positive numbers")
    return [_scaled(x.shape[axis], f) for axis, f in zip(axes, factors, strict=True)], factors


@handles("Resize", since=11)
def resize(
    g: Emitter,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:
    """Resize axes to constant or open `sizes`, or by constant `scales`."""
    choice("mode", mode, "nearest", "linear", "cubic")
    choice("keep_aspect_ratio_policy", keep_aspect_ratio_policy, *POLICIES)
    choice("nearest_mode", nearest_mode, *NEAREST)
    if 0 in x.shape:
        refuse("WebNN has no tensors without elements")
    used = x.axes(axes) if axes else list(range(x.rank))
    new, factors = _wanted(x, scales, sizes, used, keep_aspect_ratio_policy)
    for axis, size, factor in zip(used, new, factors, strict=True):
        if not is_dimension(size) and size < 1:
            raise BrokenModelError(
                f"axis {axis} of {x.shape[axis]} elements becomes {size}, by the factor {factor}"
            )
    how = Interpolation(
        coordinate_transformation_mode,
        mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
    )
    axis_sizes = list(zip(used, new, factors, strict=True))
    if mode == "linear" and x.data_type in INTEGERS:
        wide = _resized(g, g.cast(x, "float32"), roi, axis_sizes, how, extrapolation_value)
        return g.cast(_whole(g, wide, how), x.data_type)
    return _resized(g, x, roi, axis_sizes, how, extrapolation_value)


def _resized(
    g: Emitter,
    x: Tensor,
    roi: Tensor | None,
    axis_sizes: Sequence[tuple[int, Any, Any]],
    how: Interpolation,
    extrapolation_value: float,
) -> Any:
    """Resize by WebNN's resample2d, or else one axis after another.

    Args:
        g: The emitter.
        x: The tensor.
        roi: The region of each axis for `tf_crop_and_resize`: all starts, then all ends.
        axis_sizes: The axes, each with its new size and its factor.
        how: The interpolation.
        extrapolation_value: What elements outside the tensor are.
    """
    resampled = _resampled(g, x, axis_sizes, how)
    if resampled is not None:
        return resampled
    kind, count = how.coordinate_transformation_mode, len(axis_sizes)
    regions = [(0.0, 1.0)] * count
    is_cropped = kind == "tf_crop_and_resize"
    if is_cropped and roi is not None:
        ends = [float(value) for value in roi.known("roi").reshape(-1)]
        ends = listed("roi", ends, 2 * count)
        regions = list(zip(ends[:count], ends[count:], strict=True))
    made: Any = x
    outside = np.zeros([1] * x.rank, bool)
    for (axis, size, factor), region in zip(axis_sizes, regions, strict=True):
        old = x.shape[axis]
        if size == old and factor == 1 and not is_cropped:
            continue
        if is_open([size, old]):
            made = _stretched(g, made, axis, size, factor, how)
            continue
        weights = size * (1 if how.mode == "nearest" else old)
        g.afford(weights, f"a size of {size} along axis {axis}, of {old} before", MAX_WEIGHTS)
        places = _places(kind, size, old, factor, region, old * factor)
        if np.array_equal(places, np.arange(old)):
            continue
        if not x.is_float and how.mode != "nearest":
            refuse(f"WebNN has no products of {x.data_type}")
        made = _applied(g, made, axis, _weights(places, old, factor, how))
        if is_cropped:
            beyond = (places < 0) | (places > old - 1)
            outside = outside | beyond.reshape([-1 if k == axis else 1 for k in range(x.rank)])
    if outside.any():
        return g.where(g.array(outside), g.constant(extrapolation_value, x), made)
    return g.identity(x) if made is x else made


@handles("Resize")
def resize_10(g: Emitter, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Any:
    """Handle Resize before opset 11, which has scales alone."""
    return resize(
        g,
        x,
        None,
        scales,
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@handles("Upsample", since=9)
def upsample(g: Emitter, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Any:
    """Handle Upsample like Resize before opset 11."""
    return resize_10(g, x, scales, mode="linear" if mode == "bilinear" else mode)


@handles("Upsample", since=7)
def upsample_7(g: Emitter, x: Tensor, *, scales: list[float], mode: str = "nearest") -> Any:
    """Handle Upsample before opset 9."""
    return upsample(g, x, g.array(np.asarray(scales, np.float32)), mode=mode)
