"""Awaits cancelled at any moment: outputs are whole or untouched, and nothing is lost."""

from __future__ import annotations

import functools
import random
import time
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer, read
from tests.graphs import build, expected, normal
from tests.loops import Run, limited, together
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    OperationError,
    Timeline,
)

SIZE = 48
AT_ONCE = 20
"""More than may be in flight, so that one that were never given back would stop the rest."""
UNTOUCHED = -7.0


@pytest.fixture(params=["cpu", "gpu"])
def context(request: pytest.FixtureRequest) -> MLContext:
    found: MLContext = request.getfixturevalue(request.param)
    return found


def products(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Some work, and two outputs of it."""
    x = builder.input("x", "float32", [SIZE, SIZE])
    weights = builder.constant(normal(SIZE, SIZE, seed=1) / 10)
    y = x
    for _ in range(4):
        y = builder.tanh(builder.matmul(y, weights))
    return {"y": y, "sum": builder.reduce_sum(y, axes=[1])}


class Attempt:
    """One computation into memory of the test's, to be cancelled or not."""

    def __init__(self, seed: int) -> None:
        self.x = normal(SIZE, SIZE, seed=seed)
        self.outputs: dict[str, Any] = {
            "y": np.full((SIZE, SIZE), UNTOUCHED, np.float32),
            "sum": np.full(SIZE, UNTOUCHED, np.float32),
        }
        self.completed = False
        self.seen: list[np.ndarray[Any, Any]] = []

    async def run(self, execution: MLAwaitedExecution, graph: Any, seconds: float) -> None:
        async def compute() -> None:
            await execution.compute(graph, {"x": self.x}, self.outputs)

        self.completed = await limited(compute, seconds)
        self.seen = [array.copy() for array in self.outputs.values()]

    def check(self) -> None:
        """Both outputs are there, or neither; none was written after the await had ended."""
        for array, seen in zip(self.outputs.values(), self.seen, strict=True):
            np.testing.assert_array_equal(array, seen)
        if self.completed or (self.seen[0] != UNTOUCHED).any():
            for name, array in expected(products, {"x": self.x}).items():
                np.testing.assert_allclose(self.outputs[name], array, rtol=1e-3, atol=1e-4)
        else:
            assert all((seen == UNTOUCHED).all() for seen in self.seen)


def typical_seconds(run: Run, execution: MLAwaitedExecution, graph: Any) -> float:
    """How long AT_ONCE computations take together."""
    run(lambda: Attempt(0).run(execution, graph, 60.0))  # what is made once is made now
    begun = time.perf_counter()
    run(lambda: together(everything(execution, graph, [Attempt(0)] * AT_ONCE)))
    return time.perf_counter() - begun


def everything(execution: MLAwaitedExecution, graph: Any, attempts: list[Attempt]) -> list[Any]:
    return [functools.partial(a.run, execution, graph, 60.0) for a in attempts]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(2))
def test_cancelled_at_any_moment(context: MLContext, run: Run, seed: int) -> None:
    rng = random.Random(seed)
    graph, execution = build(context, products), MLAwaitedExecution(context)
    longest = typical_seconds(run, execution, graph) * 1.2
    attempts = [Attempt(rng.randrange(1 << 30)) for _ in range(AT_ONCE)]
    moments = [rng.choice([0, rng.uniform(0, longest), 60.0]) for _ in attempts]
    run(
        lambda: together(
            functools.partial(attempt.run, execution, graph, moment)
            for attempt, moment in zip(attempts, moments, strict=True)
        )
    )
    after = [Attempt(seed + n) for n in range(AT_ONCE)]
    run(lambda: together(everything(execution, graph, after)))
    assert all(a.completed for a, moment in zip(attempts, moments, strict=True) if moment == 60)
    assert all(attempt.completed for attempt in after)
    for attempt in [*attempts, *after[:3]]:
        attempt.check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(2))
def test_buffers_are_whole_or_untouched(gpu: MLContext, run: Run, seed: int) -> None:
    rng = random.Random(seed)
    graph, execution = build(gpu, products), MLAwaitedExecution(gpu)
    longest = typical_seconds(run, execution, graph) / 4
    inputs = [normal(SIZE, SIZE, seed=rng.randrange(1 << 30)) for _ in range(12)]
    buffers = [empty_buffer(gpu.device, SIZE * SIZE * 4) for _ in inputs]
    completed: dict[int, bool] = {}

    async def one(number: int) -> None:
        async def compute() -> None:
            await execution.compute(graph, {"x": inputs[number]}, {"y": buffers[number]})

        completed[number] = await limited(compute, rng.choice([rng.uniform(0, longest), 60.0]))

    run(lambda: together(functools.partial(one, number) for number in range(12)))
    for number, buffer in enumerate(buffers):
        found = read(buffer, (SIZE, SIZE))
        if completed[number] or found.any():
            wanted = expected(products, {"x": inputs[number]})["y"]
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_cancelled_wait_does_not_keep_others_waiting(context: MLContext, run: Run) -> None:
    graph, execution = build(context, products), MLAwaitedExecution(context)
    gate, passed = Timeline(), Timeline()
    cancelled, after = Attempt(0), Attempt(1)

    async def waiting() -> None:
        sync = [gate(wait=1), passed(signal=1)]
        await execution.compute(graph, {"x": cancelled.x}, cancelled.outputs, sync=sync)

    async def main() -> None:
        assert not await limited(waiting, 0.01)
        with pytest.raises(OperationError, match="cancelled"):
            await passed.wait_async(1)
        gate.signal(1)
        await after.run(execution, graph, 60.0)

    run(main)
    assert after.completed
    assert (cancelled.outputs["y"] == UNTOUCHED).all()
    after.check()
