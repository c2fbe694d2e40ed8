"""Slices with NumPy's semantics, of tensors whose sizes may be open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.core.dimensions import is_dimension, span
from webnn_py.core.messages import shown
from webnn_py.onnx.arithmetic import least
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, listed, narrowing, refuse

MIN_FAR_END = 1_000_000_000
"""Ends from this number on mean the end of an open dimension: tf2onnx writes it."""


def _place(place: Any, size: Any) -> Any:
    """Return a slice bound counted from the front and clamped to [0, size]."""
    low, high = span(place)
    with narrowing():  # 0 counts from the front
        from_the_end = low < 0 and -low > high and place < 0
    if from_the_end:
        return size - least(-place, size)
    return least(place if low >= 0 else size - least(size - place, size), size)


def _backwards(first: Any, last: Any, size: Any, step: int) -> tuple[Any, Any]:
    """Return the lowest position and the length of the range that a negative step covers."""
    high = span(size)[1]
    if step == -1 and (first == -1 or first >= high - 1) and last < -high:
        return 0, size
    places = range(*slice(first, last, step).indices(size))
    if last < -size:
        places = range(places.start, -1, step)
    if not places:
        refuse("WebNN has no tensors without elements")
    return places[-1], places[0] - places[-1] + 1


def _sliced(
    g: Emitter,
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
    within: Sequence[bool] = (),
) -> Any:
    """Slice; `within` tells of each end whether it is known to lie between start and size."""
    count = len(starts)
    axes, ends = listed("axes", axes, count), listed("ends", ends, count)
    steps = listed("steps", steps, count)
    if 0 in steps:
        raise BrokenModelError(f"its steps are {shown(steps)}, expected none of 0")
    begin, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    turned = []
    for start, end, axis, step, is_within in zip(
        starts, ends, axes, steps, within or [False] * count, strict=True
    ):
        at = x.axis(axis)
        if is_within:
            begin[at], sizes[at] = start, end - start
        elif step < 0:
            turned.append(at)
            begin[at], sizes[at] = _backwards(start, end, x.shape[at], step)
        else:
            if is_dimension(x.shape[at]) and type(end) is int and end >= MIN_FAR_END:
                end = x.shape[at]
            begin[at] = _place(start, x.shape[at])
            sizes[at] = _place(end, x.shape[at]) - begin[at]
            if least(1, sizes[at]) != 1:
                refuse("WebNN has no tensors without elements")
        strides[at] = abs(step)
    whole = begin == [0] * x.rank and sizes == list(x.shape) and set(strides) <= {1}
    made = x if whole else g.slice(x, begin, sizes, strides=strides)
    if turned:
        return g.reverse(made, axes=turned)
    return g.identity(x) if whole and x.array is None else made  # constants stay known


@handles("Slice", since=10)
def slice_10(
    g: Emitter,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Any:
    """Slice with steps, as NumPy does."""
    first = starts.dimensions("starts")
    along = [*range(len(first))] if axes is None else axes.integers("axes")
    strides = [1] * len(first) if steps is None else steps.integers("steps")
    is_plain = {*strides} == {1} and all(type(start) is int and start >= 0 for start in first)
    if not (g.can_measure(ends) and is_plain and ends.shape == (len(first),) == (len(along),)):
        return _sliced(g, x, first, ends.dimensions("ends"), along, strides)
    last, within = [], []
    for number, start, axis in zip(g.numbers_in(ends), first, along, strict=True):
        within.append(not number.is_known)
        size = x.shape[x.axis(axis)]
        last.append(_end(g, number, start, size) if within[-1] else number.dimension("ends"))
    return _sliced(g, x, first, last, along, strides, within)


def _end(g: Emitter, end: Tensor, start: int, size: Any) -> Any:
    """Return the end of a slice that a run computes; its length is an open dimension."""

    def length() -> Any:
        number = g.to(g.moved(end, ()), "int64")
        zero, whole = g.size(0), g.size(size)
        number = g.where(g.lesser(number, zero), g.add(number, whole), number)
        count = g.max(g.sub(g.min(number, whole), g.size(start)), zero)
        return g.data_size(count, size).dimension

    return start + g.once(("length", end, start, size), length)


@handles("Slice")
def slice_1(
    g: Emitter, x: Tensor, *, starts: list[int], ends: list[int], axes: list[int] | None = None
) -> Any:
    """Handle Slice before opset 10."""
    used = list(range(len(starts))) if axes is None else axes
    return _sliced(g, x, starts, ends, used, [1] * len(starts))
