"""Reductions over axes, and positions of extremes."""

from __future__ import annotations

from collections.abc import Sequence
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
    used = [x.axis(axis) for axis in axes]
    made = getattr(g, method)(x, axes=used, keep_dimensions=bool(keepdims))
    return made


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
    """Position of the greatest element along an axis."""
    return _position(g, x, "arg_max", axis, keepdims, select_last_index)


@handles("ArgMin")
def arg_min(
    g: Emitter, x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Any:
    """Position of the least element along an axis."""
    return _position(g, x, "arg_min", axis, keepdims, select_last_index)


def lowest(tensor: Tensor) -> Any:
    """The lowest value of a tensor's data type, minus infinity for floats."""
    info = DTYPES[tensor.data_type]
    return -np.inf if info.kind == "f" else info.min


def highest(tensor: Tensor) -> Any:
    """The highest one."""
    info = DTYPES[tensor.data_type]
    return np.inf if info.kind == "f" else info.max
