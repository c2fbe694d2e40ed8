"""Convolutional networks as hardware gets them: with interleaved channels, through tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.adapters import need_halves, need_quick_compiler
from tests.backend.compared import assert_close
from tests.backend.kernel_cases import Case, numbers
from tests.graphs import awaited, build, expected
from webnn_py import MLContext, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels


def _network(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Residuals, concats, normalized inputs, groups, shuffles, poolings between convolutions."""

    def weights(*shape: int) -> MLOperand:
        array = np.asarray(numbers(str(shape), shape, x.data_type)) / np.prod(shape[1:]) ** 0.5
        return b.constant(array.astype(x.data_type))

    y = b.relu(b.conv2d(x, weights(8, 3, 3, 3), bias=weights(8), padding=[1, 1, 1, 1]))
    rest = b.conv2d(y, weights(8, 8, 3, 3), padding=[1, 1, 1, 1])
    y = b.relu(b.add(b.conv2d(rest, weights(8, 8, 1, 1)), y))
    y = b.concat([y, b.conv2d(y, weights(4, 8, 1, 1))], 1)
    y = b.relu(b.add(b.mul(y, weights(12, 1, 1)), weights(12, 1, 1)))
    rows = b.reshape(b.cast(y, "float32"), [y.shape[0], 3, 1, y.size // y.shape[0] // 3])
    rows = b.sub(rows, b.reduce_mean(rows, axes=[2, 3], keep_dimensions=True))
    scale = b.reduce_mean(b.abs(rows), axes=[2, 3], keep_dimensions=True)
    y = b.cast(b.reshape(b.div(rows, scale), y.shape), x.data_type)
    y = b.conv2d(y, weights(16, 12, 1, 1))
    y = b.conv2d(y, weights(16, 4, 1, 1), groups=4)
    batch, channels, *size = y.shape
    parts = b.reshape(y, [batch, 4, channels // 4, *size])
    y = b.reshape(b.transpose(parts, permutation=[0, 2, 1, 3, 4]), y.shape)
    y = b.conv2d(y, weights(16, 1, 3, 3), groups=16, strides=[2, 2])
    y = b.average_pool2d(y, window_dimensions=[2, 2])
    return b.softmax(
        b.matmul(b.reshape(y, [batch, y.size // batch]), weights(y.size // batch, 8)), 1
    )


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_networks(hardware: MLContext, data_type: str) -> None:
    need_quick_compiler(hardware.device)
    if data_type == "float16":
        need_halves(hardware.device)
    inputs: dict[str, Any] = {"x": numbers("x", (2, 3, 9, 8), data_type)}
    case = Case("network", _network, inputs)
    graph = build(hardware, case)
    assert_close(awaited(graph, inputs)["y"], expected(case, inputs)["y"])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_an_image_that_is_its_own_filter(hardware: MLContext, layout: str) -> None:
    def convolved(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        if layout == "nhwc":
            x = b.transpose(x, permutation=[0, 2, 3, 1])
        filters = "oihw" if layout == "nchw" else "ohwi"
        return b.conv2d(x, x, padding=[1] * 4, input_layout=layout, filter_layout=filters)

    inputs: dict[str, Any] = {"x": numbers("x", (3, 8, 4, 5), "float32")}
    case = Case("its own filter", convolved, inputs)
    graph = build(hardware, case)
    assert_close(awaited(graph, inputs)["y"], expected(case, inputs)["y"])
