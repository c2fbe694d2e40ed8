"""Handlers of fused operators, which ONNX Runtime's optimizers and quantizers create.

Source: ONNX Runtime, "Contrib Operators".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.activation import gelu, swish
from webnn_py.onnx.handlers.convolution import conv
from webnn_py.onnx.handlers.linalg import gemm, product
from webnn_py.onnx.handlers.quantization import dynamic_quantize_linear, matmul_integer
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, refuse


def _sum(g: Emitter, *parts: Any) -> Any:
    """Emit the sum of all parts that are not None."""
    total, *others = [part for part in parts if part is not None]
    for part in others:
        total = g.add(total, part)
    return total


@handles("Gelu", domain=OWN)
def own_gelu(g: Emitter, x: Tensor) -> Any:
    """Emit Gelu, the Gaussian error linear unit."""
    return g.gelu(x)


@handles("BiasGelu", domain=OWN)
def bias_gelu(g: Emitter, x: Tensor, bias: Tensor) -> Any:
    """Emit BiasGelu: Gelu(x + bias)."""
    return g.gelu(g.add(x, bias))


@handles("FastGelu", domain=OWN)
def fast_gelu(g: Emitter, x: Tensor, bias: Tensor | None = None) -> Any:
    """Emit FastGelu: the tanh approximation of Gelu(x + bias)."""
    return gelu(g, _sum(g, x, bias), approximate="tanh")


@handles("QuickGelu", domain=OWN)
def quick_gelu(g: Emitter, x: Tensor, *, alpha: float = 1.702) -> Any:
    """Emit QuickGelu: x * sigmoid(alpha * x)."""
    return swish(g, x, alpha=alpha)


@handles("FusedMatMul", "TransposeMatMul", domain=OWN)
def fused_matmul(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Any:
    """Emit FusedMatMul: alpha * a @ b, with optional transposes of both operands."""
    sides = []
    for x, turned, batched in ((a, transA, transBatchA), (b, transB, transBatchB)):
        order = list(range(x.rank))
        if batched:  # the layout is [rows, *batch, columns]
            order = [*order[1:-1], 0, order[-1]]
        if turned and x.rank > 1:
            order[-2:] = order[:-3:-1]
        sides.append(x if order == list(range(x.rank)) else g.transpose(x, permutation=order))
    made = product(g, *sides)
    return made if alpha == 1 else g.mul(made, float(alpha))


@handles("SkipLayerNormalization", domain=OWN)
def skip_layer_normalization(
    g: Emitter,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Any:
    """Emit SkipLayerNormalization of x + skip + bias; the fourth output is this sum."""
    total = _sum(g, x, skip, bias)
    options = {"scale": gamma} | ({} if beta is None else {"bias": beta})
    made = g.layer_normalization(total, axes=[total.rank - 1], epsilon=epsilon, **options)
    return [made, None, None, total]


def _by_square(g: Emitter, x: Any, scale: Tensor, axis: int, epsilon: float) -> list[Any]:
    """Emit RMS normalization and, if something reads it, the float32 reciprocal of the RMS."""
    axes = list(range(x.axis(axis), x.rank))
    made = g.rms_normalization(x, scale, axes=axes, epsilon=epsilon)
    if not any(g.outputs[1:2]):
        return [made]
    wide = g.to(x, "float32")
    square = g.reduce_mean(g.mul(wide, wide), axes=axes, keep_dimensions=True)
    return [made, g.reciprocal(g.sqrt(g.add(square, float(epsilon))))]


@handles("RMSNormalization")
@handles("SimplifiedLayerNormalization")
@handles("SimplifiedLayerNormalization", domain=OWN)
def simplified_layer_normalization(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    """Emit SimplifiedLayerNormalization, which divides by the root mean square (RMS)."""
    return _by_square(g, x, scale, axis, epsilon)


@handles("SkipSimplifiedLayerNormalization", domain=OWN)
def skip_simplified_layer_normalization(
    g: Emitter,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Any:
    """Emit SkipSimplifiedLayerNormalization of x + skip + bias; the fourth output is this sum."""
    total = _sum(g, x, skip, bias)
    return [_by_square(g, total, gamma, -1, epsilon)[0], None, None, total]


@handles("MatMulIntegerToFloat", domain=OWN)
def matmul_integer_to_float(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    """Emit MatMulIntegerToFloat: a product of 8-bit integers, times their scales, plus bias."""
    total = g.cast(matmul_integer(g, a, b, a_zero_point, b_zero_point), a_scale.data_type)
    return _sum(g, g.mul(total, g.mul(a_scale, b_scale)), bias)


@handles("DynamicQuantizeMatMul", domain=OWN)
def dynamic_quantize_matmul(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    """Emit DynamicQuantizeMatMul: quantize `a` by its range, then do MatMulIntegerToFloat."""
    made, scale, zero_point = dynamic_quantize_linear(g, a)
    return matmul_integer_to_float(g, made, b, scale, b_scale, zero_point, b_zero_point, bias)


_NUMBERS = {
    "": (),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min_value", "max_value"),
}
"""Parameters of the activations that ONNX Runtime fuses into convolutions and products."""


def _activated(g: Emitter, x: Any, name: str, params: Sequence[float]) -> Any:
    """Emit a fused activation.

    Args:
        g: The emitter.
        x: The result of a convolution or product.
        name: The activation; "" for none.
        params: Its parameters, in the order of `_NUMBERS`.

    Raises:
        UnmappableError: The activation is not supported.
        BrokenModelError: A parameter is missing.
    """
    if name not in _NUMBERS:
        refuse(f"activation {name!r}")
    options = dict(zip(_NUMBERS[name], map(float, params), strict=False))
    if len(options) < len(_NUMBERS[name]):
        raise BrokenModelError(f"activation {name!r} needs {', '.join(_NUMBERS[name])}")
    methods = {"Clip": "clamp", "LeakyRelu": "leaky_relu", "HardSigmoid": "hard_sigmoid"}
    return getattr(g, methods.get(name, name.lower()))(x, **options) if name else x


@handles("FusedMatMulActivation", domain=OWN)
def fused_matmul_activation(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    *,
    activation: str,
    activation_alpha: float = 0.0,
    activation_axis: int = 0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Any:
    """Emit FusedMatMulActivation: FusedMatMul, then an activation."""
    turns = {"transBatchA": transBatchA, "transBatchB": transBatchB}
    made = fused_matmul(g, a, b, alpha=alpha, transA=transA, transB=transB, **turns)
    return _activated(g, made, activation, [activation_alpha, activation_beta])


@handles("FusedConv", domain=OWN)
def fused_conv(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Emit FusedConv: a convolution, the sum with `z`, and an activation."""
    made = conv(
        g,
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    whole = made if z is None else g.add(made, z)
    return _activated(g, whole, activation, activation_params or ())


@handles("FusedGemm", domain=OWN)
def fused_gemm(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Any:
    """Emit FusedGemm: Gemm, then an activation."""
    made = gemm(g, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activated(g, made, activation, [activation_alpha, activation_beta])
