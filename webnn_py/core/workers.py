"""Threads that run what they are given, in order; leaner than an executor, whose futures cost."""

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
    """Threads that belong to something, begun when they are needed.

    Args:
        name: Of the threads.
        count: How many there are at most.
        computes: They stand back once work takes long.
    """

    def __init__(self, name: str, count: int = 1, computes: bool = False) -> None:
        self._name = name
        self._count = count
        self._computes = computes
        self._items: Items = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._given = self._done = 0
        self._lock = threading.RLock()  # a finalizer may give work within
        self._closed = False
        self._why = CANCELLED
        self._process = os.getpid()
        self.number = next(_NUMBERS)
        _ALL.add(self)

    def submit(self, work: Work, fail: Fail, afterwards: Work | None = None) -> None:
        """Run `work` on one of the threads, begun after what was given to them before.

        Args:
            work: What to run.
            fail: Is told, on whatever thread, if it raised, or will not run.
            afterwards: Run behind it, by threads that count as idle: what is of use later.

        Raises:
            ContextLostError: The threads were told to end.
            OperationError: The system has no room for a thread.
        """
        with self._lock:
            if self._closed:
                raise ContextLostError(self._why)
            # First, as an interrupt finds this thread waiting for the new one, which then has it.
            self._given += 1
            self._items.put((work, fail, afterwards))
            if len(self._threads) < self._count:
                try:
                    self._begin_thread()
                except RuntimeError:  # the system has no room for another
                    if not self._threads:
                        self._items.get_nowait()
                        self._given -= 1
                        raise

    def begin(self) -> None:
        """Begin a thread before there is work: who gives that first may be an event loop's thread.

        It would wait until the new thread runs, which takes a busy machine milliseconds.
        """
        with self._lock:
            if not (self._closed or self._threads):
                self._begin_thread()

    def run(self, work: Callable[[], T]) -> Completion[T]:
        """As `submit`, for work that has a result."""
        done: Completion[T] = Completion()
        try:
            self.submit(lambda: done.set_result(work()), done.set_exception)
        except ContextLostError:
            stop_daemon()
            raise
        return done

    @property
    def idle(self) -> bool:
        """Whether all that they were given is done."""
        return self._given == self._done

    @property
    def closed(self) -> bool:
        """Whether they were told to end."""
        return self._closed

    @property
    def ended_with_python(self) -> bool:
        """Whether they were told to end as Python does."""
        return self._closed and self._why == ENDING

    @property
    def here(self) -> bool:
        """Whether the threads are of this process, and not of its parent."""
        return os.getpid() == self._process

    def finish(self, why: str = CANCELLED) -> None:
        """Let the threads end after all that they were given; why, is told to who gives more."""
        if self.here:
            self._why = self._why if self._closed else why
            self._end()

    def close(self, why: str = CANCELLED) -> None:
        """Let the threads end; what they have not begun fails, as an error of theirs says why."""
        given = []
        with self._lock:
            self._closed, self._why = True, why
        with contextlib.suppress(Empty):
            while True:
                given.append(self._items.get_nowait())
        self._end()
        for item in given:
            if item is not None:
                item[1](ContextLostError(why))

    def join(self) -> None:
        """Wait until the threads that were told so have ended."""
        for thread in self._threads:
            thread.join()

    def _begin_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        # A daemon, as Python waits for others, which go on computing, before it calls what tells
        # these to end. It keeps these workers, so that Python's end waits for work of those that
        # nobody else has any more.
        inherits = thread_priority.has_short_slice()
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
            begun = time.perf_counter()
            try:
                work()
            except BaseException as error:
                fail(error)
            thread_priority.note_duration(time.perf_counter() - begun)
            del item, work, fail  # not to be kept alive while this waits
            with self._lock:
                self._done += 1
            if afterwards is not None:
                with contextlib.suppress(Exception):
                    afterwards()
            del afterwards


_ALL: weakref.WeakSet[Workers] = weakref.WeakSet()


def _finish_all() -> None:
    """When Python ends: those that were made last first, as they may need the others."""
    finish_calls()
    for workers in sorted(_ALL, key=lambda workers: workers.number, reverse=True):
        if workers.here:
            workers.finish(ENDING)
            workers.join()


atexit.register(_finish_all)
