"""Reductions over axes, one row each. Source: WebNN 2026, "Reduction operations".

A row states the NumPy function that defines the operator and its WGSL expressions (see `Reduce`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from webnn_py.core.dtypes import ANY, FLOATS
from webnn_py.core.shapes import check_axes, reduced
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, Reduce, declare, result
from webnn_py.ops.operand import MLOperand

SUMMED = ("float32", "float16", "int32", "uint32", "int64", "uint64")


class _ReduceCall(Protocol):
    def __call__(
        self,
        input: MLOperand,
        *,
        axes: Sequence[int] | None = None,
        keep_dimensions: bool = False,
        label: str = "",
    ) -> MLOperand: ...


class _ReduceMethod(Protocol):
    def __get__(self, instance: Any, owner: Any = None) -> _ReduceCall: ...


def _row(
    name: str, types: tuple[str, ...], numpy: Callable[..., Any], wgsl: Reduce, doc: str
) -> _ReduceMethod:
    def body(
        self: Any,
        input: MLOperand,
        *,
        axes: Sequence[int] | None = None,
        keep_dimensions: bool = False,
        label: str = "",
    ) -> Inferred:
        used = tuple(range(input.rank)) if axes is None else tuple(axes)
        check_axes(used, input.rank)
        shape = reduced(input.shape, used, keep_dimensions)
        return result(Descriptor(input.data_type, shape), axes=used)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = doc
    method: _ReduceMethod = declare(
        body,
        {"input": Limits(types)},
        "input",
        False,
        section="reduce",
        reduce=wgsl,
        reduce_numpy=numpy,
    )
    return method


def _log_sum_exp(x: Any, **how: Any) -> Any:
    top = np.max(x, axis=how["axis"], keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.sum(np.exp(x - top), axis=how["axis"], keepdims=True)) + top
    return total if how["keepdims"] else np.squeeze(total, axis=how["axis"])


_SUM = Reduce("{x}", "{a} + {b}", "0", "{x}")


class Reduction:
    """Builder methods of reductions.

    Options:
        axes: The dimensions to reduce, counted from 0, each once; default: all.

    Returns:
        A tensor of the input's shape without `axes`, or with size 1 in their place if
        `keep_dimensions`.
    """

    reduce_l1 = _row(
        "reduce_l1",
        SUMMED,
        lambda x, **how: np.sum(np.abs(x), **how),
        Reduce("abs({x})", "{a} + {b}", "0", "{x}"),
        "Compute the sum of absolute values.",
    )
    reduce_l2 = _row(
        "reduce_l2",
        FLOATS,
        lambda x, **how: np.sqrt(np.sum(x * x, **how)),
        Reduce("{x} * {x}", "{a} + {b}", "0", "sqrt({x})"),
        "Compute the square root of the sum of squares.",
    )
    reduce_log_sum = _row(
        "reduce_log_sum",
        FLOATS,
        lambda x, **how: np.log(np.sum(x, **how)),
        Reduce("{x}", "{a} + {b}", "0", "wn_log({x})"),
        "Compute the logarithm of the sum.",
    )
    reduce_log_sum_exp = _row(
        "reduce_log_sum_exp",
        FLOATS,
        _log_sum_exp,
        Reduce("wn_exp({x})", "{a} + {b}", "0", "wn_log({x})"),
        "Compute the logarithm of the sum of exponentials.",
    )
    reduce_max = _row(
        "reduce_max",
        ANY,
        np.max,
        Reduce("{x}", "max({a}, {b})", "min", "{x}"),
        "Return the greatest element.",
    )
    reduce_mean = _row(
        "reduce_mean",
        FLOATS,
        np.mean,
        Reduce("{x}", "{a} + {b}", "0", "{x} / {n}"),
        "Compute the mean.",
    )
    reduce_min = _row(
        "reduce_min",
        ANY,
        np.min,
        Reduce("{x}", "min({a}, {b})", "max", "{x}"),
        "Return the least element.",
    )
    reduce_product = _row(
        "reduce_product",
        SUMMED,
        np.prod,
        Reduce("{x}", "{a} * {b}", "1", "{x}"),
        "Compute the product.",
    )
    reduce_sum = _row("reduce_sum", SUMMED, np.sum, _SUM, "Compute the sum.")
    reduce_sum_square = _row(
        "reduce_sum_square",
        SUMMED,
        lambda x, **how: np.sum(x * x, **how),
        Reduce("{x} * {x}", "{a} + {b}", "0", "{x}"),
        "Compute the sum of squares.",
    )
