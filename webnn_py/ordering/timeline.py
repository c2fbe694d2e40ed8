"""Timeline: a counter that orders work across threads, contexts and queues.

After Vulkan's timeline semaphores: a value that only rises; work waits until it is reached and
raises it when done. A wait may be submitted before what will signal it, and blocks no caller.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from webnn_py.core import convert
from webnn_py.core.completion import Completion, check_interrupts_nothing, check_may_block
from webnn_py.core.errors import ValidationError, WaitTimeoutError
from webnn_py.core.messages import shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.ordering.timeline_state import TimelineState, TimelineWaiter, unreached

MAX_VALUE = 2**64 - 1
MAX_SHOWN_WORKS = 3
"""Pieces of work that a message tells of."""


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """What one piece of work does with a timeline. Made by calling the timeline.

    Attributes:
        timeline: The timeline.
        wait: The work starts when the value is at least this.
        signal: The value becomes this when the work is done.

    Source: no part of WebNN (spec/deviations.md, D24).
    """

    timeline: Timeline
    wait: int | None
    signal: int | None


class Timeline(Unpicklable):
    """A value that only rises, to wait for and to signal, from anywhere.

    If work that was to signal `n` fails, the value does not pass `n - 1`: waits for `n` and more
    fail with an OperationError, until `n` is signalled after all by new work or by the host.

    Args:
        value: The value to begin with.
        label: What messages and `repr` call it; a number if not given.

    Raises:
        ValidationError: `value` is no integer from 0 to 2**64 - 1, or `label` no string.

    Example:
        `ctx.dispatch(g, inputs, outputs, sync=[a(wait=1), b(signal=2)])`

    Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's timeline semaphores.
    """

    def __init__(self, value: int = 0, *, label: str = "") -> None:
        self._state = TimelineState(_checked(value, "value"), convert.label(label))

    def __call__(self, *, wait: int | None = None, signal: int | None = None) -> TimelinePoint:
        """The point that a piece of work waits for, signals, or both.

        Args:
            wait: The value that the work waits for; one below 0 counts as 0.
            signal: The value that the timeline has when the work is done, from 0 to 2**64 - 1.

        Raises:
            ValidationError: Neither is given, one is no such integer, or `signal` is not above
                `wait`.

        Source: no part of WebNN (spec/deviations.md, D24).
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
        return self._state.value

    def signal(self, value: int) -> None:
        """Raise the value from the host, past a failure too.

        Args:
            value: The new value.

        Raises:
            ValidationError: `value` is not above the present one.
            InvalidStateError: A finalizer or signal handler calls this in the midst of another call
                on this timeline.

        Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's vkSignalSemaphore.
        """
        self._state.signal(_checked(value, "value"))

    def wait_sync(self, value: int, timeout: float | None = None) -> None:
        """Block this thread until the value is reached.

        Args:
            value: What to wait for.
            timeout: Seconds at most; forever if not given.

        Raises:
            WaitTimeoutError: (a TimeoutError) It was not reached in time.
            InvalidStateError: This thread is running an event loop; use `wait_async`. Or a
                finalizer or signal handler calls this in the midst of another call on this thread.
                Or the work that is to signal it is the parent process's, and this a child that it
                forked.
            OperationError: The work that was to signal it failed.

        Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's vkWaitSemaphores.
        """
        seconds = None if timeout is None else seconds_of(timeout)
        if self._state.value < _signed(value, "value"):
            check_interrupts_nothing("Timeline.wait_sync")
        done, waiter = self._completion(value)
        if waiter is not None:
            try:
                check_may_block("Timeline.wait_sync", "wait_async")
                done.wait(seconds)
            except TimeoutError:
                raise WaitTimeoutError(
                    f"timeline {self._state.name} is at {self._state.value} after"
                    f" {shown(timeout)} s, not yet at {shown(value)}; {self._outlook(value)}"
                ) from None
            finally:
                self._state.forget(waiter)
        done.wait(0)

    async def wait_async(self, value: int) -> None:
        """Await that the value is reached, under asyncio or trio.

        Args:
            value: What to wait for.

        Raises:
            InvalidStateError: The work that is to signal it is the parent process's, and this a
                child that it forked.
            OperationError: The work that was to signal it failed.

        Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's vkWaitSemaphores.
        """
        done, waiter = self._completion(value)
        try:
            await done
        finally:
            if waiter is not None and not done.done:  # a finalizer takes no lock for nothing
                self._state.forget(waiter)

    def _outlook(self, value: int) -> str:
        """What is to signal a value, and what that waits for."""
        works = self._state.signallers(value - 1)
        if not works:
            return "no work was accepted that is to signal it"
        more = f" (and {len(works) - MAX_SHOWN_WORKS} more)" if len(works) > MAX_SHOWN_WORKS else ""
        listed = "; ".join(f"{work.title} {work.standing()}" for work in works[:MAX_SHOWN_WORKS])
        return f"to be signalled by: {listed}{more}"

    def _completion(self, value: int) -> tuple[Completion[None], TimelineWaiter | None]:
        wanted = _signed(value, "value")
        done: Completion[None] = Completion()

        def arrived() -> None:
            cause = self._state.failure(wanted)
            if cause is None:
                done.set_result(None)
            else:
                done.set_exception(unreached(self._state, wanted, cause))

        waiter = self._state.when(wanted, arrived)
        if waiter is None:
            arrived()
        return done, waiter

    def __repr__(self) -> str:
        return f"<Timeline {self._state.name} at {self._state.value}>"


def state_of(timeline: Timeline) -> TimelineState:
    """What carries a timeline out, which is not for its users."""
    return timeline._state


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


def seconds_of(timeout: object) -> float:
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
