"""The order of work on one context: first in, first out, parked while a timeline is not reached.

Nothing here blocks a thread. Work whose waits are met runs at once; if not, it and what follows it
is parked, and the timeline that is reached resumes it.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.core.errors import ContextLostError, OperationError
from webnn_py.ordering.timeline import TimelinePoint, state_of
from webnn_py.ordering.timeline_state import TimelineState, Waiter, unreached

Run = Callable[[], None]


@dataclass(slots=True, eq=False)
class Operation:
    """One piece of work.

    Attributes:
        run: Does it, or hands it to a queue that keeps the order.
        fail: Is told why it will not be done.
        sync: What it waits for and signals.
        slow: Only the worker runs it.
        host: It uses host memory when it runs, so that it waits for work that is done, not only
            for work that is submitted before it to the same device queue.
        uses: What it reads and writes.
        number: Its place in the order, set when it is submitted.
    """

    run: Run
    fail: Callable[[BaseException], None]
    sync: tuple[TimelinePoint, ...] = ()
    slow: bool = False
    host: bool = False
    uses: tuple[object, ...] = ()
    number: int = -1

    @property
    def signals(self) -> list[tuple[TimelineState, int]]:
        """The timelines that it raises, and to what."""
        return [(state_of(p.timeline), p.signal) for p in self.sync if p.signal is not None]

    @property
    def waits(self) -> list[tuple[TimelineState, int]]:
        """The timelines that it waits for, and their values."""
        return [(state_of(p.timeline), p.wait) for p in self.sync if p.wait is not None]

    def abandon(self, error: BaseException) -> None:
        """It will not be done, and so not signal either."""
        for timeline, value in self.signals:
            timeline.fail(value, error)
        self.fail(error)


def complete(operation: Operation) -> None:
    """What it signals is reached."""
    for timeline, value in operation.signals:
        timeline.complete(value)


@dataclass(frozen=True, slots=True)
class Executor:
    """Where and how the operations of a context run.

    Attributes:
        worker: Runs a function on the context's own thread, after what it was given before.
        signal: Raises what an operation signals, once what it has run or recorded is done.
        parked: Called when the next operation must wait; submits what was recorded so far.
        queue: Identity of the device queue that keeps the order, if there is one.
        inline: Operations that are not slow run on the thread that submits them.
    """

    worker: Callable[[Run], None]
    signal: Callable[[Operation], None] = complete
    parked: Run = lambda: None
    queue: object = None
    inline: bool = False


class Schedule:
    """Runs operations in order, one at a time, and holds no lock while it runs one.

    Args:
        executor: Where and how.
        emptied: Told when nothing is left to do.
    """

    def __init__(
        self, executor: Executor, emptied: Callable[[Schedule], None] | None = None
    ) -> None:
        self._executor = executor
        self._emptied = emptied
        self._waiting: deque[Operation] = deque()
        self._running: Operation | None = None
        self._busy = False  # a thread runs operations, or the worker is about to
        self._parked_on: list[tuple[TimelineState, Waiter]] = []  # only while not busy
        self._numbers = itertools.count()
        self._last = -1
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._settling = 0  # threads that wait for a change
        self._closed: BaseException | None = None

    def check_open(self) -> None:
        """Raise a ContextLostError once closed."""
        if self._closed is not None:
            raise ContextLostError(str(self._closed))

    def submit(self, operation: Operation) -> None:
        """Add an operation; it runs when all before it have run and its waits are met.

        Raises:
            ContextLostError: The context is lost.
        """
        with self._lock:
            if self._closed is not None:
                self.check_open()
            if operation.sync:
                for timeline, value in operation.signals:
                    timeline.expect(value)
            operation.number = self._last = next(self._numbers)
            if self._busy or self._parked_on:
                self._waiting.append(operation)
                return
            self._busy = True
            at_once = self._can_run_at_once(operation)
            if at_once:
                self._running = operation
            else:
                self._waiting.append(operation)
        if at_once:
            self._drain(operation.number, operation)
        else:
            self._begin()

    def _can_run_at_once(self, operation: Operation) -> bool:
        """Whether nothing comes before an operation that the submitting thread may run."""
        return self._executor.inline and not (operation.sync or operation.slow or self._waiting)

    def withdraw(self, operation: Operation) -> None:
        """Take an operation out if it has not begun; it fails, and what it was to signal."""
        with self._lock:
            if operation not in self._waiting:
                return
            first = self._waiting[0] is operation
            self._waiting.remove(operation)
        operation.abandon(OperationError("the work was cancelled before it began"))
        if first:
            self._wake()

    def settle(self) -> list[Operation]:
        """Let everything submitted before this call run that can, and block while it does.

        Returns:
            What is left: it waits for a timeline, or follows what does.
        """
        last = self._last
        with self._lock:
            if not (self._busy or self._waiting):
                return []
            ready = self._parked_on and self._waiting and not self._must_wait(self._waiting[0])
            if ready:  # the worker has not come to it yet
                self._leave_timelines()
                self._busy = True
        if ready:
            self._begin()
        with self._lock:
            self._settling += 1
            try:
                self._changed.wait_for(lambda: not self._is_moving(last))
            finally:
                self._settling -= 1
            return [operation for operation in self._waiting if operation.number <= last]

    def uses(self, resource: object) -> bool:
        """Whether work that is not done uses `resource`."""
        with self._lock:
            everything = [*self._waiting, *([self._running] if self._running else [])]
            return any(used is resource for work in everything for used in work.uses)

    def _is_moving(self, last: int) -> bool:
        """Whether an operation up to number `last` runs, or will soon."""
        first = self._running or (self._waiting[0] if self._busy and self._waiting else None)
        return first is not None and first.number <= last

    def close(self, error: BaseException) -> None:
        """Fail everything that has not run, and refuse what comes."""
        for operation in self.stop(error):
            operation.abandon(ContextLostError(str(error)))

    def stop(self, error: BaseException) -> list[Operation]:
        """Refuse what comes.

        Returns:
            What has not run, for the caller to abandon.
        """
        with self._lock:
            if self._closed is not None:
                return []
            self._closed = error
            dropped = list(self._waiting)
            self._waiting.clear()
            self._leave_timelines()
            self._tell()
            return dropped

    def _tell(self) -> None:
        """Something changed that `settle` may wait for; the caller holds the lock."""
        if self._settling:
            self._changed.notify_all()

    def _begin(self) -> None:
        """Run what was submitted up to now; the caller has set `_busy`."""
        if self._executor.inline:
            self._drain(self._last)
        else:
            self._executor.worker(self._drain)

    def _wake(self) -> None:
        """A timeline was reached or failed, or the first operation is gone."""
        self._executor.worker(self._resume)

    def _resume(self) -> None:
        with self._lock:
            self._leave_timelines()
            if self._busy:
                return
            self._busy = True
        self._drain()

    def _leave_timelines(self) -> None:
        for timeline, waiter in self._parked_on:
            timeline.forget(waiter)
        self._parked_on.clear()

    def _drain(self, last: int | None = None, begun: Operation | None = None) -> None:
        """Run operations until one must wait; the rest goes on there.

        Args:
            last: The number of the last one to run on this thread; None on the worker, which runs
                one and lets others have their turn.
            begun: The one that runs already.
        """
        ran = False
        try:
            if begun is not None:
                self._perform(begun)
            while (operation := self._first()) is not None:
                if self._must_wait(operation):
                    self._executor.parked()
                    if self._park(operation):
                        return
                elif ran if last is None else operation.slow or operation.number > last:
                    self._executor.worker(self._drain)
                    return
                elif self._take(operation):
                    self._perform(operation)
                    ran = True
        except BaseException as error:  # such as Ctrl-C: the rest goes on with the worker
            with self._lock:
                running, self._running, self._busy = self._running, None, False
            if running is not None:
                running.abandon(OperationError(f"the work was interrupted: {error!r}"))
            self._wake()
            raise

    def _first(self) -> Operation | None:
        """The next operation; if there is none, nobody is busy any more."""
        with self._lock:
            self._running = None
            self._busy = bool(self._waiting)
            self._tell()
            if self._busy:
                return self._waiting[0]
        if self._emptied is not None:
            self._emptied(self)
        return None

    def _take(self, operation: Operation) -> bool:
        """Begin an operation; False if it was withdrawn."""
        with self._lock:
            if not self._waiting or self._waiting[0] is not operation:
                return False
            self._running = self._waiting.popleft()
            return True

    def _must_wait(self, operation: Operation) -> bool:
        if not operation.sync:
            return False
        waits = operation.waits
        if any(timeline.failure(value) is not None for timeline, value in waits):
            return False
        queue = self._queue_of(operation)
        return not all(timeline.reached(value, queue) for timeline, value in waits)

    def _queue_of(self, operation: Operation) -> object:
        return None if operation.host else self._executor.queue

    def _park(self, operation: Operation) -> bool:
        """Have timelines resume the operation; False if it need not wait any more."""
        with self._lock:
            if not self._waiting or self._waiting[0] is not operation:
                return False
            for timeline, value in operation.waits:
                waiter = timeline.when(value, self._wake, self._queue_of(operation))
                if waiter is not None:
                    self._parked_on.append((timeline, waiter))
            if not self._must_wait(operation):
                self._leave_timelines()
                return False
            self._busy = False
            self._tell()
            return True

    def _perform(self, operation: Operation) -> None:
        if operation.sync:
            for timeline, value in operation.waits:
                cause = timeline.failure(value)
                if cause is not None:
                    operation.abandon(unreached(value, cause))
                    return
        try:
            operation.run()
        except Exception as error:
            operation.abandon(error)
            return
        try:
            if operation.sync and operation.signals:
                self._executor.signal(operation)
        except Exception as error:
            for timeline, value in operation.signals:
                timeline.fail(value, error)


class Schedules:
    """A context's schedule, and one of its own for each piece of work that keeps no order."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._main = Schedule(executor)
        self._apart: set[Schedule] = set()
        self._lock = threading.Lock()

    def submit(self, operation: Operation, ordered: bool) -> Run:
        """Put work at the end of the order, or let it run as soon as its own waits are met.

        Returns:
            What takes it out again, if it has not begun.

        Raises:
            ContextLostError: The context is lost.
        """
        schedule = self._main if ordered else self._new()
        schedule.submit(operation)
        return functools.partial(schedule.withdraw, operation)

    def _new(self) -> Schedule:
        with self._lock:
            self._main.check_open()
            apart = Schedule(self._executor, self._discard)
            self._apart.add(apart)
            return apart

    def _discard(self, apart: Schedule) -> None:
        with self._lock:
            self._apart.discard(apart)

    def settle(self) -> list[Operation]:
        """As `Schedule.settle`, for the work in order."""
        return self._main.settle()

    def uses(self, resource: object) -> bool:
        """As `Schedule.uses`, for the work in order."""
        return self._main.uses(resource)

    def close(self, error: BaseException) -> None:
        """Fail everything that has not run, and refuse what comes."""
        # All are stopped before any work fails: it would make other work fail for that reason.
        dropped = self._main.stop(error)
        with self._lock:
            apart = list(self._apart)
            self._apart.clear()
        for schedule in apart:
            dropped += schedule.stop(error)
        for operation in dropped:
            operation.abandon(ContextLostError(str(error)))
