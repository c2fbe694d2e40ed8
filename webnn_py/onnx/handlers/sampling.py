"""Interpolated sampling at computed positions: GridSample and its parts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

from webnn_py.core.dimensions import is_dimension
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import Tensor, check_rank, choice, refuse

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of modes before opset 20, and the names since then."""


def _as_number(g: Emitter, size: Any, like: Any) -> Any:
    """Return a size for arithmetic with `like`: a float, or a tensor for an open size."""
    return g.to(g.size(size), like.data_type) if is_dimension(size) else float(size)


def _held(g: Emitter, place: Any, size: Any) -> Any:
    """Clamp a position to [0, size - 1]."""
    if is_dimension(size):
        return g.max(g.min(place, _as_number(g, size - 1, place)), 0.0)
    return g.clamp(place, min_value=0, max_value=size - 1)


def _reflected(g: Emitter, place: Any, size: Any, align_corners: int) -> Any:
    """Reflect an integer position beyond the ends.

    The mirrors are the centers of the end elements with `align_corners`, else their outer edges.
    """
    if not is_dimension(size) and size == 1:
        return g.mul(place, 0.0)
    shift, length = (0.0, size - 1) if align_corners else (0.5, size)
    far = g.abs(g.add(place, shift))
    period = _as_number(g, 2 * length, place)
    if is_dimension(size):  # an open size of 1 may have period 0
        period = g.max(period, 1.0)
    rest = g.sub(far, g.mul(g.floor(g.div(far, period)), period))
    return g.sub(g.min(rest, g.add(g.neg(rest), period)), shift)


def _cubic(g: Emitter, distance: Any) -> Any:
    """Return the weight of an element by its distance, cubic convolution with a = -0.75."""
    a = -0.75
    d = g.abs(distance)
    near = g.add(g.mul(g.mul(g.sub(g.mul(d, a + 2), a + 3), d), d), 1.0)
    far = g.sub(g.mul(g.add(g.mul(g.sub(g.mul(d, a), 5 * a), d), 8 * a), d), 4 * a)
    return g.where(g.greater(d, 1.0), far, near)


def taps(g: Emitter, place: Any, mode: str) -> list[tuple[Any, Any]]:
    """Return the integer positions around `place` and their weights; None stands for 1."""
    if mode == "nearest":
        return [(g.round_even(place), None)]
    low = g.floor(place)
    rest = g.sub(place, low)
    if mode == "linear":
        return [(low, g.add(g.neg(rest), 1.0)), (g.add(low, 1.0), rest)]
    return [(g.add(low, float(k)), _cubic(g, g.sub(rest, float(k)))) for k in (-1, 0, 1, 2)]


def corners(
    g: Emitter,
    x: Any,
    places: Sequence[Any],
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 1,
) -> list[Any]:
    """Return the elements around each position times their weights; their sum is the sample.

    Args:
        g: The emitter.
        x: The images, [batch, channels, *sizes].
        places: Positions along each of the sizes, [batch, count, 1] each.
        mode: "nearest", "linear" or "cubic".
        padding_mode: "zeros", "border" or "reflection".
        align_corners: Whether to reflect at the centers of the end elements, else at their edges.

    Returns:
        One tensor for each corner, [batch, count, channels].
    """
    if mode not in ("nearest", "linear", "cubic"):
        refuse(f"mode {mode!r}")
    rows = g.transpose(x, permutation=[0, *range(2, x.rank), 1])
    axes = []
    for place, n in zip(places, x.shape[2:], strict=True):
        found = []
        for tap, weight in taps(g, place, mode):
            if padding_mode == "reflection":
                tap = _reflected(g, tap, n, align_corners)
            held = _held(g, tap, n)
            inside = g.equal(held, tap) if padding_mode == "zeros" else None
            found.append((g.cast(held, "int64"), weight, inside))
        axes.append(found)
    shape = [*places[0].shape]
    first = g.expand(g.places(x.shape[0], 0, 3), shape)
    parts = []
    for corner in itertools.product(*axes):
        part = g.gather_nd(rows, g.concat([first, *(tap for tap, _, _ in corner)], 2))
        weights = [weight for _, weight, _ in corner if weight is not None]
        if weights:
            part = g.mul(part, g.to(functools.reduce(g.mul, weights), x.data_type))
        insides = [inside for _, _, inside in corner if inside is not None]
        if insides:
            inside = functools.reduce(g.logical_and, insides)
            part = g.where(inside, part, g.constant(0, x))
        parts.append(part)
    return parts


def _sampled(
    g: Emitter, x: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: int
) -> Any:
    choice("padding_mode", padding_mode, "zeros", "border", "reflection")
    check_rank(3, 6, x=x)
    check_rank(x.rank, grid=grid)
    rank = x.rank - 2
    batch, channels, *size = x.shape
    count = math.prod(grid.shape[1:-1])
    points = g.reshape(g.to(grid, "float32"), [batch, count, rank])
    places = []
    for axis, n in enumerate(size):
        along = g.slice(points, [0, 0, rank - 1 - axis], [batch, count, 1])
        moved = g.add(along, 1.0)
        if align_corners:
            places.append(g.mul(g.mul(moved, _as_number(g, n - 1, moved)), 0.5))
        else:
            places.append(g.mul(g.sub(g.mul(moved, _as_number(g, n, moved)), 1.0), 0.5))
    parts = corners(g, x, places, mode, padding_mode, align_corners)
    made = g.transpose(functools.reduce(g.add, parts), permutation=[0, 2, 1])
    return g.reshape(made, [batch, channels, *grid.shape[1:-1]])


@handles("GridSample", since=20)
def grid_sample(
    g: Emitter,
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Any:
    """Interpolate elements at coordinates from -1 to 1."""
    return _sampled(g, x, grid, mode, padding_mode, align_corners)


@handles("GridSample")
@handles("GridSample", domain=OWN)
def grid_sample_16(
    g: Emitter,
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> Any:
    """Handle GridSample before opset 20."""
    return _sampled(g, x, grid, MODES.get(mode, mode), padding_mode, align_corners)
