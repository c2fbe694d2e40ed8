"""Cases of matrix products and convolutions, see `kernel_cases`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.backend.kernel_cases import ALL, GPU, TUNED, Case, numbers
from webnn_py import MLGraphBuilder, MLOperand

BOTH = ("gpu", "cpu")
LAYOUTS = list(itertools.product(("nchw", "nhwc"), ("oihw", "hwio", "ohwi", "ihwo")))


def _product(
    builder: MLGraphBuilder, a: MLOperand, b: MLOperand, turn_a: bool = False, turn_b: bool = False
) -> MLOperand:
    left = builder.transpose(a) if turn_a else a
    return builder.matmul(left, builder.transpose(b) if turn_b else b)


def products() -> Iterator[Case]:
    """Matrices as they lie, transposed, broadcast, computed while they are read, with epilogues."""
    sizes = ((2, 40, 70), (3, 36, 68), (40, 3, 70), (20, 24, 33), (36, 12, 68), (3, 5, 6))
    for m, n, k in sizes:
        for turns in itertools.product((False, True), repeat=2):
            a, b = numbers("a", (m, k)), numbers("b", (k, n))
            yield Case(
                f"matmul {m}x{n}x{k} {turns}",
                functools.partial(_product, turn_a=turns[0], turn_b=turns[1]),
                {
                    "a": np.ascontiguousarray(a.T) if turns[0] else a,
                    "b": np.ascontiguousarray(b.T) if turns[1] else b,
                },
                (*TUNED, *(ALL if turns == (False, False) else BOTH)),
            )
    for data_type in ("float16", "float32"):
        operands = {
            "a": numbers("a", (20, 64), data_type),
            "b": numbers("b", (64, 16), data_type),
        }
        settings = ("gpu", "gpu, plain", "gpu, small", "gpu, in parts", "cpu")
        yield Case(f"relu {data_type}", lambda g, a, b: g.relu(g.matmul(a, b)), operands, settings)
        yield Case(
            f"matmul of computed {data_type}",
            lambda g, a, b: g.matmul(g.add(a, a), g.abs(b)),
            operands,
            settings,
        )
    for m, n in ((20, 16), (37, 70), (130, 68), (9, 3)):
        yield Case(
            f"gelu {m}x{n}",
            lambda g, a, b: g.gelu(g.matmul(a, b)),
            {"a": numbers("a", (m, 64)), "b": numbers("b", (64, n))},
            ("gpu", "gpu, plain", "gpu, small", "cpu"),
        )
    for data_type in ("float32", "float16"):
        shapes = {"a": (24, 96), "b": (96, 32), "c": (96, 20)}
        yield Case(
            f"matmul beside another {data_type}",
            lambda g, a, b, c: g.concat([g.matmul(a, b), g.matmul(a, c)], 1),
            {name: numbers(name, shape, data_type) for name, shape in shapes.items()},
            GPU,
        )
    yield Case(
        "matmul and wide integers",
        lambda g, a, b, c: g.add(g.matmul(a, b), g.cast(c, "float32")),
        {
            "a": numbers("a", (36, 20)),
            "b": numbers("b", (20, 16)),
            "c": numbers("c", (36, 16), "int64"),
        },
        ("gpu",),
    )
    row = {"a": numbers("a", (1, 70)), "b": numbers("b", (70, 2052))}
    yield Case("matmul of a row by many columns", _product, row, GPU)
    yield Case(
        "matmul of odd halves",
        _product,
        {"a": numbers("a", (20, 33), "float16"), "b": numbers("b", (33, 15), "float16")},
        ("gpu", "cpu"),
    )
    for batch in ((), (3,)):
        halves = {
            "a": numbers("a", (*batch, 20, 72), "float16"),
            "b": numbers("b", (*batch, 28, 72), "float16"),
        }
        yield Case(
            f"matmul of eight halves at once {batch}",
            lambda g, a, b: g.matmul(
                a, g.transpose(b, permutation=[*range(b.rank - 2), b.rank - 1, b.rank - 2])
            ),
            halves,
            ("gpu", "gpu, folded", "gpu, small", "cpu"),
        )
    yield Case(
        "matmul of batches",
        _product,
        {"a": numbers("a", (2, 1, 9, 8)), "b": numbers("b", (3, 8, 7))},
    )
    # Rows of batches by one matrix: of another rank, apart in memory, read through a view.
    yield Case(
        "matmul of batches by a matrix of higher rank",
        _product,
        {"a": numbers("a", (3, 9, 8)), "b": numbers("b", (1, 1, 8, 7))},
    )
    yield Case(
        "matmul of turned batches",
        lambda g, a, b: g.matmul(g.transpose(a, permutation=[1, 0, 2]), b),
        {"a": numbers("a", (5, 3, 8)), "b": numbers("b", (8, 7))},
    )
    for data_type, run in (("float32", 12), ("float16", 16), ("float16", 6)):
        yield Case(
            f"matmul of heads beside each other {data_type} {run}",
            lambda g, a, b: g.matmul(
                g.reshape(g.transpose(a, permutation=[1, 0, 2]), [10, b.shape[0]]), b
            ),
            {
                "a": numbers("a", (6, 10, run), data_type),
                "b": numbers("b", (6 * run, 20), data_type),
            },
            ("gpu", "gpu, folded", "gpu, small", "gpu, in parts", "cpu"),
        )
    yield Case(
        "matmul of reversed batches",
        lambda g, a, b: g.matmul(g.reverse(a), b),
        {"a": numbers("a", (3, 5, 8)), "b": numbers("b", (8, 7))},
    )
    yield Case(
        "matmul of many",
        _product,
        {"a": numbers("a", (200, 20, 70)), "b": numbers("b", (70, 20))},
        GPU,
    )
    # Products that take several workgroups along each dimension of the grid.
    for batch, m, n, k in ((1, 2, 600, 70), (900, 3, 5, 6), (1, 120, 64, 8), (1, 16, 16, 1024)):
        yield Case(
            f"matmul {batch}x{m}x{n}x{k}",
            _product,
            {"a": numbers("a", (batch, m, k)), "b": numbers("b", (k, n))},
        )
    for rows in (3, 20):  # what is read past a ragged end must not meet infinity: 0 * inf is NaN
        ones = np.ones((rows, 70), np.float32), np.ones((70, 20), np.float32)
        ones[0][1, -1] = ones[1][-1, 2] = np.inf
        settings = (*BOTH, *TUNED)
        yield Case(
            f"matmul of {rows} with infinity",
            _product,
            dict(zip("ab", ones, strict=True)),
            settings,
        )
    many = numbers("many", (70_000, 2, 2))
    yield Case("matmul of many small", _product, {"a": many, "b": many[::-1].copy()}, BOTH)
    # Added up in float16, a sum would stop to grow.
    long = np.random.default_rng(1).uniform(0.25, 0.5, (16, 8192)).astype(np.float16)
    halves = {"a": long, "b": np.ascontiguousarray(long.T)}
    yield Case("matmul of long halves", _product, halves, ("gpu", "gpu, tuned"))
    yield Case(
        "matmul in small workgroups",
        _product,
        {"a": numbers("a", (2, 70)), "b": numbers("b", (70, 40))},
        ("gpu, small",),
    )
    yield Case(
        "matmul in parts",
        _product,
        {"a": numbers("a", (8, 40)), "b": numbers("b", (40, 40))},
        ("gpu, in parts",),
    )
    yield Case(
        "matmul with a row",
        lambda g, a: g.matmul(a, g.expand(g.constant(2.0, "float32"), [64, 20])),
        {"a": numbers("a", (20, 64))},
        BOTH,
    )
    yield Case(
        "matmul of a reverse that is transposed",
        lambda g, a, b: g.matmul(g.transpose(g.reverse(a, axes=[0])), b),
        {"a": numbers("a", (64, 20)), "b": numbers("b", (64, 16))},
        BOTH,
    )
    for first, width in ((4, 80), (3, 80), (4, 81)):
        yield Case(
            f"matmul of a slice from {first} of {width}",
            lambda g, a, b, first=first: g.matmul(g.slice(a, [0, first], [20, 64]), b),
            {"a": numbers("a", (20, width)), "b": numbers("b", (64, 16))},
            BOTH,
        )
    yield Case(
        "matmul of a cast with a scalar",
        lambda g, a: g.matmul(g.cast(a, "float32"), g.constant(np.full((1, 1), 3, np.float32))),
        {"a": numbers("a", (20, 1), "int32")},
        BOTH,
    )
    yield Case(
        "matmul of a transpose in another shape",
        lambda g, a, b: g.matmul(g.reshape(g.transpose(a), [32, 40]), b),
        {"a": numbers("a", (20, 64)), "b": numbers("b", (40, 16))},
        BOTH,
    )
    yield Case(
        "matmul of a slice of a transpose",
        lambda g, a, b: g.matmul(g.slice(g.transpose(a), [4, 0], [32, 20]), b),
        {"a": numbers("a", (20, 64)), "b": numbers("b", (20, 16))},
        BOTH,
    )
    yield Case(
        "matmul of a reverse",
        lambda g, a, b: g.matmul(g.reverse(a, axes=[0]), g.reshape(b, [64, 16])),
        {"a": numbers("a", (20, 64)), "b": numbers("b", (16, 64))},
        BOTH,
    )


def _by_packed(
    g: MLGraphBuilder, a: MLOperand, codes: MLOperand, scale: MLOperand, zero: MLOperand
) -> MLOperand:
    """By weights [columns, blocks, block], or [rows, columns]."""
    weights = g.dequantize_linear(codes, scale, zero)
    if codes.rank == 3:
        columns, *deep = codes.shape
        weights = g.transpose(g.reshape(weights, [columns, deep[0] * deep[1]]))
    return g.matmul(a, weights)


def by_packed_weights() -> Iterator[Case]:
    """Rows by weights of 8 bits, which products of few rows unpack as they read them."""
    for data_type, rows, codes, blocks, made in (
        ("int8", (1, 1, 96), (36, 3, 32), (36, 3, 1), "float32"),
        ("uint8", (5, 96), (36, 3, 32), (36, 3, 1), "float32"),
        ("uint8", (2, 96), (36, 3, 32), (36, 3, 1), "float16"),
        ("int8", (9, 96), (36, 3, 32), (36, 3, 1), "float32"),
        ("int8", (1, 90), (90, 36), (1, 36), "float32"),
        ("uint8", (3, 96), (96, 33), (48, 1), "float32"),
        ("int8", (2, 96), (96, 36), (1, 1), "float16"),
    ):
        yield Case(
            f"matmul by packed {data_type} {rows} {codes} {blocks} {made}",
            _by_packed,
            {
                "a": numbers("a", rows, made),
                "codes": numbers("codes", codes, data_type),
                "scale": numbers("scale", blocks, made) + np.ones(1, made),
                "zero": numbers("zero", blocks, data_type),
            },
            ("gpu", "gpu, plain", "gpu, small", "gpu, in parts", *TUNED, "cpu"),
        )


def _multiplied(
    g: MLGraphBuilder, x: MLOperand, block_size: int = 32, **weights: MLOperand
) -> MLOperand:
    made = g.matmul_packed(x, block_size=block_size, **weights)
    return g.relu(made)


def by_weights_that_stay_packed() -> Iterator[Case]:
    """Few rows and many by codes of 4 and 8 bits; shared memory holds them at once or in parts."""
    settings = ("gpu", "gpu, plain", "gpu, small", "gpu, in parts", *TUNED)
    for rows, data_type, deep, columns, two, zeros in (
        ((1, 64), "float32", 64, 120, True, True),
        ((3, 1, 256), "float16", 256, 33, True, False),
        ((2, 256), "float32", 256, 28, False, True),
        ((8, 1024), "float32", 1024, 8, True, False),
        ((40, 96), "float32", 96, 36, True, True),
        ((2, 20, 96), "float16", 96, 36, True, True),
        ((40, 96), "float16", 96, 35, False, True),
    ):
        blocks = deep // 32
        weights = {
            "codes": numbers("codes", (columns, blocks, 16 if two else 32), "uint8", 255),
            "scales": numbers("scales", (columns, blocks), data_type) / 4,
        }
        if zeros:
            width = -(-blocks // 2) if two else blocks
            weights["zero_points"] = numbers("zeros", (columns, width), "uint8", 255)
        yield Case(
            f"matmul of {rows} {data_type} by {4 if two else 8} bits {columns}",
            _multiplied,
            {"x": numbers("x", rows, data_type)},
            (*settings, "gpu, folded") if len(rows) == 2 else settings,
            {name: array.astype(array.dtype) for name, array in weights.items()},
        )

    def beside(
        g: MLGraphBuilder, x: MLOperand, y: MLOperand, codes: MLOperand, scales: MLOperand
    ) -> MLOperand:
        """The rows lie in a buffer with others."""
        rows = g.neg(x)
        joined = g.concat([rows, y], 1)
        squares = g.matmul(joined, g.transpose(joined, permutation=[0, 2, 1]))
        return g.add(g.matmul_packed(rows, codes, scales), g.reduce_max(squares))

    yield Case(
        "matmul of rows beside others by packed weights",
        beside,
        {"x": numbers("x", (2, 20, 64)), "y": numbers("y", (2, 5, 64))},
        ("gpu",),
        {
            "codes": numbers("codes", (36, 64), "int8", 100),
            "scales": numbers("scales", (36, 2)) / 4,
        },
    )


def _convolution(
    name: str,
    data: tuple[int, int, int, int],
    filter_: tuple[int, int, int, int],
    settings: Any = BOTH,
    data_type: str = "float32",
    bias: bool = True,
    **options: Any,
) -> Case:
    """A convolution of an NCHW shape with an OIHW filter, laid out as the options say."""
    layout = options.get("input_layout", "nchw")
    filter_layout = options.get("filter_layout", "oihw")
    inputs = {
        "x": _laid_out(numbers("x", data, data_type), "nchw", layout),
        "w": _laid_out(numbers("w", filter_, data_type), "oihw", filter_layout),
    }
    if bias:
        inputs["bias"] = numbers("bias", (filter_[0],), data_type)

    def apply(
        g: MLGraphBuilder, x: MLOperand, w: MLOperand, bias: MLOperand | None = None
    ) -> MLOperand:
        return g.relu(g.conv2d(x, w, bias=bias, **options))

    return Case(f"conv2d {name}", apply, inputs, settings)


def _laid_out(array: Any, layout: str, wanted: str) -> Any:
    return np.ascontiguousarray(np.transpose(array, [layout.index(x) for x in wanted]))


def convolutions() -> Iterator[Case]:
    """In every layout, with groups, of one row or column, with windows that step and hang over."""
    odd: dict[str, Any] = {"strides": [2, 1], "padding": [1, 0, 2, 1], "dilations": [1, 2]}
    for layout, filter_layout in LAYOUTS:
        how: dict[str, Any] = {"input_layout": layout, "filter_layout": filter_layout}
        yield _convolution(f"{layout} {filter_layout}", (2, 3, 9, 7), (8, 3, 3, 2), **odd, **how)
    for filter_layout, channels in (("hwio", 128), ("ohwi", 64), ("hwio", 32)):
        how = {"filter_layout": filter_layout, "padding": [1, 0, 2, 1]}
        sizes = (1, channels, 6, 7), (12, channels, 3, 2)
        yield _convolution(f"runs of {channels} {filter_layout}", *sizes, (*TUNED, *ALL), **how)
    for filter_layout, data_type in (("hwio", "float16"), ("ohwi", "float32")):
        how = {"input_layout": "nhwc", "filter_layout": filter_layout, "padding": [1, 0, 2, 1]}
        sizes = (2, 8, 6, 7), (12, 4, 3, 2)
        yield _convolution(
            f"channels {filter_layout}", *sizes, groups=2, **how, data_type=data_type
        )
    how = {"input_layout": "nhwc", "filter_layout": "ohwi", "data_type": "float16"}
    eight = ("gpu", "gpu, folded", "gpu, small", "gpu, plain")
    yield _convolution(
        "eight channels", (2, 16, 6, 7), (12, 8, 3, 2), eight, groups=2, padding=[1, 0, 2, 1], **how
    )
    yield _convolution("eight channels of a point", (2, 24, 5, 7), (20, 24, 1, 1), eight, **how)
    yield _convolution("eight divided", (1, 128, 3, 4), (12, 128, 3, 3), eight, **how)
    for layout in ("nchw", "nhwc"):
        how = {"input_layout": layout}
        yield _convolution(f"groups {layout}", (3, 6, 9, 8), (8, 3, 3, 3), ALL, groups=2, **how)
        yield _convolution(f"depthwise {layout}", (1, 6, 9, 8), (6, 1, 3, 3), groups=6, **how)
        yield _convolution(f"points {layout}", (2, 8, 6, 6), (12, 8, 1, 1), **how)
        yield _convolution(f"column {layout}", (1, 3, 20, 1), (5, 3, 3, 1), ALL, **how)
        yield _convolution(f"row {layout}", (1, 3, 1, 20), (5, 3, 1, 3), **how)
        yield _convolution(
            f"padded column {layout}", (1, 4, 12, 1), (4, 4, 3, 3), padding=[1, 1, 1, 1], **how
        )
        yield _convolution(f"of two columns {layout}", (9, 3, 4, 4), (4, 3, 3, 3), **how)
        dilated: dict[str, Any] = {"padding": [1, 2, 2, 1], "dilations": [2, 3], **how}
        yield _convolution(f"dilated {layout}", (2, 4, 9, 8), (4, 2, 2, 3), groups=2, **dilated)
    yield _convolution("points of groups", (2, 8, 6, 6), (8, 4, 1, 1), bias=False, groups=2)
    yield _convolution("points that step", (1, 4, 8, 8), (8, 4, 1, 1), strides=[2, 2])
    yield _convolution(
        "halves", (1, 4, 8, 8), (8, 4, 3, 3), ("gpu", "gpu, plain", "cpu"), "float16"
    )
    yield _convolution("wide halves", (1, 4, 1, 40), (8, 4, 1, 20), ("gpu", "cpu"), "float16")
    yield _convolution("half points", (1, 4, 8, 8), (8, 4, 1, 1), data_type="float16")
    for side in (1, 3):
        sizes = (1, 8, 16, 16), (4, 8, side, side)
        yield _convolution(f"in parts {side}", *sizes, ("gpu, in parts",))
    yield _convolution("many", (2, 3, 40, 40), (40, 3, 3, 3), GPU, padding=[1, 1, 1, 1])
    yield _convolution("large", (1, 2, 64, 64), (8, 2, 1, 1), ALL)
    yield _convolution("of seven points", (1, 4, 7, 7), (8, 4, 1, 1))
    yield _convolution("far apart", (1, 4, 3, 3), (4, 4, 1, 1), ("cpu",), strides=[1, 2**30])
    yield _convolution("a row of taps", (1, 1, 1, 20), (4, 1, 1, 17), BOTH)
    yield _convolution("a long row of taps", (1, 1, 1, 70_004), (4, 1, 1, 70_001), ("cpu",))
    for layout, width, data_type in (("nchw", 4, "float32"), ("nchw", 5, "float16")):
        sizes = (1, 128, 3, width), (12, 128, 3, 3)
        how = {"input_layout": layout, "data_type": data_type, "padding": [1, 1, 1, 1]}
        yield _convolution(f"divided {layout} {width}", *sizes, ("gpu", "gpu, small"), **how)
    how = {"input_layout": "nhwc", "padding": [1, 1, 1, 1]}
    yield _convolution("divided nhwc", (1, 128, 3, 4), (12, 128, 3, 3), GPU, **how)
    yield _convolution(
        "divided in parts", (1, 128, 5, 6), (9, 128, 3, 3), ("gpu, in parts",), bias=False
    )
    yield Case(
        "conv2d of halves of views",
        lambda g, x, w: g.conv2d(g.reverse(x), g.reverse(w)),
        {"x": numbers("x", (1, 4, 8, 8), "float16"), "w": numbers("w", (8, 4, 1, 1), "float16")},
        ("gpu",),
    )
    yield Case(
        "conv2d of views, channels last",
        lambda g, x, w: g.conv2d(g.reverse(x), w, input_layout="nhwc", filter_layout="hwio"),
        {"x": numbers("x", (1, 4, 4, 8)), "w": numbers("w", (2, 1, 8, 12))},
        ("gpu",),
    )
    yield Case(
        "conv2d of views",
        lambda g, x, w: g.conv2d(g.reverse(x), g.reverse(w)),
        {"x": numbers("x", (1, 4, 8, 8)), "w": numbers("w", (8, 4, 1, 1))},
        BOTH,
    )
    yield Case(
        "conv_transpose2d of an even filter",
        lambda g, x, w: g.conv_transpose2d(x, w, padding=[1, 1, 1, 1], strides=[2, 2]),
        {"x": numbers("x", (1, 3, 5, 6)), "w": numbers("w", (3, 2, 4, 4))},
        BOTH,
    )
    yield Case(
        "conv_transpose2d",
        lambda g, x, w: g.conv_transpose2d(
            x, w, padding=[1, 0, 2, 1], strides=[2, 2], dilations=[1, 2], groups=2
        ),
        {"x": numbers("x", (1, 4, 5, 5)), "w": numbers("w", (4, 3, 3, 2))},
        BOTH,
    )


def _computed(
    builder: MLGraphBuilder, x: MLOperand, scale: MLOperand, w: MLOperand, **inputs: MLOperand
) -> MLOperand:
    """A convolution of what lies in a concat, scaled and rectified."""
    pooled = builder.max_pool2d(x, window_dimensions=[1, 2], strides=[1, 2])
    joined = builder.concat([pooled, *inputs.values()], axis=3)
    image = pooled if inputs else joined
    data = builder.relu(builder.add(builder.mul(image, scale), image))
    return builder.concat([builder.conv2d(data, w), *(joined,) * bool(inputs)], axis=3)


def _computed_last(
    builder: MLGraphBuilder, x: MLOperand, scale: MLOperand, w: MLOperand
) -> MLOperand:
    """The same of channels that lie side by side."""
    data = builder.relu(builder.mul(x, scale))
    return builder.conv2d(data, w, input_layout="nhwc", filter_layout="hwio")


def add_prologue() -> Iterator[Case]:
    """Inputs computed where they are loaded: four at a time, or one by one where they lie apart."""
    last = {"x": numbers("x", (2, 4, 5, 8)), "scale": numbers("s", (8,))}
    yield Case("computed last", _computed_last, last | {"w": numbers("w", (1, 1, 8, 12))}, GPU)
    for outs, data_type in itertools.product((12, 40), ("float32", "float16")):
        scale, weights = (
            numbers("s", (8, 1, 1), data_type),
            numbers("w", (outs, 8, 1, 1), data_type),
        )
        inputs = {"x": numbers("x", (2, 8, 4, 16), data_type), "scale": scale, "w": weights}
        yield Case(f"{outs} computed {data_type}", _computed, inputs, GPU)
    square = numbers("w", (8, 8, 1, 1)), numbers("s", (8, 1, 1))
    apart = {"x": numbers("x", (1, 8, 4, 16)), "scale": square[1], "w": square[0]}
    yield Case("computed apart", _computed, apart | {"z": numbers("z", (1, 8, 4, 1))}, GPU)


def _normalized(
    builder: MLGraphBuilder, a: MLOperand, b: MLOperand, c: MLOperand, r: MLOperand
) -> MLOperand:
    """Rows behind a product, as transformers have them."""
    return builder.layer_normalization(
        builder.add(builder.add(builder.matmul(a, b), c), r), axes=[1]
    )


def _beside_its_rest(builder: MLGraphBuilder, **operands: MLOperand) -> MLOperand:
    """In one buffer with what the product's rows read."""
    rest = builder.relu(operands["r"])
    return builder.concat([rest, _normalized(builder, **(operands | {"r": rest}))], 0)


