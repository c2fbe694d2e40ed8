"""Makers of random graphs' layers: products, convolutions, pools, normalizations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.property.growing import (
    FLOAT,
    Grower,
    Rejected,
    axes_of,
    axis_of,
    called,
    has_rank,
    types_of,
)
from webnn_py import MLOperand
from webnn_py.ops.declare import REGISTRY

POOLS = [op for op in REGISTRY.values() if op.family == "pooling"]


def _weights(g: Grower, shape: Sequence[int], fan_in: int) -> MLOperand:
    """A constant whose products with tame numbers have tame sums."""
    rng = np.random.default_rng(g.picks.integer(0, 2**32 - 1))
    return g.constant((rng.uniform(-1, 1, shape) / math.sqrt(fan_in)).astype(np.float32))


def matmul(g: Grower) -> MLOperand:
    a = g.pick(FLOAT, where=lambda x: x.rank > 1)
    k = a.shape[-1]
    if g.chance(30):
        return g.matmul(
            a, g.pick(FLOAT, where=lambda b: b.shape == (*a.shape[:-2], k, a.shape[-2]))
        )
    batch = a.shape[:-2] if g.chance(30) else ()
    return g.matmul(a, _weights(g, [*batch, k, g.picks.integer(1, 9)], k))


def gemm(g: Grower) -> MLOperand:
    a = g.pick(FLOAT, where=has_rank(2))
    flips = {"a_transpose": g.chance(30), "b_transpose": g.chance(50)}
    m, k = a.shape[::-1] if flips["a_transpose"] else a.shape
    n = g.picks.integer(1, 9)
    b = _weights(g, [n, k] if flips["b_transpose"] else [k, n], k)
    c = g.new_constant(g.choice([[n], [], [1, n], [m, 1], [m, n]])) if g.chance(60) else None
    return g.gemm(a, b, c=c, alpha=g.choice([1.0, 0.5]), beta=g.choice([1.0, 2.0]), **flips)


def conv2d(g: Grower, x: MLOperand | None = None) -> MLOperand:
    x = g.pick(FLOAT, where=has_rank(4)) if x is None else x
    layout = g.choice(["nchw", "nchw", "nhwc"])
    sizes = dict(zip(layout, x.shape, strict=True))
    groups = g.choice([d for d in (1, 1, 2, 3, 4) if sizes["c"] % d == 0])
    window = [g.picks.integer(1, min(3, sizes[letter])) for letter in "hw"]
    out = groups * g.picks.integer(1, 3)
    taps = {"o": out, "i": sizes["c"] // groups, "h": window[0], "w": window[1]}
    filter_layout = g.choice(["oihw", "hwio", "ohwi", "ihwo"])
    weights = _weights(g, [taps[d] for d in filter_layout], taps["i"] * math.prod(window))
    return g.conv2d(
        x,
        weights,
        bias=g.new_constant([out]) if g.chance(40) else None,
        padding=[g.picks.integer(0, 1) for _ in range(4)],
        strides=[g.choice([1, 1, 2]) for _ in range(2)],
        groups=groups,
        input_layout=layout,  # type: ignore[arg-type]
        filter_layout=filter_layout,  # type: ignore[arg-type]
    )


def conv_transpose2d(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, where=has_rank(4))
    layout = g.choice(["nchw", "nhwc"])
    channels = x.shape[layout.index("c")]
    groups = g.choice([d for d in (1, 2) if channels % d == 0])
    taps = {"i": channels, "o": g.picks.integer(1, 3), "h": 2, "w": g.picks.integer(1, 3)}
    filter_layout = g.choice(["iohw", "hwoi", "ohwi"])
    weights = _weights(g, [taps[d] for d in filter_layout], channels * 2)
    return g.conv_transpose2d(
        x,
        weights,
        bias=g.new_constant([groups * taps["o"]]) if g.chance(40) else None,
        strides=[g.picks.integer(1, 2) for _ in range(2)],
        groups=groups,
        input_layout=layout,  # type: ignore[arg-type]
        filter_layout=filter_layout,  # type: ignore[arg-type]
    )


def pool(g: Grower) -> MLOperand:
    op = g.choice(POOLS)
    x = g.pick(*types_of(op), where=has_rank(4))
    layout = g.choice(["nchw", "nhwc"])
    sizes = dict(zip(layout, x.shape, strict=True))
    window = [g.picks.integer(1, min(3, sizes[letter])) for letter in "hw"]
    options = {
        "padding": [g.picks.integer(0, (window[i // 2] - 1) // 2) for i in range(4)],
        "strides": [g.picks.integer(1, 2) for _ in range(2)],
        "output_shape_rounding": g.choice(["floor", "ceil"]),
    }
    if options["output_shape_rounding"] == "ceil":
        # A last window that lies in the padding alone has no mean.
        options["strides"] = [min(2, size) for size in window]
    return called(op, g, x, window_dimensions=window, layout=layout, **options)  # type: ignore[no-any-return]


def softmax(g: Grower) -> MLOperand:
    x = g.pick(FLOAT)
    return g.softmax(x, axis_of(g, x))


def layer_normalization(g: Grower) -> MLOperand:
    x = g.pick(FLOAT)
    axes = axes_of(g, x)
    if math.prod(x.shape[axis] for axis in axes) < 2:
        raise Rejected
    if g.chance(30):
        axes.reverse()
    shape = [x.shape[axis] for axis in axes]
    parts = {name: g.new_constant(shape) for name in ("scale", "bias") if g.chance(60)}
    return g.layer_normalization(x, axes=axes, epsilon=0.01, **parts)


def instance_normalization(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, where=has_rank(4))
    layout = g.choice(["nchw", "nhwc"])
    shape = [x.shape[layout.index("c")]]
    parts = {name: g.new_constant(shape) for name in ("scale", "bias") if g.chance(60)}
    return g.instance_normalization(x, layout=layout, epsilon=0.01, **parts)  # type: ignore[arg-type]


def _normalized(g: Grower, x: MLOperand, axis: int) -> MLOperand:
    shape = [x.shape[axis]]
    parts = {name: g.new_constant(shape) for name in ("scale", "bias") if g.chance(60)}
    rng = np.random.default_rng(g.picks.integer(0, 2**32 - 1))
    variance = g.constant(rng.uniform(0.25, 2, shape).astype(np.float32))
    return g.batch_normalization(x, g.new_constant(shape), variance, axis=axis, **parts)


def batch_normalization(g: Grower) -> MLOperand:
    x = g.pick(FLOAT)
    return _normalized(g, x, axis_of(g, x))


def normalized_product(g: Grower) -> MLOperand:
    """What passes fold: a product, and something for each channel of it."""
    maker = g.choice([conv2d, conv2d, conv_transpose2d, matmul, gemm])
    y = maker(g)
    layout = g.nodes[-1].attrs.get("input_layout")
    axis = y.rank - 1 if layout is None else layout.index("c")
    if g.chance(60):
        y = _normalized(g, y, axis)
    shape = [y.shape[axis], *[1] * (y.rank - 1 - axis)]
    for _ in range(g.picks.integer(0, 2)):
        op = g.choice([g.add, g.sub, g.mul])
        pair = [y, g.new_constant(shape if g.chance(80) else [])]
        y = op(*pair if g.chance(70) else pair[::-1])
    return g.relu(y) if g.chance(50) else y


def normalized_images(g: Grower) -> MLOperand:
    """What passes scale by channels: a normalization that a convolution reads."""
    y = _normalized(g, g.pick(FLOAT, where=has_rank(4)), axis=1)
    return conv2d(g, g.relu(y) if g.chance(50) else y)
