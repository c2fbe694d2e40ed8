"""TimelineTurn: the timeline points between which a decoder works on a text."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from webnn_py.api.session import Session
from webnn_py.core.errors import MLError, OperationError
from webnn_py.ordering.operation import Operation
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
        self._waits = tuple(
            dataclasses.replace(point, signal=None) for point in sync if point.wait is not None
        )
        self._signals = tuple(
            dataclasses.replace(point, wait=None) for point in sync if point.signal is not None
        )
        self._title = title
        self._lock = threading.Lock()
        self._has_ended = False
        self._parked: Operation | None = None

    @property
    def waits(self) -> bool:
        """Whether the work waits for timelines at first."""
        return bool(self._waits)

    def begin(self, start: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Call `start` when all waits are met, or `fail` with the error if they never will be."""
        if not self._waits:
            start()
            return
        self._parked = Operation(start, fail, self._waits, title=self._title)
        self._session.queue.submit(self._parked)

    def leave(self) -> None:
        """Fail the work if it still waits."""
        if self._parked is not None:
            self._session.queue.withdraw(self._parked)

    def end(self, error: BaseException | None = None) -> None:
        """Signal, or fail the signals; later calls change nothing."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        if not self._signals:
            return
        signal = Operation(_nothing, _ignore, self._signals, title=self._title)
        if error is None:
            try:
                self._session.queue.submit(signal)
            except MLError as lost:
                signal.refuse(lost)
        else:
            signal.refuse(error)

    def cancel(self) -> None:
        """Fail the signals of work that was left."""
        self.leave()
        self.end(OperationError(LEFT))


def _nothing() -> None:
    """Do nothing: the work itself is done."""


def _ignore(error: BaseException) -> None:
    """Ignore the error: those who wait for the signals get it."""
