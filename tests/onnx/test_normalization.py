"""Normalizations of numbers that lie far from 0: a variance is that of differences to the mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx.models import model
from webnn_py import DataError, MLAwaitedExecution, MLContext
from webnn_py.onnx import load

SHAPE = [2, 6, 8, 5]
ONES, ZEROS = np.ones(6, np.float32), np.zeros(6, np.float32)
OWN = {"domain": "com.microsoft"}


def normal(x: Any, *axes: int) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def by_groups(x: Any) -> Any:
    return normal(x.reshape(2, 2, -1), 2).reshape(x.shape)


Case = tuple[Any, dict[str, Any], int, Callable[[Any], Any]]
node = helper.make_node
CASES: dict[str, Case] = {
    "group": (
        node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2),
        {"s": ONES, "b": ZEROS},
        21,
        by_groups,
    ),
    "group, before opset 21": (
        node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2),
        {"s": ONES[:2], "b": ZEROS[:2]},
        18,
        by_groups,
    ),
    "instance": (
        node("InstanceNormalization", ["x", "s", "b"], ["y"]),
        {"s": ONES, "b": ZEROS},
        21,
        lambda x: normal(x, 2, 3),
    ),
    "layer": (
        node("LayerNormalization", ["x", "s"], ["y"], axis=-2),
        {"s": np.ones((8, 5), np.float32)},
        21,
        lambda x: normal(x, 2, 3),
    ),
    "skip layer": (
        node("SkipLayerNormalization", ["x", "x", "s"], ["y"], epsilon=1e-5, **OWN),
        {"s": np.ones(5, np.float32)},
        21,
        lambda x: normal(2 * x, 3),
    ),
    "mean variance": (
        node("MeanVarianceNormalization", ["x"], ["y"]),
        {},
        21,
        lambda x: normal(x, 0, 2, 3),
    ),
    "batch, in training": (
        node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "n", "w"], training_mode=1),
        {"s": ONES, "b": ZEROS, "m": ZEROS, "v": ONES},
        21,
        lambda x: normal(x, 0, 2, 3),
    ),
    "softmax": (
        node("Softmax", ["x"], ["y"], axis=3),
        {},
        21,
        lambda x: (
            np.exp(x - x.max(3, keepdims=True))
            / np.exp(x - x.max(3, keepdims=True)).sum(3, keepdims=True)
        ),
    ),
    "log softmax": (
        node("LogSoftmax", ["x"], ["y"], axis=3),
        {},
        21,
        lambda x: (
            x
            - x.max(3, keepdims=True)
            - np.log(np.exp(x - x.max(3, keepdims=True)).sum(3, keepdims=True))
        ),
    ),
    "log sum exp": (
        node("ReduceLogSumExp", ["x"], ["y"], axes=[3]),
        {},
        17,
        lambda x: (
            x.max(3, keepdims=True)
            + np.log(np.exp(x - x.max(3, keepdims=True)).sum(3, keepdims=True))
        ),
    ),
}


def made(name: str) -> Any:
    what, weights, opset, _ = CASES[name]
    found = model([what], {"x": SHAPE}, ["y"], weights, opset)
    found.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return found


@pytest.mark.parametrize("name", CASES)
def test_means_of_many_standard_deviations(own: MLContext, name: str) -> None:
    graph = load(made(name), own)
    rng = np.random.default_rng(0)
    for mean in (0.0, 1e3, -1e3, 1e4):
        x = (rng.normal(size=SHAPE) + mean).astype(np.float32)
        found = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))["y"]
        # The mean itself is right to its last digits.
        allowed = 4e-6 + 16 * 2.0**-24 * abs(mean)
        np.testing.assert_allclose(found, CASES[name][3](x.astype(float)), atol=allowed, rtol=1e-5)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_of_open_sizes_by_scales(cpu: MLContext, opset: int) -> None:
    count = 2 if opset == 18 else 6
    weights = {"s": np.arange(1, count + 1, dtype="f4"), "b": np.arange(count, dtype="f4")}
    what = node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    graph = load(model([what], {"x": ["n", 6, "h", 5]}, ["y"], weights, opset), cpu)
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    found = asyncio.run(MLAwaitedExecution(cpu).compute(graph, {"x": x}))["y"]
    factor, summand = (np.repeat(weights[name], 6 // count).reshape(6, 1, 1) for name in ("s", "b"))
    np.testing.assert_allclose(found, by_groups(x) * factor + summand, rtol=1e-4, atol=1e-5)


def test_group_normalization_of_halves_is_computed_in_float32(own: MLContext) -> None:
    weights = {"s": ONES.astype("f2"), "b": ZEROS.astype("f2")}
    what = node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    graph = load(model([what], {"x": SHAPE}, ["y"], weights, elem=TensorProto.FLOAT16), own)
    x = (np.random.default_rng(0).normal(size=SHAPE) * 1000).astype(np.float16)
    found = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))["y"]
    np.testing.assert_allclose(found, by_groups(x.astype(float)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("groups", [0, -2, 4, 7])
def test_groups_that_do_not_divide_the_channels(cpu: MLContext, groups: int) -> None:
    what = node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=groups)
    with pytest.raises(DataError, match=f"num_groups is {groups}, expected a divisor of the 6"):
        load(model([what], {"x": SHAPE}, ["y"], {"s": ONES, "b": ZEROS}), cpu)
