"""The order of work on one context: kept where work shares memory or timelines, else overtaken.

Nothing here blocks a thread. Work runs in the order of submission; what must wait for a timeline is
held, and with it what shares memory with it. The timeline that is reached resumes it.
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
from webnn_py.ordering.executor_config import Executor
from webnn_py.ordering.operation import Operation, ParkedOperation
from webnn_py.ordering.parked import ParkedOperations
from webnn_py.ordering.signals import Signals
from webnn_py.ordering.unordered import UnorderedRun, UnorderedRuns

REMEASURE_SECONDS = 0.05
"""Seconds after which a thread that waits for room finds out what is parked by now."""


class _Turn(NamedTuple):
    """What a thread does next.

    Attributes:
        operation: What it runs, or what was found to be held; None to let the worker go on.
        cause: Why the operation is not to be done, if it is not.
        held: It waits for a timeline, or can never run.
    """

    operation: Operation | None
    cause: BaseException | None = None
    held: bool = False


class _Thread:
    """A thread that runs operations, or is about to, and is counted as such.

    It may be interrupted at any function that it calls, as by Ctrl-C: then this tells what to make
    good. What belongs together changes with no call between.

    Attributes:
        counted: Whether it is still counted itself.
        running: The operation that it runs.
        handed: The thread of the worker's that is counted in its place.
        begun: Of a thread of the worker's: it has begun, and does so once.
    """

    __slots__ = ("begun", "counted", "handed", "running")

    def __init__(self, counted: bool) -> None:
        self.counted = counted
        self.running: Operation | None = None
        self.handed: _Thread | None = None
        self.begun = False


class Schedule:
    """Runs operations, and holds no lock while it runs one.

    Args:
        executor: Where and how.

    Attributes:
        unordered: Runs without a place in this order; what shares memory with them waits.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._line: deque[Operation] = deque()  # not looked at yet
        self._holding = ParkedOperations(executor)
        self._held, self._ready = self._holding.works, self._holding.ready
        self._running: dict[Operation, None] = {}
        self._signals = Signals(executor.signal, self._held)
        self._backlog = Backlog()
        self.unordered = UnorderedRuns()
        self._threads = 0  # that run operations, or are about to
        self._numbers = itertools.count()
        self._last = -1
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._settling = 0  # threads that wait for a change
        self._closed: BaseException | None = None

    @property
    def keeps_order(self) -> bool:
        """Whether work that begins now may have to wait, for the memory that it shares."""
        if self._executor.width > 1:
            return True
        if not self._threads:
            return bool(self._held or self._line)
        with self._lock:  # a thread may be about to hold what it took off the line
            return bool(self._held or self._line)

    def submit(self, operation: Operation) -> None:
        """Add an operation; it runs when its waits are met and what must come before it is done.

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
                at_once = inline and not (self._threads or self._held)
                if self._threads < self._executor.width:
                    self._threads += 1
                    thread.counted = True
                if at_once:
                    thread.running = operation
                    self._running[operation] = None
                else:
                    if operation.kept_bytes:
                        self._backlog.add(operation)
                    if operation.keep is not None:
                        operation.keep()
                    self._line.append(operation)
            if at_once:
                self._run_at_once(thread, operation)
            elif thread.counted:
                self._begin(thread)
        except BaseException as error:
            self._interrupt(thread, error)
            stop_daemon()
            raise

    @property
    def is_free(self) -> bool:
        """Whether an operation without timelines runs on the thread that submits it now."""
        return self._executor.inline and not (self._threads or self._held)

    def withdraw(self, operation: Operation) -> None:
        """Take an operation out if it has not begun; it fails, and what it was to signal."""
        with self._lock:
            held = self._held.get(operation)
            if held is not None:
                if not self._holding.drop(held):
                    return
            elif operation in self._line:
                self._line.remove(operation)
                self._backlog.remove(operation)
            else:
                return
        operation.abandon(OperationError(CANCELLED))
        if held is not None:
            self._wake(held)

    def settle(self) -> list[Operation]:
        """Let everything submitted before this call run that can, and block while it does.

        Returns:
            What is left: it waits for a timeline, or for what does.
        """
        last = self._last
        thread = _Thread(counted=False)
        try:
            with self._lock:
                if not (self._threads or self._held):
                    return []
                for held in self._held.values():  # the worker may not have come to it yet
                    self._holding.look_again(held)
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
                for operation, held in self._held.items()
                if operation.number <= last and not held.dropped
            ]

    def wait_for_room(self, seconds: float | None = None) -> None:
        """Block while work that can run keeps too much host memory, so that new work waits.

        Args:
            seconds: For how long at most; until there is room if not given.
        """
        if self._backlog.has_room or interrupts_own_call():
            return
        end = math.inf if seconds is None else time.monotonic() + seconds
        look = 0.0
        with self._lock:
            while self._is_moving(self._last) and not self._backlog.has_room:
                now = time.monotonic()
                if now >= end:
                    return
                if now < look:
                    self._wait(min(end, look) - now)
                else:
                    self._backlog.measure(self._held.values())
                    look = now + REMEASURE_SECONDS

    def users(self, region: Region) -> list[Operation | UnorderedRun]:
        """The work that is not done and uses a region."""
        with self._lock:
            everything = (*self._running, *self._held, *self._line)
            found = [operation for operation in everything if operation.uses(region)]
        return [*self.unordered.users(region), *found]

    def _wait(self, seconds: float | None = None) -> None:
        """Block until something changes, for so many seconds at most."""
        self._settling += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._settling -= 1

    def _is_moving(self, last: int) -> bool:
        """Whether an operation up to number `last` runs, or will soon."""
        if not self._threads:
            return False
        if any(operation.number <= last for operation in self._running):
            return True
        if self._signals.is_due(last):
            return True
        first = min(
            self._line[0].number if self._line else last + 1,
            self._ready[0][0] if self._ready else last + 1,
        )
        return first <= last

    def close(self, error: BaseException) -> None:
        """Fail everything that has not run, and refuse what comes."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = error
            dropped = [*self._holding.clear(), *self._line]
            self._line.clear()
            self._backlog = Backlog()
            self._changed.notify_all()
        # All are stopped before any work fails: it would make other work fail for that reason.
        for operation in dropped:
            operation.abandon(ContextLostError(str(error)))
        with self._lock:
            self._signals.catch_up()

    def _begin(self, thread: _Thread) -> None:
        """Run what was submitted up to now."""
        if self._executor.inline:
            self._drain(thread, self._last)
        else:
            self._hand_over(thread)

    def _hand_over(self, thread: _Thread) -> None:
        """Let the worker go on."""
        handed = _Thread(counted=True)
        thread.handed, thread.counted = handed, False
        self._give(handed)

    def _give(self, handed: _Thread) -> None:
        """Have the worker go on; what waits for it alone fails if the system has no thread left."""
        try:
            self._executor.worker(functools.partial(self._go_on, handed))
        except RuntimeError as error:
            with self._lock:
                self._threads -= not handed.begun
                handed.begun = True
                dropped = [] if self._threads else [*self._line]
                for operation in dropped:
                    self._line.remove(operation)
                    self._backlog.remove(operation)
                self._changed.notify_all()
            for operation in dropped:
                operation.abandon(error)
            raise

    def _go_on(self, thread: _Thread) -> None:
        """Run one operation on the worker, and let others have their turn."""
        with self._lock:
            if thread.begun:
                return
            thread.begun = True
        try:
            self._drain(thread)
        except BaseException as error:
            self._interrupt(thread, error)
            raise

    def _wake(self, held: ParkedOperation) -> None:
        """A timeline was reached or failed, or the work is not wanted any more."""
        with contextlib.suppress(ContextLostError):
            self._executor.worker(functools.partial(self._resume, held))

    def _resume(self, held: ParkedOperation) -> None:
        with self._lock:
            self._holding.look_again(held)
            if held.waiting:
                self._holding.find_deadlock(held)
        if held.cause is not None:
            held.operation.break_promises(held.cause)
        with self._lock:
            self._holding.look_again(held)
            if not self._ready or self._threads >= self._executor.width:
                return
            self._threads += 1
        self._go_on(_Thread(counted=True))

    def _done(self, operation: Operation) -> None:
        """What followed an operation need not wait for it; the caller holds the lock."""
        self._running.pop(operation, None)
        if operation.kept_bytes:
            self._backlog.remove(operation)
        if operation.sync:
            operation.tell_watchers()
        self._holding.remove(operation)

    def _run_at_once(self, thread: _Thread, operation: Operation) -> None:
        """Run what begins as it is submitted, and then what came meanwhile."""
        try:
            self._executor.perform(operation)
        except Exception as error:
            operation.abandon(error)
        with self._lock:
            if not (self._line or self._held or self._settling):
                self._running.pop(operation, None)
                self._threads -= 1
                thread.counted, thread.running = False, None
                return
        self._drain(thread, operation.number)

    def _interrupt(self, thread: _Thread, error: BaseException) -> None:
        """Such as by Ctrl-C: the rest goes on with the worker."""
        running = thread.running
        if running is not None:
            running.abandon(OperationError(f"the work was interrupted: {error!r}"))
            with self._lock:
                self._done(running)
        if thread.counted:
            self._hand_over(thread)
        elif thread.handed is not None:  # it may not have come there
            self._give(thread.handed)

    def _drain(self, thread: _Thread, last: int | None = None) -> None:
        """Run operations until none can; what must wait is resumed by what it waits for.

        Args:
            thread: This one; what it runs is done.
            last: The number of the last one to run on this thread; None on the worker, which runs
                one and lets others have their turn.
        """
        ran = False
        while (turn := self._next(thread, last, ran)) is not None:
            if turn.operation is None:
                self._hand_over(thread)
                return
            if not turn.held:
                ran = True
                self._perform(turn.operation, turn.cause)
            elif turn.cause is None:
                self._executor.parked()
            else:
                turn.operation.break_promises(turn.cause)

    def _next(self, thread: _Thread, last: int | None, ran: bool) -> _Turn | None:
        """What a thread does after an operation; None if there is nothing, and it is released."""
        with self._lock:
            if thread.running is not None:
                self._done(thread.running)
                thread.running = None
            if self._signals.early:
                self._signals.catch_up()
            if self._settling:
                self._changed.notify_all()
            while self._ready or self._line:
                operation = self._ready[0][1].operation if self._ready else self._line[0]
                if ran if last is None else operation.slow or operation.number > last:
                    return _Turn(None)
                turn = self._take()
                if turn is not None:
                    thread.running = None if turn.held else turn.operation
                    if (self._ready or self._line) and self._threads < self._executor.width:
                        self._threads += 1
                        another = functools.partial(self._go_on, _Thread(counted=True))
                        with contextlib.suppress(ContextLostError):
                            self._executor.worker(another)
                    return turn
            self._threads -= 1
            thread.counted = False
            return None

    def _take(self) -> _Turn | None:
        """Begin the next operation, or find out what holds it; None if it follows held work."""
        held: ParkedOperation | None
        if self._ready:
            held = self._holding.take_ready()
            if held.dropped:
                self._done(held.operation)
                return None
        else:
            operation = self._line.popleft()
            held = self._holding.hold(operation, self._wake)
            if held is None:
                self._running[operation] = None
                return _Turn(operation)
            if held.cause is not None:
                self._holding.release(held)
                return _Turn(operation, held.cause, held=True)
        cause = held.cause or held.failure()
        held.waiting = cause is None and bool(held.unmet())
        if held.waiting:  # what had failed may have been made good since
            return _Turn(held.operation, held=True)
        if held.blockers or (cause is None and self._holding.comes_later(held)):
            return None
        self._holding.begin(held)
        self._running[held.operation] = None
        return _Turn(held.operation, cause)

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
            operation.break_promises(error)

    def _signal(self, operation: Operation) -> None:
        if self._executor.width == 1:
            self._executor.signal(operation)
            return
        with self._lock:
            self._signals.give(operation)
