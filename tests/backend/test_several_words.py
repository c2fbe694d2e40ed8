"""Invocations that write several words each, on software adapters: every element, and no other."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, read, run_recorded
from tests.graphs import build
from tests.internals import executable_of
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

SIZES = [2047, 2048, 5003, 70001]
TYPES = ["float32", "float16", "int32", "uint8", "int64"]


def scaled(b: MLGraphBuilder, data_type: str, size: int) -> dict[str, MLOperand]:
    x = b.input("x", data_type, [size])
    return {"y": b.add(b.cast(b.mul(x, b.constant(3, data_type)), data_type), x)}


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_element(gpu: MLContext, data_type: str, size: int) -> None:
    graph = build(gpu, lambda b: scaled(b, data_type, size))
    x = (np.arange(size) % 61).astype(data_type)
    got = asyncio.run(MLAwaitedExecution(gpu).compute(graph, {"x": x}))["y"]
    np.testing.assert_array_equal(got, 4 * x)
    if size == SIZES[-1] and not gpu.accelerated:
        assert "n++" in executable_of(graph).code()


def test_nothing_behind_the_last_one(gpu: MLContext) -> None:
    size = 20003
    graph = build(gpu, lambda b: scaled(b, "uint8", size))
    x = (np.arange(size) % 61).astype(np.uint8)
    given = buffer_of(gpu.device, np.append(x, np.uint8(0)))
    made = buffer_of(gpu.device, np.full(size + 1, 7, np.uint8))
    run_recorded(graph, {"x": given}, {"y": made})
    got = read(made, (size + 1,), np.uint8)
    np.testing.assert_array_equal(got, np.append(4 * x, np.uint8(7)))
