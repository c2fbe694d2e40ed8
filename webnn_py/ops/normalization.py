"""Normalizations and softmax; all of them composites. Source: WebNN 2026, their sections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webnn_py.core.dtypes import FLOATS, cast_number
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK, check_axes, check_axis
from webnn_py.ir import Descriptor
from webnn_py.ops.convolution import InputLayout
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand, NodeBuilder
from webnn_py.ops.surface import narrow, surface, wide


def _along(emitter: NodeBuilder, operand: MLOperand, axes: Sequence[int], rank: int) -> MLOperand:
    """`operand`, whose i-th dimension belongs to axes[i], in a shape that broadcasts to `rank`."""
    g = surface(emitter)
    order = tuple(int(i) for i in np.argsort(axes))
    placed = (
        operand if order == tuple(range(len(order))) else g.transpose(operand, permutation=order)
    )
    sizes = dict(zip(sorted(axes), placed.shape, strict=True))
    return g.reshape(placed, [sizes.get(i, 1) for i in range(rank)])


def _affine(
    emitter: NodeBuilder,
    normal: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    axes: Sequence[int],
) -> MLOperand:
    g = surface(emitter)
    if scale is not None:
        normal = g.mul(normal, _along(emitter, wide(emitter, scale), axes, normal.rank))
    if bias is not None:
        normal = g.add(normal, _along(emitter, wide(emitter, bias), axes, normal.rank))
    return normal


def _softmax(emitter: NodeBuilder, input: MLOperand, axis: int) -> MLOperand:
    g = surface(emitter)
    x = wide(emitter, input)
    shifted = g.sub(x, g.reduce_max(x, axes=[axis], keep_dimensions=True))
    exponent = g.exp(shifted)
    total = g.reduce_sum(exponent, axes=[axis], keep_dimensions=True)
    return narrow(emitter, g.div(exponent, total), input.data_type)


def moments_normalized(
    emitter: NodeBuilder, x: MLOperand, axes: Sequence[int], epsilon: float
) -> MLOperand:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, in float32."""
    g = surface(emitter)
    centered = g.sub(x, g.reduce_mean(x, axes=axes, keep_dimensions=True))
    variance = g.reduce_mean(g.mul(centered, centered), axes=axes, keep_dimensions=True)
    deviation = g.sqrt(g.add(variance, emitter.constant_of(epsilon, x)))
    return g.div(centered, deviation)


def _layer_normalization(
    emitter: NodeBuilder,
    input: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    axes: Sequence[int],
    epsilon: float,
) -> MLOperand:
    normal = moments_normalized(emitter, wide(emitter, input), axes, epsilon)
    return narrow(emitter, _affine(emitter, normal, scale, bias, axes), input.data_type)


def _instance_normalization(
    emitter: NodeBuilder,
    input: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    epsilon: float,
    layout: str,
) -> MLOperand:
    axes = [layout.index("h"), layout.index("w")]
    normal = moments_normalized(emitter, wide(emitter, input), axes, epsilon)
    scaled = _affine(emitter, normal, scale, bias, [layout.index("c")])
    return narrow(emitter, scaled, input.data_type)


def _batch_normalization(
    emitter: NodeBuilder,
    input: MLOperand,
    mean: MLOperand,
    variance: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    axis: int,
    epsilon: float,
) -> MLOperand:
    g = surface(emitter)
    x = wide(emitter, input)
    spread = g.sqrt(g.add(wide(emitter, variance), emitter.constant_of(epsilon, x)))
    centered = g.sub(x, _along(emitter, wide(emitter, mean), [axis], x.rank))
    normal = g.div(centered, _along(emitter, spread, [axis], x.rank))
    return narrow(emitter, _affine(emitter, normal, scale, bias, [axis]), input.data_type)


def _check_shape(operand: MLOperand | None, name: str, shape: Sequence[int]) -> None:
    if operand is not None and operand.shape != tuple(shape):
        raise ValidationError(
            f"operand {name!r}: shape {list(operand.shape)}, expected {list(shape)}"
        )


class Normalization:
    """Builder methods of normalizations."""

    @operator(
        input=Limits(FLOATS, (1, MAX_RANK)),
        mean=Limits("input", 1),
        variance=Limits("input", 1),
        scale=Limits("input", 1),
        bias=Limits("input", 1),
        decompose=_batch_normalization,
    )
    def batch_normalization(
        self,
        input: MLOperand,
        mean: MLOperand,
        variance: MLOperand,
        *,
        scale: MLOperand | None = None,
        bias: MLOperand | None = None,
        axis: int = 1,
        epsilon: float = 1e-5,
        label: str = "",
    ) -> Inferred:
        """Scale * (x - mean) / sqrt(variance + epsilon) + bias, each along `axis`.

        mean, variance, scale and bias are 1-D of the size of the input's dimension `axis`.
        """
        check_axis(axis, input.rank)
        operands = {"mean": mean, "variance": variance, "scale": scale, "bias": bias}
        for name, operand in operands.items():
            _check_shape(operand, name, [input.shape[axis]])
        rounded = cast_number(epsilon, input.data_type)
        return result(Descriptor(input.data_type, input.shape), epsilon=rounded)

    @operator(
        input=Limits(FLOATS, 4),
        scale=Limits("input", 1),
        bias=Limits("input", 1),
        decompose=_instance_normalization,
    )
    def instance_normalization(
        self,
        input: MLOperand,
        *,
        scale: MLOperand | None = None,
        bias: MLOperand | None = None,
        epsilon: float = 1e-5,
        layout: InputLayout = "nchw",
        label: str = "",
    ) -> Inferred:
        """Normalize the height and width of each sample and channel; scale and bias by channel."""
        channels = input.shape[layout.index("c")]
        _check_shape(scale, "scale", [channels])
        _check_shape(bias, "bias", [channels])
        rounded = cast_number(epsilon, input.data_type)
        return result(Descriptor(input.data_type, input.shape), epsilon=rounded)

    @operator(
        input=Limits(FLOATS),
        scale=Limits("input"),
        bias=Limits("input"),
        decompose=_layer_normalization,
    )
    def layer_normalization(
        self,
        input: MLOperand,
        *,
        scale: MLOperand | None = None,
        bias: MLOperand | None = None,
        axes: Sequence[int] | None = None,
        epsilon: float = 1e-5,
        label: str = "",
    ) -> Inferred:
        """Normalize over `axes` (all but the first if not given).

        The i-th dimension of `scale` and `bias` has the size of the input's dimension axes[i].
        """
        used = tuple(range(1, input.rank)) if axes is None else tuple(axes)
        check_axes(used, input.rank)
        sizes = [input.shape[axis] for axis in used]
        _check_shape(scale, "scale", sizes)
        _check_shape(bias, "bias", sizes)
        rounded = cast_number(epsilon, input.data_type)
        return result(Descriptor(input.data_type, input.shape), axes=used, epsilon=rounded)

    @operator(input=Limits(FLOATS, (1, MAX_RANK)), decompose=_softmax)
    def softmax(self, input: MLOperand, axis: int, *, label: str = "") -> Inferred:
        """exp(x) / sum(exp(x)) along `axis`."""
        check_axis(axis, input.rank)
        return result(Descriptor(input.data_type, input.shape))
