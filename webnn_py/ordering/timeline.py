"""Timeline: a counter that orders work across threads, contexts and queues.

It is modelled on Vulkan's timeline semaphores. The value only rises; work waits until it is
reached, and raises it when done. A wait may be submitted before the work that signals it; the
submission does not block.
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
"""Most operations that a message lists."""


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """What one operation waits for and signals on a timeline. Made by calling the timeline.

    Attributes:
        timeline: The timeline.
        wait: The work starts when the value is at least this.
        signal: The value becomes this when the work is done.

    Examples:
        ```python
        from webnn_py import Timeline

        drawn = Timeline(label="drawn")
        point = drawn(wait=1, signal=2)
        print(point.timeline is drawn, point.wait, point.signal)  # True 1 2
        ```

    Source: no part of WebNN (spec/deviations.md, D24).
    """

    timeline: Timeline
    wait: int | None
    signal: int | None


class Timeline(Unpicklable):
    """A counter that work and the host can wait for and signal, from anywhere.

    If work that was to signal `n` fails, the value does not pass `n - 1`: waits for `n` and more
    fail with an OperationError, until new work or the host signals `n` after all.

    Args:
        value: The initial value.
        label: Its name in messages and `repr`; a number if not given.

    Raises:
        ValidationError: `value` is no integer from 0 to 2**64 - 1, or `label` no string.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLGraphBuilder, Timeline, ml

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [2])
        graph = b.build_sync({"y": b.add(x, x)})
        t = ctx.create_tensor_sync("float32", [2], readable=True, writable=True)

        ready = Timeline(label="ready")
        ctx.dispatch(graph, {"x": t}, {"y": t}, sync=[ready(wait=1, signal=2)])  # parked
        ready.signal(1)  # from the host
        ready.wait_sync(2, timeout=10.0)
        asyncio.run(ready.wait_async(2))
        print(ready.value)  # 2
        ```

    Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's timeline semaphores.
    """

    def __init__(self, value: int = 0, *, label: str = "") -> None:
        self._state = TimelineState(_checked(value, "value"), convert.label(label))

    def __call__(self, *, wait: int | None = None, signal: int | None = None) -> TimelinePoint:
        """Return a point that an operation waits for, signals, or both.

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
        """The value reached; another thread may raise it at any time."""
        return self._state.value

    def signal(self, value: int) -> None:
        """Raise the value from the host, past a failure too.

        Args:
            value: The new value.

        Raises:
            ValidationError: `value` is not above the present one.
            InvalidStateError: A finalizer or signal handler calls this during another call on this
                timeline.

        Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's vkSignalSemaphore.
        """
        self._state.signal(_checked(value, "value"))

    def wait_sync(self, value: int, timeout: float | None = None) -> None:
        """Block this thread until the value is reached.

        Args:
            value: The awaited value.
            timeout: Seconds at most; forever if not given.

        Raises:
            WaitTimeoutError: (a TimeoutError) It was not reached in time.
            InvalidStateError: This thread is running an event loop; use `wait_async`. Or a
                finalizer or signal handler calls this during another call on this thread. Or the
                signalling work belongs to the parent process, and this is a child that it forked.
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
        """Wait until the value is reached, under asyncio or trio.

        Args:
            value: The awaited value.

        Raises:
            InvalidStateError: The signalling work belongs to the parent process, and this is a
                child that it forked.
            OperationError: The work that was to signal it failed.

        Source: no part of WebNN (spec/deviations.md, D24); after Vulkan's vkWaitSemaphores.
        """
        done, waiter = self._completion(value)
        try:
            await done
        finally:
            if waiter is not None and not done.done:  # a finalizer should take no lock
                self._state.forget(waiter)

    def _outlook(self, value: int) -> str:
        """Describe the operations that are to signal a value, and what they wait for."""
        works = self._state.signallers(value - 1)
        if not works:
            return "no work was accepted that is to signal it"
        more = f" (and {len(works) - MAX_SHOWN_WORKS} more)" if len(works) > MAX_SHOWN_WORKS else ""
        listed = "; ".join(
            f"{work.title} {work.describe_state()}" for work in works[:MAX_SHOWN_WORKS]
        )
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

        waiter = self._state.call_when_reached(wanted, arrived)
        if waiter is None:
            arrived()
        return done, waiter

    def __repr__(self) -> str:
        return f"<Timeline {self._state.name} at {self._state.value}>"


def state_of(timeline: Timeline) -> TimelineState:
    """Return the internal state of a timeline."""
    return timeline._state


def points(sync: Iterable[TimelinePoint]) -> tuple[TimelinePoint, ...]:
    """Return a checked `sync=` argument.

    Raises:
        ValidationError: It holds another object, a signal that does not raise a timeline, or a wait
            for its own signal.
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
    """Whether a timeline made this point; the class accepts any arguments."""
    return (
        isinstance(value, TimelinePoint)
        and isinstance(value.timeline, Timeline)
        and all(
            number is None or (type(number) is int and 0 <= number <= MAX_VALUE)
            for number in (value.wait, value.signal)
        )
    )


def seconds_of(timeout: object) -> float:
    """Return a timeout in the range that threads accept; a negative one counts as 0."""
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
