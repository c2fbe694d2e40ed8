"""Handlers of elementwise operators: arithmetic, comparisons, logic, casts and functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from webnn_py.core.dtypes import DTYPES
from webnn_py.onnx.emitter import BOOL, Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import (
    WEBNN_TYPES,
    Array,
    BrokenModelError,
    Tensor,
    of_array,
    refuse,
    webnn_type,
)
from webnn_py.ops import numeric

BINARY = {
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_or_equal",
    "Less": "lesser",
    "LessOrEqual": "lesser_or_equal",
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
}
MAX_KNOWN = 1 << 16
"""Largest constant of a WebNN data type, in elements, that Cast converts at import."""
UNARY = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Cos": "cos",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "is_nan",
    "Log": "log",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "round_even",
    "Sign": "sign",
    "Sin": "sin",
    "Sqrt": "sqrt",
    "Tan": "tan",
}


def aligned(g: Emitter, a: Tensor, b: Tensor, axis: int | None, broadcast: int) -> Tensor:
    """Reshape the second operand as operators before opset 7 broadcast it: from `axis` of `a`."""
    if not broadcast or axis is None:
        return b
    at = a.axis(axis)
    return g.moved(b, [*b.shape, *[1] * (a.rank - at - b.rank)])


def _register_binary(operator: str, method: str) -> None:
    def binary(g: Emitter, a: Tensor, b: Tensor) -> Any:
        return getattr(g, method)(a, b)

    def old(
        g: Emitter,
        a: Tensor,
        b: Tensor,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: list[int] | None = None,
    ) -> Any:
        return getattr(g, method)(a, aligned(g, a, b, axis, broadcast))

    if operator not in ("GreaterOrEqual", "LessOrEqual"):
        handles(operator)(old)
    handles(operator, since=7)(binary)


def _register_unary(operator: str, method: str) -> None:
    def unary(g: Emitter, x: Tensor, *, consumed_inputs: list[int] | None = None) -> Any:
        data_type = x.data_type
        if method in ("abs", "sign") and DTYPES[data_type].kind == "u":
            return (
                g.identity(x) if method == "abs" else g.cast(g.not_equal(x, zero(g, x)), data_type)
            )
        return getattr(g, method)(x)

    handles(operator)(unary)


def zero(g: Emitter, like: Tensor) -> Tensor:
    """Return a scalar 0 of the data type of `like`."""
    return g.constant(0, like)


for _operator, _method in BINARY.items():
    _register_binary(_operator, _method)
for _operator, _method in UNARY.items():
    _register_unary(_operator, _method)


@handles("Identity")
def identity(g: Emitter, x: Tensor) -> Tensor:
    """Return the tensor itself, so that a constant stays a constant."""
    return x


@handles("Pow", since=7)
def power(g: Emitter, x: Tensor, y: Tensor) -> Any:
    """Emit Pow in x's data type; an integer base with a float exponent is computed in floats."""
    if y.elem == x.elem:
        return g.pow(x, y)
    if x.is_float:
        return g.pow(x, g.to(y, x.data_type))
    if y.is_float:
        return g.cast(g.pow(g.to(x, y.data_type), y), x.data_type)
    return g.pow(x, g.to(y, x.data_type))


@handles("Pow")
def power_1(
    g: Emitter, x: Tensor, y: Tensor, *, axis: int | None = None, broadcast: int = 0
) -> Any:
    """Emit Pow before opset 7, which broadcasts along `axis`."""
    return g.pow(x, aligned(g, x, y, axis, broadcast))


def _variadic(method: str) -> Callable[..., Any]:
    def combine(g: Emitter, *data: Tensor, consumed_inputs: list[int] | None = None) -> Any:
        if len(data) == 1:
            return g.identity(data[0])
        return functools.reduce(getattr(g, method), data)

    return combine


for _operator, _method in {"Max": "max", "Min": "min", "Sum": "add"}.items():
    handles(_operator)(_variadic(_method))


@handles("Mean")
def mean(g: Emitter, *data: Tensor, consumed_inputs: list[int] | None = None) -> Any:
    """Emit Mean: the sum of the inputs, divided by their number."""
    total = functools.reduce(g.add, data) if len(data) > 1 else g.identity(data[0])
    return g.div(total, float(len(data)))


@handles("Where")
def where(g: Emitter, condition: Tensor, x: Tensor, y: Tensor) -> Any:
    """Emit Where: x where the condition is true, else y."""
    return g.where(condition, x, y)


