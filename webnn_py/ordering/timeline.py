"""Timeline: a counter that orders work across threads, contexts and queues.

After Vulkan's timeline semaphores: a value that only rises; work waits until it is reached and
raises it when done. A wait may be submitted before what will signal it, and blocks no caller.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from webnn_py.core import convert
from webnn_py.core.completion import Completion, check_may_block
from webnn_py.core.errors import (
    InvalidStateError,
    MLError,
    ValidationError,
    WaitTimeoutError,
    consequence,
    root_of,
)
from webnn_py.core.forks import FORKED, in_child
from webnn_py.core.messages import shown

MAX_VALUE = 2**64 - 1
Resume = Callable[[], None]


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """What one piece of work does with a timeline. Made by calling the timeline.

    Attributes:
        timeline: The timeline.
        wait: The work starts when the value is at least this.
        signal: The value becomes this when the work is done.
    """

    timeline: Timeline
    wait: int | None
    signal: int | None


@dataclass(frozen=True, order=True, slots=True)
class Waiter:
    """Who is to be called once a value is reached.

    Attributes:
        value: The value.
        order: First come, first called.
        queue: For whom work submitted to the same queue counts as done.
        resume: What to call.
    """

    value: int
    order: int
    queue: object = field(compare=False)
    resume: Resume = field(compare=False)


class Timeline:
    """A value that only rises, to wait for and to signal, from anywhere.

    If work that was to signal `n` fails, the value does not pass `n - 1`: waits for `n` and more
    fail with an OperationError, until `n` is signalled after all by new work or by the host.

    Args:
        value: The value to begin with.

    Example:
        `ctx.dispatch(g, inputs, outputs, sync=[a(wait=1), b(signal=2)])`
    """

    def __init__(self, value: int = 0) -> None:
        self._value = _checked(value, "value")
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._waiters: list[Waiter] = []  # sorted
        self._expected: Counter[int] = Counter()
        self._promised: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._failed: tuple[int, BaseException] | None = None
        _TIMELINES.add(self)

    def __call__(self, *, wait: int | None = None, signal: int | None = None) -> TimelinePoint:
        """The point that a piece of work waits for, signals, or both.

        Raises:
            ValidationError: Neither is given, or `signal` is not above `wait`.
        """
        if wait is None and signal is None:
            raise ValidationError("a timeline point needs wait=, signal= or both")
        low = None if wait is None else max(0, _signed(wait, "wait"))
        high = None if signal is None else _checked(signal, "signal")
        if low is not None and high is not None and high <= low:
            raise ValidationError(f"signal {high} must be above wait {low}: values only rise")
        return TimelinePoint(self, low, high)

    @property
    def value(self) -> int:
        """The value reached; it may be higher by the time you look at it."""
        return self._value

    def signal(self, value: int) -> None:
        """Raise the value from the host, past a failure too.

        Raises:
            ValidationError: `value` is not above the present one.
        """
        wanted = _checked(value, "value")
        with self._lock:
            if wanted <= self._value:
                raise ValidationError(
                    f"signal {wanted} is not above the present value {self._value}"
                )
            if self._past_failure(wanted):
                self._failed = None
            ready = self._raise_to(wanted)
        _call(ready)

    def wait_sync(self, value: int, timeout: float | None = None) -> None:
        """Block this thread until the value is reached.

        Args:
            value: What to wait for.
            timeout: Seconds at most; forever if not given.

        Raises:
            WaitTimeoutError: (a TimeoutError) It was not reached in time.
            InvalidStateError: This thread is running an event loop; use `wait_async`. Or the work
                that is to signal it is the parent process's, and this a child that it forked.
            OperationError: The work that was to signal it failed.
        """
        seconds = None if timeout is None else _seconds(timeout)
        done, waiter = self._completion(value)
        if waiter is not None:
            try:
                check_may_block("Timeline.wait_sync", "wait_async")
                done.wait(seconds)
            except TimeoutError:
                raise WaitTimeoutError(
                    f"the timeline is at {self._value} after {shown(timeout)} s,"
                    f" not yet at {shown(value)}"
                ) from None
            finally:
                self.forget(waiter)
        done.wait(0)

    async def wait_async(self, value: int) -> None:
        """Await that the value is reached; otherwise as `wait_sync`."""
        done, waiter = self._completion(value)
        try:
            await done
        finally:
            if waiter is not None:
                self.forget(waiter)

    def _completion(self, value: int) -> tuple[Completion[None], Waiter | None]:
        wanted = _signed(value, "value")
        done: Completion[None] = Completion()

        def arrived() -> None:
            cause = self.failure(wanted)
            if cause is None:
                done.set_result(None)
            else:
                done.set_exception(unreached(wanted, cause))

        waiter = self.when(wanted, arrived)
        if waiter is None:
            arrived()
        return done, waiter

    def reached(self, value: int, queue: object = None) -> bool:
        """Whether work on `queue` need not wait for `value`.

        It is reached, or work already submitted to that same queue will reach it before.
        """
        with self._lock:
            return self._reached(value, queue)

    def _reached(self, value: int, queue: object) -> bool:
        if self._value >= value or queue is None:
            return self._value >= value
        return self._promised.get(queue, -1) >= value and self._failure(value) is None

    def failure(self, value: int) -> BaseException | None:
        """Why `value` will not be reached, if that is known."""
        with self._lock:
            return self._failure(value)

    def _failure(self, value: int) -> BaseException | None:
        if self._failed is None or self._value >= value:
            return None
        end, error = self._failed
        if value < end and any(value <= expected < end for expected in self._expected):
            return None
        return error

    def when(self, value: int, resume: Resume, queue: object = None) -> Waiter | None:
        """Have `resume` called once `value` is reached for `queue`, or cannot be any more.

        Returns:
            What to `forget`; None if that is so now already, and `resume` is not called then.
        """
        with self._lock:
            if self._reached(value, queue) or self._failure(value) is not None:
                return None
            waiter = Waiter(value, next(self._order), queue, resume)
            bisect.insort(self._waiters, waiter)
            return waiter

    def forget(self, waiter: Waiter) -> None:
        """Nobody waits any more; harmless if it was called already."""
        with self._lock:
            place = bisect.bisect_left(self._waiters, waiter)
            if self._waiters[place : place + 1] == [waiter]:
                del self._waiters[place]

    def expect(self, value: int) -> None:
        """Work that signals `value` was accepted; `complete` or `fail` follows."""
        with self._lock:
            self._expected[value] += 1
            if self._failed is not None and self._failed[0] == value:
                self._failed = None

    def complete(self, value: int) -> None:
        """Work that signals `value` is done."""
        with self._lock:
            self._no_longer_expected(value)
            ready = [] if self._past_failure(value) else self._raise_to(value)
        _call(ready)

    def promise(self, value: int, queue: object) -> None:
        """Work that signals `value` was submitted to `queue`: later work there need not wait."""
        with self._lock:
            if not self._past_failure(value):
                self._promised[queue] = max(self._promised.get(queue, -1), value)
            ready = self._take(lambda w: w.queue is queue and self._reached(w.value, queue))
        _call(ready)

    def fail(self, value: int, error: BaseException) -> None:
        """Work that was to signal `value` failed, or will not be done."""
        with self._lock:
            self._no_longer_expected(value)
            ends = self._failed is None or value <= self._failed[0]
            if ends and value > self._value and value not in self._expected:
                self._failed = (value, root_of(error))
            ready = self._take(lambda waiter: self._failure(waiter.value) is not None)
        _call(ready)

    def leave_behind(self) -> None:
        """After a fork: what was to signal it does so in the parent process only."""
        self._lock = threading.Lock()
        self._waiters = []
        self._promised = weakref.WeakKeyDictionary()
        if self._expected:
            end = min(self._expected)
            self._expected = Counter()
            if self._failed is None or end < self._failed[0]:
                self._failed = (end, _LeftBehindError(f"the work that is to signal it {FORKED}"))

    def _past_failure(self, value: int) -> bool:
        return self._failed is not None and value >= self._failed[0]

    def _no_longer_expected(self, value: int) -> None:
        self._expected[value] -= 1
        if self._expected[value] <= 0:
            del self._expected[value]

    def _raise_to(self, value: int) -> list[Waiter]:
        self._value = max(self._value, value)
        count = bisect.bisect_right(self._waiters, self._value, key=lambda waiter: waiter.value)
        ready, self._waiters = self._waiters[:count], self._waiters[count:]
        return ready

    def _take(self, chosen: Callable[[Waiter], bool]) -> list[Waiter]:
        ready = [waiter for waiter in self._waiters if chosen(waiter)]
        self._waiters = [waiter for waiter in self._waiters if not chosen(waiter)]
        return ready

    def __repr__(self) -> str:
        return f"<Timeline {self._value}>"


class _LeftBehindError(InvalidStateError):
    """Work of the parent process of this one."""


_TIMELINES: weakref.WeakSet[Timeline] = weakref.WeakSet()


def _leave_behind() -> None:
    for timeline in _TIMELINES:
        timeline.leave_behind()


in_child(_leave_behind)


def unreached(value: int, cause: BaseException) -> MLError:
    """What a wait for `value` raises because of `cause`."""
    if isinstance(cause, _LeftBehindError):
        return _LeftBehindError(f"waiting for {value}: {cause}")
    return consequence(f"waiting for {value}: the work that was to signal it", cause)


def _call(ready: Iterable[Waiter]) -> None:
    for waiter in ready:
        waiter.resume()


def points(sync: Iterable[TimelinePoint]) -> tuple[TimelinePoint, ...]:
    """A `sync=` argument, checked.

    Raises:
        ValidationError: It holds something else, signals what does not raise a timeline, or waits
            for what it is to signal itself.
    """
    if isinstance(sync, tuple) and not sync:
        return ()
    if isinstance(sync, TimelinePoint):
        sync = (sync,)
    given = tuple(convert.items(sync, "sync"))
    signals: dict[int, int] = {}
    for point in given:
        if not _is_point(point):
            raise ValidationError(f"sync: got {shown(point)}, expected timeline(wait=…, signal=…)")
        if point.signal is None:
            continue
        if point.signal <= point.timeline.value:
            raise ValidationError(
                f"sync: the timeline is at {point.timeline.value}, so that signal {point.signal}"
                " does not raise it; values only rise"
            )
        lowest = signals.get(id(point.timeline), MAX_VALUE)
        signals[id(point.timeline)] = min(lowest, point.signal)
    for point in given:
        signal = signals.get(id(point.timeline))
        if point.wait is not None and signal is not None and signal <= point.wait:
            raise ValidationError(
                f"sync: the work waits for {point.wait} and signals {signal} on one timeline"
            )
    return given


def _is_point(value: object) -> bool:
    """A point as a timeline makes it; its class can be called with anything."""
    return (
        isinstance(value, TimelinePoint)
        and isinstance(value.timeline, Timeline)
        and all(
            number is None or (type(number) is int and 0 <= number <= MAX_VALUE)
            for number in (value.wait, value.signal)
        )
    )


def _seconds(timeout: object) -> float:
    """What a thread can wait for at most; a time that is over is none at all."""
    seconds = convert.number(timeout, "timeout")
    if seconds != seconds:
        raise ValidationError("timeout: got nan, expected seconds")
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)


def _signed(value: object, what: str) -> int:
    number = convert.number(value, what)
    if not isinstance(number, int) or number > MAX_VALUE:
        raise ValidationError(f"{what}: got {shown(value)}, expected an integer up to {MAX_VALUE}")
    return number


def _checked(value: object, what: str) -> int:
    number = _signed(value, what)
    if number < 0:
        raise ValidationError(f"{what}: got {shown(value)}, expected an integer in 0..{MAX_VALUE}")
    return number
