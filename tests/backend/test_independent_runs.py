"""Awaited computes that need no order: many at once, on several threads, and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, TWOS, doubling
from tests.internals import executable_of, session_of, set_policy
from tests.loops import Run, cancel_after, limited, pause, together
from tests.threads import LONG, in_threads
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    OperationError,
    ml,
)
from webnn_py.engines.base import HostExecutable
from webnn_py.ir import Array

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

Act = Callable[[], None]


@pytest.fixture
def context() -> Iterator[MLContext]:
    """Of an engine that leaves the interpreter to others, with one helper."""
    with ml.create_context_sync(device_type="cpu", engine="onnxruntime") as made:
        set_policy(made, max_helpers=1)
        yield made


class Acting(HostExecutable):
    """What computes as another does, and does something before."""

    def __init__(self, inner: HostExecutable, act: Act) -> None:
        self._inner, self._act = inner, act

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._act()
        self._inner.run(inputs, outputs)


class Gate:
    """The first run of a graph waits in it."""

    def __init__(self, graph: MLGraph, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        compute = executable_of(graph).new_results

        def waiting(*given: Any) -> Any:
            if not self.begun.is_set():
                self.begun.set()
                assert self.go.wait(LONG)
            return compute(*given)

        monkeypatch.setattr(executable_of(graph), "new_results", waiting)

    async def reached(self) -> None:
        while not self.begun.is_set():
            await pause()


def short(graph: MLGraph, act: Act, monkeypatch: pytest.MonkeyPatch) -> MLGraph:
    """The graph with a form for one thread that does something before."""
    executable = executable_of(graph)
    alone = Acting(executable, act)
    monkeypatch.setattr(type(executable), "alone", property(lambda self: alone))
    executable.took = 0
    return graph


def computing(graph: MLGraph, context: MLContext, number: float) -> Callable[[], Any]:
    async def compute() -> None:
        found = await MLAwaitedExecution(context).compute(graph, {"x": ONES * number})
        np.testing.assert_array_equal(found["y"], TWOS * number)

    return compute


def test_many_at_once_each_get_their_own(context: MLContext, run: Run) -> None:
    graph = doubling(context)
    run(lambda: together([computing(graph, context, number) for number in range(200)]))
    session_of(context).run_on_builder(lambda: None).wait(LONG)
    assert executable_of(graph).alone is not None


def test_another_thread_helps(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run alone waits for one of another thread."""
    threads: set[int] = set()
    both = threading.Event()

    def meet() -> None:
        threads.add(threading.get_ident())
        if len(threads) == 2:
            both.set()
        assert both.wait(LONG)

    other = doubling(context)
    graph = short(doubling(context), meet, monkeypatch)
    gate = Gate(other, monkeypatch)

    async def many() -> None:
        await gate.reached()
        await together([release, *(computing(graph, context, number) for number in range(40))])

    async def release() -> None:
        for _ in range(3):
            await pause()
        gate.go.set()

    run(lambda: together([computing(other, context, 1), many]))
    assert len(threads) >= 2  # one that has nothing to do may end, and another begin


def test_nobody_helps_with_long_runs(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> None:
        raise AssertionError("it takes all cores alone")

    graph = short(doubling(context), never, monkeypatch)
    set_policy(context, long_run_seconds=0.0)
    run(lambda: together([computing(graph, context, number) for number in range(40)]))


def test_who_is_cancelled_does_not_run(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = doubling(context, "first"), doubling(context, "second")
    gate = Gate(first, monkeypatch)
    ran: list[Any] = []
    monkeypatch.setattr(executable_of(second), "new_results", lambda *given: ran.append(given))

    async def main() -> None:
        async def release() -> None:
            await gate.reached()
            await cancel_after(computing(second, context, 1), pause)
            gate.go.set()

        await together([computing(first, context, 1), release])
        await computing(first, context, 2)()

    run(main)
    assert not ran


def test_what_waits_fails_with_its_context(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = doubling(context)
    gate = Gate(graph, monkeypatch)
    failed: list[BaseException] = []

    async def failing() -> None:
        await gate.reached()
        try:
            await computing(graph, context, 1)()
        except ContextLostError as error:
            failed.append(error)

    async def release() -> None:
        await gate.reached()
        for _ in range(3):
            await pause()
        context.destroy()
        gate.go.set()

    run(lambda: together([computing(graph, context, 2), release, failing, failing]))
    assert len(failed) == 2


def test_what_waits_fails_before_what_runs_ends(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = doubling(context)
    gate = Gate(graph, monkeypatch)

    async def failing() -> None:
        await gate.reached()
        with pytest.raises(ContextLostError):
            await computing(graph, context, 1)()

    async def main() -> None:
        async def destroy() -> None:
            await gate.reached()
            await pause(0.02)
            context.destroy()

        async def waiting() -> None:
            assert await limited(lambda: together([failing, failing, destroy]), LONG / 4)
            gate.go.set()

        await together([computing(graph, context, 2), waiting])

    run(main)


def test_one_that_fails_fails_alone(
    context: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = doubling(context, "good"), doubling(context, "bad")

    def fail(*given: Any) -> Any:
        raise OperationError("no")

    monkeypatch.setattr(executable_of(bad), "new_results", fail)

    async def failing() -> None:
        with pytest.raises(OperationError, match="no"):
            await computing(bad, context, 1)()

    run(lambda: together([failing, computing(good, context, 1), failing]))


def test_loops_of_several_threads(context: MLContext) -> None:
    graph = doubling(context)

    async def main() -> None:
        await together([computing(graph, context, number) for number in range(50)])

    in_threads(*[lambda: asyncio.run(main())] * 3)


def test_large_weights_are_held_once(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    from webnn_py.engines.onnxruntime import engine

    monkeypatch.setattr(engine, "MAX_SINGLE_THREAD_WEIGHT_BYTES", -1)
    executable = executable_of(doubling(context))
    executable.make_alone()
    assert executable.alone is None


def test_one_thread_needs_no_other_form() -> None:
    options = {"threads": 1}
    with ml.create_context_sync(engine="onnxruntime", engine_options=options) as context:
        executable = executable_of(doubling(context))
        assert executable.alone is executable
