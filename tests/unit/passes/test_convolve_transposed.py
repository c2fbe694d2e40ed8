"""Transposed convolutions become convolutions, one for each phase of the stride."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.passes.listings import Built, Record, assert_keeps, normal, operators
from webnn_py import MLError, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.usefixtures("gpu")

CHANNELS = 16
STAGE = "convolve_transposed"
ENGINE = "gpu"


def transposed(
    b: MLGraphBuilder, x: MLOperand, taps: tuple[int, int], outs: int = 3, **options: Any
) -> MLOperand:
    """With a filter and a bias at random."""
    rng = np.random.default_rng(0)
    groups = options.get("groups", 1)
    layout = options.get("filter_layout", "iohw")
    sizes = dict(zip("iohw", (CHANNELS, outs, *taps), strict=True))
    filter_ = rng.normal(size=[sizes[letter] for letter in layout]).astype(np.float32)
    bias = rng.normal(size=outs * groups).astype(np.float32)
    return b.conv_transpose2d(x, b.constant(filter_), bias=b.constant(bias), **options)


sizes = st.integers(1, 6)
pairs = st.tuples(st.integers(1, 5), st.integers(1, 5))
few = st.integers(0, 4)


@settings(max_examples=20)
@given(
    size=st.tuples(sizes, sizes),
    taps=pairs,
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(few, few, few, few),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    groups=st.sampled_from([1, 2]),
    layout=st.sampled_from(["nchw", "nhwc"]),
    filter_layout=st.sampled_from(["iohw", "hwoi", "ohwi"]),
)
def test_whatever_the_options(
    size: tuple[int, int],
    taps: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    padding: tuple[int, ...],
    extra: tuple[int, int],
    groups: int,
    layout: str,
    filter_layout: str,
) -> None:
    shape = (2, CHANNELS, *size) if layout == "nchw" else (2, *size, CHANNELS)
    options: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "padding": padding,
        "output_padding": extra,
        "groups": groups,
        "input_layout": layout,
        "filter_layout": filter_layout,
    }
    try:
        built = Built(lambda b, x: transposed(b, x, taps, **options), shape, engine=ENGINE)
    except MLError:  # nothing is left of the output, say
        assume(False)
    dilated = [s > 1 and d > 1 and t > 1 for s, d, t in zip(strides, dilations, taps, strict=True)]
    filled = [-(-t // s) * s for t, s in zip(taps, strides, strict=True)]
    zeros = filled[0] * filled[1] > 4 * taps[0] * taps[1]
    assert ("conv_transpose2d" in operators(built.after(STAGE))) == (any(dilated) or zeros)
    built.assert_computes(normal(*built.shape), rtol=1e-4, atol=1e-4)


def test_the_phases_are_one_convolution() -> None:
    built = Built(
        lambda b, x: transposed(b, x, (4, 4), strides=[2, 2], padding=[1, 1, 1, 1]),
        (1, CHANNELS, 5, 6),
        engine=ENGINE,
    )
    assert operators(built.after(STAGE)) == ["conv2d", "reshape", "transpose", "reshape", "slice"]
    assert "%0: float32[1,12,6,7] = conv2d(" in built.after(STAGE)
    built.assert_computes(normal(*built.shape), rtol=1e-4, atol=1e-4)


def test_without_a_stride_the_filter_is_turned_alone() -> None:
    body = lambda b, x: transposed(b, x, (3, 3), padding=[1] * 4)  # noqa: E731
    built = Built(body, (1, CHANNELS, 5, 6), engine=ENGINE)
    assert operators(built.after(STAGE)) == ["conv2d"]


@pytest.mark.parametrize("sizes", list(itertools.product([9, 10], [11, 12])))
def test_sizes_that_are_given(sizes: tuple[int, int]) -> None:
    built = Built(
        lambda b, x: transposed(b, x, (3, 3), strides=[2, 2], padding=[1] * 4, output_sizes=sizes),
        (1, CHANNELS, 5, 6),
        engine=ENGINE,
    )
    assert "conv_transpose2d" not in operators(built.after(STAGE))
    built.assert_computes(normal(*built.shape), rtol=1e-4, atol=1e-4)


def test_a_bias_that_is_computed() -> None:
    def build(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        filter_ = b.constant(np.ones((CHANNELS, 3, 2, 2), np.float32))
        bias = b.reduce_sum(b.slice(x, [0] * 4, [1, 6, 1, 1]), axes=[0, 2, 3])
        return b.conv_transpose2d(x, filter_, bias=bias, strides=[2, 2], groups=2)

    built = Built(build, (1, CHANNELS, 5, 6), engine=ENGINE)
    assert "conv_transpose2d" not in operators(built.after(STAGE))
    built.assert_computes(normal(*built.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: transposed(b, x, (4, 4), strides=[2, 2], groups=4),
        lambda b, x: b.conv_transpose2d(x, b.relu(b.reshape(x, [CHANNELS, 1, 5, 6]))),
    ],
)
def test_few_channels_and_filters_that_are_computed_stay(body: Record) -> None:
    assert_keeps(STAGE, body, (1, CHANNELS, 5, 6), engine=ENGINE)
