"""ONNX Runtime's quantized operators: dequantize, compute in floats, quantize.

Source: ONNX Runtime, "Contrib Operators".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers import linalg, movement, pooling
from webnn_py.onnx.handlers.quantization import dequantize_linear, quantize_linear
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, refuse

handles("QuantizeLinear", domain=OWN)(quantize_linear)
handles("DequantizeLinear", domain=OWN)(dequantize_linear)


def _quantized(g: Emitter, y: Any, scale: Tensor, zero_point: Tensor | None, like: Tensor) -> Any:
    """Quantize `y` to the zero point's data type, or to that of `like` without a zero point."""
    return quantize_linear(g, y, scale, zero_point, output_dtype=like.elem)


def _of_two(method: str) -> Callable[..., Any]:
    def combine(
        g: Emitter,
        a: Tensor,
        a_scale: Tensor,
        a_zero_point: Tensor | None,
        b: Tensor,
        b_scale: Tensor,
        b_zero_point: Tensor | None,
        y_scale: Tensor,
        y_zero_point: Tensor | None = None,
    ) -> Any:
        left = dequantize_linear(g, a, a_scale, a_zero_point)
        right = dequantize_linear(g, b, b_scale, b_zero_point)
        return _quantized(g, getattr(g, method)(left, right), y_scale, y_zero_point, a)

    return combine


for _operator, _method in {"QLinearAdd": "add", "QLinearMul": "mul"}.items():
    handles(_operator, domain=OWN)(_of_two(_method))


@handles("QLinearSigmoid", domain=OWN)
def qlinear_sigmoid(
    g: Emitter,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
) -> Any:
    """Compute 1 / (1 + exp(-x))."""
    made = g.sigmoid(dequantize_linear(g, x, x_scale, x_zero_point))
    return _quantized(g, made, y_scale, y_zero_point, x)


@handles("QLinearLeakyRelu", domain=OWN)
def qlinear_leaky_relu(
    g: Emitter,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Any:
    """Return x, or alpha * x where x is negative."""
    made = g.leaky_relu(dequantize_linear(g, x, x_scale, x_zero_point), alpha=alpha)
    return _quantized(g, made, y_scale, y_zero_point, x)


@handles("QLinearSoftmax", domain=OWN)
def qlinear_softmax(
    g: Emitter,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = -1,
    opset: int,
) -> Any:
    """Compute exp(x) / sum(exp(x)) along an axis."""
    if opset < 13 and x.axis(axis) != x.rank - 1:
        refuse("a softmax over several axes")
    made = g.softmax(dequantize_linear(g, x, x_scale, x_zero_point), x.axis(axis))
    return _quantized(g, made, y_scale, y_zero_point, x)


def _channels_first(g: Emitter, x: Any, channels_last: int) -> Any:
    rank = x.rank
    order = [0, rank - 1, *range(1, rank - 1)]
    return g.transpose(x, permutation=order) if channels_last else x


def _back(g: Emitter, y: Any, channels_last: int) -> Any:
    order = [0, *range(2, y.rank), 1]
    return g.transpose(y, permutation=order) if channels_last else y


@handles("QLinearGlobalAveragePool", domain=OWN)
def qlinear_global_average_pool(
    g: Emitter,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    channels_last: int = 0,
) -> Any:
    """Return the mean of each channel."""
    floats = _channels_first(g, dequantize_linear(g, x, x_scale, x_zero_point), channels_last)
    made = _back(g, pooling.global_average_pool(g, floats), channels_last)
    return _quantized(g, made, y_scale, y_zero_point, x)


@handles("QLinearAveragePool", domain=OWN)
def qlinear_average_pool(
    g: Emitter,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Return the mean of each window."""
    made = pooling.average_pool(
        g,
        _channels_first(g, dequantize_linear(g, x, x_scale, x_zero_point), channels_last),
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    return _quantized(g, _back(g, made, channels_last), y_scale, y_zero_point, x)


@handles("QLinearConcat", domain=OWN)
def qlinear_concat(
    g: Emitter, y_scale: Tensor, y_zero_point: Tensor, *inputs: Tensor, axis: int
) -> Any:
    """Concatenate tensors along an axis, each with its own scale and zero point."""
    if not inputs or len(inputs) % 3:
        raise BrokenModelError(
            f"it has {len(inputs)} inputs behind its own scale and zero point, expected three for"
            " each tensor"
        )
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    made = movement.concat(g, *(dequantize_linear(g, *one) for one in triples), axis=axis)
    return quantize_linear(g, made, y_scale, y_zero_point)


@handles("QGemm", domain=OWN)
def qgemm(
    g: Emitter,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803
) -> Any:
    """Return alpha * A x B + C, where int32 C has the product's scale.

    The result is quantized with `y_scale`, and floats without it.
    """
    left = dequantize_linear(g, a, a_scale, a_zero_point)
    right = dequantize_linear(g, b, b_scale, b_zero_point, axis=0 if transB else 1)
    made = linalg.gemm(g, left, right, alpha=alpha, transA=transA, transB=transB)
    if c is not None:
        scale = g.mul(g.mul(a_scale, b_scale), float(alpha))
        made = g.add(made, g.mul(g.cast(c, "float32"), scale))
    return made if y_scale is None else _quantized(g, made, y_scale, y_zero_point, a)
