"""Arithmetic on sizes at import, where some of them are open: exact, or not done at all.

Elements are numbers, MLDimensions, and fractions of them where floats are concerned. What only
moves elements is left to ONNX's reference, which moves their numbers.
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
from webnn_py.core.polynomials import TooLargeError
from webnn_py.onnx import folding
from webnn_py.onnx.tensor import Array, Share, Tensor, UnmappableError, narrowing, of_sizes

_TYPE = onnx.TensorProto
_INTEGERS = (_TYPE.INT64, _TYPE.INT32)
_FLOATS = (_TYPE.FLOAT, _TYPE.DOUBLE)  # float16 rounds sizes from 2048 on
_MAX_ELEMENTS = 1024
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
_MOVED: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Expand", "Flatten", "Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile"), (0,)),
    **dict.fromkeys(("Transpose", "Unsqueeze"), (0,)),
    **dict.fromkeys(("ScatterElements", "ScatterND"), (0, 2)),
    "Concat": None,
    "Where": (1, 2),
}
"""Which inputs the results' elements are from; None for all."""


def fold(
    node: Any, inputs: Sequence[Tensor | None], attributes: Attributes, opsets: Mapping[str, int]
) -> list[Tensor] | None:
    """Compute a node whose inputs are numbers or follow from open dimensions.

    Args:
        node: What to compute.
        inputs: Its inputs, all known but for the open dimensions.
        attributes: The node's.
        opsets: Versions of the operator sets.

    Returns:
        None where the result is not the same expression for all sizes, or there is no rule.
    """
    given = [one for one in inputs if one is not None]
    if node.domain not in ("", "ai.onnx") or sum(_count(one) for one in given) > _MAX_ELEMENTS:
        return None
    try:
        return _folded(node, inputs, attributes, opsets)
    except TooLargeError:
        raise
    except (UndecidedError, ArithmeticError, ValueError):
        return None


def _folded(
    node: Any, inputs: Sequence[Tensor | None], attributes: Attributes, opsets: Mapping[str, int]
) -> list[Tensor] | None:
    kind, given = node.op_type, [one for one in inputs if one is not None]
    if kind in _MOVED:
        return _moved(node, inputs, opsets)
    first = given[0].elem
    if kind == "Cast":
        return _cast(given[0], attributes["to"])
    if first not in _INTEGERS + _FLOATS:
        return None
    arrays = [_elements(one) for one in given]
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
        return [_tensor([total], [1] * attributes.get("keepdims", 1), first)]
    return None


def _count(tensor: Tensor) -> int:
    contents = tensor.array if tensor.sizes is None else tensor.sizes
    return 0 if contents is None else int(contents.size)


def _elements(tensor: Tensor) -> Array:
    if tensor.sizes is not None:
        return tensor.sizes
    assert tensor.array is not None
    return np.asarray(tensor.array.astype(object))


def _tensor(elements: Sequence[Any], shape: Sequence[int], elem: int) -> Tensor:
    made = np.empty(len(elements), object)
    for i, element in enumerate(elements):
        made[i] = element
    return of_sizes(made.reshape(shape), elem)


def _applied(function: Callable[..., Any], arrays: Sequence[Array], elem: int) -> Tensor:
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    rows = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
    if len(rows) == 1:
        return _tensor([function(x) for x in rows[0]], shape, elem)
    return _tensor(
        [functools.reduce(function, elements) for elements in zip(*rows, strict=True)], shape, elem
    )


def _cast(tensor: Tensor, to: int) -> list[Tensor] | None:
    """Floats to integers towards zero, which is the floor of what is not negative."""
    elements = list(_elements(tensor).reshape(-1))
    if to in _INTEGERS:
        if any(_parts(one)[0] < 0 for one in elements):
            return None
        elements = [_floor(one) for one in elements]
    elif to not in _FLOATS:
        return None
    return [_tensor(elements, tensor.shape, to)]


def _moved(
    node: Any, inputs: Sequence[Tensor | None], opsets: Mapping[str, int]
) -> list[Tensor] | None:
    """Where each element goes: the reference moves places in a table of all of them."""
    sources = _MOVED[node.op_type]
    table: list[Any] = []
    arrays: list[Array | None] = []
    elem = 0
    for i, one in enumerate(inputs):
        if one is None or not (sources is None or i in sources):
            if one is not None and one.array is None:
                return None
            arrays.append(None if one is None else one.array)
            continue
        elements = _elements(one)
        places = np.arange(len(table), len(table) + elements.size, dtype=np.int64)
        arrays.append(places.reshape(elements.shape))
        table.extend(elements.reshape(-1))
        elem = one.elem
    if not folding.can_fold(node, arrays, lambda made: made <= folding.MAX_ELEMENTS):
        return None
    made = folding.fold(node, arrays, opsets)
    return [_tensor([table[i] for i in part.reshape(-1)], part.shape, elem) for part in made]
