"""Blocks summed where they overlap, for every way to lay these out: Col2Im, ConvTranspose."""

from __future__ import annotations

import asyncio
import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from tests.onnx.models import model
from webnn_py import DataError, MLAwaitedExecution, MLContext, MLGraphBuilder
from webnn_py.onnx import add_to, load

CASES: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "plain": ([5, 6], [2, 3], {}),
    "apart": ([8, 6], [4, 3], {"strides": [4, 3]}),
    "gaps": ([9, 11], [2, 3], {"strides": [3, 4]}),
    "padded": ([5, 4], [3, 3], {"pads": [1, 0, 1, 2]}),
    "steps": ([7, 8], [3, 4], {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    "dilated": ([7, 9], [3, 2], {"dilations": [2, 3]}),
    "dilated steps": ([9, 9], [2, 3], {"dilations": [3, 2], "strides": [2, 2], "pads": [1] * 4}),
    "a line": ([10], [3], {"strides": [2]}),
    "a volume": ([4, 5, 3], [2, 2, 3], {"strides": [2, 1, 1], "pads": [0, 1, 0, 0, 0, 1]}),
    "one tap": ([4, 3], [1, 1], {}),
    "what no block reaches": ([8, 7], [2, 2], {"strides": [3, 3]}),
}


def counts_of(image: list[int], block: list[int], options: dict[str, Any]) -> list[int]:
    rank = len(image)
    strides, dilations = (options.get(k, [1] * rank) for k in ("strides", "dilations"))
    pads = options.get("pads", [0] * (2 * rank))
    return [
        (image[i] + pads[i] + pads[i + rank] - (block[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(rank)
    ]


def by_hand(x: Any, image: list[int], block: list[int], options: dict[str, Any]) -> Any:
    rank, counts = len(image), counts_of(image, block, options)
    strides, dilations = (options.get(k, [1] * rank) for k in ("strides", "dilations"))
    pads = options.get("pads", [0] * (2 * rank))
    parts = x.reshape(x.shape[0], -1, *block, *counts)
    made = np.zeros([*parts.shape[:2], *image], x.dtype)
    for tap in itertools.product(*map(range, block)):
        for place in itertools.product(*map(range, counts)):
            at = tuple(place[i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank))
            if all(0 <= a < n for a, n in zip(at, image, strict=True)):
                made[(slice(None), slice(None), *at)] += parts[
                    (slice(None), slice(None), *tap, *place)
                ]
    return made


def made(name: str, elem: int = TensorProto.FLOAT) -> tuple[Any, list[int]]:
    image, block, options = CASES[name]
    shape = [2, 3 * math.prod(block), math.prod(counts_of(image, block, options))]
    what = make_node("Col2Im", ["x", "i", "b"], ["y"], **options)
    return model([what], {"x": shape}, ["y"], {"i": image, "b": block}, elem=elem), shape


@pytest.mark.parametrize("name", CASES)
def test_columns_to_images(own: MLContext, name: str) -> None:
    found, shape = made(name)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    graph = load(found, own)
    y = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))["y"]
    np.testing.assert_allclose(y, by_hand(x, *CASES[name]), rtol=1e-5, atol=1e-5)


def test_columns_of_integers(own: MLContext) -> None:
    found, shape = made("steps", TensorProto.INT32)
    x = np.random.default_rng(0).integers(-(10**6), 10**6, shape).astype(np.int32)
    y = asyncio.run(MLAwaitedExecution(own).compute(load(found, own), {"x": x}))["y"]
    np.testing.assert_array_equal(y, by_hand(x, *CASES["steps"]))


def test_columns_of_open_batches(cpu: MLContext) -> None:
    found, shape = made("padded")
    found.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y = asyncio.run(MLAwaitedExecution(cpu).compute(load(found, cpu), {"x": x}))["y"]
    np.testing.assert_allclose(y, by_hand(x, *CASES["padded"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "taps"), [(64, 8), (1024, 3), (1024, 16)])
def test_nothing_is_made_for_each_element(cpu: MLContext, size: int, taps: int) -> None:
    """Of 64 x 64 a matrix took 1.1 GB; blocks lie side by side, or overlap, as few values do."""
    blocks = size - taps + 1
    what = make_node("Col2Im", ["x", "i", "b"], ["y"])
    weights = {"i": [size, size], "b": [taps, taps]}
    found = model([what], {"x": [1, taps * taps, blocks * blocks]}, ["y"], weights)
    builder = MLGraphBuilder(cpu)
    tracemalloc.start()
    try:
        assert add_to(builder, found)["y"].shape == (1, 1, size, size)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("weights", "options", "why"),
    [
        ({"i": [5, 6], "b": [2, 2]}, {}, "18 rows of 16 blocks, expected a multiple of 4 rows"),
        ({"i": [5, 7], "b": [2, 3]}, {}, "expected a multiple of 6 rows and 20 blocks"),
        (
            {"i": [5, 6], "b": [2, 3]},
            {"strides": [0, 1]},
            "expected 2 numbers from 1 on",
        ),
        ({"i": [5, 6], "b": [0, 3]}, {}, "expected 2 numbers from 1 on"),
        ({"i": [2**40, 6], "b": [2**40, 3]}, {}, "expected a multiple of"),
    ],
)
def test_blocks_that_do_not_fit(
    cpu: MLContext, weights: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    what = make_node("Col2Im", ["x", "i", "b"], ["y"], **options)
    with pytest.raises(DataError, match=why):
        load(model([what], {"x": [2, 18, 16]}, ["y"], weights), cpu)


@pytest.mark.parametrize("dilations", [[1, 1, 1], [2, 1, 2]])
@pytest.mark.parametrize("strides", [[1, 2, 1], [3, 1, 2]])
def test_transposed_convolutions_of_three_dimensions(
    cpu: MLContext, strides: list[int], dilations: list[int]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 2, 3, 2)).astype(np.float32)}
    options = {"strides": strides, "dilations": dilations, "group": 2, "pads": [1, 0, 1, 0, 1, 0]}
    what = make_node("ConvTranspose", ["x", "w"], ["y"], **options)
    found = model([what], {"x": [2, 4, 3, 4, 5]}, ["y"], weights, 19)
    found.ir_version = 9
    x = rng.normal(size=(2, 4, 3, 4, 5)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(found.SerializeToString()).run(None, {"x": x})
    y = asyncio.run(MLAwaitedExecution(cpu).compute(load(found, cpu), {"x": x}))["y"]
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