@handles("Mod")
def mod(g: Emitter, a: Tensor, b: Tensor, *, fmod: int = 0) -> Any:
    """Emit Mod: the remainder has the divisor's sign, or with `fmod` the dividend's."""
    if a.is_float:
        quotient = g.div(a, b)
        if fmod:
            whole = g.mul(g.sign(quotient), g.floor(g.abs(quotient)))
            of_infinity = a
        else:
            whole = g.floor(quotient)
            apart = g.lesser(g.mul(g.sign(a), g.sign(b)), zero(g, a))
            of_infinity = g.where(apart, b, a)
        endless = g.logical_and(g.is_infinite(b), g.logical_not(g.is_infinite(a)))
        return g.where(endless, of_infinity, g.sub(a, g.mul(whole, b)))
    rest = g.sub(a, g.mul(g.div(a, b), b))
    if fmod or DTYPES[a.data_type].kind == "u":
        return rest
    nothing = zero(g, a)
    differ = g.logical_xor(g.lesser(rest, nothing), g.lesser(b, nothing))
    shifted = g.logical_and(differ, g.not_equal(rest, nothing))
    return g.where(shifted, g.add(rest, b), rest)


@handles("BitShift")
def bit_shift(g: Emitter, x: Tensor, y: Tensor, *, direction: str) -> Any:
    """Emit BitShift: multiply by a power of two, or divide by it and round down.

    A constant table contains the powers.
    """
    info = DTYPES[x.data_type]
    bits = info.bits - (info.kind == "i")
    powers = np.array([1 << i for i in range(bits)], info.numpy)
    if direction == "LEFT":
        powers = np.append(powers, info.numpy.type(info.min if info.kind == "i" else 0))
    last = g.constant(len(powers) - 1, y)
    places = g.cast(g.min(y, last), "int64" if y.data_type == "uint64" else "int32")
    factor = g.gather(g.array(powers), places)
    if direction == "LEFT":
        result = g.mul(x, factor)
        too_far = _beyond(g, y, info.bits)
        return g.where(too_far, zero(g, result), result)
    quotient = g.div(x, factor)
    far = _beyond(g, y, bits)
    if info.kind == "u":
        return g.where(far, zero(g, quotient), quotient)
    nothing = zero(g, x)
    rest = g.sub(x, g.mul(quotient, factor))
    down = g.where(g.lesser(rest, nothing), g.sub(quotient, g.constant(1, x)), quotient)
    ends = g.where(g.lesser(x, nothing), g.constant(-1, x), nothing)
    return g.where(far, ends, down)


def _beyond(g: Emitter, shift: Tensor, bits: int) -> Any:
    """Return a mask of shifts that leave no bit: negative ones, and those of at least `bits`."""
    far = g.greater_or_equal(shift, g.constant(bits, shift))
    if DTYPES[shift.data_type].kind == "u":
        return far
    return g.logical_or(far, g.lesser(shift, g.constant(0, shift)))


def _bits(
    g: Emitter, a: Tensor, b: Tensor, combine: Callable[[Any, Any], Any], data_type: str
) -> Any:
    """Emit a bitwise operator as a sum of powers of two over the bits that `combine` sets.

    Args:
        g: The emitter.
        a: The first operand.
        b: The second operand.
        combine: A function of two bits, 0 or 1, that returns 0 or 1.
        data_type: The integer type of both operands.
    """
    info = DTYPES[data_type]
    if info.kind == "i":
        unsigned = f"u{data_type}"
        made = _bits(g, g.cast(a, unsigned), g.cast(b, unsigned), combine, unsigned)
        return g.cast(made, data_type)
    total = None
    two = g.constant(2, a)
    for i in range(info.bits):
        power_of = g.constant(1 << i, a)
        one_a, one_b = (_modulo(g, g.div(x, power_of), two) for x in (a, b))
        term = g.mul(combine(one_a, one_b), power_of)
        total = term if total is None else g.add(total, term)
    return total


def _modulo(g: Emitter, x: Any, by: Any) -> Any:
    return g.sub(x, g.mul(g.div(x, by), by))


@handles("BitwiseAnd")
def bitwise_and(g: Emitter, a: Tensor, b: Tensor) -> Any:
    """Emit BitwiseAnd, by the product of bits."""
    return _bits(g, a, b, lambda p, q: g.mul(p, q), a.data_type)


@handles("BitwiseOr")
def bitwise_or(g: Emitter, a: Tensor, b: Tensor) -> Any:
    """Emit BitwiseOr, by the maximum of bits."""
    return _bits(g, a, b, lambda p, q: g.max(p, q), a.data_type)


@handles("BitwiseXor")
def bitwise_xor(g: Emitter, a: Tensor, b: Tensor) -> Any:
    """Emit BitwiseXor, by the absolute difference of bits."""
    return _bits(g, a, b, lambda p, q: g.sub(g.max(p, q), g.min(p, q)), a.data_type)


@handles("BitwiseNot")
def bitwise_not(g: Emitter, x: Tensor) -> Any:
    """Emit BitwiseNot: -1 - x for signed integers, max - x for unsigned ones."""
    info = DTYPES[x.data_type]
    return g.sub(g.constant(-1 if info.kind == "i" else int(info.max), x), x)


