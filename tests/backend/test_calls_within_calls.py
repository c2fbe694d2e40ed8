"""Blocking calls of finalizers and signal handlers, in the midst of another call of the thread."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.conftest import no_adapter
from tests.graphs import build
from tests.interrupts import FOLDER
from tests.processes import run_alone
from tests.threads import LONG
from webnn_py import (
    DLPackError,
    InvalidStateError,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLTensor,
    Timeline,
    ValidationError,
    ml,
)

X = np.arange(-4, 4, dtype=np.float32)
EACH = 5
"""Every so many lines of the package's that run one is interrupted."""


class Handler:
    """Makes a call before the n-th line of the package's that runs, as a finalizer may.

    Args:
        number: Which one, from 0.
        work: What it calls.
    """

    def __init__(self, number: int, work: Callable[[], object]) -> None:
        self._left = number
        self._work = work
        self.came = False
        self.refused = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER) or self.came:
            return None
        if event == "line":
            self.came = self._left == 0
            self._left -= 1
            if self.came:
                try:
                    self._work()
                except (InvalidStateError, DLPackError) as error:
                    self.refused = str(error)
        return self


class Calls:
    """A context and all that may be called on it.

    Args:
        context: The context.
    """

    def __init__(self, context: MLContext) -> None:
        self.context = context
        self.graph: MLGraph = build(context, _relu)
        self.x, self.y, self.other = (_tensor(context) for _ in range(3))
        self.before = Timeline()
        self.timeline = Timeline()

    def work(self) -> None:
        """What is interrupted."""
        context = self.context
        context.write_tensor(self.x, X)
        sync = [self.timeline(signal=self.timeline.value + 2)]
        context.dispatch(self.graph, {"x": self.x}, {"y": self.y}, sync=sync)
        context.flush()
        np.testing.assert_array_equal(context.read_tensor_sync(self.y), np.maximum(X, 0))

    def begin(self) -> None:
        """Work that is done, or is to be, when the call is made."""
        self.before = Timeline()
        sync = [self.before(signal=1)]
        self.context.dispatch(self.graph, {"x": self.x}, {"y": self.other}, sync=sync)

    def read(self) -> None:
        self.context.read_tensor_sync(self.other)

    def read_in_time(self) -> None:
        self.context.read_tensor_sync(self.other, timeout=LONG)

    def share(self) -> None:
        self.other.__dlpack__(dl_device=(1, 0))

    def wait(self) -> None:
        self.before.wait_sync(1)

    def signal(self) -> None:
        with contextlib.suppress(ValidationError):  # the work has raised it further
            self.timeline.signal(self.timeline.value + 1)

    def flush(self) -> None:
        self.context.flush()

    def write(self) -> None:
        self.context.write_tensor(self.other, X)

    def compute(self) -> None:
        if self.context.device_type == "cpu":
            MLExecution(self.context).compute(self.graph, {"x": self.x}, {"y": self.other})

    def build(self) -> None:
        build(self.context, _relu)


CALLS = ("read", "read_in_time", "share", "wait", "signal", "flush", "write", "compute", "build")


def _relu(b: MLGraphBuilder) -> dict[str, Any]:
    return {"y": b.relu(b.input("x", "float32", [8]))}


def _tensor(context: MLContext) -> MLTensor:
    return context.create_tensor_sync("float32", [8], readable=True, writable=True)


def _bounded(work: Callable[[], None]) -> None:
    """Do it on a thread of its own, which is left behind where it hangs."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(3 * LONG)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


def _interrupt_each(work: Callable[[], None], begin: Callable[[], None], call: Any) -> list[str]:
    """Make a call in the midst of each one of some work; why it was refused, where it was."""
    refusals: list[str] = []
    number, came = 0, True
    while came:
        begin()
        handler = Handler(number, call)
        before = sys.gettrace()
        sys.settrace(handler)
        try:
            work()
        finally:
            sys.settrace(before)
        came = handler.came
        refusals.append(handler.refused)
        number += EACH
    return refusals


@pytest.mark.parametrize("call", CALLS)
def test_calls_go_on_or_are_refused(contexts: Callable[[str], MLContext], call: str) -> None:
    for kind in ("cpu", "gpu"):
        calls = Calls(contexts(kind))
        refusals: list[str] = []

        def work(calls: Calls = calls, refusals: list[str] = refusals) -> None:
            refusals += _interrupt_each(calls.work, calls.begin, getattr(calls, call))
            calls.work()

        _bounded(work)
        refused = [text for text in refusals if text]
        assert len(refused) < len(refusals)  # where nothing is under way, calls go on
        assert all("finalizer or signal handler" in text for text in refused), refused


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_context_is_destroyed_within_any_call(kind: Any, gpu: MLContext) -> None:
    def destroy_each() -> None:
        number, came = 0, True
        while came:
            calls = Calls(ml.create_context_sync(device_type=kind))
            handler = Handler(number, calls.context.destroy)
            sys.settrace(handler)
            try:
                calls.work()
            except Exception:  # which depends on where it was
                assert handler.came
            finally:
                sys.settrace(None)
            came = handler.came
            assert not handler.refused
            calls.context.destroy()
            number += 8 * EACH

    _bounded(destroy_each)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_finalizer_reads(kind: str, contexts: Callable[[str], MLContext]) -> None:
    calls = Calls(contexts(kind))
    seen: list[str] = []

    class Dropped:
        def __del__(self) -> None:
            try:
                calls.read()
                seen.append("read")
            except InvalidStateError:
                seen.append("refused")

    class Lent(np.ndarray[Any, Any]):
        """Its last user drops it in the midst of a submission."""

    def work() -> None:
        for _ in range(20):
            lent = X.view(Lent)
            lent.dropped = Dropped()  # type: ignore[attr-defined]
            calls.context.write_tensor(calls.x, lent)
            del lent
            calls.work()

    _bounded(work)
    assert len(seen) == 20


def _read_in_a_signal_handler(kind: str) -> None:
    with ml.create_context_sync(device_type=kind) as context:
        x = _tensor(context)
        context.write_tensor(x, X)
        reached = Timeline()
        results: list[Any] = []

        def handle(*_: object) -> None:
            results.append(context.read_tensor_sync(x, timeout=LONG))
            reached.signal(1)

        signal.signal(signal.SIGUSR1, handle)
        here = threading.get_ident()
        timer = threading.Timer(0.1, functools.partial(signal.pthread_kill, here, signal.SIGUSR1))
        timer.start()
        reached.wait_sync(1, timeout=LONG)
        timer.join()
        np.testing.assert_array_equal(results, [X])


def read_in_a_signal_handler_on_a_cpu() -> None:
    _read_in_a_signal_handler("cpu")


def read_in_a_signal_handler_on_a_gpu() -> None:
    _read_in_a_signal_handler("gpu")


@pytest.mark.parametrize(
    "work", [read_in_a_signal_handler_on_a_cpu, read_in_a_signal_handler_on_a_gpu]
)
def test_a_signal_handler_reads_while_its_thread_waits(work: Callable[[], None]) -> None:
    """Nothing is held then: the read goes on.

    In a process of its own, as the stack for signals of this one, which libraries share, was found
    to be unusable after some two thousand tests.
    """
    if work is read_in_a_signal_handler_on_a_gpu and (reason := no_adapter()):
        pytest.skip(reason)
    run_alone(work)
