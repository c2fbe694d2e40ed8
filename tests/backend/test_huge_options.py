"""Options as large as they can be: computed, or refused by the builder with a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.compared import Array, applied, assert_like_reference, compute
from webnn_py import MLContext, MLGraphBuilder, MLOperand, ValidationError

MOST = 2**32 - 1
FAR = 10**9
SMALL = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
ONE, TWO, THREE = (np.ones((1, 1, n, n), np.float32) for n in (1, 2, 3))
POOLS = ("average_pool2d", "l2_pool2d", "max_pool2d")

CONVOLUTIONS: dict[str, tuple[str, Array, dict[str, Any]]] = {
    "one window": ("conv2d", THREE, {"strides": [MOST, MOST]}),
    "one row": ("conv2d", THREE, {"strides": [MOST, 1], "padding": [1, 1, 1, 1]}),
    "one tap": ("conv2d", ONE, {"dilations": [MOST, MOST]}),
    "far windows": ("conv2d", THREE, {"strides": [FAR, FAR], "padding": [FAR, 3, FAR, 3]}),
    "far taps": ("conv2d", TWO, {"dilations": [FAR, FAR], "padding": [FAR, 0, 0, FAR]}),
    "much padding": ("conv2d", TWO, {"strides": [1000, 1000], "padding": [100_000] * 4}),
    "transposed, one tap": ("conv_transpose2d", ONE, {"dilations": [MOST, MOST]}),
    "transposed, far taps": (
        "conv_transpose2d",
        TWO,
        {"dilations": [FAR, FAR], "padding": [FAR, 0, 1, FAR]},
    ),
    "transposed, far windows": (
        "conv_transpose2d",
        TWO,
        {"strides": [10**8, 10**8], "padding": [10**8, 2 * 10**8 - 5, 10**8 - 2, 2 * 10**8]},
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(gpu: MLContext, reference: MLContext, name: str) -> None:
    operator, filter_, options = CONVOLUTIONS[name]
    call = applied(operator, {"input": SMALL, "filter": filter_}, **options)
    assert_like_reference(gpu, reference, call)


def test_a_transposed_convolution_of_one_element(gpu: MLContext, reference: MLContext) -> None:
    operands = {"input": SMALL[:, :, :1, :1], "filter": THREE}
    call = applied("conv_transpose2d", operands, strides=[MOST, MOST], output_padding=[2, 0])
    assert_like_reference(gpu, reference, call)


WINDOWS: dict[str, dict[str, Any]] = {
    "one window": {"window_dimensions": [2, 2], "strides": [MOST, MOST]},
    "far windows": {
        "window_dimensions": [2, 2],
        "strides": [FAR, FAR],
        "padding": [FAR, 1, 0, FAR],
    },
    "far taps": {
        "window_dimensions": [2, 2],
        "dilations": [FAR, FAR],
        "padding": [FAR, 0, 0, FAR],
    },
    "large windows": {"window_dimensions": [2_000_000] * 2, "padding": [1_000_000] * 4},
    "very large windows": {"window_dimensions": [2 * FAR, FAR], "padding": [FAR, FAR, 0, FAR]},
    "nothing but padding": {
        "window_dimensions": [2, 3],
        "strides": [50, 60],
        "padding": [100, 100, 100, 100],
    },
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("operator", POOLS)
def test_pools(gpu: MLContext, reference: MLContext, operator: str, name: str) -> None:
    assert_like_reference(gpu, reference, applied(operator, {"input": SMALL}, **WINDOWS[name]))


def test_a_window_that_covers_all_is_what_one_sees_in_it(reference: MLContext) -> None:
    options = {"window_dimensions": [2_000_000, 7], "padding": [1_000_000, 999_996, 3, 0]}
    (got,) = compute(reference, applied("average_pool2d", {"input": SMALL}, **options))
    np.testing.assert_allclose(got, np.full((1, 1, 1, 1), SMALL.mean()))


Make = Callable[[MLGraphBuilder, MLOperand], MLOperand]
REFUSED: dict[str, Make] = {
    "padding": lambda b, x: b.conv2d(
        x, b.constant(THREE), padding=[MOST] * 4, strides=[MOST, MOST]
    ),
    "dilations": lambda b, x: b.conv2d(
        x, b.constant(TWO), padding=[MOST] * 4, dilations=[MOST, MOST]
    ),
    "pool": lambda b, x: b.max_pool2d(x, window_dimensions=[MOST, 1], padding=[2**31, 2**31, 0, 0]),
    "overhang": lambda b, x: b.max_pool2d(
        x, window_dimensions=[2, 2], strides=[MOST, 1], output_shape_rounding="ceil"
    ),
    "transposed": lambda b, x: b.conv_transpose2d(
        x, b.constant(TWO), strides=[FAR, FAR], padding=[FAR] * 4
    ),
    "output padding": lambda b, x: b.conv_transpose2d(
        b.slice(x, [0, 0, 0, 0], [1, 1, 1, 1]),
        b.constant(ONE),
        strides=[MOST, 1],
        output_padding=[2**31, 0],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_windows_that_reach_too_far_are_refused(context: MLContext, name: str) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", SMALL.shape)
    with pytest.raises(ValidationError, match=r"elements along one dimension, padding .* included"):
        REFUSED[name](builder, x)


OTHERS: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    "slice": (
        "slice",
        {"input": SMALL},
        {"starts": [0, 0, 1, 0], "sizes": [1, 1, 3, 4], "strides": [MOST, MOST, MOST, 3]},
    ),
    "triangular": ("triangular", {"input": SMALL}, {"diagonal": 2**31 - 1}),
    "triangular down": ("triangular", {"input": SMALL}, {"diagonal": -(2**31), "upper": False}),
    "gather": (
        "gather",
        {"input": SMALL, "indices": np.array([MOST, 0, 2**31], np.uint32)},
        {"axis": 3},
    ),
    "pad": (
        "pad",
        {"input": SMALL[0, 0, 0]},
        {"beginning_padding": [100_000], "ending_padding": [70_000], "mode": "edge"},
    ),
    "tile": ("tile", {"input": SMALL[0, 0, 0]}, {"repetitions": [70_000]}),
    "resample": ("resample2d", {"input": SMALL}, {"sizes": [1, 70_000], "mode": "linear"}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_options(gpu: MLContext, reference: MLContext, name: str) -> None:
    operator, operands, options = OTHERS[name]
    assert_like_reference(gpu, reference, applied(operator, operands, **options), integers=1)
