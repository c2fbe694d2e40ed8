"""Transposed convolutions of many channels, which convolutions compute, for each phase of a stride.

On devices of both kinds, of known sizes and of open ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.compared import assert_close
from tests.graphs import awaited, build, expected, kernels_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand

Build = dict[str, MLOperand]


@pytest.fixture(params=["cpu", "gpu"])
def kind(as_device: Callable[..., MLContext], request: pytest.FixtureRequest) -> MLContext:
    """A device that is taken for either kind."""
    return as_device(kind=request.param)


OPTIONS: dict[str, dict[str, Any]] = {
    "enlarged": {"strides": [2, 2], "padding": [1, 1, 1, 1]},
    "odd": {"strides": [3, 2], "padding": [0, 2, 1, 0], "output_padding": [2, 1]},
    "in groups": {"strides": [2, 1], "groups": 2, "dilations": [1, 2]},
    "cut": {"strides": [2, 2], "padding": [4, 5, 3, 4]},
}


def decoded(b: MLGraphBuilder, data_type: Any, shape: list[Any], **options: Any) -> Build:
    """A layer of a decoder: enlarged, with a bias, rectified."""
    rng = np.random.default_rng(0)
    x = b.input("x", data_type, shape)
    groups = options.get("groups", 1)
    filter_ = rng.normal(size=(16, 12 // groups, 4, 4)).astype(data_type)
    bias = b.constant(rng.normal(size=12).astype(data_type))
    return {"y": b.relu(b.conv_transpose2d(x, b.constant(filter_), bias=bias, **options))}


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_of_known_sizes(kind: MLContext, name: str, data_type: str) -> None:
    def layer(b: MLGraphBuilder) -> Build:
        return decoded(b, data_type, [2, 16, 5, 6], **OPTIONS[name])

    x = np.random.default_rng(1).normal(size=(2, 16, 5, 6)).astype(data_type)
    graph = build(kind, layer)
    assert_close(awaited(graph, {"x": x})["y"], expected(layer, {"x": x})["y"])
    assert not any("conv_transpose2d" in name for name in kernels_of(graph, {"x": x}))


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "cut"])
def test_of_open_sizes(kind: MLContext, name: str) -> None:
    def layer(b: MLGraphBuilder) -> Build:
        return decoded(b, "float32", ["batch", 16, "height", "width"], **OPTIONS[name])

    graph = build(kind, layer)
    for shape in ((1, 16, 5, 6), (3, 16, 7, 4), (2, 16, 5, 6), (1, 16, 9, 9)):
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        assert_close(awaited(graph, {"x": x})["y"], expected(layer, {"x": x})["y"])