@handles("IsInf")
def is_inf(g: Emitter, x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    """Emit IsInf: true at infinities of both signs, of one sign, or of none."""
    if detect_negative and detect_positive:
        return g.is_infinite(x)
    if not detect_negative and not detect_positive:
        return g.not_equal(g.is_nan(x), g.is_nan(x))
    return g.equal(x, -math.inf if detect_negative else math.inf)


def _is_cast_now(x: Tensor, array: Array) -> bool:
    """Return whether to cast a constant at import: a small one, or of a type that WebNN lacks."""
    if x.elem in WEBNN_TYPES:
        return array.size <= MAX_KNOWN and array.dtype.kind in "fiub"
    return array.dtype.kind in "fiuV"


@handles("Cast")
def cast(g: Emitter, x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Emit Cast to another data type; a cast to bool is x != 0."""
    is_known = x.array is not None and _is_cast_now(x, x.array)
    if to == BOOL and not (is_known and x.elem not in WEBNN_TYPES):
        return x if x.elem == BOOL else g.to(x, "bool")
    target = "bool" if to == BOOL else webnn_type(to)
    if x.array is not None and is_known:
        numbers = x.array.astype(np.float32) if x.array.dtype.kind == "V" else x.array
        if to == BOOL:
            return of_array(numbers != 0, x.name)
        with np.errstate(all="ignore"):
            return of_array(numeric.cast(numbers, target), x.name)
    webnn_type(x.elem)
    if x.elem == to:
        return g.identity(x)
    return g.to(x, target) if x.data_type == target else g.cast(x, target)


@handles("Cast")
def cast_1(g: Emitter, x: Tensor, *, to: Any) -> Any:
    """Emit Cast before opset 6, whose target is the name of a data type."""
    number = onnx.TensorProto.DataType.Value(to) if isinstance(to, str) else to
    return cast(g, x, to=number)


handles("Cast", since=6)(cast)


@handles("CastLike")
def cast_like(
    g: Emitter, x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up"
) -> Any:
    """Emit CastLike: a cast to the data type of another tensor."""
    return cast(g, x, to=target.elem)


@handles("BitCast", since=26)
def bit_cast(g: Emitter, x: Tensor, *, to: int) -> Any:
    """Emit BitCast for constants, and for integers of equal width, whose bits a cast preserves."""
    target = webnn_type(to)
    if x.elem == to:
        return g.identity(x)
    if x.array is not None and to != BOOL:
        dtype = np.dtype(target)
        if x.array.dtype.itemsize != dtype.itemsize:
            raise BrokenModelError(f"{x.array.dtype} and {target} have not the same number of bits")
        return of_array(np.ascontiguousarray(x.array).view(dtype).reshape(x.shape))
    own, other = DTYPES[x.data_type], DTYPES[target]
    if own.bits != other.bits:
        raise BrokenModelError(f"{own.name} and {target} have not the same number of bits")
    if to == BOOL or "f" in own.kind + other.kind:
        refuse("WebNN does not take the bits of one data type for another")
    return g.to(x, target) if x.data_type == target else g.cast(x, target)


Function = Callable[[Emitter, Any], Any]


def in_float32(function: Function) -> Callable[[Emitter, Tensor], Any]:
    """Return `function` computed in float32, with a cast of its result to x's data type.

    A float16 result is so rounded only once.
    """

    def compute(g: Emitter, x: Tensor) -> Any:
        return g.to(function(g, g.to(x, "float32")), x.data_type)

    compute.__doc__ = function.__doc__
    return compute


def _odd_series(g: Emitter, x: Any, coefficients: Sequence[float]) -> Any:
    """Emit x + x^3 * (c0 + c1 * x^2 + ...), which is accurate near 0."""
    z = g.mul(x, x)
    *lower, last = coefficients
    total: Any = g.constant(last, x)
    for term in reversed(lower):
        total = g.add(g.mul(z, total), term)
    return g.add(x, g.mul(g.mul(x, z), total))


# Coefficients of Chebyshev interpolants of (f(x) / x - 1) / x^2, within 0.1 ulp of float32.
_SINH_TO_1 = (0.166666666468, 0.00833333968164, 0.000198381004421, 2.80629043786e-6)
_ASINH_TO_HALF = (
    *(-0.16666666577, 0.0749997370996, -0.0446302800529),
    *(0.030159045886, -0.0205398213998, 0.00995725102178),
)
_ATANH_TO_HALF = (
    *(0.333333334444, 0.199999572481, 0.142883848242, 0.110491269299),
    *(0.0976518961461, 0.0404420525452, 0.156927326668),
)


def _half_exponentials(g: Emitter, size: Any) -> tuple[Any, Any]:
    """Return exp(x) / 2 and exp(-x) / 2 for x >= 0, without overflow of exp(x)."""
    root = g.exp(g.mul(size, 0.5))
    # GPU compilers reorder to root * root first, which overflows; the minimum prevents that.
    half = g.min(g.mul(root, 0.5), 1e30)
    return g.mul(half, root), g.div(g.div(g.constant(0.5, size), root), root)


@handles("Sinh")
@in_float32
def sinh(g: Emitter, x: Any) -> Any:
    """Emit Sinh: (exp(x) - exp(-x)) / 2, or a polynomial for |x| <= 1."""
    size = g.abs(x)
    large, small = _half_exponentials(g, size)
    far = g.mul(g.sign(x), g.sub(large, small))
    return g.where(g.greater(size, 1.0), far, _odd_series(g, x, _SINH_TO_1))


@handles("Cosh")
@in_float32
def cosh(g: Emitter, x: Any) -> Any:
    """Emit Cosh: (exp(x) + exp(-x)) / 2."""
    return g.add(*_half_exponentials(g, g.abs(x)))


@handles("Asinh")
@in_float32
def asinh(g: Emitter, x: Any) -> Any:
    """Emit Asinh: sign(x) * log(|x| + sqrt(x^2 + 1)), or a polynomial for |x| <= 0.5.

    The factor max(|x|, 1) is taken out of the logarithm, so that x^2 cannot overflow.
    """
    size = g.abs(x)
    most = g.max(size, 1.0)
    least = g.div(g.min(size, 1.0), most)
    rest = g.add(g.div(size, most), g.sqrt(g.add(g.mul(least, least), 1.0)))
    far = g.mul(g.sign(x), g.add(g.log(most), g.log(rest)))
    made = g.where(g.greater(size, 0.5), far, _odd_series(g, x, _ASINH_TO_HALF))
    return g.where(g.is_infinite(x), x, made)


@handles("Acosh")
@in_float32
def acosh(g: Emitter, x: Any) -> Any:
    """Emit Acosh: asinh(sqrt(x^2 - 1)), or asinh(x) for x > 8192, which rounds to the same."""
    leg = g.mul(g.sqrt(g.sub(x, 1.0)), g.sqrt(g.add(x, 1.0)))
    return asinh(g, g.where(g.greater(x, 8192.0), x, leg))


@handles("Atanh")
@in_float32
def atanh(g: Emitter, x: Any) -> Any:
    """Emit Atanh: log((1 + x) / (1 - x)) / 2, or a polynomial for |x| <= 0.5."""
    far = g.mul(g.log(g.div(g.add(x, 1.0), g.add(g.neg(x), 1.0))), 0.5)
    return g.where(g.greater(g.abs(x), 0.5), far, _odd_series(g, x, _ATANH_TO_HALF))


def _atan(g: Emitter, x: Any) -> Any:
    """Emit atan by Cephes' atanf: three ranges and a polynomial, within 2 ulp of float32."""
    size = g.abs(x)
    far = g.greater(size, 2.414213562373095)
    middle = g.greater(size, 0.4142135623730950)
    reduced = g.where(
        far,
        g.neg(g.reciprocal(g.max(size, 0.1))),
        g.where(middle, g.div(g.add(size, -1.0), g.add(size, 1.0)), size),
    )
    scalar = g.constant
    start = g.where(
        far,
        scalar(math.pi / 2, x),
        g.where(middle, scalar(math.pi / 4, x), scalar(0, x)),
    )
    z = g.mul(reduced, reduced)
    total: Any = g.mul(z, 8.05374449538e-2)
    for term in (-1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1):
        total = g.mul(g.add(total, term), z)
    made = g.add(start, g.add(g.mul(total, reduced), reduced))
    return g.where(g.lesser(x, zero(g, x)), g.neg(made), made)


@handles("Atan")
@in_float32
def atan(g: Emitter, x: Any) -> Any:
    """Emit Atan by a polynomial, because WebNN has no arc tangent."""
    return _atan(g, x)


@handles("Asin")
@in_float32
def asin(g: Emitter, x: Any) -> Any:
    """Emit Asin: 2 atan(x / (1 + sqrt(1 - x^2)))."""
    rest = g.mul(g.add(g.neg(x), 1.0), g.add(x, 1.0))  # more accurate near 1 than 1 - x^2
    return g.mul(_atan(g, g.div(x, g.add(g.sqrt(rest), 1.0))), 2.0)


@handles("Acos")
@in_float32
def acos(g: Emitter, x: Any) -> Any:
    """Emit Acos: 2 atan(sqrt((1 - x) / (1 + x)))."""
    return g.mul(_atan(g, g.sqrt(g.div(g.add(g.neg(x), 1.0), g.add(x, 1.0)))), 2.0)
