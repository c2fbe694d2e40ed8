"""TimelineTurn: the timeline points between which a decoder works on a text."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from webnn_py.api.session import Session
from webnn_py.core.errors import MLError, OperationError
from webnn_py.ordering.operation import Operation, Point
from webnn_py.ordering.timeline import TimelinePoint

LEFT = "the work of a decoder was left before it ended"


class TimelineTurn:
    """The work on a text that waits for timelines at first, and signals timelines at its end.

    Args:
        session: Session of the context.
        sync: The points.
        title: Name of the work in messages.
    """

    def __init__(self, session: Session, sync: tuple[TimelinePoint, ...], title: str) -> None:
        self._session = session
        self._sync = sync
        self._title = title
        self._lock = threading.RLock()
        self._is_left = self._has_ended = False
        self._work: Operation | None = None
        self._promised: list[Point] = []

    @property
    def waits(self) -> bool:
        """Whether the work waits for timelines at first."""
        return any(point.wait is not None for point in self._sync)

    def begin(self, start: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Call `start` when all waits are met, or `fail` with the error if they never will be.

        From here on the work counts as accepted to signal: cycles of waits through it are found.
        """

        def run() -> None:
            with self._lock:  # whoever leaves from now on finds the work begun
                if self._is_left:
                    raise OperationError(LEFT)
                self._promised, work.sync = work.signals, ()  # `end` signals
                start()

        self._work = work = Operation(run, fail, self._sync, title=self._title)
        if self.waits:
            self._session.queue.submit(work)
            return
        for timeline, value in work.signals:
            timeline.expect(value, work)
        run()

    def leave(self) -> None:
        """Fail the work unless it has begun."""
        with self._lock:
            self._is_left = True
        work = self._work
        if work is not None:
            self._session.queue.withdraw(work)

    def end(self, error: BaseException | None = None) -> None:
        """Signal, or fail the signals; later calls change nothing."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        work, self._work = self._work, None  # which refers back to the decoder
        signals = tuple(
            dataclasses.replace(point, wait=None)
            for point in self._sync
            if point.signal is not None
        )
        if not signals:
            return
        signal = Operation(_nothing, _ignore, signals, title=self._title)
        try:
            if error is None:
                self._session.queue.submit(signal)
        except MLError as lost:
            error = lost
        for timeline, value in self._promised:
            timeline.withdraw(value, work)
        if error is not None:
            signal.refuse(error)

    def cancel(self) -> None:
        """Fail the signals of work that was left."""
        self.leave()
        self.end(OperationError(LEFT))


def _nothing() -> None:
    """Do nothing: the work itself is done."""


def _ignore(error: BaseException) -> None:
    """Ignore the error: those who wait for the signals get it."""