def rows_of_products() -> Iterator[Case]:
    """Rows of products that are divided, and what lies in fours behind products."""
    settings = ("gpu", "gpu, plain", "gpu, small", "gpu, tuned")
    for data_type, columns in itertools.product(("float32", "float16"), (256, 70)):
        shapes = {"a": (20, 256), "b": (256, columns), "c": (columns,), "r": (20, columns)}
        inputs = {name: numbers(name, shape, data_type) for name, shape in shapes.items()}
        folded = GPU[1:] * (data_type == "float32")  # unpacked, halves would take more
        yield Case(f"rows of {columns} {data_type}", _normalized, inputs, (*settings, *folded))
    wide = {"a": (20, 256), "b": (256, 256), "c": (256,), "r": (20, 256)}
    inputs = {name: numbers(name, shape) for name, shape in wide.items()}
    yield Case("rows beside their rest", _beside_its_rest, inputs, GPU)
    yield Case(
        "matmul and what it adds turned",
        lambda g, a, b, c: g.add(g.matmul(a, b), g.add(g.transpose(c), c)),
        {"a": numbers("a", (16, 64)), "b": numbers("b", (64, 16)), "c": numbers("c", (16, 16))},
        GPU,
    )
    square = {"a": (16, 64), "b": (64, 16), "c": (16, 16)}
    yield Case(
        "matmul and what it adds in two shapes",
        lambda g, a, b, c: g.reshape(
            g.add(g.reshape(g.add(g.matmul(a, b), c), [1, 16, 4, 4]), g.reshape(c, [16, 4, 4])),
            [4, 64],
        ),
        {name: numbers(name, shape) for name, shape in square.items()},
        GPU,
    )


