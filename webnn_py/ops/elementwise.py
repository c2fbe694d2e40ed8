"""Elementwise operators without options, one row each.

A row states the data types, the NumPy function that defines the operator and the WGSL expression.
Functions named `wn_*` are in the WebGPU compiler's prelude; `{T}` is the WGSL type of the output.
Source: WebNN 2026, "Element-wise binary/logical/unary operations" and "where".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from webnn_py.core.dtypes import ANY, FLOATS, MLOperandDataType
from webnn_py.core.shapes import broadcast
from webnn_py.ir import Descriptor
from webnn_py.ops import numeric
from webnn_py.ops.declare import Inferred, Limits, declare, operator, result
from webnn_py.ops.operand import MLOperand

SIGNED = ("float32", "float16", "int64", "int32", "int8")
FLAG = ("uint8",)


class _UnaryCall(Protocol):
    def __call__(self, input: MLOperand, *, label: str = "") -> MLOperand: ...


class _PredicateCall(Protocol):
    def __call__(self, a: MLOperand, *, label: str = "") -> MLOperand: ...


class _BinaryCall(Protocol):
    def __call__(self, a: MLOperand, b: MLOperand, *, label: str = "") -> MLOperand: ...


class _Unary(Protocol):
    """Method of one operand; the protocol tells type checkers its bound signature."""

    def __get__(self, instance: Any, owner: Any = None) -> _UnaryCall: ...


class _Predicate(Protocol):
    def __get__(self, instance: Any, owner: Any = None) -> _PredicateCall: ...


class _Binary(Protocol):
    def __get__(self, instance: Any, owner: Any = None) -> _BinaryCall: ...


def _row(body: Callable[..., Inferred], name: str, doc: str, output: Any, **more: Any) -> Any:
    limits = more.pop("limits")
    body.__name__ = body.__qualname__ = name
    body.__doc__ = doc
    return declare(body, limits, output, False, **more)


def _unary(name: str, types: tuple[str, ...], numpy: Any, wgsl: str, doc: str) -> _Unary:
    def body(self: Any, input: MLOperand, *, label: str = "") -> Inferred:
        return result(Descriptor(input.data_type, input.shape))

    limits = {"input": Limits(types)}
    row: _Unary = _row(
        body, name, doc, "input", limits=limits, section="unary", numpy=numpy, wgsl=wgsl
    )
    return row


def _predicate(name: str, types: tuple[str, ...], numpy: Any, wgsl: str, doc: str) -> _Predicate:
    def body(self: Any, a: MLOperand, *, label: str = "") -> Inferred:
        return result(Descriptor("uint8", a.shape))

    limits = {"a": Limits(types)}
    row: _Predicate = _row(
        body,
        name,
        doc,
        FLAG,
        limits=limits,
        section="logical",
        numpy=numeric.flag(numpy),
        wgsl=wgsl,
    )
    return row


def _binary(name: str, types: tuple[str, ...], numpy: Any, wgsl: str, doc: str) -> _Binary:
    def body(self: Any, a: MLOperand, b: MLOperand, *, label: str = "") -> Inferred:
        return result(Descriptor(a.data_type, broadcast(a.shape, b.shape)))

    limits = {"a": Limits(types), "b": Limits("a")}
    row: _Binary = _row(
        body, name, doc + _BROADCAST, "a", limits=limits, section="binary", numpy=numpy, wgsl=wgsl
    )
    return row


def _compare(name: str, types: tuple[str, ...], numpy: Any, test: str, doc: str) -> _Binary:
    def body(self: Any, a: MLOperand, b: MLOperand, *, label: str = "") -> Inferred:
        return result(Descriptor("uint8", broadcast(a.shape, b.shape)))

    limits = {"a": Limits(types), "b": Limits("a")}
    wgsl = f"wn_flag({test})"
    row: _Binary = _row(
        body,
        name,
        doc + _BROADCAST,
        FLAG,
        limits=limits,
        section="logical",
        numpy=numeric.flag(numpy),
        wgsl=wgsl,
    )
    return row


_BROADCAST = "\n\nReturns:\n    A tensor of the shape that `a` and `b` broadcast to."
_wide = numeric.wide


class Elementwise:
    """Builder methods of the elementwise operators.

    Returns:
        A tensor of the input's shape.
    """

    abs = _unary("abs", SIGNED, np.abs, "abs({input})", "Compute the absolute value.")
    ceil = _unary("ceil", FLOATS, np.ceil, "ceil({input})", "Round up to an integer.")
    cos = _unary("cos", FLOATS, _wide(np.cos), "wn_cos({input})", "Compute the cosine; radians.")
    erf = _unary(
        "erf", FLOATS, _wide(numeric.erf), "wn_erf({input})", "Compute the Gauss error function."
    )
    exp = _unary("exp", FLOATS, _wide(np.exp), "wn_exp({input})", "Compute the exponential.")
    floor = _unary("floor", FLOATS, np.floor, "floor({input})", "Round down to an integer.")
    identity = _unary("identity", ANY, np.copy, "{input}", "Return the same values.")
    log = _unary("log", FLOATS, _wide(np.log), "wn_log({input})", "Compute the natural logarithm.")
    neg = _unary("neg", SIGNED, np.negative, "-({input})", "Compute -x.")
    reciprocal = _unary(
        "reciprocal", FLOATS, lambda input: 1 / input, "1.0 / {input}", "Compute 1 / x."
    )
    round_even = _unary(
        "round_even",
        FLOATS,
        np.rint,
        "round({input})",
        "Round to the nearest integer, halves to the even one.",
    )
    sign = _unary("sign", SIGNED, np.sign, "sign({input})", "Return the sign: -1, 0 or 1.")
    sin = _unary("sin", FLOATS, _wide(np.sin), "wn_sin({input})", "Compute the sine; radians.")
    sqrt = _unary("sqrt", FLOATS, np.sqrt, "sqrt({input})", "Compute the square root.")
    tan = _unary("tan", FLOATS, _wide(np.tan), "wn_tan({input})", "Compute the tangent; radians.")

    add = _binary("add", ANY, np.add, "{a} + {b}", "Compute a + b.")
    sub = _binary("sub", ANY, np.subtract, "{a} - {b}", "Compute a - b.")
    mul = _binary("mul", ANY, np.multiply, "{a} * {b}", "Compute a * b.")
    div = _binary("div", ANY, numeric.divide, "{a} / {b}", "Compute a / b.")
    max = _binary("max", ANY, np.maximum, "max({a}, {b})", "Return the greater of a and b.")
    min = _binary("min", ANY, np.minimum, "min({a}, {b})", "Return the smaller of a and b.")
    pow = _binary(
        "pow",
        ANY,
        _wide(numeric.power),
        "wn_pow({a}, {b})",
        "Raise a to the power of b.",
    )

    equal = _compare("equal", ANY, np.equal, "{a} == {b}", "Return 1 where a = b, else 0.")
    not_equal = _compare(
        "not_equal", ANY, np.not_equal, "{a} != {b}", "Return 1 where a differs from b, else 0."
    )
    greater = _compare("greater", ANY, np.greater, "{a} > {b}", "Return 1 where a > b, else 0.")
    greater_or_equal = _compare(
        "greater_or_equal", ANY, np.greater_equal, "{a} >= {b}", "Return 1 where a >= b, else 0."
    )
    lesser = _compare("lesser", ANY, np.less, "{a} < {b}", "Return 1 where a < b, else 0.")
    lesser_or_equal = _compare(
        "lesser_or_equal", ANY, np.less_equal, "{a} <= {b}", "Return 1 where a <= b, else 0."
    )
    logical_and = _compare(
        "logical_and",
        FLAG,
        np.logical_and,
        "{a} != 0u && {b} != 0u",
        "Return 1 where both a and b are nonzero, else 0.",
    )
    logical_or = _compare(
        "logical_or",
        FLAG,
        np.logical_or,
        "{a} != 0u || {b} != 0u",
        "Return 1 where a or b is nonzero, else 0.",
    )
    logical_xor = _compare(
        "logical_xor",
        FLAG,
        np.logical_xor,
        "({a} != 0u) != ({b} != 0u)",
        "Return 1 where exactly one of a and b is nonzero, else 0.",
    )
    logical_not = _predicate(
        "logical_not",
        FLAG,
        np.logical_not,
        "wn_flag({a} == 0u)",
        "Return 1 where a is 0, else 0.",
    )
    is_nan = _predicate(
        "is_nan",
        FLOATS,
        np.isnan,
        "wn_flag(wn_is_nan({a}))",
        "Return 1 where a is NaN, else 0.",
    )
    is_infinite = _predicate(
        "is_infinite",
        FLOATS,
        np.isinf,
        "wn_flag(wn_is_inf({a}))",
        "Return 1 where a is infinite, else 0.",
    )

    @operator(
        condition=Limits(FLAG),
        true_value=Limits(ANY),
        false_value=Limits("true_value"),
        output="true_value",
        numpy=lambda condition, true_value, false_value: np.where(
            condition != 0, true_value, false_value
        ),
        wgsl="select({false_value}, {true_value}, {condition} != 0u)",
    )
    def where(
        self,
        condition: MLOperand,
        true_value: MLOperand,
        false_value: MLOperand,
        *,
        label: str = "",
    ) -> Inferred:
        """Select elements of `true_value` where `condition` is nonzero, else of `false_value`.

        Args:
            condition: Flags; broadcasts with the two others.
            true_value: Elements for nonzero flags; broadcasts with `false_value`.
            false_value: Elements for flags 0; broadcasts with `true_value`.

        Returns:
            A tensor of the shape that all three operands broadcast to.
        """
        values = broadcast(true_value.shape, false_value.shape, ("true_value", "false_value"))
        shape = broadcast(condition.shape, values, ("condition", "the values"))
        return result(Descriptor(true_value.data_type, shape))

    @operator(
        input=Limits(ANY),
        output=ANY,
        numpy=lambda input, data_type: numeric.cast(input, data_type),
        wgsl="{T}({input})",
    )
    def cast(self, input: MLOperand, data_type: MLOperandDataType, *, label: str = "") -> Inferred:
        """Convert each element to `data_type`; floats truncate, integers wrap.

        Args:
            data_type: The output's data type.

        Returns:
            A tensor of the input's shape.
        """
        return result(Descriptor(data_type, input.shape))
