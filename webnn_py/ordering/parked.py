"""The parked operations of one context, and when each may run."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable

from webnn_py.ordering.deadlock import find_deadlock, overtaking
from webnn_py.ordering.hazards import Hazards
from webnn_py.ordering.operation import (
    Executor,
    Operation,
    ParkedOperation,
    signalling_before,
    with_blockers,
)
from webnn_py.ordering.wait_graph import GRAPH, enter, forget_timelines, leave


class ParkedOperations:
    """Parks operations until nothing keeps them from running, and selects the first that may run.

    The caller holds the lock of the context's schedule.

    Args:
        executor: Where the operations run.

    Attributes:
        works: Parked operations, and running ones that parked ones follow, in order of submission.
        ready: Heap of operations that may run, by number.
    """

    def __init__(self, executor: Executor) -> None:
        self.works: dict[Operation, ParkedOperation] = {}
        self._executor = executor
        self.ready: list[tuple[int, ParkedOperation]] = []
        self._hazards = Hazards()

    def park(
        self, operation: Operation, wake: Callable[[ParkedOperation], None]
    ) -> ParkedOperation | None:
        """Return the parked state of a new operation; None if it may run and nothing can follow it.

        Args:
            operation: The operation.
            wake: Called without the lock once an awaited timeline is reached or fails.
        """
        is_only = not self.works and self._executor.width == 1
        if is_only and not operation.sync:
            return None
        queue = None if operation.host else self._executor.queue
        parked = ParkedOperation(operation, operation.waits, queue)
        if is_only and not parked.unmet():
            return None
        with GRAPH.lock:
            overtakes = overtaking(operation)
            enter(parked, *self._hazards.place(parked, overtakes))
            self.works[operation] = parked
            _wait_for_timelines(parked, wake)
            if overtakes is not None:
                self.find_deadlock(parked)
        if parked.waiting or parked.blockers:
            operation.notify_watchers()
        return parked

    def find_deadlock(self, parked: ParkedOperation) -> None:
        """Set `cause` if the operation can never run."""
        with GRAPH.lock:
            parked.cause = find_deadlock(parked)
            if parked.cause is not None:
                forget_timelines(parked)

    def recheck(self, parked: ParkedOperation) -> None:
        """Check whether an operation must still wait."""
        if parked.operation in self.works and not (parked.begun or parked.ready):
            parked.waiting = parked.must_wait()
            self.release(parked)

    def must_yield(self, parked: ParkedOperation) -> bool:
        """Put an operation back if earlier ones that signal lower values became ready meanwhile.

        The timeline that resumed it may not have resumed those yet.
        """
        before = (self.works.get(work) for work in signalling_before(parked.operation))
        for other in with_blockers(filter(None, before)):
            if other.waiting:
                self.recheck(other)
        if not (self.ready and self.ready[0][0] < parked.operation.number):
            return False
        self.release(parked)
        return True

    def release(self, parked: ParkedOperation) -> None:
        """Queue an operation to run if nothing keeps it from running."""
        if parked.operation in self.works and not (
            parked.blockers or parked.waiting or parked.ready
        ):
            parked.ready = True
            heapq.heappush(self.ready, (parked.operation.number, parked))

    def take_ready(self) -> ParkedOperation:
        """Remove and return the first operation that may run; begin it or park it again."""
        parked = heapq.heappop(self.ready)[1]
        parked.ready = False
        return parked

    def begin(self, parked: ParkedOperation) -> None:
        """Mark an operation as running."""
        with GRAPH.lock:
            forget_timelines(parked)
            parked.waits.clear()
        parked.begun = True

    def drop(self, parked: ParkedOperation) -> bool:
        """Cancel an operation; its followers keep their order. Return False if it has begun."""
        if parked.dropped or parked.begun:
            return False
        with GRAPH.lock:
            parked.dropped = True
            forget_timelines(parked)
        return True

    def remove(self, operation: Operation) -> None:
        """Remove an operation that is done, and release its followers."""
        parked = self.works.pop(operation, None)
        if parked is None:
            return
        with GRAPH.lock:
            self._hazards.remove(parked)
            leave(parked)
        for follower in parked.followers:
            self.release(follower)

    def clear(self) -> list[Operation]:
        """Remove all operations; return those that had not begun."""
        left = [work for work, parked in self.works.items() if not (parked.dropped or parked.begun)]
        with GRAPH.lock:
            for parked in self.works.values():
                leave(parked)
        self.works.clear()
        self.ready.clear()
        self._hazards = Hazards()
        return left


def _wait_for_timelines(parked: ParkedOperation, wake: Callable[[ParkedOperation], None]) -> None:
    for timeline, value in parked.unmet():
        waiter = timeline.call_when_reached(
            value, functools.partial(wake, parked), parked.queue, parked
        )
        if waiter is not None:
            parked.waiters.append((timeline, waiter))
    parked.waiting = parked.must_wait()
