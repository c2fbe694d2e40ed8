"""Worker threads that run functions in order, without the cost of an executor's futures."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from webnn_py.core import gil_yield, thread_priority
from webnn_py.core.completion import Completion
from webnn_py.core.errors import ContextLostError, OperationError
from webnn_py.core.exit_guard import ENDING, finish_calls, stop_daemon

T = TypeVar("T")
Work = Callable[[], None]
Fail = Callable[[BaseException], None]
Items = SimpleQueue[tuple[Work, Fail, Work | None] | None]
CANCELLED = "the context was destroyed before this work ran"
_NUMBERS = itertools.count()


class Workers:
    """Threads of one owner, started on demand.

    Args:
        name: Prefix of the threads' names.
        count: Number of threads at most.
        computes: Lower the threads' priority once their work takes long.
    """

    def __init__(self, name: str, count: int = 1, computes: bool = False) -> None:
        self._name = name
        self._count = count
        self._computes = computes
        self._items: Items = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._submitted = self._done = 0
        self._lock = threading.RLock()  # a finalizer may submit work meanwhile
        self._closed = False
        self._why = CANCELLED
        self._process = os.getpid()
        self.number = next(_NUMBERS)
        _ALL.add(self)

    def submit(self, work: Work, fail: Fail, afterwards: Work | None = None) -> None:
        """Run `work` on one of the threads; work begins in the order of submission.

        Args:
            work: The function to run.
            fail: Called on any thread with the error if `work` raised or will not run.
            afterwards: Run after the work, while the threads already count as idle.

        Raises:
            ContextLostError: The threads were told to end.
            OperationError: The system cannot start a thread.
        """
        with self._lock:
            if self._closed:
                raise ContextLostError(self._why)
            # Queue first: an interrupt may end this thread's wait for the new thread to start.
            self._submitted += 1
            self._items.put((work, fail, afterwards))
            if len(self._threads) < self._count:
                try:
                    self._begin_thread()
                except RuntimeError:  # the system cannot start another thread
                    if not self._threads:
                        self._items.get_nowait()
                        self._submitted -= 1
                        raise

    def begin(self) -> None:
        """Start a thread before there is work, which an event loop's thread may submit first.

        Starting a thread blocks until it runs, which takes milliseconds on a busy machine.
        """
        with self._lock:
            if not (self._closed or self._threads):
                self._begin_thread()

    def run(self, work: Callable[[], T]) -> Completion[T]:
        """Run work on a thread as by `submit`, and return the completion of its result."""
        done: Completion[T] = Completion()
        try:
            self.submit(lambda: done.set_result(work()), done.set_exception)
        except ContextLostError:
            stop_daemon()
            raise
        return done

    @property
    def idle(self) -> bool:
        """Whether all submitted work is done."""
        return self._submitted == self._done

    def _count_done(self) -> None:
        with self._lock:
            self._done += 1

    @property
    def closed(self) -> bool:
        """Whether the threads were told to end."""
        return self._closed

    @property
    def ended_with_python(self) -> bool:
        """Whether the threads were told to end because Python shuts down."""
        return self._closed and self._why == ENDING

    @property
    def here(self) -> bool:
        """Whether the threads belong to this process, not to a parent that forked it."""
        return os.getpid() == self._process

    def finish(self, why: str = CANCELLED) -> None:
        """Let the threads end after all submitted work; later submissions fail with `why`."""
        if self.here:
            self._why = self._why if self._closed else why
            self._end()

    def close(self, why: str = CANCELLED) -> None:
        """Let the threads end; queued work fails with a ContextLostError that says `why`."""
        queued = []
        with self._lock:
            self._closed, self._why = True, why
        with contextlib.suppress(Empty):
            while True:
                queued.append(self._items.get_nowait())
        self._end()
        for item in queued:
            if item is not None:
                item[1](ContextLostError(why))

    def join(self) -> None:
        """Wait until the threads have ended, after `finish` or `close`."""
        for thread in self._threads:
            thread.join()

    def _begin_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        # A daemon: Python joins other threads before it calls `_finish_all`, which ends these. The
        # thread refers to this object, so that `_finish_all` finds workers without an owner too.
        inherits = thread_priority.THREAD.has_short_slice
        thread = threading.Thread(target=self._run_all, args=(inherits,), name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.remove(thread)
            raise OperationError(f"no thread can be begun: {error}") from error

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._items.put(None)

    def _run_all(self, inherits_slice: bool) -> None:
        if inherits_slice:
            thread_priority.reset_slice()
        gil_yield.enable()
        if self._computes:
            thread_priority.enable()
        while (item := self._items.get()) is not None:
            work, fail, afterwards = item
            _CURRENT.workers = self
            begun = time.perf_counter()
            try:
                work()
            except BaseException as error:
                fail(error)
            if self._computes:
                thread_priority.note_duration(time.perf_counter() - begun)
            del item, work, fail  # free them while this thread waits
            count_as_done()
            if afterwards is not None:
                with contextlib.suppress(Exception):
                    afterwards()
            del afterwards


class _Current(threading.local):
    """The owner of this thread, until its present work counts as done."""

    workers: Workers | None = None


_CURRENT = _Current()


def count_as_done() -> None:
    """Count the present work of this thread as done, before it tells its result.

    Whoever is told may submit the next work at once, and do otherwise where threads are not idle.
    On threads that are no workers this does nothing.
    """
    workers, _CURRENT.workers = _CURRENT.workers, None
    if workers is not None:
        workers._count_done()


_ALL: weakref.WeakSet[Workers] = weakref.WeakSet()


def _finish_all() -> None:
    """End all workers at Python's exit, the latest first, as they may need the earlier ones."""
    finish_calls()
    for workers in sorted(_ALL, key=lambda workers: workers.number, reverse=True):
        if workers.here:
            workers.finish(ENDING)
            workers.join()


atexit.register(_finish_all)
