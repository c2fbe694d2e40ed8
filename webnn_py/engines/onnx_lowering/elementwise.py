"""Lowerings of elementwise operators and activations."""

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
"""ONNX operators with the same meaning."""

COMPARED = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_or_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_or_equal": "LessOrEqual",
    "is_nan": "IsNaN",
    "is_infinite": "IsInf",
}
"""ONNX operators whose result is a bool."""

LOGICAL = {
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
}
"""ONNX operators whose operands and result are bools."""

SCALED = {"elu": "Elu", "leaky_relu": "LeakyRelu", "hard_sigmoid": "HardSigmoid"}
"""ONNX operators whose attributes have the names of the options."""


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
    """Write Equal and Not."""
    return e.cast(e.op("Not", e.op("Equal", a, b, to="bool")), "uint8")


@lowering
def div(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Write Div; for integers x / 0 is x and min / -1 is min, for which processors trap."""
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
    """Write Pow for floats; ONNX does not define negative powers of integers."""
    if DTYPES[a.data_type].kind != "f":
        raise NotLowered("ONNX does not say what negative powers of integers are")
    return e.op("Pow", a, b)


@lowering
def where(e: Emitter, node: Node, condition: Tensor, true: Tensor, false: Tensor) -> Tensor:
    """Write Where."""
    return e.where(e.cast(condition, "bool"), true, false)


@lowering
def cast(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Cast; saturate floats and turn NaN into 0 for integers, which ONNX leaves undefined."""
    data_type: str = node.attrs["data_type"]
    to = DTYPES[data_type]
    if to.kind == "f" or DTYPES[x.data_type].kind != "f":
        return e.cast(x, data_type)
    wide = e.cast(x, "float32")
    number = e.where(e.op("IsNaN", wide, to="bool"), e.like(0, wide), wide)
    low, high = np.float32(to.min), np.float32(to.max)
    if to.bits < 32:
        clamped = e.op("Clip", number, e.like(low, wide), e.like(high, wide))
        return e.cast(e.cast(clamped, "int32"), data_type)
    below = np.nextafter(high, np.float32(0))  # float32 cannot represent the highest integer
    clamped = e.op("Clip", number, e.like(low, wide), e.like(below, wide))
    beyond = e.op("GreaterOrEqual", number, e.like(high, wide), to="bool")
    return e.where(beyond, e.constant(to.max, data_type), e.cast(clamped, data_type))


@lowering
def clamp(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Clip with the bounds that are present."""
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
    """Write Max."""
    return e.greater(a, b)


@lowering
def min(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Write Min."""
    return e.smaller(a, b)


@lowering
def relu(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Relu for floats, Max for integers, which ONNX Runtime's Relu does not fully support."""
    return e.op("Relu", x) if DTYPES[x.data_type].kind == "f" else e.greater(x, e.like(0, x))


@lowering
def linear(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Mul and Add."""
    scaled = e.op("Mul", x, e.like(node.attrs["alpha"], x))
    return e.op("Add", scaled, e.like(node.attrs["beta"], x))


@lowering
def prelu(e: Emitter, node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """Write PRelu if the slope broadcasts to the input's shape, else Less, Mul and Where."""
    shapes: list[Any] = [value.shape for value in node.operands]
    if DTYPES[x.data_type].kind == "f" and node.output.shape == shapes[0]:
        return e.op("PRelu", x, slope)
    negative = e.op("Less", x, e.like(0, x), to="bool")
    return e.where(negative, e.op("Mul", slope, x), x)
