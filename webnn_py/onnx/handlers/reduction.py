"""Reductions over axes, and positions of maxima and minima."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np

from webnn_py.core.dtypes import DTYPES
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import Tensor

METHODS = {
    "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2",
    "ReduceLogSum": "reduce_log_sum",
    "ReduceLogSumExp": "reduce_log_sum_exp",
    "ReduceMax": "reduce_max",
    "ReduceMean": "reduce_mean",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_product",
    "ReduceSum": "reduce_sum",
    "ReduceSumSquare": "reduce_sum_square",
}


def _reduced(
    g: Emitter, x: Tensor, method: str, axes: Sequence[int] | None, keepdims: int, noop: int
) -> Any:
    if not axes:
        if noop:
            axes = []
            if method in (
                "reduce_max",
                "reduce_min",
                "reduce_mean",
                "reduce_sum",
                "reduce_product",
            ):
                return g.identity(x)
        else:
            axes = range(x.rank)
    used = x.axes(axes)
    if method in OF_INTEGERS and x.data_type in WIDE:
        return _of_integers(g, x, method, used, bool(keepdims))
    return getattr(g, method)(x, axes=used, keep_dimensions=bool(keepdims))


def _of_integers(g: Emitter, x: Tensor, method: str, axes: list[int], keep: bool) -> Any:
    """Reduce integers by an operator that WebNN has for floats alone.

    Round the exact result towards zero, as ONNX Runtime does.
    """
    made = OF_INTEGERS[method](g, g.to(x, WIDE[x.data_type]), axes, keep)
    if made.data_type != x.data_type:
        made = g.clamp(made, min_value=lowest(x), max_value=highest(x))
    return g.to(made, x.data_type)


def _mean(g: Emitter, x: Any, axes: list[int], keep: bool) -> Any:
    """Compute the mean from sums of quotients and of remainders, neither of which overflows."""
    count = g.to(g.size(math.prod(x.shape[axis] for axis in axes)), x.data_type)
    quotients = g.div(x, count)
    rests = g.sub(x, g.mul(quotients, count))
    whole, rest = (
        g.reduce_sum(part, axes=axes, keep_dimensions=keep) for part in (quotients, rests)
    )
    more = g.div(rest, count)
    left = g.sub(rest, g.mul(more, count))
    made = g.add(whole, more)
    if x.data_type == "uint64":
        return made
    zero, one = g.constant(0, x), g.constant(1, x)
    above = g.logical_and(g.greater(made, zero), g.lesser(left, zero))
    below = g.logical_and(g.lesser(made, zero), g.greater(left, zero))
    return g.where(above, g.sub(made, one), g.where(below, g.add(made, one), made))


def _l2(g: Emitter, x: Any, axes: list[int], keep: bool) -> Any:
    """Compute the root in float32; make it exact by a Newton step in int64 if squares fit."""
    near = g.reduce_l2(g.cast(x, "float32"), axes=axes, keep_dimensions=keep)
    near_whole = g.cast(near, "int64")
    squares = g.reduce_sum_square(g.to(x, "int64"), axes=axes, keep_dimensions=keep)
    one = g.constant(1, near_whole)
    start = g.max(near_whole, one)
    twice = g.add(start, start)
    root = g.add(start, g.div(g.sub(squares, g.mul(start, start)), twice))
    root = g.where(g.greater(g.mul(root, root), squares), g.sub(root, one), root)
    root = g.where(g.greater(g.mul(root, root), squares), g.sub(root, one), root)
    more = g.add(root, one)
    root = g.where(g.greater(g.mul(more, more), squares), root, more)
    # Squares of more than 3.03e9 may exceed int64: the root of 2**63 is 3.037e9.
    return g.where(g.greater(near, 3.03e9), g.cast(near, x.data_type), g.to(root, x.data_type))


def _log_sum(g: Emitter, x: Any, axes: list[int], keep: bool) -> Any:
    """Compute the logarithm of a sum; return the lowest value for sums of 0 or less."""
    total = g.reduce_sum(x, axes=axes, keep_dimensions=keep)
    near = g.reduce_sum(g.cast(x, "float32"), axes=axes, keep_dimensions=keep)
    exact = g.to(_log(g, total), x.data_type)
    made = g.where(g.greater(near, 2.0**62), g.cast(g.log(near), x.data_type), exact)
    nothing = g.logical_not(g.greater(near, 0.0))
    return g.where(nothing, g.constant(lowest(x), x), made)


def _log_sum_exp(g: Emitter, x: Any, axes: list[int], keep: bool) -> Any:
    """Add the maximum and the logarithm of how many elements equal it.

    For signed integers, exponentials relative to the maximum round down to 1 or 0. For unsigned
    ones they are floats, as in ONNX Runtime.
    """
    top = g.reduce_max(x, axes=axes, keep_dimensions=True)
    if x.data_type == "uint64":
        powers = g.exp(g.neg(g.cast(g.sub(top, x), "float32")))
        total = g.reduce_sum(powers, axes=axes, keep_dimensions=keep)
        return g.add(_kept(g, x, top, axes, keep), g.cast(g.log(total), x.data_type))
    count = g.reduce_sum(g.cast(g.equal(x, top), "int64"), axes=axes, keep_dimensions=keep)
    top = _kept(g, x, top, axes, keep)
    more, one = _log(g, count), g.constant(1, count)
    zero = g.constant(0, x)
    room = g.sub(g.constant(highest(x), x), g.max(top, zero))
    made = g.add(top, g.min(more, room))
    cut = g.logical_and(g.lesser(made, zero), g.greater(count, one))
    return g.where(cut, g.add(made, one), made)


def _kept(g: Emitter, x: Any, top: Any, axes: list[int], keep: bool) -> Any:
    if keep:
        return top
    return g.reshape(top, [size for axis, size in enumerate(x.shape) if axis not in axes])


def _log(g: Emitter, x: Any) -> Any:
    """Return the integer part of the logarithm: the number of powers of e up to `x`."""
    powers = g.to(g.array(POWERS), x.data_type)
    each = g.greater_or_equal(g.reshape(x, [*x.shape, 1]), powers)
    return g.reduce_sum(g.cast(each, "int64"), axes=[x.rank], keep_dimensions=False)


OF_INTEGERS: dict[str, Callable[[Emitter, Any, list[int], bool], Any]] = {
    "reduce_l2": _l2,
    "reduce_log_sum": _log_sum,
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_mean": _mean,
}
WIDE = {"int32": "int64", "int64": "int64", "uint32": "uint64", "uint64": "uint64"}
"""Data type in which integers of each data type are reduced."""
POWERS = np.array(
    [int(Decimal(i).exp().to_integral(ROUND_CEILING)) for i in range(1, 44)], np.int64
)
"""Powers of e from e to e**43, rounded up; the next one exceeds int64."""


def _register(operator: str, method: str, since: int) -> None:
    def by_input(
        g: Emitter,
        x: Tensor,
        axes: Tensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Any:
        given = None if axes is None else axes.integers("axes")
        return _reduced(g, x, method, given, keepdims, noop_with_empty_axes)

    def by_attribute(
        g: Emitter, x: Tensor, *, axes: list[int] | None = None, keepdims: int = 1
    ) -> Any:
        return _reduced(g, x, method, axes, keepdims, 0)

    handles(operator)(by_attribute)
    handles(operator, since=since)(by_input)


for _operator, _method in METHODS.items():
    _register(_operator, _method, 13 if _operator == "ReduceSum" else 18)


def _position(
    g: Emitter, x: Tensor, method: str, axis: int, keepdims: int, select_last_index: int
) -> Any:
    at = x.axis(axis)
    keep = bool(keepdims)
    if not select_last_index:
        return getattr(g, method)(x, at, keep_dimensions=keep, output_data_type="int64")
    turned = g.reverse(x, axes=[at])
    place = getattr(g, method)(turned, at, keep_dimensions=keep, output_data_type="int64")
    return g.sub(g.size(x.shape[at] - 1), place)


@handles("ArgMax")
def arg_max(
    g: Emitter, x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Any:
    """Return the position of the maximum along an axis."""
    return _position(g, x, "arg_max", axis, keepdims, select_last_index)


@handles("ArgMin")
def arg_min(
    g: Emitter, x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Any:
    """Return the position of the minimum along an axis."""
    return _position(g, x, "arg_min", axis, keepdims, select_last_index)


def lowest(tensor: Tensor) -> Any:
    """Return the lowest value of a tensor's data type, minus infinity for floats."""
    info = DTYPES[tensor.data_type]
    return -np.inf if info.kind == "f" else info.min


def highest(tensor: Tensor) -> Any:
    """Return the highest value of a tensor's data type, infinity for floats."""
    info = DTYPES[tensor.data_type]
    return np.inf if info.kind == "f" else info.max
