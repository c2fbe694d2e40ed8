"""Order of signals of operations that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webnn_py.ordering.operation import Operation, ParkedOperation, signalling_before
from webnn_py.ordering.timeline_state import TimelineState


class Signals:
    """Raises timelines in order of submission for operations that end in any order.

    A waiter for a value relies on all lower signals: earlier operations that are not parked signal
    first. The caller holds the schedule's lock.

    Args:
        signal: Raises the timelines of an operation.
        parked: The parked operations, by operation.

    Attributes:
        early: Operations that are done but must signal later.
    """

    def __init__(
        self, signal: Callable[[Operation], None], parked: Mapping[Operation, ParkedOperation]
    ) -> None:
        self._signal = signal
        self._parked = parked
        self.early: dict[Operation, None] = {}

    def give(self, operation: Operation) -> None:
        """Raise the timelines of an operation that is done, now or when its turn comes."""
        self.early[operation] = None
        self.catch_up()

    def catch_up(self) -> None:
        """Raise the timelines of early operations whose turn has come."""
        delayed: dict[TimelineState, int] = {}  # lowest delayed value
        for operation in sorted(self.early, key=lambda operation: operation.number):
            if self._is_early(operation, delayed):
                for timeline, value in operation.signals:
                    delayed[timeline] = min(value, delayed.get(timeline, value))
            else:
                del self.early[operation]
                self._signal(operation)

    def is_due(self, last: int) -> bool:
        """Whether an operation up to number `last` is done but has not signalled."""
        return any(operation.number <= last for operation in self.early)

    def _is_early(self, operation: Operation, delayed: Mapping[TimelineState, int]) -> bool:
        if any(delayed.get(timeline, value) < value for timeline, value in operation.signals):
            return True
        before = signalling_before(operation)
        return any(work in self.early or self._will_run(work) for work in before)

    def _will_run(self, work: Operation) -> bool:
        parked = self._parked.get(work)
        return parked is not None and not parked.is_parked
