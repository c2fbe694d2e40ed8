"""What finished work signals, in the order in which it was submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webnn_py.ordering.operation import Operation, ParkedOperation, signalling_before
from webnn_py.ordering.timeline_state import TimelineState


class Signals:
    """Raises what operations signal that ran at once and end in any order.

    Who waits for a value counts on all that signals less: work that was submitted before, and is
    not parked, signals first. Who calls has the schedule's lock.

    Args:
        signal: Raises what an operation signals.
        held: What is not done, and not to be looked at yet.

    Attributes:
        early: What is done, but signals later.
    """

    def __init__(
        self, signal: Callable[[Operation], None], held: Mapping[Operation, ParkedOperation]
    ) -> None:
        self._signal = signal
        self._held = held
        self.early: dict[Operation, None] = {}

    def give(self, operation: Operation) -> None:
        """Raise what an operation signals that is done, now or when its turn comes."""
        self.early[operation] = None
        self.catch_up()

    def catch_up(self) -> None:
        """Raise what it is the turn of now."""
        kept: dict[TimelineState, int] = {}  # the lowest value that is early
        for operation in sorted(self.early, key=lambda operation: operation.number):
            if self._is_early(operation, kept):
                for timeline, value in operation.signals:
                    kept[timeline] = min(value, kept.get(timeline, value))
            else:
                del self.early[operation]
                self._signal(operation)

    def is_due(self, last: int) -> bool:
        """Whether an operation up to number `last` is done, but for what it signals."""
        return any(operation.number <= last for operation in self.early)

    def _is_early(self, operation: Operation, kept: Mapping[TimelineState, int]) -> bool:
        if any(kept.get(timeline, value) < value for timeline, value in operation.signals):
            return True
        before = signalling_before(operation)
        return any(work in self.early or self._will_run(work) for work in before)

    def _will_run(self, work: Operation) -> bool:
        held = self._held.get(work)
        return held is not None and not held.parked
