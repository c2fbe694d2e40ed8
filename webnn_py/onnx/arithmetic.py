"""Exact symbolic arithmetic on tensors that contain open dimensions, at import.

Elements are numbers and MLDimensions; float tensors may also hold fractions of them. The module
`folding` handles operators that only move elements.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx

from webnn_py.core.dimensions import is_dimension, span, undecided
from webnn_py.onnx.tensor import Array, Share, Tensor, UnmappableError, narrowing, of_sizes

_TYPE = onnx.TensorProto
_INTEGERS = (_TYPE.INT64, _TYPE.INT32)
_FLOATS = (_TYPE.FLOAT, _TYPE.DOUBLE)  # float16 rounds sizes from 2048 on
_MAX_DENOMINATOR = 1 << 10
"""Largest denominator of a fraction; float32 is still exact for sizes of thousands."""

Attributes = Mapping[str, Any]


class UndecidedError(UnmappableError):
    """A result that is not one expression for all open sizes."""


def _parts(value: Any) -> tuple[Any, int]:
    """Return the numerator and denominator of a number, dimension or fraction."""
    if isinstance(value, Share):
        return value
    return (value, 1) if is_dimension(value) else Fraction(value).as_integer_ratio()


def _made(numerator: Any, denominator: int) -> Any:
    """Return a fraction, or the integer or dimension that equals it."""
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    whole = numerator // denominator
    if whole * denominator == numerator:
        return whole
    if not 0 < denominator <= _MAX_DENOMINATOR:
        raise UndecidedError
    kind = Share if is_dimension(numerator) else Fraction
    return kind(numerator, denominator)


def _aligned(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `function` applied to the numerators of its arguments over a common denominator."""

    def combined(a: Any, b: Any) -> Any:
        (p, q), (r, s) = _parts(a), _parts(b)
        return function(p * s, r * q)

    return combined


def _sum(sign: int) -> Callable[[Any, Any], Any]:
    def combined(a: Any, b: Any) -> Any:
        (p, q), (r, s) = _parts(a), _parts(b)
        return _made(p * s + sign * r * q, q * s)

    return combined


def _product(a: Any, b: Any) -> Any:
    (p, q), (r, s) = _parts(a), _parts(b)
    return _made(p * r, q * s)


def _quotient(a: Any, b: Any) -> Any:
    (p, q), (r, s) = _parts(a), _parts(b)
    above, below = p * s, q * r
    if not is_dimension(below):
        return _made(above, below)
    whole = above // below
    if whole * below != above:
        raise UndecidedError
    return whole


