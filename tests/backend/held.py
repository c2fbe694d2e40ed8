"""Threads of a context that tests hold, and timelines that tests fail."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.internals import engine_of, executable_of, run_on_worker, session_of
from tests.threads import LONG
from webnn_py import MLContext, MLGraph, Timeline
from webnn_py.engines.webgpu.runtime import profiling
from webnn_py.engines.webgpu.runtime.device_queue import DeviceQueue
from webnn_py.engines.webgpu.runtime.devices.command_tracking import unobserved
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.devices.staging import Ending, Staging
from webnn_py.engines.webgpu.runtime.replay import Reading
from webnn_py.ordering.timeline import state_of


class Held:
    """A thread of a context, held until `release`.

    Args:
        context: The context.
        thread: Its worker, the thread that builds graphs, or the one that reads results back.
    """

    def __init__(
        self, context: MLContext, thread: Literal["worker", "builder", "reader"] = "worker"
    ) -> None:
        self._let_go, begun = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert self._let_go.wait(LONG)

        if thread == "reader":
            engine_of(context).gpu.reader.run(hold)
        elif thread == "builder":
            session_of(context).run_on_builder(hold)
        else:
            run_on_worker(context, hold)
        assert begun.wait(LONG)

    def release(self) -> None:
        self._let_go.set()


def submit_lock(context: MLContext) -> Any:
    """Return the lock of a device that each submission takes."""
    return engine_of(context).gpu.submit_lock


async def worked(context: MLContext) -> None:
    """Return when the worker has done what it was given before."""
    await run_on_worker(context, lambda: None)


def fail(timeline: Timeline) -> None:
    """Fail value 1, as work does that was to signal it."""
    state_of(timeline).fail(1, ValueError("boom"))


def before_each_run(graph: MLGraph, act: Callable[[], None], patch: pytest.MonkeyPatch) -> MLGraph:
    """Call a function before each run of a host's graph."""
    executable: Any = executable_of(graph)
    run = executable.run

    def acting(inputs: Any, outputs: Any) -> None:
        act()
        run(inputs, outputs)

    patch.setattr(executable, "run", acting)
    return graph


GATES: dict[str, list[tuple[Any, str]]] = {
    "build": [(PipelineCache, "get_all")],
    "readback": [(Staging, "map"), (Ending, "wait"), (Reading, "finish")],
    "profile": [(profiling, "profile")],
}


def _read_later(queue: DeviceQueue, reading: Any, read: Any, done: Any, end: Any) -> None:
    queue._read_later(functools.partial(read, reading), done, end)


class Gate:
    """Holds the threads that build, read back or profile, as a slow driver would."""

    def __init__(self, patch: pytest.MonkeyPatch, where: str) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        for owner, name in GATES[where]:
            self._hold(patch, owner, name)
        # No thread that blocks looks for the end of a copy itself.
        patch.setattr(DeviceQueue, "_read_soon", _read_later)

    def _hold(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def held(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            assert self._open.wait(LONG)
            return function(*args, **kwargs)

        patch.setattr(owner, name, held)

    def open(self) -> None:
        self._open.set()


def destroy_unobserved(context: MLContext) -> None:
    """Destroy a context's device as a device is lost: nobody is told."""
    unobserved(context.device).destroy()


class Compilations:
    """Counts the graphs that an engine compiles."""

    def __init__(self, context: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        engine = engine_of(context)
        compile = engine.compile

        def counted(graph: Any) -> Any:
            self.count += 1
            return compile(graph)

        monkeypatch.setattr(engine, "compile", counted)
