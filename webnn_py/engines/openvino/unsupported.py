"""What OpenVINO's CPU plugin computes otherwise than WebNN says, though ONNX would do.

What stays is in `OF_FINITE`; that float16 is computed in float32, and maxima of pools and positions
know no NaN, as by ONNX Runtime; that a NaN makes its own element of a softmax NaN alone; and that a
quotient is a product with the reciprocal.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.core.dtypes import DTYPES, FLOATS
from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.engines.onnx_lowering.elementwise import prelu
from webnn_py.engines.onnx_lowering.movement import resample2d
from webnn_py.engines.onnx_lowering.reduction import reduced
from webnn_py.ir import Node
from webnn_py.ops.convolution import dims
from webnn_py.ops.declare import REGISTRY

HELD = (*FLOATS, "int32", "int8", "uint8")
"""Data types that it holds as they are; wider integers become int32."""

MOVED = ("movement", "indexing")
"""Families of operators that are right for integers; sums saturate, int32 passes by float32."""

OF_INTEGERS = ("cast", "dequantize_linear", "identity", "quantize_linear", "where")
"""Other operators that it computes of integers, too."""

OF_BITS = ("logical_and", "logical_not", "logical_or", "logical_xor")
"""The same, which know 0 and others alone."""

INEXACT = {
    # Too far from WebNN's.
    "gru": FLOATS,
    # It fails where it joins them with what follows.
    **dict.fromkeys(("slice", "split"), ("int32", "int8", "uint8")),
}
"""By operator, for which data types of its first operand."""

OF_FINITE = ("clamp", "gelu", "hard_sigmoid", "relu")
"""Operators that it computes of numbers alone: NaN and, by gelu, infinities become what they may.

They are not given to the reference, as OpenVINO's speed is that it does them with what precedes.
"""


def is_exact(node: Node) -> bool:
    """Whether OpenVINO can be trusted with a node."""
    types = [value.data_type for value in (*node.operands, *node.outputs)]
    if not set(types) <= set(HELD) or types[0] in INEXACT.get(node.op, ()):
        return False
    if node.op == "conv2d" and _is_mistaken(node):
        return False
    if types[0] in FLOATS or node.op in (*OF_INTEGERS, *OF_BITS):
        return True
    return REGISTRY[node.op].family in MOVED


def is_exact_open(node: Node) -> bool:
    """Whether OpenVINO can be trusted with a node of open dimensions, too.

    It computes int32 in float32 then: the highest one becomes the lowest.
    """
    return all(value.data_type != "int32" for value in node.outputs)


def is_exact_joined(node: Node) -> bool:
    """Whether a node is exact only as OpenVINO joins it with others.

    By itself, its conversion to integers does not saturate.
    """
    if node.op == "cast":
        (x,) = node.operands
        return x.data_type in FLOATS and node.output.data_type not in FLOATS
    return node.op in ("dequantize_linear", "quantize_linear")


def _is_mistaken(node: Node) -> bool:
    """Convolutions that OpenVINO optimizes wrongly.

    Where windows lie in the padding alone, it forgets the padding, as it moves strides of windows
    of one element before what precedes, or reads what is not there, and ends the process. Results
    of one channel that are one element wide come out of a kernel for wider ones.
    """
    attrs, (x, filter, *_) = node.attrs, node.operands
    window = dims(filter.shape, attrs["filter_layout"], "hw")
    lengths = [(n - 1) * d + 1 for n, d in zip(window, attrs["dilations"], strict=True)]
    if any(side >= lengths[i // 2] for i, side in enumerate(attrs["padding"])):
        return True
    (channels,) = dims(x.shape, attrs["input_layout"], "c")
    (width,) = dims(node.output.shape, attrs["input_layout"], "w")
    return channels == 1 and width == 1


def _abs(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """OpenVINO writes its own where a concat lies, though others read that."""
    return e.op("LeakyRelu", x, alpha=-1.0)


def _exp(e: Emitter, node: Node, x: Tensor) -> Tensor:
    return e.where(e.op("IsNaN", x, to="bool"), x, e.op("Exp", x))


def _greater(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return e.cast(e.op("Less", b, a, to="bool"), "uint8")


def _greater_or_equal(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return e.cast(e.op("LessOrEqual", b, a, to="bool"), "uint8")


def _hard_sigmoid(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """OpenVINO's own takes no factor of 0."""
    line = e.op(
        "Add", e.op("Mul", x, e.like(node.attrs["alpha"], x)), e.like(node.attrs["beta"], x)
    )
    return e.op("Clip", line, e.like(0, x), e.like(1, x))


