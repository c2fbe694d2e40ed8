"""The session behind an MLContext: its work queue, its threads and its end."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from webnn_py.api.graph_compiler import GraphCompiler
from webnn_py.api.unordered_pool import DEFAULT_POLICY, Alone, IndependentRuns
from webnn_py.core import fork_guard, gil_yield
from webnn_py.core.completion import Cancellation, Completion, wait_or_cancel
from webnn_py.core.devices import MLDeviceType
from webnn_py.core.errors import (
    ContextLostError,
    InvalidStateError,
    ValidationError,
)
from webnn_py.core.lru_cache import CacheLimits
from webnn_py.core.messages import shown
from webnn_py.core.workers import Workers
from webnn_py.engines.base import AwaitedRun, Engine
from webnn_py.engines.reference import ReferenceEngine
from webnn_py.ordering.operation import Run

T = TypeVar("T")

DEFAULT_ROOM = CacheLimits()


@dataclass(frozen=True, slots=True)
class MLContextLostInfo:
    """Reason for the loss of a context.

    Attributes:
        message: Description of the loss.

    Examples:
        ```python
        import asyncio

        from webnn_py import ml

        ctx = ml.create_context_sync(device_type="cpu")
        ctx.destroy()


        async def main():
            info = await ctx.lost
            return info.message


        print(asyncio.run(main()))  # destroy() was called
        ```

    Source: WebNN 2026, "MLContextLostInfo dictionary".
    """

    message: str


class Holder(Protocol):
    """Owner of a context's memory, such as a tensor or a graph."""

    def release(self) -> None:
        """Release the memory after the context is lost."""
        ...


