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
from tests.internals import session_of
from tests.threads import LONG
from webnn_py import MLExecution, MLGraphBuilder, MLOperand, ml
from webnn_py.core.priority import NICENESS, begun_behind, stand_back
from webnn_py.core.workers import Workers

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness on Linux alone")


def niceness(thread: int | None = None) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread or threading.get_native_id())


def on_a_thread(prepare: Callable[[], None]) -> int:
    """The niceness of a new thread after it did something, over that of this one."""
    workers = Workers("test", 1, prepare)
    found = workers.run(niceness).wait(LONG)
    workers.finish()
    workers.join()
    return found - niceness()


@linux
def test_a_thread_stands_back_alone() -> None:
    before = niceness()
    assert on_a_thread(stand_back) == NICENESS
    assert on_a_thread(lambda: stand_back(slices=True)) == NICENESS
    assert niceness() == before


@linux
def test_threads_that_are_begun_stand_back_with_who_begins_them() -> None:
    assert begun_behind(lambda: on_a_thread(lambda: None)) == 0
    assert begun_behind(niceness) == niceness() + NICENESS


def test_errors_of_what_is_begun_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        begun_behind(lambda: 1 // 0)


@linux
def test_longer_slices_are_asked_for() -> None:
    def slices() -> str:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/sched").read_text()
        return next((line.split()[-1] for line in text.splitlines() if "se.slice" in line), "")

    try:
        begun, before = begun_behind(slices), slices()
    except OSError:
        pytest.skip("this kernel does not tell how it schedules")
    version = tuple(map(int, os.uname().release.split(".")[:2]))
    if not before or version < (6, 12) or os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("this kernel has no slices of one's own")
    assert int(begun) > int(before)


@linux
def test_scheduling_that_was_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_BATCH)
    assert on_a_thread(stand_back) == 0


@linux
def test_a_system_that_forbids_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    assert on_a_thread(stand_back) == 0


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "setpriority", raising=False)
    stand_back(slices=True)


def product(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    x = builder.input("x", "float32", [64, 64])
    return {"y": builder.matmul(x, builder.constant(normal(64, 64)))}


@linux
@pytest.mark.parametrize("awaited", [True, False])
def test_an_engines_threads_stand_back_where_a_build_is_awaited(awaited: bool) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    tasks = Path("/proc/self/task")
    with ml.create_context_sync(engine="onnxruntime", engine_options={"threads": 3}) as context:
        before = {*tasks.iterdir()}
        if awaited:
            builder = MLGraphBuilder(context)
            graph = asyncio.run(builder.build_async(product(builder)))
        else:
            graph = build(context, product)
        ours = {thread.native_id for thread in threading.enumerate()}
        begun = [int(task.name) for task in {*tasks.iterdir()} - before]
        found = {niceness(thread) - niceness() for thread in begun if thread not in ours}
        assert found == {NICENESS if awaited else 0}
        assert session_of(context).run_on_worker(niceness).wait(LONG) == niceness() + NICENESS
        MLExecution(context, allow_blocking=True).compute(graph, {"x": normal(64, 64)})
    assert niceness(os.getpid()) == niceness()