def _of_normal_rows(g: MLGraphBuilder, x: MLOperand, w: MLOperand) -> MLOperand:
    return g.relu(g.matmul(g.layer_normalization(x, axes=[x.rank - 1]), w))


def _of_normal_rows_along_depth(g: MLGraphBuilder, x: MLOperand, w: MLOperand) -> MLOperand:
    return _of_normal_rows(g, x, g.transpose(w))


def _of_normal_rows_packed(g: MLGraphBuilder, x: MLOperand, **weights: MLOperand) -> MLOperand:
    return _multiplied(g, g.layer_normalization(x, axes=[x.rank - 1]), **weights)


def rows_before_products() -> Iterator[Case]:
    """A row that a product computes before its loop."""
    settings = ("gpu", "gpu, plain", "gpu, small", *TUNED)
    for rows, columns in (((1, 256), 36), ((1, 1, 512), 5)):
        x, depth = numbers("x", rows), rows[-1]
        w = numbers("w", (depth, columns))
        yield Case(f"{rows} normal by {columns}", _of_normal_rows, {"x": x, "w": w}, settings)
        turned = {"x": x, "w": numbers("w", (columns, depth))}
        name = f"{rows} normal by {columns} turned"
        yield Case(name, _of_normal_rows_along_depth, turned, settings)
        weights = {
            "codes": numbers("codes", (columns, depth // 32, 16), "uint8", 255),
            "scales": numbers("scales", (columns, depth // 32)) / 4,
        }
        name = f"{rows} normal by {columns} packed"
        yield Case(name, _of_normal_rows_packed, {"x": x}, settings, weights)


CASES = [
    *products(),
    *by_packed_weights(),
    *by_weights_that_stay_packed(),
    *convolutions(),
    *add_prologue(),
    *rows_of_products(),
    *rows_before_products(),
]
