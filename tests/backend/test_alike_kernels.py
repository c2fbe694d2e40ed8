"""Kernels that differ in numbers alone share one pipeline."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.backend.compared import applied, assert_like_reference
from tests.compiler import compiled
from tests.graphs import Build, build, expected, normal
from tests.internals import executable_of
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.pipeline_sharing import share
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Array

pytestmark = pytest.mark.kernels

MANY = 100
SOFTWARE = Features(kind="cpu")


def kernels_of(context: MLContext, what: Build) -> Sequence[Kernel]:
    kernels: Sequence[Kernel] = executable_of(build(context, what)).compiled.kernels
    return kernels


@pytest.mark.parametrize("data_type", ["float32", "float16", "uint8", "int64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_pieces_of_a_tensor(
    each_device: MLContext, reference: MLContext, data_type: str, axis: int
) -> None:
    shape = (3 * MANY, 5) if axis == 0 else (5, 3 * MANY)
    array = np.arange(1500).reshape(shape).astype(data_type)
    call = applied("split", {"input": array}, splits=MANY, axis=axis)
    assert_like_reference(each_device, reference, call)


def test_pieces_take_one_pipeline(software: MLContext) -> None:
    def pieces(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [2048])
        return {f"y{i}": part for i, part in enumerate(b.split(x, 2048))}

    kernels = kernels_of(software, pieces)
    assert len(kernels) == 2048
    # The first piece lies at no offset.
    assert len({kernel.code for kernel in kernels}) <= 2


def test_numbers_of_all_kinds(software: MLContext) -> None:
    """Each output has its own pair of floats, among them such as have no literal."""
    numbers = [*(i / 7 - 3 for i in range(MANY)), *(float(i) * 1e30 for i in range(MANY))]
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]

    def scaled(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [3])
        return {
            f"y{i}": b.max(b.mul(x, b.constant(number, "float32")), b.constant(float(i), "float32"))
            for i, number in enumerate(numbers + special)
        }

    graph = build(software, scaled)
    kernels = kernels_of(software, scaled)
    assert len({kernel.code for kernel in kernels}) < len(kernels) // 4
    x = np.array([-1.0, 0.0, 2.5], np.float32)
    results = asyncio.run(MLAwaitedExecution(software).compute(graph, {"x": x}))
    for i, number in enumerate(numbers):
        expected = np.maximum(x * np.float32(number), np.float32(i))
        np.testing.assert_allclose(results[f"y{i}"], expected, rtol=1e-6)


SIZES = ((12, 8), (16, 12), (20, 16), (36, 20))
"""Channels, and height and width."""


def inputs_of(layout: str = "nchw") -> dict[str, Array]:
    """An input for each layer."""
    return {
        f"x{i}": normal(1, c, n, n) if layout == "nchw" else normal(1, n, n, c)
        for i, (c, n) in enumerate(SIZES)
    }


def layers(layout: str = "nchw", **options: Any) -> Build:
    """Convolutions with bias and activation, one for each size."""

    def build_layers(b: MLGraphBuilder) -> dict[str, MLOperand]:
        made = {}
        for i, ((name, x), (c, _)) in enumerate(zip(inputs_of(layout).items(), SIZES, strict=True)):
            weights, bias = b.constant(normal(c, c, 3, 3, seed=i)), b.constant(normal(c, seed=i))
            operand = b.input(name, "float32", x.shape)
            y = b.conv2d(
                operand, weights, bias=bias, input_layout=layout, padding=[1] * 4, **options
            )
            made[f"y{i}"] = b.relu(y)
        return made

    return build_layers


def test_layers_of_all_sizes_take_one_pipeline() -> None:
    """On a software adapter; graphics hardware has tiles for sizes."""
    made = share(compiled.kernels(layers(), SOFTWARE), SOFTWARE)
    kernels = [kernel for kernel in made if kernel.name == "conv2d"]
    assert len(kernels) == len(SIZES)
    assert len({kernel.code for kernel in kernels}) == 1
    assert len({kernel.numbers for kernel in kernels}) == len(SIZES)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_layers_of_all_sizes(each_device: MLContext, layout: str, strides: list[int]) -> None:
    what, inputs = layers(layout, strides=strides), inputs_of(layout)
    results = asyncio.run(MLAwaitedExecution(each_device).compute(build(each_device, what), inputs))
    for name, wanted in expected(what, inputs).items():
        np.testing.assert_allclose(results[name], wanted, rtol=1e-4, atol=1e-4)


def test_loops_of_few_rounds_know_their_end() -> None:
    """Compilers write them out; on graphics hardware windows are written out at once."""

    def pools(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [1, 4, 16, 16])
        return {
            f"y{size}": b.max_pool2d(x, window_dimensions=[size, size], padding=[1, 1, 1, 1])
            for size in (2, 3)
        }

    made = share(compiled.kernels(pools, SOFTWARE), SOFTWARE)
    heads = re.findall(r"for \(.*?\)", "".join(kernel.code for kernel in made))
    assert len(heads) == 4
    assert not any("number" in head for head in heads)