def _max(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return _choice(e, a, b, e.op("Less", a, b, to="bool"))


def _min(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return _choice(e, a, b, e.op("Less", b, a, to="bool"))


def _prelu(e: Emitter, node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """OpenVINO takes slopes of one dimension for those of channels, the second dimension."""
    whole, factors = node.operands
    lacking = range(whole.rank - factors.rank)
    full = e.op("Unsqueeze", slope, e.constant(lacking)) if lacking else slope
    return prelu(e, node, x, full)  # type: ignore[return-value]


def _softplus(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """OpenVINO's own is off by 2e-6, and below 0 for what is far below it."""
    far = _exp(e, node, e.op("Neg", _abs(e, node, x)))
    return e.op("Add", e.op("Relu", x), e.op("Log", e.op("Add", far, e.like(1, x))))


def _resample2d(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Linear by the two elements around, along each axis: OpenVINO's own takes thrice the time."""
    (whole,) = node.inputs
    assert whole is not None
    if node.attrs["mode"] != "linear" or is_open((*whole.shape, *node.output.shape)):
        return resample2d(e, node, x)  # type: ignore[return-value]
    made = e.cast(x, "float32")
    for axis, (old, new) in enumerate(zip(whole.shape, node.output.shape, strict=True)):
        if old == new:
            continue
        places = np.clip((2 * np.arange(new) + 1) * old - new, 0, 2 * new * (old - 1))
        low = places // (2 * new)
        share = (places % (2 * new) / (2 * new)).reshape([-1] + [1] * (3 - axis))
        below, above = (
            e.op("Gather", made, e.constant(at), axis=axis)
            for at in (low, np.minimum(low + 1, old - 1))
        )
        parts = [
            e.op("Mul", part, e.constant(factor, "float32"))
            for part, factor in ((below, 1 - share), (above, share))
        ]
        made = e.op("Add", *parts)
    if DTYPES[x.data_type].kind != "f":
        made = e.op("Round", made)
    return e.cast(made, x.data_type)


def _choice(e: Emitter, a: Tensor, b: Tensor, second: Tensor) -> Tensor:
    """Of two numbers, or what is none among them."""
    return e.where(e.op("IsNaN", b, to="bool"), b, e.where(second, b, a))


def _extreme(kind: str, end: float) -> Lowering:
    """A reduction to the greatest or least that knows NaN and infinities.

    Args:
        kind: ONNX's operator.
        end: Its result where nothing else is, such as -inf of the greatest.
    """

    def function(e: Emitter, node: Node, x: Tensor) -> Tensor:
        nothing, number, nan = (e.like(mark, x) for mark in (0, 1, 2))
        marks = e.where(e.op("Equal", x, e.like(end, x), to="bool"), nothing, number)
        marks = e.where(e.op("IsNaN", x, to="bool"), nan, marks)
        most = reduced(e, node, "ReduceMax", marks)
        empty, undefined = (
            e.op("Less", *two, to="bool") for two in ((most, number), (number, most))
        )
        found = e.where(empty, e.like(end, x), reduced(e, node, kind, x))
        return e.where(undefined, e.like(math.nan, x), found)

    return function


INSTEAD: dict[str, Lowering] = {
    "abs": _abs,
    "exp": _exp,
    "greater": _greater,
    "greater_or_equal": _greater_or_equal,
    "hard_sigmoid": _hard_sigmoid,
    "max": _max,
    "min": _min,
    "prelu": _prelu,
    "reduce_max": _extreme("ReduceMax", -math.inf),
    "reduce_min": _extreme("ReduceMin", math.inf),
    "resample2d": _resample2d,
    "softplus": _softplus,
}
"""What is composed, as OpenVINO's own are wrong, or take NaN and infinities for numbers."""
