"""Small graphs that several tests run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.internals import context_of
from tests.threads import LONG
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLContextLostInfo,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    ml,
)

ONES = np.ones((2, 3), np.float32)
TWOS = ONES * 2


def doubling(context: MLContext, label: str = "") -> MLGraph:
    """y = x + x; graphs of different labels share nothing."""
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    return builder.build_sync({"y": builder.add(x, x, label=label)})


def assert_works(context: MLContext) -> None:
    """A new graph on the context runs."""
    results = MLExecution(context).compute(doubling(context), {"x": ONES})
    np.testing.assert_array_equal(results["y"], TWOS)


Build = Callable[[MLGraphBuilder], dict[str, MLOperand]]
Arrays = Mapping[str, np.ndarray[Any, Any]]


def build(context: MLContext, what: Build) -> MLGraph:
    """The graph that a function of a builder describes."""
    builder = MLGraphBuilder(context)
    return builder.build_sync(what(builder))


def expected(what: Build, inputs: Arrays) -> Arrays:
    """What the reference engine makes of it."""
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        return MLExecution(context).compute(build(context, what), inputs)


def awaited(graph: MLGraph, inputs: Any, outputs: Any = None) -> dict[str, Any]:
    """One awaited computation, under a loop of its own."""
    execution = MLAwaitedExecution(context_of(graph))

    async def main() -> dict[str, Any]:
        return await execution.compute(graph, inputs, outputs)

    return asyncio.run(main())


def kernels_of(graph: MLGraph, inputs: Any) -> list[str]:
    """Return the names of the kernels that compute a graph, in order."""
    return [row.kernel for row in graph.profile(inputs, runs=1)]


def assert_awaits(context: MLContext) -> None:
    """As `assert_works`, awaited: on CPU and GPU contexts."""
    np.testing.assert_array_equal(awaited(doubling(context), {"x": ONES})["y"], TWOS)


def lost_info(context: MLContext) -> MLContextLostInfo:
    """What a context that is lost by now, or within a moment, tells of it."""

    async def main() -> MLContextLostInfo:
        return await asyncio.wait_for(context.lost, LONG)

    return asyncio.run(main())


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """float32 numbers around 0."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
