"""Nodes that OpenVINO's CPU plugin computes differently from WebNN, and replacements for them.

Accepted differences: those of `FINITE_ONLY`. float16 is computed in float32. max_pool2d, arg_max
and arg_min ignore NaN, as in ONNX Runtime. In a softmax, NaN affects only its own element. A
quotient is computed as a product with the reciprocal.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.core.dtypes import DTYPES, FLOATS
from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.engines.onnx_lowering.elementwise import prelu
from webnn_py.engines.onnx_lowering.linalg import matmul_n_bits
from webnn_py.engines.onnx_lowering.movement import resample2d
from webnn_py.engines.onnx_lowering.reduction import reduced
from webnn_py.ir import Node
from webnn_py.ops.convolution import dims
from webnn_py.ops.declare import REGISTRY

EXACT_TYPES = (*FLOATS, "int32", "int8", "uint8")
"""Data types that OpenVINO stores exactly; it converts wider integers to int32."""

INTEGER_FAMILIES = ("movement", "indexing")
"""Families whose operators are exact for integers; arithmetic saturates or goes through float32."""

INTEGER_OPERATORS = ("cast", "dequantize_linear", "identity", "quantize_linear", "where")
"""Other operators that are exact for integers."""

LOGICAL_OPERATORS = ("logical_and", "logical_not", "logical_or", "logical_xor")
"""Operators that are exact for integers because they only distinguish 0 from other numbers."""

INEXACT = {
    # The scale of zeros is 0, so that its other operators divide 0 by 0.
    "dynamic_quantize_linear": FLOATS,
    # Its error exceeds WebNN's tolerance.
    "gru": FLOATS,
    # It fails to fuse these with the nodes behind them.
    **dict.fromkeys(("slice", "split"), ("int32", "int8", "uint8")),
}
"""Data types of the first operand for which an operator is not exact."""

FINITE_ONLY = ("clamp", "gelu", "hard_sigmoid", "relu")
"""Operators that are exact for finite numbers only: NaN, and infinities in gelu, give any result.

They run on OpenVINO nevertheless, because its speed comes from fusing them with the node before.
"""


def is_exact(node: Node) -> bool:
    """Whether OpenVINO computes a node as WebNN specifies."""
    types = [value.data_type for value in (*node.operands, *node.outputs)]
    if not set(types) <= set(EXACT_TYPES) or types[0] in INEXACT.get(node.op, ()):
        return False
    if node.op == "conv2d" and _is_miscompiled(node):
        return False
    if types[0] in FLOATS or node.op in (*INTEGER_OPERATORS, *LOGICAL_OPERATORS):
        return True
    return REGISTRY[node.op].family in INTEGER_FAMILIES


def is_exact_open(node: Node) -> bool:
    """Whether OpenVINO is exact for a node with open dimensions.

    It then computes int32 in float32, which turns the highest integer into the lowest.
    """
    return all(value.data_type != "int32" for value in node.outputs)


def is_exact_fused(node: Node) -> bool:
    """Whether a node is exact only when OpenVINO fuses it with others.

    Unfused, its conversion to integers does not saturate.
    """
    if node.op == "cast":
        (x,) = node.operands
        return x.data_type in FLOATS and node.output.data_type not in FLOATS
    return node.op in ("dequantize_linear", "quantize_linear")


def _is_miscompiled(node: Node) -> bool:
    """Whether OpenVINO optimizes a convolution wrongly.

    If a window lies wholly in the padding, OpenVINO ignores the padding of 1 x 1 filters with
    strides, or reads out of bounds and crashes. For one input channel and an output width of 1, it
    uses a kernel for wider results.
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
    """Write LeakyRelu: OpenVINO's Abs overwrites the memory of a concat that other nodes read."""
    return e.op("LeakyRelu", x, alpha=-1.0)


def _exp(e: Emitter, node: Node, x: Tensor) -> Tensor:
    return e.where(e.op("IsNaN", x, to="bool"), x, e.op("Exp", x))


def _greater(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return e.cast(e.op("Less", b, a, to="bool"), "uint8")


def _greater_or_equal(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return e.cast(e.op("LessOrEqual", b, a, to="bool"), "uint8")


def _hard_sigmoid(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Mul, Add and Clip: OpenVINO's HardSigmoid rejects alpha = 0."""
    line = e.op(
        "Add", e.op("Mul", x, e.like(node.attrs["alpha"], x)), e.like(node.attrs["beta"], x)
    )
    return e.op("Clip", line, e.like(0, x), e.like(1, x))


def _max(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return _choice(e, a, b, e.op("Less", a, b, to="bool"))


def _min(e: Emitter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return _choice(e, a, b, e.op("Less", b, a, to="bool"))


def _prelu(e: Emitter, node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """Write PRelu with a slope of full rank: OpenVINO reads a 1-D slope as one per channel."""
    whole, factors = node.operands
    missing = range(whole.rank - factors.rank)
    full = e.op("Unsqueeze", slope, e.constant(missing)) if missing else slope
    return prelu(e, node, x, full)  # type: ignore[return-value]


def _softplus(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Exp and Log: OpenVINO's Softplus is off by 2e-6 and negative far below 0."""
    far = _exp(e, node, e.op("Neg", _abs(e, node, x)))
    return e.op("Add", e.op("Relu", x), e.op("Log", e.op("Add", far, e.like(1, x))))


def _resample2d(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write linear resizing as gathers and products, three times as fast as OpenVINO's Resize."""
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
    """Select `b` where `second`, else `a`; return NaN if either is NaN."""
    return e.where(e.op("IsNaN", b, to="bool"), b, e.where(second, b, a))


def _extreme(kind: str, end: float) -> Lowering:
    """Return a lowering of reduce_max or reduce_min that is exact for NaN and infinities.

    Args:
        kind: The ONNX operator.
        end: Its identity element, such as -inf for ReduceMax.
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
    "matmul_packed": matmul_n_bits,
    "max": _max,
    "min": _min,
    "prelu": _prelu,
    "reduce_max": _extreme("ReduceMax", -math.inf),
    "reduce_min": _extreme("ReduceMin", math.inf),
    "resample2d": _resample2d,
    "softplus": _softplus,
}
"""Lowerings that replace OpenVINO operators with wrong results, often for NaN and infinities."""
