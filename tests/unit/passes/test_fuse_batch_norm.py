"""What is done to each channel of a product goes into its weights."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.graphs import awaited
from tests.unit.passes.listings import (
    Built,
    Record,
    assert_keeps,
    assert_prints,
    nodes,
    operators,
)
from webnn_py import MLContext, MLGraphBuilder, MLOperand

STAGE = "fuse_batch_norm"

IMAGE = (2, 4, 6, 5)


def drawn(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(shape)
    return rng.uniform(low, high, shape).astype(np.float32)


def normalized(b: MLGraphBuilder, y: MLOperand, axis: int = 1, **options: Any) -> MLOperand:
    channels = y.shape[axis]
    mean, variance = b.constant(drawn(channels)), b.constant(drawn(channels, low=0.1, high=2.0))
    parts = {"scale": b.constant(drawn(channels, low=0.5)), "bias": b.constant(drawn(channels))}
    return b.batch_normalization(y, mean, variance, axis=axis, **parts | options)


def assert_folds(body: Record, shape: Sequence[int], *left: str) -> Built:
    """Only these operators are left, and the results are close."""
    built = Built(body, shape)
    assert operators(built.after(STAGE)) == list(left)
    built.assert_computes(drawn(*shape), rtol=2e-6, atol=2e-6)
    return built


def test_batch_normalization_and_what_follows() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.conv2d(x, b.constant(drawn(8, 4, 3, 3)), strides=[2, 1], label="stem")
        y = b.add(b.constant(drawn(8, 1, 1)), normalized(b, y, label="norm"))
        return b.relu(b.div(b.sub(b.constant(2.0, "float32"), y), b.constant(3.0, "float32")))

    built = assert_folds(body, IMAGE, "conv2d", "relu")
    assert_prints(
        built.after(STAGE),
        """
        graph(%x: float32[2,4,6,5]) {
          %c0: float32[8,4,3,3] constant
          %c1: float32[8] constant
          %0: float32[2,8,2,3] = conv2d(%x, %c0, %c1, padding=[0, 0, 0, 0], strides=[2, 1], \
dilations=[1, 1], groups=1, input_layout=nchw, filter_layout=oihw)  "stem"
          %1: float32[2,8,2,3] = relu(%0)
          return y=%1
        }
        """,
    )


def _conv(shape: Sequence[int], **options: Any) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        axis = options.get("input_layout", "nchw").index("c")
        return normalized(b, b.conv2d(x, b.constant(drawn(*shape)), **options), axis)

    return body


def _conv_transpose(shape: Sequence[int], **options: Any) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        axis = options.get("input_layout", "nchw").index("c")
        bias = b.constant(drawn(6))
        made = b.conv_transpose2d(x, b.constant(drawn(*shape)), bias=bias, **options)
        return normalized(b, made, axis)

    return body


@pytest.mark.parametrize(
    "body",
    [
        _conv([6, 2, 3, 3], groups=2),
        _conv([3, 3, 4, 6], filter_layout="hwio", padding=[1, 1, 1, 1]),
        _conv([6, 3, 3, 4], filter_layout="ohwi", dilations=[2, 1]),
        _conv([4, 3, 3, 6], filter_layout="ihwo"),
        _conv([6, 5, 3, 3], input_layout="nhwc"),
        _conv_transpose([4, 6, 3, 3], strides=[2, 2]),
        _conv_transpose([4, 3, 3, 3], groups=2),
        _conv_transpose([3, 3, 3, 4], groups=2, filter_layout="hwoi"),
        _conv_transpose([3, 3, 3, 4], groups=2, filter_layout="ohwi"),
        _conv_transpose([5, 6, 3, 3], input_layout="nhwc"),
    ],
)
def test_layouts_and_groups(body: Record) -> None:
    built = Built(body, IMAGE)
    assert len(nodes(built.after(STAGE))) == 1
    built.assert_computes(drawn(*IMAGE), rtol=2e-6, atol=2e-6)


def _gemm(c: Sequence[int] | None, **options: Any) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        w = b.constant(drawn(5, 3) if options.get("b_transpose") else drawn(3, 5))
        made = b.gemm(x, w, c=None if c is None else b.constant(drawn(*c)), **options)
        return normalized(b, b.mul(made, b.constant(drawn(5))))

    return body


@pytest.mark.parametrize(
    "body",
    [
        _gemm(None),
        _gemm(None, alpha=0.5, beta=0.25),
        _gemm([5], alpha=0.5, beta=0.25, b_transpose=True),
        _gemm([]),
        _gemm([1, 5]),
        _gemm([1, 1], beta=2.0),
        _gemm([5], beta=0.0),
    ],
)
def test_gemm(body: Record) -> None:
    assert_folds(body, [5, 3], "gemm")


def test_matmul_keeps_an_addition() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return normalized(b, b.matmul(x, b.constant(drawn(3, 5)), label="projection"), 2)

    built = assert_folds(body, [2, 4, 3], "matmul", "add")
    assert_prints(
        built.after(STAGE),
        """
        graph(%x: float32[2,4,3]) {
          %c0: float32[3,5] constant
          %c1: float32[5] constant
          %0: float32[2,4,5] = matmul(%x, %c0)  "projection"
          %1: float32[2,4,5] = add(%0, %c1)
          return y=%1
        }
        """,
    )


def test_a_scale_alone_makes_no_bias() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.linear(b.conv2d(x, b.constant(drawn(2, 4, 1, 1))), alpha=0.5)
        return b.mul(y, b.constant(drawn(1, 2, 1, 1)))

    built = assert_folds(body, IMAGE, "conv2d")
    assert "conv2d(%x, %c0, padding" in built.after(STAGE)


def test_a_bias_alone_needs_no_constant_filter() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.add(b.conv2d(x, b.sin(x)), b.constant(drawn(2, 1, 1)))

    assert_folds(body, [2, 2, 3, 3], "sin", "conv2d")


W = drawn(2, 4, 3, 3)


def _plain(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.conv2d(x, b.constant(W))


def _two_uses(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y = _plain(b, x)
    return b.max(normalized(b, y), y)


def _moments_from_outside(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y = _plain(b, x)
    mean = b.reduce_mean(y, axes=[0, 2, 3])
    return normalized(b, _plain(b, x), scale=mean)


def _no_variance(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    none = b.constant(np.zeros(2, np.float32))
    return b.batch_normalization(_plain(b, x), none, none, epsilon=0.0)


def _scaled_twice(factor: float) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        number = b.constant(factor, "float32")
        return b.mul(b.mul(_plain(b, x), number), number)

    return body


def _with_bias_from_outside(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    bias = b.reduce_mean(b.slice(x, [0, 0, 0, 0], [2, 2, 6, 5]), axes=[0, 2, 3])
    return normalized(b, b.conv2d(x, b.constant(W), bias=bias))


NOT_FOLDED: dict[str, Record] = {
    "two uses": _two_uses,
    "moments are no constants": _moments_from_outside,
    "division by zero": _no_variance,
    "bias is no constant": _with_bias_from_outside,
    "another axis": lambda b, x: normalized(b, _plain(b, x), 3),
    "a number for each column": lambda b, x: b.add(_plain(b, x), b.constant(drawn(3))),
    "broadcast to more": lambda b, x: b.add(_plain(b, x), b.constant(drawn(1, 1, 1, 1, 1))),
    "a divisor of the channels": lambda b, x: b.div(b.constant(W[:, :1, :1, :1]), _plain(b, x)),
    "an activation between": lambda b, x: normalized(b, b.relu(_plain(b, x))),
    "too large for float32": _scaled_twice(3e38),
    "too small for float32": _scaled_twice(1e-20),
    "filter is no constant": lambda b, x: normalized(b, b.conv2d(x, b.sin(x))),
    "matmul with a bias": lambda b, x: b.add(
        b.matmul(x, b.constant(drawn(5, 5))), b.constant(DIAG)
    ),
    "matmul scaled by rows": lambda b, x: b.mul(
        b.matmul(x, b.constant(drawn(5, 7))), b.constant(drawn(6, 1))
    ),
}
DIAG = drawn(5)


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_not_folded(name: str) -> None:
    shape = (3, 5, 6, 5) if name == "filter is no constant" else IMAGE
    assert_keeps(STAGE, NOT_FOLDED[name], shape)


def test_a_bias_with_a_number_for_each_row_is_no_bias() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.add(
            b.gemm(x, b.constant(drawn(3, 5)), c=b.constant(drawn(5, 1))), b.constant(DIAG)
        )

    assert_keeps(STAGE, body, [5, 3])


def test_float16_keeps_its_scaled_sums() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        half = b.constant(W.astype(np.float16))
        return b.mul(b.conv2d(x, half), b.constant(0.3, "float16"))

    assert_keeps(STAGE, body, IMAGE, "float16")


def test_an_output_between_is_kept() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        conv = _plain(b, x)
        return {"conv": conv, "y": normalized(b, conv)}

    assert_keeps(STAGE, body, IMAGE)


def test_weights_are_rounded_once() -> None:
    factors = [np.float32(1.1), np.float32(0.7), np.float32(1.3)]

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = _plain(b, x)
        for factor in factors:
            y = b.mul(y, b.constant(factor))
        return y

    single = np.eye(36, dtype=np.float32).reshape(36, 4, 3, 3)
    weights = awaited(Built(body, single.shape).graph, {"x": single})["y"].T.reshape(W.shape)
    exact = W * np.prod(np.array(factors, np.float64))
    np.testing.assert_array_equal(weights, exact.astype(np.float32))


def test_nothing_is_made_for_each_channel_of_a_product_alone(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    a, b = builder.input("a", "float32", [1, 1]), builder.input("b", "float32", [1, 1 << 24])
    product = builder.matmul(a, b)
    tracemalloc.start()
    try:
        builder.build_sync({"y": product})
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
