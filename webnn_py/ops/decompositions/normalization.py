"""Decompositions of normalizations and softmax; they compute in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


def _along(g: GraphBuilder, operand: MLOperand, axes: Sequence[int], rank: int) -> MLOperand:
    """Reshape `operand`, whose dimension i belongs to axes[i], to broadcast with rank `rank`."""
    order = tuple(int(i) for i in np.argsort(axes))
    placed = (
        operand if order == tuple(range(len(order))) else g.transpose(operand, permutation=order)
    )
    sizes = dict(zip(sorted(axes), placed.shape, strict=True))
    return g.reshape(placed, [sizes.get(i, 1) for i in range(rank)])


def _affine(
    g: GraphBuilder,
    normal: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    axes: Sequence[int],
) -> MLOperand:
    if scale is not None:
        normal = g.mul(normal, _along(g, wide(g, scale), axes, normal.rank))
    if bias is not None:
        normal = g.add(normal, _along(g, wide(g, bias), axes, normal.rank))
    return normal


@decomposition
def softmax(g: GraphBuilder, input: MLOperand, axis: int) -> MLOperand:
    """Subtract the maximum first, so that the exponentials cannot overflow."""
    x = wide(g, input)
    shifted = g.sub(x, g.reduce_max(x, axes=[axis], keep_dimensions=True))
    exponent = g.exp(shifted)
    total = g.reduce_sum(exponent, axes=[axis], keep_dimensions=True)
    return narrow(g, g.div(exponent, total), input.data_type)


def _moments_normalized(
    g: GraphBuilder, x: MLOperand, axes: Sequence[int], epsilon: float
) -> MLOperand:
    """Compute (x - mean) / sqrt(variance + epsilon) over `axes`, in float32."""
    centered = g.sub(x, g.reduce_mean(x, axes=axes, keep_dimensions=True))
    variance = g.reduce_mean(g.mul(centered, centered), axes=axes, keep_dimensions=True)
    deviation = g.sqrt(g.add(variance, g.constant_of(epsilon, x)))
    return g.div(centered, deviation)


@decomposition
def layer_normalization(
    g: GraphBuilder,
    input: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    axes: Sequence[int],
    epsilon: float,
) -> MLOperand:
    """Normalize by mean and variance over `axes`."""
    normal = _moments_normalized(g, wide(g, input), axes, epsilon)
    return narrow(g, _affine(g, normal, scale, bias, axes), input.data_type)


@decomposition
def rms_normalization(
    g: GraphBuilder, x: MLOperand, scale: MLOperand, axes: Sequence[int], epsilon: float
) -> MLOperand:
    """Divide by the root mean square over `axes`, then scale."""
    floats = wide(g, x)
    mean = g.reduce_mean(g.mul(floats, floats), axes=axes, keep_dimensions=True)
    normal = g.div(floats, g.sqrt(g.add(mean, g.constant_of(epsilon, floats))))
    return narrow(g, _affine(g, normal, scale, None, axes), x.data_type)


@decomposition
def instance_normalization(
    g: GraphBuilder,
    input: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    epsilon: float,
    layout: str,
) -> MLOperand:
    """Normalize by mean and variance over height and width."""
    axes = [layout.index("h"), layout.index("w")]
    normal = _moments_normalized(g, wide(g, input), axes, epsilon)
    scaled = _affine(g, normal, scale, bias, [layout.index("c")])
    return narrow(g, scaled, input.data_type)


@decomposition
def batch_normalization(
    g: GraphBuilder,
    input: MLOperand,
    mean: MLOperand,
    variance: MLOperand,
    scale: MLOperand | None,
    bias: MLOperand | None,
    axis: int,
    epsilon: float,
) -> MLOperand:
    """Normalize by the operands `mean` and `variance` along `axis`."""
    x = wide(g, input)
    spread = g.sqrt(g.add(wide(g, variance), g.constant_of(epsilon, x)))
    centered = g.sub(x, _along(g, wide(g, mean), [axis], x.rank))
    if scale is not None and input.data_type == "float16":
        # One factor for each channel saves a division for each element; float32 is precise enough
        # for a float16 result.
        factor = g.div(wide(g, scale), spread)
        scaled = g.mul(centered, _along(g, factor, [axis], x.rank))
        return narrow(g, _affine(g, scaled, None, bias, [axis]), input.data_type)
    normal = g.div(centered, _along(g, spread, [axis], x.rank))
    return narrow(g, _affine(g, normal, scale, bias, [axis]), input.data_type)
