"""Elementwise operators and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.onnx_lowering.emitter import (
    WIDE,
    Emitter,
    NotLowered,
    Tensor,
    lowering,
)
from webnn_py.ir import Node

SAME = {
    "abs": "Abs",
    "ceil": "Ceil",
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "gelu": "Gelu",
    "hard_swish": "HardSwish",
    "identity": "Identity",
    "log": "Log",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "round_even": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "matmul": "MatMul",
}
"""Operators that ONNX has under another name."""

COMPARED = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_or_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_or_equal": "LessOrEqual",
    "is_nan": "IsNaN",
    "is_infinite": "IsInf",
}
"""Operators whose result is a bool in ONNX."""

LOGICAL = {
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
}
"""Operators whose operands are bools in ONNX, too."""

SCALED = {"elu": "Elu", "leaky_relu": "LeakyRelu", "hard_sigmoid": "HardSigmoid"}
"""Operators whose numbers are attributes of the same names."""


def _register(name: str, function: Callable[..., Tensor]) -> None:
    function.__name__ = name
    lowering(function)


def _same(kind: str) -> Callable[..., Tensor]:
    return lambda e, node, *operands: e.op(kind, *operands)


def _compared(kind: str) -> Callable[..., Tensor]:
    return lambda e, node, *operands: e.cast(e.op(kind, *operands, to="bool"), "uint8")


def _logical(kind: str) -> Callable[..., Tensor]:
    def function(e: Emitter, node: Node, *operands: Tensor) -> Tensor:
        return e.cast(e.op(kind, *(e.cast(x, "bool") for x in operands)), "uint8")

    return function


def _scaled(kind: str) -> Callable[..., Tensor]:
    return lambda e, node, x: e.op(kind, x, **node.attrs)


for _make, _table in ((_same, SAME), (_compared, COMPARED), (_logical, LOGICAL), (_scaled, SCALED)):
    for _name, _kind in _table.items():
        _register(_name, _make(_kind))


@lowering
def not_equal(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Not equal."""
    return e.cast(e.op("Not", e.op("Equal", a, b, to="bool")), "uint8")


@lowering
def div(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Of integers, x / 0 is x, and the lowest by -1 itself: what processors raise signals for."""
    kind = DTYPES[a.data_type].kind
    if kind == "f":
        return e.op("Div", a, b)
    one = e.like(1, b)
    if kind == "u":
        return e.op("Div", a, e.greater(b, one))
    minus = e.op("Equal", b, e.like(-1, b), to="bool")
    zero = e.op("Equal", b, e.like(0, b), to="bool")
    quotient = e.op("Div", a, e.where(e.op("Or", minus, zero), one, b))
    return e.where(minus, e.op("Sub", e.like(0, a), a), quotient)


@lowering
def pow(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Powers of floats: what a power of integers is, ONNX does not say."""
    if DTYPES[a.data_type].kind != "f":
        raise NotLowered("ONNX does not say what negative powers of integers are")
    return e.op("Pow", a, b)


@lowering
def where(e: Emitter, node: Node, condition: Tensor, true: Tensor, false: Tensor) -> Tensor:
    """A choice."""
    return e.where(e.cast(condition, "bool"), true, false)


@lowering
def cast(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Floats saturate on the way to integers, and NaN becomes 0; ONNX leaves both open."""
    wanted: str = node.attrs["data_type"]
    to = DTYPES[wanted]
    if to.kind == "f" or DTYPES[x.data_type].kind != "f":
        return e.cast(x, wanted)
    wide = e.cast(x, "float32")
    number = e.where(e.op("IsNaN", wide, to="bool"), e.like(0, wide), wide)
    low, high = np.float32(to.min), np.float32(to.max)
    if to.bits < 32:
        held = e.op("Clip", number, e.like(low, wide), e.like(high, wide))
        return e.cast(e.cast(held, "int32"), wanted)
    below = np.nextafter(high, np.float32(0))  # float32 has no such number as the highest integer
    held = e.op("Clip", number, e.like(low, wide), e.like(below, wide))
    beyond = e.op("GreaterOrEqual", number, e.like(high, wide), to="bool")
    return e.where(beyond, e.constant(to.max, wanted), e.cast(held, wanted))


@lowering
def clamp(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Bounds that are there."""
    low, high = (
        None if node.attrs[name] is None else e.like(node.attrs[name], x)
        for name in ("min_value", "max_value")
    )
    if low is None and high is None:
        return e.op("Identity", x)
    if x.data_type not in WIDE:
        return e.op("Clip", x, low, high)
    floor = x if low is None else e.greater(x, low)
    return floor if high is None else e.smaller(floor, high)


@lowering
def max(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """The greater one."""
    return e.greater(a, b)


@lowering
def min(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """The smaller one."""
    return e.smaller(a, b)


@lowering
def relu(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """ONNX Runtime's own does not know all integers, and fails over some in its optimizers."""
    return e.op("Relu", x) if DTYPES[x.data_type].kind == "f" else e.greater(x, e.like(0, x))


@lowering
def linear(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """A product and a sum."""
    scaled = e.op("Mul", x, e.like(node.attrs["alpha"], x))
    return e.op("Add", scaled, e.like(node.attrs["beta"], x))


@lowering
def prelu(e: Emitter, node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """ONNX's own where the slope broadcasts to the input."""
    shapes: list[Any] = [value.shape for value in node.operands]
    if DTYPES[x.data_type].kind == "f" and node.output.shape == shapes[0]:
        return e.op("PRelu", x, slope)
    negative = e.op("Less", x, e.like(0, x), to="bool")
    return e.where(negative, e.op("Mul", slope, x), x)
