"""Awaiting under anyio, whose cancel scopes cancel again and again until they are left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import numpy as np
import pytest

from tests.backend.networks import assert_like, network, network_inputs
from tests.backend.tensors import Parked, tensor
from tests.graphs import ONES, TWOS, assert_awaits, build, doubling, expected
from webnn_py import MLAwaitedExecution, MLContext, Timeline

Main = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """Runs a coroutine function by anyio."""
    return functools.partial(anyio.run, backend=request.param)


def test_a_task_group_awaits_many(context: MLContext, run: Callable[[Main], None]) -> None:
    execution, found = MLAwaitedExecution(context), {}

    async def one(graph: Any, seed: int) -> None:
        found[seed] = await execution.compute(graph, network_inputs(seed))

    async def main() -> None:
        graph = build(context, network)
        async with anyio.create_task_group() as group:
            for seed in range(20):
                group.start_soon(one, graph, seed)

    run(main)
    for seed in range(20):
        assert_like(found[seed], expected(network, network_inputs(seed)))


def test_a_scope_that_is_cancelled_leaves_outputs_untouched_or_whole(
    context: MLContext, run: Callable[[Main], None]
) -> None:
    graph, execution = build(context, network), MLAwaitedExecution(context)
    wanted = expected(network, network_inputs(1))

    async def main() -> None:
        for delay in (0, 0.0005, 0.001, 0.002, 0.004, 0.01):
            out = {"p": np.full((2, 5), -7, np.float32)}
            with anyio.move_on_after(delay):
                await execution.compute(graph, network_inputs(1), out)
            if (out["p"] == -7).any():
                assert (out["p"] == -7).all()
            else:
                assert_like(out, {"p": wanted["p"]})

    run(main)
    assert_awaits(context)


def test_what_waits_for_a_timeline_is_cancelled(
    context: MLContext, run: Callable[[Main], None]
) -> None:
    execution, timeline, graph = MLAwaitedExecution(context), Timeline(), doubling(context)
    parked = Parked(context)

    async def main() -> None:
        with anyio.move_on_after(0.02) as scope:
            await timeline.wait_async(1)
        assert scope.cancelled_caught
        with anyio.move_on_after(0.02) as scope:
            await execution.compute(graph, {"x": ONES}, sync=[timeline(wait=1)])
        assert scope.cancelled_caught
        with anyio.move_on_after(0.02) as scope:
            await context.read_tensor_async(parked.target)
        assert scope.cancelled_caught
        parked.go()
        with anyio.fail_after(20):
            np.testing.assert_array_equal(await context.read_tensor_async(parked.target), TWOS)

    run(main)


def test_an_error_ends_the_others_of_a_task_group(
    context: MLContext, run: Callable[[Main], None]
) -> None:
    execution, graph, never = MLAwaitedExecution(context), doubling(context), Timeline()
    target = tensor(context)

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await both()
        assert caught.group_contains(ValueError, match="boom")

    async def fail() -> None:
        await anyio.sleep(0.01)
        raise ValueError("boom")

    async def both() -> None:
        async with anyio.create_task_group() as group:
            waiting = [never(wait=1)]
            group.start_soon(lambda: execution.compute(graph, {"x": ONES}, {"y": target}, waiting))
            group.start_soon(fail)

    run(main)
    np.testing.assert_array_equal(context.read_tensor_sync(target), np.zeros_like(ONES))
    assert_awaits(context)
