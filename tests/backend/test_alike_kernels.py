"""Many kernels that differ in numbers alone share one pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from tests.backend.compared import applied, assert_like_reference
from tests.graphs import Build, build
from tests.internals import executable_of
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.kernel_builder import Kernel

MANY = 100


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


def test_pieces_take_one_pipeline(gpu: MLContext) -> None:
    def pieces(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [2048])
        return {f"y{i}": part for i, part in enumerate(b.split(x, 2048))}

    kernels = kernels_of(gpu, pieces)
    assert len(kernels) == 2048
    # The first piece lies at no offset.
    assert len({kernel.code for kernel in kernels}) <= 2


def test_numbers_of_all_kinds(gpu: MLContext) -> None:
    """Each output has its own pair of floats, among them such as have no literal."""
    numbers = [*(i / 7 - 3 for i in range(MANY)), *(float(i) * 1e30 for i in range(MANY))]
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]

    def scaled(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [3])
        return {
            f"y{i}": b.max(b.mul(x, b.constant(number, "float32")), b.constant(float(i), "float32"))
            for i, number in enumerate(numbers + special)
        }

    graph = build(gpu, scaled)
    kernels = kernels_of(gpu, scaled)
    assert len({kernel.code for kernel in kernels}) < len(kernels) // 4
    x = np.array([-1.0, 0.0, 2.5], np.float32)
    results = asyncio.run(MLAwaitedExecution(gpu).compute(graph, {"x": x}))
    for i, number in enumerate(numbers):
        expected = np.maximum(x * np.float32(number), np.float32(i))
        np.testing.assert_allclose(results[f"y{i}"], expected, rtol=1e-6)


def test_few_kernels_keep_their_numbers(gpu: MLContext) -> None:
    def pieces(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [8])
        return {f"y{i}": part for i, part in enumerate(b.split(x, 8))}

    assert not any(kernel.numbers for kernel in kernels_of(gpu, pieces))
