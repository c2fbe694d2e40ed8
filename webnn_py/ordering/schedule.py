"""Order of the operations of one context. No call here blocks a thread while an operation waits.

Operations run in the order of submission. One that must wait for a timeline is parked, and so are
later ones that share memory with it; other operations overtake them. The timeline resumes parked
operations when it is reached.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import time
from collections import deque
from typing import NamedTuple

from webnn_py.core.completion import CANCELLED, check_interrupts_nothing, interrupts_own_call
from webnn_py.core.errors import ContextLostError, OperationError
from webnn_py.core.exit_guard import stop_daemon
from webnn_py.memory.overlap import Region
from webnn_py.ordering.backlog import Backlog
from webnn_py.ordering.operation import Executor, Operation, ParkedOperation, Signals
from webnn_py.ordering.parked import ParkedOperations
from webnn_py.ordering.unordered import UnorderedRun, UnorderedRuns

REMEASURE_SECONDS = 0.05
"""Interval at which a thread that waits for room measures the parked memory again."""


class _Step(NamedTuple):
    """Next step of a thread.

    Attributes:
        operation: The operation that it runs or has parked; None to let the worker continue.
        cause: Why the operation fails, if it does.
        is_parked: It waits for a timeline, or can never run.
    """

    operation: Operation | None
    cause: BaseException | None = None
    is_parked: bool = False


class _Thread:
    """A thread that runs operations, or is about to, and counts as active.

    An exception such as Ctrl-C may interrupt it at any call; this state says what to repair then.
    Fields that belong together change without a call between.

    Attributes:
        counted: Whether the thread counts as active.
        running: The operation that it runs.
        handed: The worker's thread that counts in its place.
        begun: For a thread of the worker: it has begun, which it does once.
    """

    __slots__ = ("begun", "counted", "handed", "running")

    def __init__(self, counted: bool) -> None:
        self.counted = counted
        self.running: Operation | None = None
        self.handed: _Thread | None = None
        self.begun = False


class Schedule:
    """Runs the operations of one context; it holds no lock while one runs.

    Args:
        executor: Where and how they run.

    Attributes:
        unordered: Runs without a place in this order; operations that share memory wait for them.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._queue: deque[Operation] = deque()  # submitted, neither run nor parked yet
        self._parked_operations = ParkedOperations(executor)
        self._parked, self._ready = self._parked_operations.works, self._parked_operations.ready
        self._running: dict[Operation, None] = {}
        self._signals = Signals(executor.signal, self._parked)
        self._backlog = Backlog()
        self.unordered = UnorderedRuns()
        self._threads = 0  # active ones
        self._numbers = itertools.count()
        self._last = -1
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0  # threads blocked in `_wait`
        self._closed: BaseException | None = None

    @property
    def keeps_order(self) -> bool:
        """Whether an operation that begins now may have to wait for shared memory."""
        if self._executor.width > 1:
            return True
        if not self._threads:
            return bool(self._parked or self._queue)
        with self._lock:  # a thread may be about to park what it took off the queue
            return bool(self._parked or self._queue)

    def submit(self, operation: Operation) -> None:
        """Add an operation; it runs when its waits are met and earlier conflicting work is done.

        Raises:
            ContextLostError: The context is lost.
        """
        if self.unordered:
            operation.sync += self.unordered.waits(operation)
        thread = _Thread(counted=False)
        try:
            with self._lock:
                if self._closed is not None:
                    raise ContextLostError(str(self._closed))
                if operation.sync:
                    for timeline, value in operation.signals:
                        timeline.expect(value, operation)
                operation.number = self._last = next(self._numbers)
                inline = self._executor.inline and not (operation.sync or operation.slow)
                runs_now = inline and not (self._threads or self._parked)
                if self._threads < self._executor.width:
                    self._threads += 1
                    thread.counted = True
                if runs_now:
                    thread.running = operation
                    self._running[operation] = None
                else:
                    if operation.kept_bytes:
                        self._backlog.add(operation)
                    if operation.keep is not None:
                        operation.keep()
                    self._queue.append(operation)
            if runs_now:
                self._run_now(thread, operation)
            elif thread.counted:
                self._begin(thread)
        except BaseException as error:
            self._interrupt(thread, error)
            stop_daemon()
            raise

    @property
    def is_free(self) -> bool:
        """Whether an operation without timelines would run on the submitting thread now."""
        return self._executor.inline and not (self._threads or self._parked)

    def withdraw(self, operation: Operation) -> None:
        """Cancel an operation that has not begun; it fails, with its signals."""
        with self._lock:
            parked = self._parked.get(operation)
            if parked is not None:
                if not self._parked_operations.drop(parked):
                    return
            elif operation in self._queue:
                self._queue.remove(operation)
                self._backlog.remove(operation)
            else:
                return
        operation.abandon(OperationError(CANCELLED))
        if parked is not None:
            self._wake(parked)

    def settle(self) -> list[Operation]:
        """Block until everything submitted before this call has run, except parked operations.

        Returns:
            The operations that remain: they wait for a timeline, or behind one that does.
        """
        last = self._last
        thread = _Thread(counted=False)
        try:
            with self._lock:
                if not (self._threads or self._parked):
                    return []
                for parked in self._parked.values():  # the worker may not have rechecked it yet
                    self._parked_operations.recheck(parked)
                if self._ready and not self._threads:
                    self._threads += 1
                    thread.counted = True
            if thread.counted:
                self._begin(thread)
        except BaseException as error:
            self._interrupt(thread, error)
            raise
        with self._lock:
            if self._is_moving(last):
                check_interrupts_nothing("waiting for work that was submitted")
            while self._is_moving(last):
                self._wait()
            return [
                operation
                for operation, parked in self._parked.items()
                if operation.number <= last and not parked.dropped
            ]

    def wait_for_room(self, seconds: float | None) -> None:
        """Block while operations that can run keep too much host memory.

        Args:
            seconds: Limit of the wait; None waits until there is room.
        """
        if self._backlog.has_room or interrupts_own_call():
            return
        end = math.inf if seconds is None else time.monotonic() + seconds
        next_measure = 0.0
        with self._lock:
            while self._is_moving(self._last) and not self._backlog.has_room:
                now = time.monotonic()
                if now >= end:
                    return
                if now < next_measure:
                    self._wait(min(end, next_measure) - now)
                else:
                    self._backlog.measure(self._parked.values())
                    next_measure = now + REMEASURE_SECONDS

    def users(self, region: Region) -> list[Operation | UnorderedRun]:
        """Return the unfinished operations and runs that use a region."""
        with self._lock:
            everything = (*self._running, *self._parked, *self._queue)
            found = [operation for operation in everything if operation.uses(region)]
        return [*self.unordered.users(region), *found]

    def _wait(self, seconds: float | None = None) -> None:
        """Block until something changes, or for `seconds`."""
        self._waiters += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._waiters -= 1

    def _is_moving(self, last: int) -> bool:
        """Whether an operation up to number `last` runs, or will soon."""
        if not self._threads:
            return False
        if any(operation.number <= last for operation in self._running):
            return True
        if self._signals.is_due(last):
            return True
        first = min(
            self._queue[0].number if self._queue else last + 1,
            self._ready[0][0] if self._ready else last + 1,
        )
        return first <= last

    def close(self, error: BaseException) -> None:
        """Fail everything that has not run, and refuse new operations."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = error
            dropped = [*self._parked_operations.clear(), *self._queue]
            self._queue.clear()
            self._backlog = Backlog()
            self._changed.notify_all()
        # Stop all first: a failing operation would fail others for that reason.
        for operation in dropped:
            operation.abandon(ContextLostError(str(error)))
        with self._lock:
            self._signals.catch_up()

    def _begin(self, thread: _Thread) -> None:
        """Run the operations submitted so far."""
        if self._executor.inline:
            self._drain(thread, self._last)
        else:
            self._hand_over(thread)

    def _hand_over(self, thread: _Thread) -> None:
        """Let the worker continue in this thread's place."""
        handed = _Thread(counted=True)
        thread.handed, thread.counted = handed, False
        self._give(handed)

    def _give(self, handed: _Thread) -> None:
        """Start the worker; if the system has no thread left, fail the queued operations."""
        try:
            self._executor.worker(functools.partial(self._go_on, handed))
        except RuntimeError as error:
            with self._lock:
                self._threads -= not handed.begun
                handed.begun = True
                dropped = [] if self._threads else [*self._queue]
                for operation in dropped:
                    self._queue.remove(operation)
                    self._backlog.remove(operation)
                self._changed.notify_all()
            for operation in dropped:
                operation.abandon(error)
            raise

    def _go_on(self, thread: _Thread) -> None:
        """Run one operation on the worker, then let other work of the worker have its turn."""
        with self._lock:
            if thread.begun:
                return
            thread.begun = True
        try:
            self._drain(thread)
        except BaseException as error:
            self._interrupt(thread, error)
            raise

    def _wake(self, parked: ParkedOperation) -> None:
        """Resume an operation whose timeline was reached or failed, or that was withdrawn."""
        with contextlib.suppress(ContextLostError):
            self._executor.worker(functools.partial(self._resume, parked))

    def _resume(self, parked: ParkedOperation) -> None:
        with self._lock:
            self._parked_operations.recheck(parked)
            if parked.waiting:
                self._parked_operations.find_deadlock(parked)
        if parked.cause is not None:
            parked.operation.fail_signals(parked.cause)
        with self._lock:
            self._parked_operations.recheck(parked)
            if not self._ready or self._threads >= self._executor.width:
                return
            self._threads += 1
        self._go_on(_Thread(counted=True))

    def _done(self, operation: Operation) -> None:
        """Release the followers of an operation; the caller holds the lock."""
        self._running.pop(operation, None)
        if operation.kept_bytes:
            self._backlog.remove(operation)
        if operation.sync:
            operation.notify_watchers()
        self._parked_operations.remove(operation)

    def _run_now(self, thread: _Thread, operation: Operation) -> None:
        """Run an operation on the thread that submits it, then those submitted meanwhile."""
        try:
            self._executor.perform(operation)
        except Exception as error:
            operation.abandon(error)
        with self._lock:
            if not (self._queue or self._parked or self._waiters):
                self._running.pop(operation, None)
                self._threads -= 1
                thread.counted, thread.running = False, None
                return
        self._drain(thread, operation.number)

    def _interrupt(self, thread: _Thread, error: BaseException) -> None:
        """Repair the state after an exception such as Ctrl-C; the worker continues."""
        running = thread.running
        if running is not None:
            running.abandon(OperationError(f"the work was interrupted: {error!r}"))
            with self._lock:
                self._done(running)
        if thread.counted:
            self._hand_over(thread)
        elif thread.handed is not None:  # the worker may not have been started
            self._give(thread.handed)

    def _drain(self, thread: _Thread, last: int | None = None) -> None:
        """Run operations until none can run; timelines resume the parked ones.

        Args:
            thread: This thread; the operation that it ran is done.
            last: The number of the last operation to run on this thread; None on the worker, which
                runs one and lets other work have its turn.
        """
        ran = False
        while (turn := self._next(thread, last, ran)) is not None:
            if turn.operation is None:
                self._hand_over(thread)
                return
            if not turn.is_parked:
                ran = True
                self._perform(turn.operation, turn.cause)
            elif turn.cause is None:
                self._executor.on_parked()
            else:
                turn.operation.fail_signals(turn.cause)

    def _next(self, thread: _Thread, last: int | None, ran: bool) -> _Step | None:
        """Return the next step of a thread; None if there is none, and it is no longer active."""
        with self._lock:
            if thread.running is not None:
                self._done(thread.running)
                thread.running = None
            if self._signals.early:
                self._signals.catch_up()
            if self._waiters:
                self._changed.notify_all()
            while self._ready or self._queue:
                operation = self._ready[0][1].operation if self._ready else self._queue[0]
                if ran if last is None else operation.slow or operation.number > last:
                    return _Step(None)
                turn = self._take()
                if turn is not None:
                    thread.running = None if turn.is_parked else turn.operation
                    if (self._ready or self._queue) and self._threads < self._executor.width:
                        self._threads += 1
                        another = functools.partial(self._go_on, _Thread(counted=True))
                        with contextlib.suppress(ContextLostError):
                            self._executor.worker(another)
                    return turn
            self._threads -= 1
            thread.counted = False
            return None

    def _take(self) -> _Step | None:
        """Begin the next operation, or park it; None if it only follows parked ones."""
        parked: ParkedOperation | None
        if self._ready:
            parked = self._parked_operations.take_ready()
            if parked.dropped:
                self._done(parked.operation)
                return None
        else:
            operation = self._queue.popleft()
            parked = self._parked_operations.park(operation, self._wake)
            if parked is None:
                self._running[operation] = None
                return _Step(operation)
            if parked.cause is not None:
                self._parked_operations.release(parked)
                return _Step(operation, parked.cause, is_parked=True)
        cause = parked.cause or parked.failure()
        parked.waiting = cause is None and bool(parked.unmet())
        if parked.waiting:  # a failure may have been made good since
            return _Step(parked.operation, is_parked=True)
        if parked.blockers or (cause is None and self._parked_operations.must_yield(parked)):
            return None
        self._parked_operations.begin(parked)
        self._running[parked.operation] = None
        return _Step(parked.operation, cause)

    def _perform(self, operation: Operation, cause: BaseException | None) -> None:
        if cause is not None:
            operation.abandon(cause)
            return
        try:
            self._executor.perform(operation)
        except Exception as error:
            operation.abandon(error)
            return
        try:
            if operation.sync and operation.signals:
                self._signal(operation)
        except Exception as error:
            operation.fail_signals(error)

    def _signal(self, operation: Operation) -> None:
        if self._executor.width == 1:
            self._executor.signal(operation)
            return
        with self._lock:
            self._signals.give(operation)
