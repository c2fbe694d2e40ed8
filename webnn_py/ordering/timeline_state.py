"""Internal state of a timeline: its value, its waiters, and the work that signals it."""

from __future__ import annotations

import bisect
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from webnn_py.core.completion import check_interrupts_nothing
from webnn_py.core.errors import (
    InvalidStateError,
    MLError,
    ValidationError,
    caused_by,
    root_cause,
)
from webnn_py.core.fork_guard import FORKED, after_fork_in_child

Resume = Callable[[], None]
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, order=True, slots=True)
class TimelineWaiter:
    """Registration of a callback for a value.

    Attributes:
        value: The value.
        order: Order of registration, in which callbacks run.
        queue: Device queue; work submitted to it counts as done for this waiter.
        resume: The callback.
        work: The parked operation that waits, if any. `resume` is then called at each relevant
            change, until the value is reached for all queues.
    """

    value: int
    order: int
    queue: object = field(compare=False)
    resume: Resume = field(compare=False)
    work: Any = field(compare=False, default=None)


class TimelineState:
    """Internal state of one Timeline, used by schedules and queues.

    Args:
        value: The initial value.
        label: Its name in messages; a number if empty.

    Attributes:
        value: The value reached.
        name: Its name in messages.
        culprit: The operation whose failure ends waits, as a remark in parentheses.
        parked_values: Graph nodes of the values that parked operations wait for or signal, sorted;
            guarded by the lock of the wait-for graph.
    """

    def __init__(self, value: int, label: str) -> None:
        self.value = value
        self.name = repr(label) if label else f"#{next(_NUMBERS)}"
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._waiters: list[TimelineWaiter] = []  # sorted
        self._expected: Counter[int] = Counter()
        self._signallers: list[tuple[int, int, Any]] = []  # sorted by value
        self._promised: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._watchers: weakref.WeakSet[TimelineState] = weakref.WeakSet()
        self._failures: dict[int, tuple[BaseException, str]] = {}  # by value
        self._failed: tuple[int, BaseException] | None = None  # the lowest failure
        self.culprit = ""
        self.parked_values: list[Any] = []
        _STATES.add(self)

    def signal(self, value: int) -> None:
        """Raise the value from the host, past a failure too.

        Raises:
            ValidationError: `value` is not above the present one.
            InvalidStateError: This thread was inside another call that holds the lock.
        """
        if not self._lock.acquire(blocking=False):
            check_interrupts_nothing("Timeline.signal")
            self._lock.acquire()
        try:
            if value <= self.value:
                raise ValidationError(f"signal {value} is not above the present value {self.value}")
            forgiven = self._forgive([failed for failed in self._failures if failed <= value])
            ready = [*self._raise_to(value), *forgiven]
        finally:
            self._lock.release()
        _call(ready)

    def reached(self, value: int, queue: object = None) -> bool:
        """Whether work on `queue` need not wait for `value`.

        Either the value is reached, or work submitted earlier to that same queue will reach it.
        """
        with self._lock:
            return self._reached(value, queue)

    def _reached(self, value: int, queue: object) -> bool:
        if self.value >= value or queue is None:
            return self.value >= value
        return self._promised.get(queue, -1) >= value and self._failure(value) is None

    def failure(self, value: int) -> BaseException | None:
        """Return the error for which `value` will not be reached, or None."""
        with self._lock:
            return self._failure(value)

    def _failure(self, value: int) -> BaseException | None:
        if self._failed is None or self.value >= value:
            return None
        end, error = self._failed
        if value < end and any(value <= expected < end for expected in self._expected):
            return None
        return error

    def call_when_reached(
        self, value: int, resume: Resume, queue: object = None, work: object = None
    ) -> TimelineWaiter | None:
        """Register `resume` for when `value` is reached for `queue`, or can no longer be reached.

        Args:
            value: The value.
            resume: The callback.
            queue: Device queue; work submitted to it counts as done.
            work: The parked operation that waits. `resume` is then also called whenever a signal
                fails, as failures may be made good, until it is forgotten or the value is reached
                for all queues.

        Returns:
            The registration, for `forget`; None if it is reached or failed already, and `resume` is
                not called then.
        """
        with self._lock:
            if self._reached(value, queue) or (work is None and self._failure(value) is not None):
                return None
            waiter = TimelineWaiter(value, next(self._order), queue, resume, work)
            bisect.insort(self._waiters, waiter)
            return waiter

    def forget(self, waiter: TimelineWaiter) -> None:
        """Remove a registration; harmless if it was called already."""
        with self._lock:
            place = bisect.bisect_left(self._waiters, waiter)
            if self._waiters[place : place + 1] == [waiter]:
                del self._waiters[place]

    def expect(self, value: int, work: object = None) -> None:
        """Register accepted work that will signal `value`; `complete` or `fail` must follow."""
        with self._lock:
            self._expected[value] += 1
            if work is not None:
                bisect.insort(self._signallers, (value, next(self._order), work), key=_place)
            ready = self._forgive([value]) if value in self._failures else []
        _call(ready)

    def signallers(self, above: int = -1, to: int | None = None) -> list[Any]:
        """Return the work that is to signal values in (`above`, `to`], none past a failure."""
        with self._lock:
            known = self._signallers
            begin = bisect.bisect_right(known, above, key=_value)
            end = len(known) if to is None else bisect.bisect_right(known, to, key=_value)
            if self._failed is not None:
                end = min(end, bisect.bisect_left(known, self._failed[0], key=_value))
            return [work for _, _, work in known[begin:end]]

    def has_waiter_from(self, value: int) -> bool:
        """Whether anybody waits for `value` or more."""
        with self._lock:
            return bool(self._waiters) and self._waiters[-1].value >= value

    def complete(self, value: int, work: object = None) -> None:
        """Raise the value, as work that signals it is done."""
        with self._lock:
            self._no_longer_expected(value, work)
            ready = [] if self._past_failure(value) else self._raise_to(value)
        _call(ready)

    def promise(self, value: int, queue: object) -> None:
        """Note that work signalling `value` was submitted to `queue`, whose later work follows."""
        with self._lock:
            if not self._past_failure(value):
                self._promised[queue] = max(self._promised.get(queue, -1), value)
            end = bisect.bisect_right(self._waiters, self._promised.get(queue, -1), key=_awaited)
            ready = self._take(lambda w: w.queue is queue and self._reached(w.value, queue), end)
        _call(ready)

    def fail(self, value: int, error: BaseException, work: object = None) -> None:
        """Fail a value whose signalling work failed or will not be done."""
        with self._lock:
            self._no_longer_expected(value, work)
            changes = self._failed is None or value <= self._failed[0]
            if value > self.value and value not in self._expected:
                culprit = "" if work is None else f" ({getattr(work, 'title', work)})"
                noted = self._with_note(root_cause(error), value, culprit)
                self._failures[value] = noted, culprit
                if changes:
                    self._failed, self.culprit = (value, noted), culprit
            ready: list[TimelineWaiter] = []
            if changes:  # otherwise its waiters have failed already
                ready += self._work_waiters()
                ready += self._take(lambda w: w.work is None and self._failure(w.value) is not None)
        _call(ready)

    def withdraw(self, value: int, work: object) -> None:
        """Forget accepted work whose place as a signaller of `value` other work takes."""
        with self._lock:
            self._no_longer_expected(value, work)

    def watch(self, timelines: Iterable[TimelineState]) -> None:
        """Recheck waiters of `timelines` at the next change in who signals this timeline."""
        with self._lock:
            self._watchers.update(timelines)

    def notify_watchers(self) -> None:
        """Recheck the waiters of watching timelines, once."""
        if not self._watchers:
            return
        with self._lock:
            watchers = list(self._watchers)
            self._watchers.clear()
        for timeline in watchers:
            timeline.recheck_waiters()

    def recheck_waiters(self) -> None:
        """Have parked operations that wait for this timeline check whether they can ever run."""
        with self._lock:
            waiters = self._work_waiters()
        _call(waiters)

    def _work_waiters(self) -> list[TimelineWaiter]:
        return [waiter for waiter in self._waiters if waiter.work is not None]

    def _forgive(self, values: Collection[int]) -> list[TimelineWaiter]:
        """Clear the failures of `values`; return the waiters to re-check."""
        for value in values:
            del self._failures[value]
        self._find_lowest()
        return self._work_waiters() if values else []

    def _find_lowest(self) -> None:
        self._failed, self.culprit = None, ""
        if self._failures:
            value = min(self._failures)
            error, self.culprit = self._failures[value]
            self._failed = value, error

    def _with_note(self, root: BaseException, value: int, culprit: str) -> BaseException:
        """Return a first failure with a note of the first timeline that it keeps from rising."""
        if hasattr(root, "__notes__"):
            return root
        made = root_cause(root)
        made.add_note(f"so that timeline {self.name} does not reach {value}{culprit}")
        return made

    def reset_after_fork(self) -> None:
        """Fail the expected values in a forked child: their work runs in the parent only."""
        self._lock = threading.Lock()
        self._waiters, self.parked_values = [], []
        self._signallers = []
        self._promised = weakref.WeakKeyDictionary()
        if self._expected:
            error = _LeftBehindError(f"the work that is to signal it {FORKED}")
            self._failures[min(self._expected)] = error, ""
            self._expected = Counter()
            self._find_lowest()

    def _past_failure(self, value: int) -> bool:
        return self._failed is not None and value >= self._failed[0]

    def _no_longer_expected(self, value: int, work: object) -> None:
        self._expected[value] -= 1
        if self._expected[value] <= 0:
            del self._expected[value]
        known = self._signallers
        place = bisect.bisect_left(known, value, key=_value)
        while place < len(known) and known[place][0] == value:
            if known[place][2] is work:
                del known[place]
                return
            place += 1

    def _raise_to(self, value: int) -> list[TimelineWaiter]:
        self.value = max(self.value, value)
        count = bisect.bisect_right(self._waiters, self.value, key=_awaited)
        return self._take(lambda _: True, count)

    def _take(
        self, chosen: Callable[[TimelineWaiter], bool], end: int | None = None
    ) -> list[TimelineWaiter]:
        """Remove and return the chosen waiters among the first `end`."""
        first = self._waiters[:end]
        ready = [waiter for waiter in first if chosen(waiter)]
        if ready:
            self._waiters[:end] = [waiter for waiter in first if not chosen(waiter)]
        return ready


class _LeftBehindError(InvalidStateError):
    """The work belongs to the parent process of this one."""


_STATES: weakref.WeakSet[TimelineState] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for state in _STATES:
        state.reset_after_fork()


after_fork_in_child(_reset_after_fork)


def unreached(timeline: TimelineState, value: int, cause: BaseException) -> MLError:
    """Return the error of a wait for `value` that fails because of `cause`."""
    what = f"timeline {timeline.name}: waiting for {value}"
    if isinstance(cause, _LeftBehindError):
        return _LeftBehindError(f"{what}: {cause}")
    return caused_by(f"{what}: the work that was to signal it{timeline.culprit}", cause)


def _awaited(waiter: TimelineWaiter) -> int:
    return waiter.value


def _value(signaller: tuple[int, int, Any]) -> int:
    return signaller[0]


def _place(signaller: tuple[int, int, Any]) -> tuple[int, int]:
    return signaller[:2]


def _call(ready: Iterable[TimelineWaiter]) -> None:
    for waiter in ready:
        waiter.resume()
