"""Handlers of activation functions, Softmax and Dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.elementwise import in_float32
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import Tensor, refuse

Old = list[int] | None
"""Type of `consumed_inputs`, a memory hint of the first opset that does not affect results."""


def _register(operator: str, method: str) -> None:
    def simple(g: Emitter, x: Tensor, *, consumed_inputs: Old = None) -> Any:
        return getattr(g, method)(x)

    handles(operator)(simple)


for _operator, _method in {
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "HardSwish": "hard_swish",
}.items():
    _register(_operator, _method)


@handles("Relu")
def relu(g: Emitter, x: Tensor, *, consumed_inputs: Old = None) -> Any:
    """Emit Relu: max(x, 0)."""
    return g.identity(x) if x.data_type.startswith("u") else g.relu(x)


@handles("LeakyRelu")
def leaky_relu(g: Emitter, x: Tensor, *, alpha: float = 0.01, consumed_inputs: Old = None) -> Any:
    """Emit LeakyRelu: x if x >= 0, else alpha * x."""
    return g.leaky_relu(x, alpha=alpha)


@handles("Elu")
def elu(g: Emitter, x: Tensor, *, alpha: float = 1.0, consumed_inputs: Old = None) -> Any:
    """Emit Elu: x if x >= 0, else alpha * (exp(x) - 1)."""
    return g.elu(x, alpha=alpha)


@handles("Celu")
def celu(g: Emitter, x: Tensor, *, alpha: float = 1.0) -> Any:
    """Emit Celu: max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0).

    For positive alpha this equals alpha * Elu(x / alpha).
    """
    if alpha < 0:
        nothing = g.constant(0, x)
        size = g.max(g.div(x, float(alpha)), nothing)
        curve = g.mul(g.mul(g.elu(g.neg(size)), g.exp(size)), -float(alpha))
        return g.add(g.max(x, nothing), curve)
    return g.mul(g.elu(g.div(x, float(alpha))), float(alpha))


@handles("Selu", since=6)
def selu(
    g: Emitter,
    x: Tensor,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Any:
    """Emit Selu: gamma * Elu(x)."""
    return g.mul(g.elu(x, alpha=alpha), float(gamma))


@handles("Selu")
def selu_1(
    g: Emitter,
    x: Tensor,
    *,
    alpha: float = 1.6732,
    gamma: float = 1.0507,
    consumed_inputs: Old = None,
) -> Any:
    """Emit Selu before opset 6, whose default constants have fewer digits."""
    return selu(g, x, alpha=alpha, gamma=gamma)


@handles("HardSigmoid")
def hard_sigmoid(
    g: Emitter, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Old = None
) -> Any:
    """Emit HardSigmoid: alpha * x + beta, clamped to [0, 1]."""
    return g.hard_sigmoid(x, alpha=alpha, beta=beta)


@handles("PRelu", since=7)
def prelu(g: Emitter, x: Tensor, slope: Tensor) -> Any:
    """Emit PRelu: x if x >= 0, else slope * x."""
    if x.data_type.startswith("u"):
        return g.identity(x)
    return g.prelu(x, slope)


@handles("PRelu")
def prelu_1(g: Emitter, x: Tensor, slope: Tensor, *, consumed_inputs: Old = None) -> Any:
    """Emit PRelu before opset 7, with one slope or one per channel."""
    shape = [1, slope.shape[0], *[1] * (x.rank - 2)] if slope.rank == 1 and x.rank > 2 else [1]
    return g.prelu(x, g.moved(slope, shape) if slope.rank == 1 else slope)


@handles("ThresholdedRelu")
def thresholded_relu(g: Emitter, x: Tensor, *, alpha: float = 1.0) -> Any:
    """Emit ThresholdedRelu: x if x > alpha, else 0."""
    return g.where(g.greater(x, float(alpha)), x, g.constant(0, x))


@handles("Shrink")
def shrink(g: Emitter, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    """Emit Shrink: x + bias if x < -lambd, x - bias if x > lambd, else 0."""
    if not x.is_float:  # bias and lambd may be fractions
        wide = shrink(g, g.cast(x, "float32"), bias=bias, lambd=lambd)
        return g.cast(wide, x.data_type)
    below = g.lesser(x, g.constant(-lambd, x))
    above = g.greater(x, g.constant(lambd, x))
    amount = g.constant(bias, x)
    upper = g.where(above, g.sub(x, amount), g.constant(0, x))
    return g.where(below, g.add(x, amount), upper)


@handles("Mish")
@in_float32
def mish(g: Emitter, x: Any) -> Any:
    """Emit Mish: x * tanh(log(1 + e)) = x * n / (n + 2), with e = exp(x) and n = e * (e + 2)."""
    e = g.exp(g.clamp(x, max_value=20.0))  # above 20 the quotient rounds to 1
    n = g.mul(e, g.add(e, 2.0))
    return g.mul(x, g.div(n, g.add(n, 2.0)))


@handles("Swish")
def swish(g: Emitter, x: Tensor, *, alpha: float = 1.0) -> Any:
    """Emit Swish: x * sigmoid(alpha * x)."""
    return g.mul(x, g.sigmoid(g.mul(x, float(alpha))))


@handles("Gelu")
def gelu(g: Emitter, x: Tensor, *, approximate: str = "none") -> Any:
    """Emit Gelu, the Gaussian error linear unit, or its tanh approximation."""
    if approximate == "none":
        return g.gelu(x)
    cubic = g.mul(g.mul(g.mul(x, x), x), 0.044715)
    inner = g.mul(g.add(x, cubic), math.sqrt(2 / math.pi))
    return g.mul(x, g.sigmoid(g.mul(inner, 2.0)))  # (1 + tanh) / 2, without cancellation


def _bound(given: Tensor | None, free: float) -> int | float:
    """Return a bound of Clip as a number: `free` if omitted, NaN if it is no constant."""
    if given is None:
        return free
    array = given.array
    number: int | float = math.nan if array is None or array.size != 1 else array.item()
    return number


@handles("Clip", since=11)
def clip(g: Emitter, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    """Emit Clip: x clamped between two optional bounds, which may be computed."""
    least, most = _bound(low, -math.inf), _bound(high, math.inf)
    if least <= most:  # neither is NaN
        ends = {"min_value": (low, least), "max_value": (high, most)}
        return g.clamp(x, **{name: n for name, (given, n) in ends.items() if given is not None})
    made = g.identity(x) if low is None else g.max(x, low)
    return made if high is None else g.min(made, high)


@handles("Clip", since=6)
def clip_6(
    g: Emitter,
    x: Tensor,
    *,
    min: float = -3.4028234663852886e38,
    max: float = 3.4028234663852886e38,
) -> Any:
    """Emit Clip before opset 11, whose bounds are attributes."""
    return g.clamp(x, min_value=min, max_value=max)


@handles("Clip")
def clip_1(
    g: Emitter,
    x: Tensor,
    *,
    min: float | None = None,
    max: float | None = None,
    consumed_inputs: Old = None,
) -> Any:
    """Emit Clip before opset 6, whose bounds are optional attributes."""
    return g.clamp(x, min_value=min, max_value=max)


@handles("Softmax", since=13)
def softmax(g: Emitter, x: Tensor, *, axis: int = -1) -> Any:
    """Emit Softmax: exp(x) / sum(exp(x)) along an axis."""
    return g.softmax(x, x.axis(axis))


@handles("LogSoftmax", since=13)
def log_softmax(g: Emitter, x: Tensor, *, axis: int = -1) -> Any:
    """Emit LogSoftmax; subtract the maximum first, which avoids log(0)."""
    axes = [x.axis(axis)]
    moved = g.sub(x, g.reduce_max(x, axes=axes, keep_dimensions=True))
    return g.sub(moved, g.reduce_log_sum_exp(moved, axes=axes, keep_dimensions=True))


@handles("Hardmax", since=13)
def hardmax(g: Emitter, x: Tensor, *, axis: int = -1) -> Any:
    """Emit Hardmax: 1 at the first maximum along an axis, else 0."""
    at = x.axis(axis)
    best = g.arg_max(x, at, keep_dimensions=True, output_data_type="int64")
    return g.cast(g.equal(g.places(x.shape[at], at, x.rank), best), x.data_type)


def _flattened(operator: str, function: Any) -> None:
    def old(g: Emitter, x: Tensor, *, axis: int = 1) -> Any:
        at = 0 if axis == x.rank else x.axis(axis)
        rows = math.prod(x.shape[:at])
        flat = g.moved(x, [rows, math.prod(x.shape[at:])])
        return g.moved(function(g, flat, axis=1), x.shape)

    handles(operator)(old)


for _operator, _function in {
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
    "Hardmax": hardmax,
}.items():
    _flattened(_operator, _function)


def _dropped(g: Emitter, x: Tensor, kept: Tensor) -> list[Any]:
    return [g.identity(x), g.expand(kept, list(x.shape))]


@handles("Dropout", since=12)
def dropout(
    g: Emitter,
    x: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> Any:
    """Emit Dropout as identity, with a mask of ones; training with a ratio above 0 is refused."""
    training = training_mode is not None and bool(training_mode.known("training_mode").item())
    if training and (ratio is None or float(ratio.known("ratio").item())):
        refuse("WebNN has no random numbers, which training needs")
    return dropout_10(g, x)


@handles("Dropout", since=10)
def dropout_10(g: Emitter, x: Tensor, *, ratio: float = 0.5) -> Any:
    """Emit Dropout of opsets 10 and 11 as identity, with a bool mask of ones."""
    return _dropped(g, x, g.array(np.asarray(True)))


@handles("Dropout")
def dropout_1(
    g: Emitter,
    x: Tensor,
    *,
    ratio: float = 0.5,
    is_test: int = 0,
    consumed_inputs: Old = None,
) -> Any:
    """Emit Dropout before opset 10 as identity, with a mask of ones in the input's type."""
    return _dropped(g, x, g.constant(1, x))
