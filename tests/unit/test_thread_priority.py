"""Threads that leave their core sooner: which do, and which are left alone."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.graphs import build, normal
from tests.internals import run_on_worker
from tests.threads import LONG
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    Timeline,
    ml,
)
from webnn_py.core.thread_priority import (
    NICENESS_STEP,
    call_and_find_threads,
    lower_priority,
    shorten_slice,
)
from webnn_py.core.workers import Workers

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness on Linux alone")

TASKS = Path("/proc/self/task")


def niceness(thread: int | None = None) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread or threading.get_native_id())


def on_a_thread(work: Callable[[], object]) -> int:
    """The niceness of a new thread after it did something, over that of this one."""
    workers = Workers("test")
    workers.run(work).wait(LONG)
    found = workers.run(niceness).wait(LONG)
    workers.finish()
    workers.join()
    return found - niceness()


@linux
def test_a_thread_stands_back_alone() -> None:
    before = niceness()
    assert on_a_thread(lower_priority) == NICENESS_STEP
    assert on_a_thread(lambda: lower_priority(slices=True)) == NICENESS_STEP
    assert niceness() == before


@linux
def test_another_thread_is_told_to() -> None:
    workers = Workers("test")
    lower_priority(workers.run(threading.get_native_id).wait(LONG))
    assert workers.run(niceness).wait(LONG) == niceness() + NICENESS_STEP
    workers.finish()


@linux
def test_a_thread_that_has_ended_is_no_error() -> None:
    workers = Workers("test")
    thread = workers.run(threading.get_native_id).wait(LONG)
    workers.finish()
    workers.join()
    lower_priority(thread, slices=True)


def slice_of_this_thread() -> int:
    """Nanoseconds; skips the test where threads have none of their own, or none is told."""
    version = tuple(map(int, os.uname().release.split(".")[:2]))
    if version < (6, 12) or os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("this kernel has no slices of one's own")
    try:
        text = (TASKS / str(threading.get_native_id()) / "sched").read_text()
    except OSError:
        pytest.skip("this kernel does not tell how it schedules")
    return next(int(line.split()[-1]) for line in text.splitlines() if "se.slice" in line)


def slices_around(work: Callable[[], object]) -> tuple[int, int]:
    """Those of a new thread before and after it did something."""

    def both() -> tuple[int, int]:
        before = slice_of_this_thread()
        work()
        return before, slice_of_this_thread()

    workers = Workers("test")
    try:
        return workers.run(both).wait(LONG)
    finally:
        workers.finish()


@linux
def test_longer_slices_are_asked_for() -> None:
    before, after = slices_around(lambda: lower_priority(slices=True))
    assert after > before


@linux
@pytest.mark.parametrize("awaits", ["what is to come", "a first run"])
def test_who_awaits_gets_a_core_at_once(awaits: str) -> None:
    with ml.create_context_sync() as context:

        async def what_is_to_come() -> None:
            timeline = Timeline()
            asyncio.get_running_loop().call_soon(timeline.signal, 1)
            await timeline.wait_async(1)

        async def first_run() -> None:
            await MLAwaitedExecution(context).compute(graph, {"x": normal(64, 64)})

        graph = build(context, product)
        work = first_run if awaits == "a first run" else what_is_to_come
        before, after = slices_around(lambda: asyncio.run(work()))
        assert after < before
        assert on_a_thread(lambda: asyncio.run(work())) == 0


@linux
def test_threads_of_one_that_awaits_have_slices_of_their_own() -> None:
    def begin_one() -> int:
        shorten_slice()
        workers = Workers("begun")
        try:
            return workers.run(slice_of_this_thread).wait(LONG)
        finally:
            workers.finish()

    workers = Workers("test")
    expected = workers.run(slice_of_this_thread).wait(LONG)
    assert workers.run(begin_one).wait(LONG) == expected
    workers.finish()


@linux
def test_who_computes_has_no_shorter_slices() -> None:
    with ml.create_context_sync() as context:
        graph = build(context, product)
        before, after = slices_around(
            lambda: MLExecution(context).compute(graph, {"x": normal(64, 64)})
        )
        assert after == before


@linux
def test_scheduling_that_was_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_BATCH)
    assert on_a_thread(lower_priority) == 0


@linux
def test_a_system_that_forbids_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    assert on_a_thread(lower_priority) == 0


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "setpriority", raising=False)
    lower_priority(slices=True)


@linux
def test_threads_are_known_by_who_began_them() -> None:
    workers, other = Workers("ours"), Workers("another's")
    found, begun = call_and_find_threads(lambda: workers.run(threading.get_native_id).wait(LONG))
    assert begun == [found]
    assert call_and_find_threads(lambda: other.begin)[1] == []
    workers.finish()


def test_errors_of_what_is_begun_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        call_and_find_threads(lambda: 1 // 0)


def product(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    x = builder.input("x", "float32", [64, 64])
    return {"y": builder.matmul(x, builder.constant(normal(64, 64)))}


def libraries_threads() -> set[int]:
    """Those of this process that Python did not begin."""
    ours = {thread.native_id for thread in threading.enumerate()}
    return {int(task.name) for task in TASKS.iterdir()} - ours


@linux
@pytest.mark.parametrize(
    ("awaited", "long", "expected"),
    [(True, True, NICENESS_STEP), (False, True, 0), (True, False, 0)],
    ids=["awaited", "not awaited", "short runs"],
)
def test_an_engines_threads_stand_back_after_a_long_run(
    awaited: bool, long: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    for module in ("engines.onnxruntime.engine", "core.thread_priority"):
        monkeypatch.setattr(f"webnn_py.{module}.LONG_RUN_SECONDS", 0 if long else LONG)

    async def main(context: MLContext) -> MLGraph:
        builder = MLGraphBuilder(context)
        graph = await builder.build_async(product(builder)) if awaited else build(context, product)
        await MLAwaitedExecution(context).compute(graph, {"x": normal(64, 64)})
        return graph

    with ml.create_context_sync(engine="onnxruntime", engine_options={"threads": 3}) as context:
        before = libraries_threads()
        graph = asyncio.run(main(context))
        found = libraries_threads() - before
        assert {niceness(thread) - niceness() for thread in found} == {expected}
        graph.destroy()
        worker = run_on_worker(context, niceness).wait(LONG)
        assert worker == niceness() + (NICENESS_STEP if long else 0)
    assert niceness(os.getpid()) == niceness()


@linux
def test_threads_stand_back_before_a_run_that_will_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr("webnn_py.engines.profile.CORE_FLOPS", 1)
    for module in ("engines.onnxruntime.engine", "core.thread_priority"):
        monkeypatch.setattr(f"webnn_py.{module}.LONG_RUN_SECONDS", LONG)  # which no run takes here
    before = libraries_threads()

    async def main(context: MLContext) -> None:
        builder = MLGraphBuilder(context)
        graph = await builder.build_async(product(builder))
        await MLAwaitedExecution(context).compute(graph, given)
        found = libraries_threads() - before
        assert {niceness(thread) - niceness() for thread in found} == {NICENESS_STEP}
        MLExecution(context, allow_blocking=True).compute(graph, given)

    given = {"x": normal(64, 64)}
    with ml.create_context_sync(engine="onnxruntime", engine_options={"threads": 3}) as context:
        asyncio.run(main(context))
        worker = run_on_worker(context, niceness).wait(LONG)
        assert worker == niceness() + NICENESS_STEP
    assert niceness(os.getpid()) == niceness()
