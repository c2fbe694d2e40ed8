"""Scattering many updates, to places that recur, from and into every kind of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from tests.adapters import new_device
from tests.backend.compared import Array, applied, assert_like_reference
from tests.graphs import kernels_of
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, MLGraphBuilder, ml

pytestmark = pytest.mark.kernels

MANY = 70_000
"""More than some drivers' loops make rounds of."""


@pytest.fixture(scope="module")
def in_parts(gpu: MLContext) -> Iterator[MLContext]:
    """A context whose bindings show little of a buffer at once."""
    limits = {"max-storage-buffer-binding-size": 1 << 16}
    device = new_device(required_limits=limits)
    with ml.create_context_sync(device) as context:
        yield context


def _operands(name: str, data_type: str, count: int, rows: int) -> dict[str, Array]:
    """Updates of rows that recur, the last of which is not the one with the highest contents."""
    rng = np.random.default_rng(3)
    indices = rng.integers(-rows, rows, count).astype(np.int32)
    table = rng.integers(0, 100, (rows, 3)).astype(data_type)
    updates = rng.integers(0, 100, (count, 3)).astype(data_type)
    if name == "scatter_elements":
        return {"input": table, "indices": np.repeat(indices[:, None], 3, 1), "updates": updates}
    return {"input": table, "indices": indices[:, np.newaxis], "updates": updates}


@pytest.mark.parametrize("name", ["scatter_elements", "scatter_nd"])
@pytest.mark.parametrize("data_type", ["uint8", "float32", "float16", "int64"])
def test_many_updates(
    each_device: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    operands = _operands(name, data_type, MANY, 5_000)
    assert_like_reference(each_device, reference, applied(name, operands))


@pytest.mark.parametrize("name", ["scatter_elements", "scatter_nd"])
@pytest.mark.parametrize("data_type", ["uint8", "float32"])
def test_tensors_in_parts(
    in_parts: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    operands = _operands(name, data_type, 6_000, 12_000)
    assert_like_reference(in_parts, reference, applied(name, operands))


def _graph(context: MLContext, operands: dict[str, Array]) -> MLGraph:
    builder = MLGraphBuilder(context)
    x, indices, updates = (
        builder.input(name, {"f": "float32", "i": "int32"}[array.dtype.kind], array.shape)
        for name, array in operands.items()
    )
    scattered = builder.scatter_nd(builder.neg(x), indices, updates)
    return builder.build_sync({"y": builder.add(builder.relu(scattered), x)})


def test_each_run_starts_anew_and_what_follows_is_fused(software: MLContext) -> None:
    operands = _operands("scatter_nd", "float32", 100, 50)
    graph = _graph(software, operands)
    assert kernels_of(graph, operands) == ["neg", "scatter_nd"]

    async def results() -> list[Array]:
        execution = MLAwaitedExecution(software)
        elsewhere = operands | {"indices": np.zeros((100, 1), np.int32)}
        runs = [execution.compute(graph, given) for given in (operands, elsewhere, operands)]
        return [(await run)["y"] for run in runs]

    first, second, third = asyncio.run(results())
    table = operands["input"]
    moved = -table
    moved[operands["indices"][:, 0]] = operands["updates"]
    np.testing.assert_array_equal(first, np.maximum(moved, 0) + table)
    alone = np.zeros_like(table)
    alone[0] = operands["updates"][-1]
    np.testing.assert_array_equal(second, alone + table)
    np.testing.assert_array_equal(third, first)
