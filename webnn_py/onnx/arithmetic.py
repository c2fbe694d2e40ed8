"""Arithmetic on sizes at import, where some of them are open: exact, or not done at all.

Elements are numbers, MLDimensions, and fractions of them where floats are concerned. What only
moves elements is folded on their places (`folding`).
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
"""With such fractions float32 calculates exactly, too, up to sizes of thousands."""

Attributes = Mapping[str, Any]


class UndecidedError(UnmappableError):
    """A result is another one for other sizes, or none that can be said."""


def _parts(value: Any) -> tuple[Any, int]:
    """Numerator and denominator."""
    if isinstance(value, Share):
        return value
    return (value, 1) if is_dimension(value) else Fraction(value).as_integer_ratio()


def _made(numerator: Any, denominator: int) -> Any:
    """A fraction; the integer or dimension that it is, if it is one."""
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
    """A function of two numerators over one denominator."""

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
    """A quotient or rest of integers, which ONNX rounds otherwise where one is negative."""

    def combined(a: Any, b: Any) -> Any:
        if a >= 0 and b >= 1:
            return function(a, b)
        raise UndecidedError

    return combined


def _modulo(a: Any, b: Any) -> Any:
    """What is left of a division downwards, as Python's."""
    if b >= 1:
        return a % b
    raise UndecidedError


def _floor(a: Any) -> Any:
    above, below = _parts(a)
    return above // below


def equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal, for all sizes.

    Raises:
        UndecidedError: For some they are, for others not.
    """
    why = undecided(a, b)
    if why:
        raise UndecidedError(why.removeprefix("; "))
    return bool(a == b)


def quotient(a: Any, b: Any) -> float | None:
    """What one size is divided by another, or None where it is not the same for all sizes."""
    if not is_dimension(a) and not is_dimension(b):
        return float(a / b)
    try:
        found = _quotient(a, b)
    except UndecidedError:
        return None
    return None if is_dimension(found) or isinstance(found, Share) else float(found)


def least(a: Any, b: Any) -> Any:
    """The first of two sizes, which is not the greater one, or else the second.

    Raises:
        NarrowerError: It is the first one for some sizes.
        ValidationError: The same, and it depends on several of them.
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
    """Compute a node whose inputs are numbers or follow from open dimensions.

    Args:
        node: What to compute.
        inputs: Its inputs, all known but for the open dimensions.
        attributes: The node's.

    Returns:
        None where there is no rule.

    Raises:
        UndecidedError: The result is not the same expression for all sizes.
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
    """The contents of a tensor as numbers and dimensions."""
    if tensor.sizes is not None:
        return tensor.sizes
    assert tensor.array is not None
    return np.asarray(tensor.array.astype(object))


def tensor_of(elements: Sequence[Any], shape: Sequence[int], elem: int) -> Tensor:
    """A tensor of numbers and dimensions."""
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
    """Floats to integers towards zero, which is the floor of what is not negative."""
    elements = list(elements_of(tensor).reshape(-1))
    if to in _INTEGERS:
        if any(_parts(one)[0] < 0 for one in elements):
            return None
        elements = [_floor(one) for one in elements]
    elif to not in _FLOATS:
        return None
    return [tensor_of(elements, tensor.shape, to)]
