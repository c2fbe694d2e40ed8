"""Normalization over batches, instances, groups, layers and channels."""

from __future__ import annotations

import math
from typing import Any

from webnn_py.core.dimensions import is_dimension
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


@handles("BatchNormalization")
def batch_normalization(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: list[int] | None = None,
) -> Any:
    """Normalize by the mean and variance operands; in training by those of the batch.

    Training also returns the running mean and variance, averaged with the batch's by `momentum`.
    """
    if not spatial:
        refuse("statistics of each element (spatial = 0)")
    scale, bias = _as(g, scale, x), _as(g, bias, x)
    if not training_mode:
        return g.batch_normalization(
            x, _as(g, mean, x), _as(g, variance, x), scale=scale, bias=bias, epsilon=epsilon
        )
    check_rank(2, 10, x=x)
    axes = [i for i in range(x.rank) if i != 1]
    shape = [1, x.shape[1], *[1] * (x.rank - 2)]
    own = g.reduce_mean(x, axes=axes)
    apart = g.sub(x, g.reshape(own, shape))
    spread = g.reduce_mean(g.mul(apart, apart), axes=axes)
    made = g.batch_normalization(x, own, spread, scale=scale, bias=bias, epsilon=epsilon)
    kept = [
        g.add(g.mul(old, float(momentum)), g.mul(_as(g, new, old), 1.0 - momentum))
        for old, new in ((mean, own), (variance, spread))
    ]
    return [made, *kept]


def _as(g: Emitter, tensor: Any, like: Any) -> Any:
    return g.to(tensor, like.data_type)


@handles("InstanceNormalization")
def instance_normalization(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
    consumed_inputs: list[int] | None = None,
) -> Any:
    """Normalize each channel of each sample by its own mean and variance."""
    check_rank(2, 10, x=x)
    flat = g.reshape(x, [x.shape[0], x.shape[1], 1, math.prod(x.shape[2:])])
    made = g.instance_normalization(flat, scale=scale, bias=bias, epsilon=epsilon)
    return g.reshape(made, list(x.shape))


def _groups_normalized(g: Emitter, x: Tensor, groups: int, epsilon: float, **affine: Tensor) -> Any:
    """Normalize each group of channels as if it were a channel of one instance."""
    check_rank(2, 10, x=x)
    batch, channels, *size = x.shape
    if groups < 1 or (not is_dimension(channels) and channels % groups):
        raise BrokenModelError(
            f"its num_groups is {groups}, expected a divisor of the {channels} channels"
        )
    rows = g.reshape(x, [batch, groups, 1, channels // groups * math.prod(size)])
    made = g.instance_normalization(rows, epsilon=epsilon, **affine)
    return g.reshape(made, list(x.shape))


@handles("GroupNormalization", since=21)
def group_normalization(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> Any:
    """Normalize each group of channels of each sample by its own mean and variance."""
    wide = g.to(x, "float32") if stash_type == 1 else x
    made = g.to(_groups_normalized(g, wide, num_groups, epsilon), x.data_type)
    shape = [1, x.shape[1], *[1] * (x.rank - 2)]
    return g.add(g.mul(made, g.reshape(scale, shape)), g.reshape(bias, shape))


@handles("GroupNormalization")
def group_normalization_18(
    g: Emitter, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
) -> Any:
    """Handle GroupNormalization before opset 21, with a scale and bias per group."""
    return _groups_normalized(g, x, num_groups, epsilon, scale=scale, bias=bias)


@handles("LayerNormalization")
def layer_normalization(
    g: Emitter,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    """Normalize over the dimensions from `axis` on.

    Further outputs are the mean and the reciprocal of the standard deviation.
    """
    axes = list(range(x.axis(axis), x.rank))
    shape = [x.shape[i] for i in axes]
    wide = g.to(x, "float32") if stash_type == 1 and x.data_type == "float16" else x
    options = {"scale": scale} | ({} if bias is None else {"bias": bias})
    if any(list(one.shape) != shape for one in options.values()):
        made = g.layer_normalization(x, axes=axes, epsilon=epsilon)
        made = g.mul(made, scale)
        made = made if bias is None else g.add(made, bias)
    else:
        made = g.layer_normalization(x, axes=axes, epsilon=epsilon, **options)
    if len(g.outputs) < 2:
        return made
    mean = g.reduce_mean(wide, axes=axes, keep_dimensions=True)
    apart = g.sub(wide, mean)
    spread = g.reduce_mean(g.mul(apart, apart), axes=axes, keep_dimensions=True)
    return [made, mean, g.reciprocal(g.sqrt(g.add(spread, float(epsilon))))]


@handles("MeanVarianceNormalization", since=9)
def mean_variance_normalization(g: Emitter, x: Tensor, *, axes: list[int] | None = None) -> Any:
    """Normalize by the mean and variance over axes, in float32: 1e-9 is 0 in float16."""
    wide = g.to(x, "float32")
    used = x.axes(axes or (0, 2, 3))
    apart = g.sub(wide, g.reduce_mean(wide, axes=used, keep_dimensions=True))
    spread = g.reduce_mean(g.mul(apart, apart), axes=used, keep_dimensions=True)
    return g.to(g.div(apart, g.add(g.sqrt(spread), 1e-9)), x.data_type)


@handles("LRN")
def local_response_normalization(
    g: Emitter,
    x: Tensor,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Any:
    """Divide by a power of the mean square of neighboring channels."""
    before = (size - 1) // 2
    rest = [0] * (x.rank - 2)
    squares = g.pad(g.mul(x, x), [0, before, *rest], [0, size - 1 - before, *rest])
    shape = [x.shape[0], 1, x.shape[1] + size - 1, math.prod(x.shape[2:])]
    means = g.average_pool2d(g.reshape(squares, shape), window_dimensions=[size, 1])
    below = g.add(g.mul(g.reshape(means, list(x.shape)), float(alpha)), float(bias))
    if beta == 0.75:  # the default: two roots are many times faster than a power
        root = g.sqrt(below)
        return g.div(x, g.mul(root, g.sqrt(root)))
    return g.div(x, g.pow(below, float(beta)))


@handles("LpNormalization")
def lp_normalization(g: Emitter, x: Tensor, *, axis: int = -1, p: int = 2) -> Any:
    """Divide by the p-norm along an axis; return 0 where the norm is 0."""
    if p not in (1, 2):
        raise BrokenModelError(f"its p is {p}, expected 1 or 2")
    method = "reduce_l1" if p == 1 else "reduce_l2"
    norm = getattr(g, method)(x, axes=[x.axis(axis)], keep_dimensions=True)
    nothing = g.constant(0, x)
    is_zero = g.equal(norm, nothing)
    return g.where(is_zero, nothing, g.div(x, g.where(is_zero, g.constant(1, x), norm)))
