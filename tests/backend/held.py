"""Threads of a context that tests hold, and timelines that tests fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.internals import engine_of, executable_of, session_of
from tests.threads import LONG
from webnn_py import MLContext, MLGraph, Timeline
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

        session: Any = session_of(context)
        if thread == "reader":
            engine_of(context).gpu.reader.run(hold)
        else:
            (session.run_on_worker if thread == "worker" else session.run_on_builder)(hold)
        assert begun.wait(LONG)

    def release(self) -> None:
        self._let_go.set()


def submit_lock(context: MLContext) -> Any:
    """Return the lock of a device that each submission takes."""
    return engine_of(context).gpu.submit_lock


async def worked(context: MLContext) -> None:
    """Return when the worker has done what it was given before."""
    await session_of(context).run_on_worker(lambda: None)


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
