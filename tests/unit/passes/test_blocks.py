"""Passes for ONNX Runtime, which convolves in blocks of channels: what they match, and what stays.

Each case has a graph and the operators that its pass leaves of it. What stays has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.unit.passes.listings import Array, Built, assert_keeps, normal, operators
from webnn_py import MLGraphBuilder, MLOperand

ENGINE = "onnxruntime"
Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]
Number = Callable[[float], MLOperand]


@dataclass(frozen=True)
class Case:
    """A graph `body(x)` that a pass matches, and the operators that are left; or that it does not.

    Attributes:
        stage: The pass.
        body: The graph.
        shape: The shape of x.
        left: The operators that are left.
        data_type: The data type of x.
        scale: Of the numbers that x holds.
        atol: The largest error, beside a relative one as large.
    """

    stage: str
    body: Callable[..., Any]
    shape: Sequence[Any]
    left: Sequence[str] = ()
    data_type: str = "float32"
    scale: float = 1.0
    atol: float = 1e-5

    @property
    def x(self) -> Array:
        return normal(*self.shape) * np.float32(self.scale)


def floats(b: MLGraphBuilder, *shape: int, low: float | None = None, seed: int = 0) -> MLOperand:
    """Numbers around 0, or between `low` and 1."""
    rng = np.random.default_rng([len(shape), seed])
    array = rng.normal(size=shape) if low is None else rng.uniform(low, 1, shape)
    return b.constant(array.astype(np.float32))


def joined(b: MLGraphBuilder, x: MLOperand, axis: int = 1) -> MLOperand:
    return b.concat([b.relu(x), b.neg(x)], axis)


# Products in a row, and heads, become convolutions of one element.

INNER, OUTER = 512, 1024
HEADS = {"permutation": [0, 2, 1, 3]}


def widened(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.add(b.matmul(x, floats(b, INNER, OUTER)), floats(b, OUTER))


def narrowed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.matmul(x, floats(b, OUTER, INNER))


def attention(b: MLGraphBuilder, x: MLOperand, heads: int = 4) -> MLOperand:
    """Scores of heads, times values."""
    batch, length, width = x.shape

    def split(seed: int, order: Sequence[int]) -> MLOperand:
        made = b.add(b.matmul(x, floats(b, width, width, seed=seed)), floats(b, width, seed=seed))
        parts = b.reshape(made, [batch, length, heads, width // heads])
        return b.transpose(parts, permutation=order)

    scores = b.matmul(split(1, [0, 2, 1, 3]), split(2, [0, 2, 3, 1]))
    return b.matmul(b.softmax(scores, 3), split(3, [0, 2, 1, 3]))


def read_twice(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    wide = widened(b, x)
    return b.add(narrowed(b, b.relu(wide)), b.reduce_mean(wide, axes=[1], keep_dimensions=True))


def of_halves(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    wide = b.matmul(x, b.constant(np.ones((INNER, OUTER), np.float16)))
    return b.matmul(wide, b.constant(np.ones((OUTER, INNER), np.float16)))


CHAINS: dict[str, tuple[Step, list[str]]] = {
    "with a function": (lambda b, x: narrowed(b, b.gelu(widened(b, x))), ["gelu"]),
    "with summands": (
        lambda b, x: b.add(floats(b, INNER), narrowed(b, b.relu(widened(b, x)))),
        ["relu"],
    ),
    "alone": (lambda b, x: narrowed(b, b.matmul(x, floats(b, INNER, OUTER))), []),
}
NOT_CHAINED: dict[str, tuple[Step, tuple[int, ...]]] = {
    "one product": (widened, (3, INNER)),
    "heads of few weights": (attention, (1, 3, 64)),
    "heads that are not multiplied": (
        lambda b, x: b.exp(b.transpose(b.reshape(widened(b, x), [1, 3, 4, 256]), **HEADS)),
        (1, 3, INNER),
    ),
    "columns in another order": (
        lambda b, x: b.matmul(
            b.transpose(b.reshape(widened(b, x), [1, 3, 4, 256]), permutation=[0, 3, 2, 1]),
            floats(b, 1, 256, 3, 2),
        ),
        (1, 3, INNER),
    ),
    "one row": (CHAINS["with a function"][0], (1, INNER)),
    "few weights": (lambda b, x: b.matmul(b.relu(b.matmul(x, x)), floats(b, 64, 64)), (64, 64)),
    "another function": (lambda b, x: narrowed(b, b.exp(widened(b, x))), (3, INNER)),
    "a product that others read": (read_twice, (3, INNER)),
    "channels that fill no blocks": (
        lambda b, x: b.matmul(b.matmul(x, floats(b, INNER, 1032)), floats(b, 1032, INNER)),
        (3, INNER),
    ),
    "a summand of each row": (
        lambda b, x: narrowed(b, b.add(b.matmul(x, floats(b, INNER, OUTER)), floats(b, 3, 1))),
        (3, INNER),
    ),
}

# hard_swish that is spelled out becomes one operator.


def clamped(b: MLGraphBuilder, x: MLOperand, three: MLOperand, most: float = 6) -> MLOperand:
    return b.clamp(b.add(x, three), min_value=0, max_value=most)


SWISHES: dict[str, Callable[[MLGraphBuilder, MLOperand, Number], MLOperand]] = {
    "divided": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(3))), n(6)),
    "multiplied": lambda b, x, n: b.mul(n(1 / 6), b.mul(clamped(b, x, n(3)), x)),
}
NO_SWISHES: dict[str, Callable[[MLGraphBuilder, MLOperand, Number], MLOperand]] = {
    "another summand": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(2))), n(6)),
    "another bound": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(3), 5)), n(6)),
    "another divisor": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(3))), n(5)),
    "the divisor above": lambda b, x, n: b.div(n(6), b.mul(x, clamped(b, x, n(3)))),
    "another factor": lambda b, x, n: b.div(b.mul(b.abs(x), clamped(b, x, n(3))), n(6)),
    "of another": lambda b, x, n: b.div(b.mul(x, clamped(b, b.abs(x), n(3))), n(6)),
    "a sum": lambda b, x, n: b.div(b.add(x, clamped(b, x, n(3))), n(6)),
    "more dimensions": lambda b, x, n: b.div(
        b.mul(x, clamped(b, x, n(3))), b.constant(np.full((1, 1, 1), 6, np.float32))
    ),
}


def swished(spelling: Callable[..., MLOperand]) -> Step:
    return lambda b, x: spelling(b, x, lambda number: b.constant(np.asarray(number, np.float32)))


# Rows times large weights become convolutions of one element.

ROW, WEIGHTS = (1, 1024), (1024, 520)

ROWS: dict[str, Step] = {
    "alone": lambda b, x: b.gemm(x, floats(b, *WEIGHTS)),
    "transposed": lambda b, x: b.gemm(x, floats(b, *WEIGHTS[::-1]), b_transpose=True),
    "with a row": lambda b, x: b.gemm(x, floats(b, *WEIGHTS), c=floats(b, 520)),
    "with a number": lambda b, x: b.gemm(x, floats(b, *WEIGHTS), c=floats(b, 1, 1)),
}
NO_ROWS: dict[str, tuple[Step, tuple[Any, ...]]] = {
    "two rows": (ROWS["alone"], (2, 1024)),
    "open rows": (ROWS["alone"], ("n", 1024)),
    "few weights": (lambda b, x: b.gemm(x, floats(b, 1024, 500)), ROW),
    "channels that fill no blocks": (lambda b, x: b.gemm(x, floats(b, 1000, 600)), (1, 1000)),
    "weights that are computed": (
        lambda b, x: b.gemm(x, b.mul(floats(b, *WEIGHTS), b.reshape(x, [1024, 1]))),
        ROW,
    ),
    "a summand that is computed": (lambda b, x: b.gemm(x, floats(b, 1024, 1024), c=x), ROW),
    "a factor": (lambda b, x: b.gemm(x, floats(b, *WEIGHTS), alpha=2), ROW),
    "a column": (lambda b, x: b.gemm(x, floats(b, 1, 1 << 19), a_transpose=True), (1, 1)),
}

# Poolings move before concats and convolutions, convolutions of each channel before shuffles.

IMAGE = (2, 6, 8, 7)

POOLED: dict[str, tuple[Step, str]] = {
    "maxima": (
        lambda b, x: b.max_pool2d(
            joined(b, x), window_dimensions=[3, 3], strides=[2, 2], padding=[1, 0, 1, 0]
        ),
        "max_pool2d",
    ),
    "all means": (lambda b, x: b.average_pool2d(joined(b, x)), "average_pool2d"),
    "channels last": (
        lambda b, x: b.l2_pool2d(
            joined(b, x, 3), window_dimensions=[2, 2], strides=[2, 2], layout="nhwc"
        ),
        "l2_pool2d",
    ),
}


def projected(b: MLGraphBuilder, x: MLOperand, **options: Any) -> MLOperand:
    return b.conv2d(x, floats(b, 4, 6, 1, 1), bias=floats(b, 4), **options)


MEANS: dict[str, Step] = {
    "windows": lambda b, x: b.average_pool2d(
        projected(b, x), window_dimensions=[2, 2], strides=[2, 2]
    ),
    "windows over the border": lambda b, x: b.average_pool2d(
        projected(b, x), window_dimensions=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]
    ),
    "all": lambda b, x: b.average_pool2d(b.conv2d(x, floats(b, 4, 3, 1, 1), groups=2)),
    "channels last": lambda b, x: b.average_pool2d(
        b.conv2d(x, floats(b, 2, 7, 1, 1), input_layout="nhwc"), layout="nhwc"
    ),
}


def shuffled(
    b: MLGraphBuilder,
    x: MLOperand,
    parts: tuple[int, ...] = (2, 3),
    order: tuple[int, ...] = (0, 2, 1, 3, 4),
) -> MLOperand:
    batch, _, *images = x.shape
    return b.reshape(
        b.transpose(b.reshape(x, [batch, *parts, *images]), permutation=order), x.shape
    )


def of_each(b: MLGraphBuilder, x: MLOperand, **changes: Any) -> MLOperand:
    options = {"groups": 6, "strides": [2, 2], "padding": [1, 1, 1, 1], "bias": floats(b, 6)}
    return b.conv2d(x, floats(b, 6, 1, 3, 3), **options | changes)


SHUFFLED: dict[str, Step] = {
    "two ways": lambda b, x: of_each(b, shuffled(b, x)),
    "three ways": lambda b, x: of_each(b, shuffled(b, x, (2, 1, 3), (0, 3, 1, 2, 4, 5))),
    "without bias": lambda b, x: of_each(b, shuffled(b, x), bias=None),
}
NOT_MOVED: dict[str, Step] = {
    "a pooling that makes nothing smaller": lambda b, x: b.max_pool2d(
        joined(b, x), window_dimensions=[3, 3], padding=[1, 1, 1, 1]
    ),
    "rows joined": lambda b, x: b.average_pool2d(joined(b, x, 2)),
    "joined for others, too": lambda b, x: b.add(y := joined(b, x), b.average_pool2d(y)),
    "maxima of products": lambda b, x: b.max_pool2d(projected(b, x)),
    "means of what others read": lambda b, x: b.add(y := projected(b, x), b.average_pool2d(y)),
    "means of windows of several elements": lambda b, x: b.average_pool2d(
        b.conv2d(x, floats(b, 4, 6, 3, 3))
    ),
    "means of some places": lambda b, x: b.average_pool2d(projected(b, x, strides=[2, 2])),
    "means of what is padded": lambda b, x: b.average_pool2d(projected(b, x, padding=[1, 0, 0, 0])),
    "means of other layouts": lambda b, x: b.average_pool2d(projected(b, x), layout="nhwc"),
    "a convolution that makes nothing smaller": lambda b, x: of_each(
        b, shuffled(b, x), strides=[1, 1]
    ),
    "a convolution of several channels": lambda b, x: b.conv2d(
        shuffled(b, x), floats(b, 6, 2, 3, 3), groups=3
    ),
    "filters that are computed": lambda b, x: b.conv2d(
        shuffled(b, x), b.slice(b.exp(x), [0, 0, 0, 0], [1, 6, 3, 3]), groups=1
    ),
    "rows turned": lambda b, x: of_each(
        b, b.reshape(b.transpose(b.reshape(x, [2, 6, 7, 8]), permutation=[0, 1, 3, 2]), IMAGE)
    ),
    "images among channels": lambda b, x: of_each(b, shuffled(b, x, (2, 3), (0, 2, 1, 4, 3))),
    "shuffled for others, too": lambda b, x: b.add(
        b.slice(y := shuffled(b, x), [0, 0, 0, 0], [2, 6, 4, 4]), of_each(b, y)
    ),
}

# Means of neighbouring channels, as the importer writes them, become products.

CHANNELS = (2, 6, 3, 4)


def means(
    b: MLGraphBuilder, x: MLOperand, before: int = 2, behind: int = 2, **changes: Any
) -> MLOperand:
    window = before + behind + 1
    batch, channels, height, width = x.shape
    pad = {"beginning_padding": [0, before, 0, 0], "ending_padding": [0, behind, 0, 0]}
    padded = b.pad(x, **pad | changes.pop("pad", {}))
    laid = b.reshape(padded, [batch, 1, channels + window - 1, height * width])
    pooled = b.average_pool2d(laid, **{"window_dimensions": [window, 1]} | changes)
    return b.reshape(pooled, x.shape)


def means_of_squares(*parts: int, **changes: Any) -> Step:
    return lambda b, x: means(b, b.mul(x, x), *parts, **dict(changes))


def read_padded(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    padded = b.pad(x, [0, 2, 0, 0], [0, 2, 0, 0])
    pooled = b.average_pool2d(b.reshape(padded, [2, 1, 10, 12]), window_dimensions=[5, 1])
    return b.add(b.reshape(pooled, CHANNELS), b.slice(padded, [0, 0, 0, 0], CHANNELS))


NO_MEANS: dict[str, Step] = {
    "padded with ones": means_of_squares(pad={"value": 1}),
    "padded with edges": means_of_squares(1, 1, pad={"mode": "edge"}),
    "windows with gaps": means_of_squares(window_dimensions=[3, 1], dilations=[2, 1]),
    "padded for others, too": read_padded,
}

# Normalizations before convolutions and poolings become convolutions.

BLOCKS = (2, 32, 5, 4)


def normalized(b: MLGraphBuilder, x: MLOperand, axis: int = 1) -> MLOperand:
    size = x.shape[axis]
    mean, variance = floats(b, size, low=-1), floats(b, size, low=0.5)
    scale, bias = floats(b, size, low=-1), floats(b, size, low=-1)
    return b.batch_normalization(x, mean, variance, scale=scale, bias=bias, axis=axis)


def convolved(b: MLGraphBuilder, x: MLOperand, seed: int = 0) -> MLOperand:
    filter_ = floats(b, 8, x.shape[1], 3, 3, low=-1, seed=seed)
    return b.conv2d(x, filter_, padding=[1, 1, 1, 1])


def read_by_two(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    made = b.relu(normalized(b, x))
    return b.concat([convolved(b, made), convolved(b, made, 1)], 1)


NORMALIZED: dict[str, tuple[Step, list[str]]] = {
    "alone": (normalized, []),
    "before relu": (lambda b, x: b.relu(normalized(b, x)), ["relu"]),
    "before scale and shift": (
        lambda b, x: b.relu(
            b.add(
                b.mul(normalized(b, x), floats(b, x.shape[1], 1, 1)),
                floats(b, 1, x.shape[1], 1, 1),
            )
        ),
        ["relu"],
    ),
    "before numbers": (
        lambda b, x: b.relu(
            b.sub(b.constant(2.0, "float32"), b.linear(normalized(b, x), alpha=3, beta=1))
        ),
        ["relu"],
    ),
    "without scale": (
        lambda b, x: b.batch_normalization(
            x, floats(b, x.shape[1]), floats(b, x.shape[1], low=0.5)
        ),
        [],
    ),
}
NOT_CONVOLVED: dict[str, Step] = {
    "nothing in blocks reads it": lambda b, x: b.relu(normalized(b, x)),
    "others read it, too": lambda b, x: b.add(
        y := normalized(b, x), b.conv2d(y, floats(b, 32, 32, 1, 1))
    ),
    "another dimension": lambda b, x: convolved(b, normalized(b, x, axis=3)),
    "channels that fill no blocks": lambda b, x: convolved(
        b, normalized(b, b.slice(x, [0, 0, 0, 0], [2, 24, 5, 4]))
    ),
    "weights": lambda b, x: b.conv2d(
        floats(b, *BLOCKS), normalized(b, b.slice(x, [0, 0, 0, 0], [2, 32, 1, 1]))
    ),
    "numbers out of range": lambda b, x: convolved(
        b, b.mul(b.mul(normalized(b, x), b.constant(1e38, "float32")), b.constant(1e38, "float32"))
    ),
}


def _matched() -> dict[str, Case]:
    rows = ["reshape", "transpose", "conv2d"]
    found: dict[str, Case] = {}
    for name, (body, between) in CHAINS.items():
        left = [*rows, *between, "conv2d", "transpose", "reshape"]
        for shape in ((3, INNER), (2, 3, INNER), (2, 1, 3, INNER)):
            case = Case("convolve_products", body, shape, left, scale=0.01, atol=1e-3)
            found[f"products: {name}, {len(shape)} dimensions"] = case
    for name, spelling in SWISHES.items():
        found[f"hard_swish: {name}"] = Case(
            "fuse_hard_swish", swished(spelling), [20, 3], ["hard_swish"], scale=3
        )
    for name, body in ROWS.items():
        left = ["reshape", "conv2d", "reshape"]
        found[f"rows: {name}"] = Case("convolve_products", body, ROW, left, atol=1e-4)
    for name, (body, pooling) in POOLED.items():
        left = ["relu", "neg", pooling, pooling, "concat"]
        found[f"pooled parts: {name}"] = Case("pool_before_concat", body, IMAGE, left)
    for name, body in MEANS.items():
        left = ["average_pool2d", "conv2d"]
        found[f"pooled products: {name}"] = Case("pool_before_concat", body, IMAGE, left)
    for name, body in SHUFFLED.items():
        left = ["conv2d", "reshape", "transpose", "reshape"]
        found[f"shuffled: {name}"] = Case("pool_before_concat", body, IMAGE, left)
    for parts in ((2, 2), (1, 2), (0, 1), (3, 0), (7, 8)):
        body = means_of_squares(*parts)
        found[f"neighbours: {parts}"] = Case("pool_channels", body, CHANNELS, ["mul", "conv2d"])
    for name, (step, between) in NORMALIZED.items():
        found[f"normalized: {name}"] = Case(
            "scale_channels_by_convolutions",
            lambda b, x, step=step: convolved(b, step(b, x)),
            BLOCKS,
            ["conv2d", *between, "conv2d"],
            atol=1e-4,
        )
    found["normalized for a pooling"] = Case(
        "scale_channels_by_convolutions",
        lambda b, x: b.average_pool2d(b.relu(normalized(b, x))),
        BLOCKS,
        ["conv2d", "relu", "average_pool2d"],
    )
    found["normalized for two"] = Case(
        "scale_channels_by_convolutions",
        read_by_two,
        BLOCKS,
        ["conv2d", "relu", "conv2d", "conv2d", "concat"],
        atol=1e-4,
    )
    return found


def _staying() -> dict[str, Case]:
    sides = [
        ("hard_swish", "fuse_hard_swish", {k: swished(v) for k, v in NO_SWISHES.items()}, (2, 3)),
        ("moved", "pool_before_concat", NOT_MOVED, IMAGE),
        ("neighbours", "pool_channels", NO_MEANS, CHANNELS),
        ("normalized", "scale_channels_by_convolutions", NOT_CONVOLVED, BLOCKS),
    ]
    found = {
        f"{what}: {name}": Case(stage, body, shape)
        for what, stage, bodies, shape in sides
        for name, body in bodies.items()
    }
    for name, (body, of) in NOT_CHAINED.items():
        found[f"products: {name}"] = Case("convolve_products", body, of)
    for name, (body, of) in NO_ROWS.items():
        found[f"rows: {name}"] = Case("convolve_products", body, of)
    halves = np.ones(WEIGHTS, np.float16)
    found |= {
        "products of halves": Case("convolve_products", of_halves, (3, INNER), data_type="float16"),
        "rows of halves": Case(
            "convolve_products",
            lambda b, x: b.gemm(x, b.constant(halves)),
            ROW,
            data_type="float16",
        ),
        "open poolings": Case("pool_before_concat", POOLED["maxima"][0], ("n", 6, 8, 7)),
        "neighbours of halves": Case("pool_channels", means, CHANNELS, data_type="float16"),
        "many neighbours": Case("pool_channels", means, (1, 600, 2, 2)),
    }
    return found


MATCHED, STAYING = _matched(), _staying()


@pytest.mark.parametrize("name", MATCHED)
def test_matched(name: str) -> None:
    case = MATCHED[name]
    built = Built(case.body, case.shape, case.data_type, ENGINE)
    assert operators(built.after(case.stage)) == case.left
    built.assert_computes(case.x, rtol=1e-4, atol=case.atol)


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    case = STAYING[name]
    sizes = {size: 2 for size in case.shape if isinstance(size, str)}
    assert_keeps(case.stage, case.body, case.shape, case.data_type, ENGINE, sizes)


def test_rows_of_products_may_be_open() -> None:
    built = Built(
        CHAINS["with a function"][0], ["n", "m", INNER], engine=ENGINE, sizes={"n": 2, "m": 3}
    )
    assert operators(built.after("convolve_products")).count("conv2d") == 2


def test_sizes_of_normalized_images_may_be_open() -> None:
    built = Built(
        lambda b, x: convolved(b, normalized(b, x)),
        ["n", 32, 5, "w"],
        engine=ENGINE,
        sizes={"n": 2, "w": 3},
    )
    assert operators(built.after("scale_channels_by_convolutions")) == ["conv2d", "conv2d"]


@pytest.mark.parametrize("shape", [(2, 3, INNER), (1, 5, INNER)])
def test_heads_come_out_of_convolutions(shape: Sequence[int]) -> None:
    built = Built(attention, shape, engine=ENGINE)
    listing = built.after("convolve_products")
    assert operators(listing).count("conv2d") == 3
    assert operators(listing).count("matmul") == 2
    turned = [line for line in listing.splitlines() if "transpose(" in line]
    # The first one is of the rows, once.
    for line, order in zip(turned, ("0, 3, 1, 2", "0, 1, 3, 2", "0, 1, 3, 2"), strict=True):
        assert f"permutation=[{order}]" in line
    built.assert_computes(normal(*shape) * np.float32(0.01), rtol=1e-3, atol=1e-3)
