"""Awaited runs on software drivers that take but a moment: whoever awaits computes them."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import empty_buffer
from tests.backend.tensors import tensor
from tests.backend.webgpu import BufferMapping
from tests.graphs import ONES, TWOS, doubling
from tests.internals import engine_of, executable_of, set_policy, settle
from tests.loops import Run, cancel_after, pause, together
from webnn_py import ContextLostError, MLAwaitedExecution, MLContext, MLGraph, OperationError, ml
from webnn_py.engines.webgpu.runtime.devices.staging import Staging


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[MLContext]:
    """On a software adapter, with all runs tiny from the second on."""
    with ml.create_context_sync(device_type="gpu") as made:
        set_policy(made, tiny_run_seconds=1e9, tiny_wait_seconds=1e9)
        monkeypatch.setattr(engine_of(made).gpu, "hardware", False)
        yield made


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run whether it was read back on the thread of the test."""
    found: list[bool] = []
    read = Staging.read

    def reading(self: Staging, *given: Any) -> None:
        found.append(threading.current_thread() is threading.main_thread())
        read(self, *given)

    monkeypatch.setattr(Staging, "read", reading)
    return found


async def compute(graph: MLGraph, context: MLContext, number: float = 1) -> None:
    y = (await MLAwaitedExecution(context).compute(graph, {"x": ONES * number}))["y"]
    np.testing.assert_array_equal(y, TWOS * number)


def tiny(context: MLContext, run: Run) -> MLGraph:
    """A graph of which it is known that it is."""
    graph = doubling(context)
    run(functools.partial(compute, graph, context))
    settle(context)
    assert executable_of(graph).prerecorder.whole_latency.seconds > 0
    return graph


def test_it_is_computed_on_the_thread_that_awaits(
    context: MLContext, run: Run, here: list[bool]
) -> None:
    graph = tiny(context, run)

    async def main() -> None:
        for number in range(5):
            await compute(graph, context, number)

    run(main)
    assert here == [False, *[True] * 5]


def test_the_next_one_is_recorded_while_the_driver_computes(
    context: MLContext, run: Run, here: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, look, looks = tiny(context, run), BufferMapping.look, [0]

    def seen_late(mapping: BufferMapping) -> bool:
        looks[0] += 1
        return looks[0] % 3 == 0 and look(mapping)

    monkeypatch.setattr(BufferMapping, "look", seen_late)

    async def main() -> None:
        for number in range(4):
            await compute(graph, context, number)
            assert executable_of(graph).prerecorder.is_recorded

    run(main)
    assert here == [False, *[True] * 4]


def test_only_one_before_others_have_their_turn(
    context: MLContext, run: Run, here: list[bool]
) -> None:
    graph, turns = tiny(context, run), [0]

    async def main() -> None:
        await together([functools.partial(compute, graph, context, n) for n in range(6)])
        assert here.count(True) == 1

    async def others() -> None:
        while len(here) < 12:
            turns[0] += 1
            await pause()

    async def one_after_the_other() -> None:
        for _ in range(5):
            await compute(graph, context)

    run(main)
    settle(context)
    run(functools.partial(together, [one_after_the_other, others]))
    assert here.count(True) == 6
    assert turns[0] >= 4


def test_not_while_the_device_may_be_at_work(
    context: MLContext, run: Run, here: list[bool]
) -> None:
    graph = tiny(context, run)
    x, y = tensor(context, ONES), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    run(functools.partial(compute, graph, context))
    settle(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    context.flush()
    run(functools.partial(compute, graph, context))
    settle(context)
    context.device.queue.submit([context.device.create_command_encoder().finish()])
    run(functools.partial(compute, graph, context))
    assert here == [False] * 4
    settle(context)
    run(functools.partial(compute, graph, context))
    assert here[-1]


def test_not_on_hardware_nor_what_takes_longer(
    context: MLContext, run: Run, here: list[bool]
) -> None:
    graph = tiny(context, run)
    set_policy(context, tiny_run_seconds=0.0)
    run(functools.partial(compute, graph, context))
    assert here == [False] * 2


def test_what_takes_longer_than_was_known_is_read_on_another_thread(
    context: MLContext, run: Run, here: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tiny(context, run)
    monkeypatch.setattr(BufferMapping, "look_for", lambda mapping, *given: False)
    run(functools.partial(compute, graph, context))
    assert here == [False] * 2


def test_resources_of_the_users_go_with_the_worker(
    context: MLContext, run: Run, here: list[bool]
) -> None:
    graph, target = tiny(context, run), empty_buffer(context.device, 24)

    async def main() -> None:
        await MLAwaitedExecution(context).compute(graph, {"x": ONES}, {"y": target})

    run(main)
    assert True not in here


@pytest.mark.parametrize("call", ["submit", "plain_encoder"])
def test_the_device_refuses(
    context: MLContext, run: Run, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, gpu = tiny(context, run), engine_of(context).gpu

    def refusing(*given: Any) -> None:
        raise wgpu.GPUValidationError("no")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(gpu, call, refusing)
            executable_of(graph).prerecorder.take()  # what is recorded needs no encoder
            with pytest.raises(OperationError, match="submitting a graph: the device refused: no"):
                await compute(graph, context)
        await compute(graph, context)

    run(main)
    assert gpu.in_flight.under_way == 0


def test_a_device_that_is_destroyed(context: MLContext, run: Run) -> None:
    graph = tiny(context, run)

    async def main() -> None:
        call = MLAwaitedExecution(context).compute(graph, {"x": ONES})
        context.device.destroy()
        with pytest.raises(ContextLostError):
            await call

    run(main)


def test_it_is_cancelled_while_others_have_their_turn(
    context: MLContext, run: Run, here: list[bool]
) -> None:
    graph = tiny(context, run)

    async def main() -> None:
        await cancel_after(functools.partial(compute, graph, context), pause)
        await compute(graph, context)

    run(main)
    assert here == [False, True, True]


def test_asyncio_alone_can_cancel_before_it_begins(context: MLContext, here: list[bool]) -> None:
    graph = tiny(context, lambda main: asyncio.run(main()))

    async def main() -> None:
        task = asyncio.ensure_future(compute(graph, context))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await compute(graph, context)

    asyncio.run(main())
    assert here == [False, True]
