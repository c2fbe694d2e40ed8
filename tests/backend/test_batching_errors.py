"""Errors, cancelling and bad options, where computes are joined: each is of one compute alone."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.joined import (
    Held,
    Sizes,
    assert_alone,
    inputs,
    prepared,
    rows,
)
from tests.graphs import build, normal
from tests.loops import Run, cancel_after, limited, pause, together, under_asyncio
from tests.threads import LONG
from webnn_py import (
    ContextLostError,
    DataError,
    MLAwaitedExecution,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    ValidationError,
)


def test_bad_input_is_the_error_of_who_gave_it(context: MLContext, run: Run) -> None:
    graph = build(context, rows)
    execution = MLAwaitedExecution(context, batch="batch")
    errors: list[DataError] = []

    async def good() -> None:
        assert_alone(await execution.compute(graph, inputs(1)), inputs(1))

    async def bad() -> None:
        wrong = inputs(2) | {"x": normal(3, 1, 5)}
        with pytest.raises(DataError, match="'x'") as raised:
            await execution.compute(graph, wrong)
        errors.append(raised.value)

    run(lambda: together([good, bad, good]))
    assert len(errors) == 1


def test_who_is_cancelled_leaves_the_others_alone(
    own: MLContext, run: Run, runs: Sizes, hold: Callable[[MLContext], Held]
) -> None:
    graph = prepared(own, 1, 2, 4)
    execution = MLAwaitedExecution(own, batch="batch", max_batch=4)
    target = np.full((1, 3, 5), -7, np.float32)

    async def main() -> None:
        await execution.compute(graph, inputs(0))
        runs.clear()
        held = hold(own)

        async def cancelled() -> None:
            await execution.compute(graph, inputs(1), {"y": target})

        async def gone() -> None:
            await cancel_after(cancelled, pause)
            held.release()

        async def other(seed: int) -> None:
            assert_alone(await execution.compute(graph, inputs(seed)), inputs(seed))

        await together([functools.partial(other, 2), functools.partial(other, 3), gone])

    run(main)
    assert runs == [(2, 2)]
    assert (target == -7).all()


@pytest.mark.parametrize("leads", [True, False])
def test_awaits_of_a_closed_loop_wait_for_no_lock(cpu: MLContext, leads: bool) -> None:
    """Python's collector ends them on any thread, such as one that is begun under the lock."""
    graph = prepared(cpu, 1, 2)
    delay = 0 if leads else 3600
    execution = MLAwaitedExecution(cpu, batch="batch", max_batch=2, max_delay=delay)

    async def one(seed: int) -> None:
        assert_alone(await execution.compute(graph, inputs(seed)), inputs(seed))

    under_asyncio(lambda: together([lambda: one(1), lambda: one(2)]))
    loop, waiting = asyncio.new_event_loop(), execution.compute(graph, inputs(0))
    task: Any = loop.create_task(waiting)
    task._log_destroy_pending = False
    loop.call_soon(loop.stop)  # behind the task's first step
    loop.run_forever()
    loop.close()
    batching = execution._batching
    assert batching is not None
    with batching.lock:
        thread = threading.Thread(target=waiting.close, daemon=True)
        thread.start()
        thread.join(LONG)
        assert not thread.is_alive()

    async def another() -> None:
        assert await limited(lambda: one(1), LONG)

    under_asyncio(another)
    assert not task.done()


def test_destroying_the_context_fails_what_waits(
    own: MLContext, run: Run, hold: Callable[[MLContext], Held]
) -> None:
    graph = prepared(own, 1, 4)
    execution = MLAwaitedExecution(own, batch="batch", max_batch=4)
    lost: list[int] = []

    async def main() -> None:
        await execution.compute(graph, inputs(0))
        held = hold(own)

        async def one(seed: int) -> None:
            try:
                await execution.compute(graph, inputs(seed))
            except ContextLostError:
                lost.append(seed)

        async def destroy() -> None:
            await pause()
            own.destroy()
            held.release()

        await together([*(functools.partial(one, seed) for seed in range(6)), destroy])

    run(main)
    assert sorted(lost) == list(range(6))


def test_destroying_the_context_fails_what_waits_for_others(own: MLContext, run: Run) -> None:
    graph = prepared(own, 1)
    execution = MLAwaitedExecution(own, batch="batch", max_delay=3600)

    async def one() -> None:
        with pytest.raises(ContextLostError, match=r"destroy\(\) was called"):
            await execution.compute(graph, inputs(0))

    async def destroy() -> None:
        await pause(0.02)
        own.destroy()

    async def main() -> None:
        assert await limited(lambda: together([one, one, destroy]), LONG)

    run(main)


def test_destroying_the_context_fails_what_waits_for_a_run(
    own: MLContext, run: Run, hold: Callable[[MLContext], Held]
) -> None:
    graph = prepared(own, 1)
    execution = MLAwaitedExecution(own, batch="batch")

    async def one() -> None:
        with pytest.raises(ContextLostError):
            await execution.compute(graph, inputs(0))

    async def main() -> None:
        await execution.compute(graph, inputs(0))
        held = hold(own)

        async def destroy() -> None:
            await pause(0.02)
            own.destroy()

        assert await limited(lambda: together([one, one, destroy]), LONG)
        held.release()

    run(main)


def test_what_mixes_the_rows_is_named(context: MLContext, run: Run) -> None:
    def mixing(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", ["batch", 4])
        return {"y": builder.softmax(x, 0, label="votes")}

    graph = build(context, mixing)
    wanted = r"^softmax \[votes\]: .*along 'batch'.*float32\[batch,4\] -> float32\[batch,4\]"

    async def main() -> None:
        with pytest.raises(ValidationError, match=wanted):
            await MLAwaitedExecution(context, batch="batch").compute(graph, {"x": normal(2, 4)})

    run(main)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"batch": 1}, "batch"),
        ({"batch": "b", "max_batch": 0}, "max_batch"),
        ({"batch": "b", "max_batch": "all"}, "max_batch"),
        ({"batch": "b", "max_delay": -1}, "max_delay"),
        ({"batch": "b", "max_delay": "soon"}, "max_delay"),
        ({"batch": "b", "max_delay": float("nan")}, "max_delay"),
    ],
)
def test_options_are_checked(cpu: MLContext, options: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValidationError, match=wanted):
        MLAwaitedExecution(cpu, **options)