class Session:
    """Work queue and threads of one context, and what ends with them.

    Args:
        engine: Engine that compiles and runs the graphs.
        device_type: "cpu" or "gpu".
        workers: Number of worker threads.
        room: Cache limits for the sets of sizes that each graph stays compiled for.

    Attributes:
        device: Device whose resources the engine accepts, or None.
        workers: Number of worker threads.
        leaves_interpreter: Whether runs release the GIL while they compute.
        alone: Cache of single-threaded executables, for when several threads compute.
        independent: Pool of awaited runs that need no order.
        queue: Queue that orders the context's work.
        compiler: Compiler of its graphs.
        lost: Completion with the reason for the loss of the context.
        alive: Whether the context can be used; cheaper to read than `lost`. See `check_alive`.
    """

    def __init__(
        self,
        engine: Engine,
        device_type: MLDeviceType,
        workers: int = 1,
        room: CacheLimits = DEFAULT_ROOM,
    ) -> None:
        self.engine = engine
        self.device = engine.device
        self.room = room
        self.workers = workers
        self.device_type: MLDeviceType = device_type
        self.lost: Completion[MLContextLostInfo] = Completion()
        self._forked = False
        self.alive = True
        self._worker = Workers(f"webnn-{device_type}", workers, computes=device_type == "cpu")
        self._builder = Workers(f"webnn-{device_type}-build")
        self._second = Workers(
            f"webnn-{device_type}-helper", max(1, DEFAULT_POLICY.max_helpers), computes=True
        )
        self._improver = Workers(f"webnn-{device_type}-improver")
        self._all_workers = self._worker, self._builder, self._second, self._improver
        # On a CPU, the reference engine runs the operators that the engine does not support.
        helps = device_type == "cpu" and not isinstance(engine, ReferenceEngine)
        self.leaves_interpreter = helps
        self.alone = Alone(self._builder)
        helpers = self._second if helps else None
        self.independent = IndependentRuns(self._worker, workers, helpers, self.alone)
        self._builds: set[Completion[Any]] = set()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._holding = threading.Lock()
        for threads in self._all_workers:
            weakref.finalize(self, threads.finish).atexit = False
        self.queue = engine.queue(functools.partial(_start, self._worker), workers)
        fallback = ReferenceEngine() if helps else None
        self.compiler = GraphCompiler(engine, fallback, self.queue.loss())
        self.queue.loss().on_lost = functools.partial(_lose, weakref.ref(self))
        _SESSIONS.add(self)

    def begin_threads(self) -> None:
        """Start the threads that an event loop submits work to; see `Workers.begin`."""
        for threads in (self._worker, self._builder):
            threads.begin()

    def lose(self, message: str) -> None:
        """Fail pending work and refuse new work. Harmless twice."""
        if self._forked:
            return
        self.lost.set_result(MLContextLostInfo(message))
        self.alive = False
        self.queue.close(ContextLostError(self.why_lost()))
        self._fail_builds()
        for threads in self._all_workers:
            threads.close(self.why_lost())
        self.independent.fail(ContextLostError(self.why_lost()))
        with self._holding:
            holders = tuple(self._holders)
        for holder in holders:
            holder.release()
        for engine in self.compiler.engines:
            engine.destroy()

    def register_holder(self, holder: Holder) -> None:
        """Register a holder, whose memory is released at the loss of the context."""
        with self._holding:
            self._holders.add(holder)
        if not self.alive and not self._forked:  # another thread lost it just now
            holder.release()

    def leave_behind(self) -> None:
        """Mark the session as unusable in a forked child; it belongs to the parent process."""
        self.alive, self._forked = False, True
        self.lost = Completion()
        self.lost.set_result(MLContextLostInfo(f"this MLContext {fork_guard.FORKED}"))

    def check_alive(self) -> None:
        """Raise an error if the context cannot be used.

        Raises:
            ContextLostError: The context was destroyed or lost.
            InvalidStateError: This is a child process, and the context belongs to the parent.
        """
        if not self.alive:
            self.check_process()
            raise ContextLostError(self.why_lost())

    def why_lost(self) -> str:
        """Return the error message for a lost context."""
        return f"this MLContext is lost: {self.lost.wait().message}"

    def check_process(self) -> None:
        """Raise an InvalidStateError in a child process, where the context is the parent's."""
        if self._forked:
            raise InvalidStateError(f"this MLContext {fork_guard.FORKED}")

    def run_on_builder(
        self, work: Callable[[], T], cancellation: Cancellation | None = None
    ) -> Completion[T]:
        """Run `work` on the build thread, so that running graphs do not wait for it.

        It fails at once when the context is lost, even while the thread is busy. It also fails if
        it is cancelled before it begins.
        """

        def begin() -> T:
            if cancellation is not None:
                cancellation.check()
            return work()

        self.check_alive()
        done = self._builder.run(begin)
        self._builds.add(done)
        done.on_done(lambda: self._builds.discard(done))
        if self.lost.done:  # by another thread, just now
            self._fail_builds()
        return done

    async def await_builder(self, work: Callable[[], T]) -> T:
        """Run `work` on the build thread; cancelling the await before it begins drops it."""
        cancellation = Cancellation()
        done = self.run_on_builder(work, cancellation)
        return await wait_or_cancel(done, cancellation, settle=False)

    def _fail_builds(self) -> None:
        for done in tuple(self._builds):
            done.set_exception(ContextLostError(self.why_lost()))

    @property
    def worker_is_idle(self) -> bool:
        """Whether the worker threads have finished all submitted work."""
        return self._worker.idle

    def begin_on_worker(
        self, work: Run, fail: Callable[[BaseException], None], afterwards: Run | None = None
    ) -> None:
        """Run `work` on a worker thread; `work` stores its own result.

        Args:
            work: Function to run.
            fail: Called with the error if `work` does not succeed.
            afterwards: As in `Workers.submit`.
        """
        self._begin_on(self._worker, work, fail, afterwards)

    def begin_run(self, run: AwaitedRun) -> None:
        """Have a worker thread begin a run and then prepare the next one."""
        self.begin_on_worker(run.begin, run.done.set_exception, run.prepare_next)

    def begin_beside_worker(self, work: Run, fail: Callable[[BaseException], None]) -> None:
        """Run `work` on a helper thread, unordered with the work of the worker threads."""
        self._begin_on(self._second, work, fail)

    def improve(self, work: Run, needless: Callable[[], bool]) -> None:
        """Run background work on its own thread, until the work is needless or the context lost."""
        threads = self._improver

        def begin() -> None:
            with gil_yield.abandon_when(lambda: threads.closed or needless()):
                if not threads.closed:
                    work()

        self._begin_on(threads, begin, _ignore)

    def _begin_on(
        self,
        workers: Workers,
        work: Run,
        fail: Callable[[BaseException], None],
        afterwards: Run | None = None,
    ) -> None:
        try:
            if not self.alive:
                self.check_alive()
            workers.submit(work, fail, afterwards)
        except ContextLostError as error:
            fail(error)


class SessionOwner:
    """Base class of MLContext, with a reference to its session."""

    def __init__(self, session: Session) -> None:
        self._session = session


def session_of(context: object) -> Session:
    """Return the session of a context.

    Raises:
        ValidationError: `context` is not an MLContext.
        ContextLostError: The context is lost.
    """
    if not isinstance(context, SessionOwner):
        raise ValidationError(f"context: got {shown(context)}, expected an MLContext")
    context._session.check_alive()
    return context._session


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_behind() -> None:
    """Mark the parent's sessions in a forked child, where their threads do not exist."""
    for session in _SESSIONS:
        session.leave_behind()


fork_guard.after_fork_in_child(_leave_behind)


def _lose(session: weakref.ref[Session], message: str) -> None:
    alive = session()
    if alive is not None:
        alive.lose(message)


def _start(worker: Workers, run: Run) -> None:
    """Submit `run` to the worker; a context lost meanwhile has already failed its work."""
    try:
        worker.submit(run, _ignore)
    except ContextLostError:
        if worker.ended_with_python:
            raise


def _ignore(error: BaseException) -> None:
    """Ignore the error: the submitter tracks its work by other means."""
