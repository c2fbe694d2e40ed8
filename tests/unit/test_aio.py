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
from tests.internals import session_of
from tests.loops import Run, cancel_after, pause, together
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    OperationError,
    Timeline,
    ml,
)
from webnn_py.core.completion import Cancellation, Completion, check_may_block

# Completion


def test_a_result_set_by_another_thread_is_awaited(run: Run) -> None:
    completion: Completion[int] = Completion()
    thread = threading.Timer(0.01, completion.set_result, [5])

    async def main() -> None:
        thread.start()
        assert await completion == 5
        assert await completion == 5

    run(main)
    thread.join()


def test_an_error_is_raised_by_every_await(run: Run) -> None:
    completion: Completion[int] = Completion()

    async def main() -> None:
        threading.Timer(0.01, completion.set_exception, [KeyError("x")]).start()
        for _ in range(2):
            with pytest.raises(KeyError):
                await completion

    run(main)


def test_the_first_result_stays() -> None:
    completion: Completion[int] = Completion()
    completion.set_result(1)
    completion.set_result(2)
    completion.set_exception(KeyError())
    assert completion.done
    assert completion.wait() == 1


def test_waiting_has_an_end() -> None:
    completion: Completion[int] = Completion()
    with pytest.raises(TimeoutError):
        completion.wait(0.001)
    assert not completion.done


def test_callbacks_are_called_once_done_and_at_once_after() -> None:
    completion: Completion[int] = Completion()
    seen: list[str] = []
    completion.on_done(lambda: seen.append("before"))
    assert seen == []
    completion.set_result(1)
    completion.on_done(lambda: seen.append("after"))
    assert seen == ["before", "after"]


def test_a_loop_that_is_closed_meanwhile_does_no_harm(run: Run) -> None:
    completion: Completion[int] = Completion()

    async def wait() -> None:
        await completion

    run(lambda: cancel_after(wait, pause))
    completion.set_result(1)
    assert completion.wait() == 1


def test_cancelled_work_keeps_nothing() -> None:
    completion, cancellation = Completion[int](), Cancellation()
    cancellation.cancel()
    with pytest.raises(OperationError) as caught:
        cancellation.check()
    assert caught.value.__traceback__ is not None
    completion.set_exception(caught.value)
    assert caught.value.__traceback__ is None
    with pytest.raises(OperationError, match="cancelled"):
        completion.wait()


def test_who_waits_no_more_is_forgotten(run: Run) -> None:
    completion: Completion[int] = Completion()

    async def wait() -> None:
        await completion

    async def settle() -> None:
        await completion.settled()

    for waiting in (wait, settle):
        run(functools.partial(cancel_after, waiting, pause))
    with pytest.raises(TimeoutError):
        completion.wait(0.001)
    assert not completion._callbacks


# Blocking


def test_blocking_is_refused_under_a_loop_alone(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStateError, match=r"it would block .*; use that"):
            check_may_block("it", "that")
        error: list[BaseException] = []
        thread = threading.Thread(target=catching, args=(error,))
        thread.start()
        thread.join()
        assert not error

    def catching(error: list[BaseException]) -> None:
        try:
            check_may_block("it", "that")
        except InvalidStateError as raised:
            error.append(raised)

    run(main)
    check_may_block("it", "that")


# Execution


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
            check_may_block("it", "that")
        await compute()
        await go.wait_async(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(go.wait_async(2), 0.01)
        (await over).unwrap()

    asyncio.run(host())


def test_the_loop_runs_while_a_computation_waits(cpu: MLContext, run: Run) -> None:
    graph, execution = doubling(cpu), MLAwaitedExecution(cpu)
    release = threading.Event()

    async def main() -> None:
        blocker = session_of(cpu).run_on_worker(release.wait)  # the computation stands behind it

        async def compute() -> None:
            await execution.compute(graph, {"x": ONES})

        async def begun() -> None:
            for _ in range(10):
                await pause()

        await cancel_after(compute, begun)  # a loop that were blocked would never get here
        release.set()
        await blocker

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
    release = threading.Event()
    target = np.zeros((2, 3), np.float32)

    async def main() -> None:
        blocker = session_of(cpu).run_on_worker(release.wait)

        async def compute() -> None:
            await execution.compute(graph, {"x": ONES}, {"y": target})

        await cancel_after(compute, pause)
        release.set()
        await blocker
        await execution.compute(graph, {"x": ONES})  # stands behind what was cancelled

    run(main)
    assert not target.any()


def test_destroying_the_context_fails_what_waits(run: Run) -> None:
    context = ml.create_context_sync(device_type="cpu")
    graph, execution = doubling(context), MLAwaitedExecution(context)
    release, begun = threading.Event(), threading.Event()

    async def compute() -> None:
        begun.set()  # the loop runs nothing else until the computation waits
        with pytest.raises(ContextLostError, match=r"this MLContext is lost: .*destroy"):
            await execution.compute(graph, {"x": ONES})

    async def destroy() -> None:
        while not begun.is_set():
            await pause()
        threading.Thread(target=context.destroy).start()

    async def main() -> None:
        session_of(context).run_on_worker(release.wait)
        session_of(context).run_on_worker(lambda: None).on_done(release.set)
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