def _of_naturals(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `function` limited to a >= 0 and b >= 1; ONNX rounds negative integers differently."""

    def combined(a: Any, b: Any) -> Any:
        if a >= 0 and b >= 1:
            return function(a, b)
        raise UndecidedError

    return combined


def _modulo(a: Any, b: Any) -> Any:
    """Return the remainder of a floored division, as Python does; the divisor must be positive."""
    if b >= 1:
        return a % b
    raise UndecidedError


def _floor(a: Any) -> Any:
    above, below = _parts(a)
    return above // below


def equal(a: Any, b: Any) -> bool:
    """Return whether two sizes are equal for all values of the open dimensions.

    Raises:
        UndecidedError: They are equal for some values only.
    """
    why = undecided(a, b)
    if why:
        raise UndecidedError(why.removeprefix("; "))
    return bool(a == b)


def quotient(a: Any, b: Any) -> float | None:
    """Return a / b, or None if the quotient depends on the open dimensions."""
    if not is_dimension(a) and not is_dimension(b):
        return float(a / b)
    try:
        found = _quotient(a, b)
    except UndecidedError:
        return None
    return None if is_dimension(found) or isinstance(found, Share) else float(found)


def least(a: Any, b: Any) -> Any:
    """Return the smaller of two sizes.

    Raises:
        NarrowerError: The smaller one depends on an open dimension; narrower bounds decide it.
        ValidationError: The smaller one depends on open dimensions, and no narrower bounds decide.
    """
    low, high = span(b - a)
    if low >= 0 or high <= 0:
        return a if low >= 0 else b
    with narrowing():
        return a if a <= b else b


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": _sum(1),
    "Sub": _sum(-1),
    "Mul": _product,
    "Div": _quotient,
    "Neg": lambda a: _product(a, -1),
    "Max": lambda a, b: a if _COMPARISONS["GreaterOrEqual"](a, b) else b,
    "Min": lambda a, b: a if _COMPARISONS["LessOrEqual"](a, b) else b,
    "Floor": _floor,
    "Ceil": lambda a: -_floor(_product(a, -1)),
}
_OF_INTEGERS = {"Div": _of_naturals(operator.floordiv), "Mod": _of_naturals(operator.mod)}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": _aligned(equal),
    "Greater": _aligned(operator.gt),
    "GreaterOrEqual": _aligned(operator.ge),
    "Less": _aligned(operator.lt),
    "LessOrEqual": _aligned(operator.le),
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceProd": _product,
    "ReduceSum": _sum(1),
    "ReduceMax": _ARITHMETIC["Max"],
    "ReduceMin": _ARITHMETIC["Min"],
}


def fold(node: Any, inputs: Sequence[Tensor | None], attributes: Attributes) -> list[Tensor] | None:
    """Compute a node whose inputs are numbers or expressions in open dimensions.

    Args:
        node: The onnx.NodeProto to compute.
        inputs: Its input tensors, each with `array` or `sizes`; None for omitted inputs.
        attributes: Its attributes by name.

    Returns:
        The outputs, or None if no rule covers the operator.

    Raises:
        UndecidedError: The result is not one expression for all open sizes.
    """
    kind, given = node.op_type, [one for one in inputs if one is not None]
    first = given[0].elem
    if kind == "Cast":
        return _cast(given[0], attributes["to"])
    if first not in _INTEGERS + _FLOATS:
        return None
    arrays = [elements_of(one) for one in given]
    if kind in _COMPARISONS:
        return [_applied(_COMPARISONS[kind], arrays, _TYPE.BOOL)]
    function = _OF_INTEGERS.get(kind) if first in _INTEGERS else None
    if kind == "Mod" and first in _INTEGERS and not attributes.get("fmod"):
        function = _modulo
    function = function or _ARITHMETIC.get(kind)
    if function is not None:
        return [_applied(function, arrays, first)]
    if kind in _REDUCTIONS and arrays[0].ndim == 1 and len(given) == 1:
        total = functools.reduce(_REDUCTIONS[kind], arrays[0])
        return [tensor_of([total], [1] * attributes.get("keepdims", 1), first)]
    return None


def elements_of(tensor: Tensor) -> Array:
    """Return the contents of a tensor as an object array of numbers and dimensions."""
    if tensor.sizes is not None:
        return tensor.sizes
    assert tensor.array is not None
    return np.asarray(tensor.array.astype(object))


def tensor_of(elements: Sequence[Any], shape: Sequence[int], elem: int) -> Tensor:
    """Return a tensor of numbers and dimensions.

    Args:
        elements: Its elements in row-major order.
        shape: Its shape.
        elem: Its ONNX element type.
    """
    made = np.empty(len(elements), object)
    for i, element in enumerate(elements):
        made[i] = element
    return of_sizes(made.reshape(shape), elem)


def _applied(function: Callable[..., Any], arrays: Sequence[Array], elem: int) -> Tensor:
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    rows = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
    if len(rows) == 1:
        return tensor_of([function(x) for x in rows[0]], shape, elem)
    return tensor_of(
        [functools.reduce(function, elements) for elements in zip(*rows, strict=True)], shape, elem
    )


def _cast(tensor: Tensor, to: int) -> list[Tensor] | None:
    """Cast to another data type; return None for negative elements cast to integers.

    ONNX truncates towards zero, and floor truncates only elements that are not negative.
    """
    elements = list(elements_of(tensor).reshape(-1))
    if to in _INTEGERS:
        if any(_parts(one)[0] < 0 for one in elements):
            return None
        elements = [_floor(one) for one in elements]
    elif to not in _FLOATS:
        return None
    return [tensor_of(elements, tensor.shape, to)]
