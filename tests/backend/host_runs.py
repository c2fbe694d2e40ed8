"""Runs of host engines that tests stop, fail and watch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.internals import executable_of
from tests.internals import set_policy as set_policy
from tests.loops import pause
from tests.threads import LONG
from webnn_py import MLContext, MLGraph, ml
from webnn_py.engines.base import HostExecutable
from webnn_py.ir import Array

Act = Callable[[], None]


@contextlib.contextmanager
def helped() -> Iterator[MLContext]:
    """Make a context of an engine that leaves the interpreter to others, with one helper."""
    with ml.create_context_sync(device_type="cpu", engine="onnxruntime") as context:
        set_policy(context, max_helpers=1)
        yield context


def before_results(graph: MLGraph, act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function before each run of a graph that makes its own results."""
    compute = executable_of(graph).new_results

    def acting(*given: Any) -> Any:
        act()
        return compute(*given)

    monkeypatch.setattr(executable_of(graph), "new_results", acting)


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

        def wait() -> None:
            if not self.begun.is_set():
                self.begun.set()
                assert self.go.wait(LONG)

        before_results(graph, wait, monkeypatch)

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
