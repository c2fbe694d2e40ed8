"""A graph whose computes are joined, and what it gives for each alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.backend.held import Held
from tests.graphs import build, normal
from tests.loops import pause, together
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    ml,
)

WEIGHT = normal(4, 5)


def rows(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Each row by itself; the batch is not the first dimension of what goes in."""
    x = builder.input("x", "float32", ["length", "batch", 4])
    scale = builder.input("scale", "float32", [4])
    moved = builder.transpose(builder.mul(x, scale), permutation=[1, 0, 2])
    flat = builder.reshape(moved, [moved.shape[0] * moved.shape[1], 4])
    product = builder.gemm(flat, builder.constant(WEIGHT))
    apart = builder.softmax(builder.reshape(product, [*moved.shape[:2], 5]), 2)
    return {"y": apart, "twice": builder.add(x, x), "scale": builder.relu(scale)}


def inputs(seed: int, batch: int = 1, length: int = 3) -> dict[str, Any]:
    return {"x": normal(length, batch, 4, seed=seed), "scale": normal(4)}


def alone(given: dict[str, Any]) -> dict[str, Any]:
    """What the reference engine gives for one compute."""
    with ml.create_context_sync(engine="reference") as context:
        execution = MLExecution(context, allow_blocking=True)
        return execution.compute(build(context, rows), given)


def assert_alone(results: dict[str, Any], given: dict[str, Any]) -> None:
    for name, wanted in alone(given).items():
        np.testing.assert_allclose(results[name], wanted, rtol=1e-4, atol=1e-6, err_msg=name)


Sizes = list[tuple[int, int]]


def prepared(context: MLContext, *sizes: int) -> MLGraph:
    graph = build(context, rows)
    for size in sizes:
        graph.prepare_sync({"batch": size, "length": 3})
    return graph


async def computed(
    execution: MLAwaitedExecution, graph: MLGraph, given: list[Any], held: Held | None = None
) -> list[dict[str, Any]]:
    """All of them at once; if the thread is held, until all wait."""
    found: dict[int, dict[str, Any]] = {}

    async def one(number: int) -> None:
        found[number] = await execution.compute(graph, given[number])

    async def release() -> None:
        for _ in range(10):
            await pause()
        if held is not None:
            held.release()

    await together([*(functools.partial(one, n) for n in range(len(given))), release])
    return [found[number] for number in range(len(given))]
