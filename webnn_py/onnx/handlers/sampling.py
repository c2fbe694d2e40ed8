"""Sampling at places that are computed: gathers of the elements around, weighted."""

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
"""Names before opset 20."""


def _as_number(g: Emitter, size: Any, like: Any) -> Any:
    """A size to calculate with, which may be open."""
    return g.to(g.size(size), like.data_type) if is_dimension(size) else float(size)


def _held(g: Emitter, place: Any, size: Any) -> Any:
    """A place beyond the ends moved to the last element."""
    if is_dimension(size):
        return g.max(g.min(place, _as_number(g, size - 1, place)), 0.0)
    return g.clamp(place, min_value=0, max_value=size - 1)


def _reflected(g: Emitter, place: Any, size: Any, align_corners: int) -> Any:
    """A whole place beyond the ends turned back, at the last element or behind it."""
    if not is_dimension(size) and size == 1:
        return g.mul(place, 0.0)
    shift, length = (0.0, size - 1) if align_corners else (0.5, size)
    far = g.abs(g.add(place, shift))
    period = _as_number(g, 2 * length, place)
    if is_dimension(size):  # which may be 1
        period = g.max(period, 1.0)
    rest = g.sub(far, g.mul(g.floor(g.div(far, period)), period))
    return g.sub(g.min(rest, g.add(g.neg(rest), period)), shift)


def _cubic(g: Emitter, distance: Any) -> Any:
    """Weight of an element by its distance, with a = -0.75."""
    a = -0.75
    d = g.abs(distance)
    near = g.add(g.mul(g.mul(g.sub(g.mul(d, a + 2), a + 3), d), d), 1.0)
    far = g.sub(g.mul(g.add(g.mul(g.sub(g.mul(d, a), 5 * a), d), 8 * a), d), 4 * a)
    return g.where(g.greater(d, 1.0), far, near)


def taps(g: Emitter, place: Any, mode: str) -> list[tuple[Any, Any]]:
    """Whole places around, and their weights; no weight for 1."""
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
    """The elements around places, each with its weight; what is sampled is their sum.

    Args:
        g: Where it goes.
        x: [batch, channels, *sizes].
        places: Along each of the sizes, [batch, count, 1].
        mode: "nearest", "linear" or "cubic".
        padding_mode: "zeros", "border" or "reflection".
        align_corners: Where to reflect.

    Returns:
        So many tensors as there are corners, [batch, count, channels].
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
    """Elements at places between -1 and 1, interpolated."""
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
    """Before opset 20, of two dimensions."""
    return _sampled(g, x, grid, MODES.get(mode, mode), padding_mode, align_corners)
