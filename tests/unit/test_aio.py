"""Awaiting under asyncio and trio: results, errors, cancellation; the loop is never held."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import numpy as np
import pytest
import trio

from tests.graphs import ONES, TWOS, assert_works, doubling
from tests.loops import Run, cancel_after, pause, together
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    Timeline,
    ml,
)


def test_computing_many_at_once(cpu: MLContext, run: Run) -> None:
    graph, execution = doubling(cpu), MLAwaitedExecution(cpu)
    done: list[int] = []

    async def one(number: int) -> None:
        results = await execution.compute(graph, {"x": ONES * number})
        np.testing.assert_array_equal(results["y"], TWOS * number)
        done.append(number)

    run(lambda: together(functools.partial(one, number) for number in range(16)))
    assert sorted(done) == list(range(16))


def test_trio_as_a_guest_of_asyncio(cpu: MLContext) -> None:
    """Tasks of both run on one thread."""
    graph, execution, go = doubling(cpu), MLAwaitedExecution(cpu), Timeline()

    async def compute() -> None:
        results = await execution.compute(graph, {"x": ONES})
        np.testing.assert_array_equal(results["y"], TWOS)

    async def guest() -> None:
        await compute()
        go.signal(1)
        with trio.move_on_after(0):
            await go.wait_async(2)

    async def host() -> None:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=over.set_result,
        )
        with pytest.raises(InvalidStateError):
            MLExecution(cpu).compute(graph, {"x": ONES})
        await compute()
        await go.wait_async(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(go.wait_async(2), 0.01)
        (await over).unwrap()

    asyncio.run(host())


def test_the_loop_runs_while_a_computation_waits(cpu: MLContext, run: Run) -> None:
    graph, execution = doubling(cpu), MLAwaitedExecution(cpu)
    go = Timeline()

    async def main() -> None:
        async def compute() -> None:
            await execution.compute(graph, {"x": ONES}, sync=go(wait=1))

        async def begun() -> None:
            for _ in range(10):
                await pause()

        await cancel_after(compute, begun)  # a loop that were blocked would never get here
        go.signal(1)

    run(main)
    assert_works(cpu)


def test_validation_comes_before_any_work(cpu: MLContext, run: Run) -> None:
    graph, execution = doubling(cpu), MLAwaitedExecution(cpu)
    target = np.zeros((2, 3), np.float32)

    async def main() -> None:
        with pytest.raises(DataError, match="input 'x' is missing"):
            await execution.compute(graph, {}, {"y": target})
        results = await execution.compute(graph, {"x": ONES}, {"y": target})
        assert results["y"] is target

    run(main)
    np.testing.assert_array_equal(target, TWOS)


def test_work_cancelled_before_it_began_never_touches_its_outputs(cpu: MLContext, run: Run) -> None:
    graph, execution = doubling(cpu), MLAwaitedExecution(cpu)
    go = Timeline()
    target = np.zeros((2, 3), np.float32)

    async def main() -> None:
        async def compute() -> None:
            await execution.compute(graph, {"x": ONES}, {"y": target}, sync=go(wait=1))

        await cancel_after(compute, pause)
        go.signal(1)
        await execution.compute(graph, {"x": ONES})  # stands behind what was cancelled

    run(main)
    assert not target.any()


def test_destroying_the_context_fails_what_waits(run: Run) -> None:
    context = ml.create_context_sync(device_type="cpu")
    graph, execution = doubling(context), MLAwaitedExecution(context)
    begun, never = threading.Event(), Timeline()

    async def compute() -> None:
        begun.set()  # the loop runs nothing else until the computation waits
        with pytest.raises(ContextLostError, match=r"this MLContext is lost: .*destroy"):
            await execution.compute(graph, {"x": ONES}, sync=never(wait=1))

    async def destroy() -> None:
        while not begun.is_set():
            await pause()
        threading.Thread(target=context.destroy).start()

    async def main() -> None:
        await together([compute, destroy])
        assert "destroy" in (await context.lost).message
        with pytest.raises(ContextLostError):
            await execution.compute(graph, {"x": ONES})

    run(main)


def test_contexts_are_made_without_a_loop_s_help(run: Run) -> None:
    async def main() -> None:
        with await ml.create_context_async(device_type="cpu") as context:
            execution = MLAwaitedExecution(context)
            results = await execution.compute(doubling(context), {"x": ONES})
            np.testing.assert_array_equal(results["y"], TWOS)

    run(main)


def test_contexts_that_are_awaited_have_their_threads(run: Run) -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        with await ml.create_context_async(device_type="cpu"):
            begun = {thread.name for thread in set(threading.enumerate()) - before}
            assert begun >= {"webnn-cpu_0", "webnn-cpu-build_0"}

    run(main)


# Lost contexts


def test_the_loss_of_a_context_is_awaited_any_number_of_times(run: Run) -> None:
    context = ml.create_context_sync(device_type="cpu")
    before = context.lost
    messages: list[str] = []

    async def lost() -> None:
        messages.append((await before).message)

    async def destroy() -> None:
        await pause()
        assert not before.done
        assert not messages
        threading.Timer(0.01, context.destroy).start()

    run(lambda: together([lost, destroy, lost]))
    run(lost)  # another loop, and the context is lost already
    assert before.done
    assert context.lost.done
    assert messages == ["destroy() was called"] * 3


def test_cancelling_one_await_of_a_loss_disturbs_no_other(run: Run) -> None:
    context = ml.create_context_sync(device_type="cpu")
    messages: list[str] = []

    async def lost() -> None:
        messages.append((await context.lost).message)

    async def cancelled() -> None:
        await cancel_after(lost, pause)
        assert not context.lost.done
        context.destroy()

    run(lambda: together([lost, cancelled]))
    assert messages == ["destroy() was called"]


def test_a_loss_says_what_is_for_its_users_alone(cpu: MLContext) -> None:
    assert repr(cpu.lost) == "<pending MLPromise>"
    with pytest.raises(AttributeError, match="no attribute 'set_result'"):
        cpu.lost.set_result  # type: ignore[attr-defined]  # noqa: B018
