"""The work of one context that is held, with what holds it back."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable

from webnn_py.ordering.deadlock import deadlock, overtaking
from webnn_py.ordering.executor_config import Executor
from webnn_py.ordering.hazards import Hazards
from webnn_py.ordering.operation import Operation, ParkedOperation, signalling_before, with_blockers
from webnn_py.ordering.wait_graph import GRAPH, enter, forget_timelines, leave


class ParkedOperations:
    """Holds work until nothing keeps it from running, and knows then which is the first.

    Who calls has the lock of the context's order.

    Args:
        executor: Where the work runs.

    Attributes:
        works: What is held, or runs and holds other work back, in the order of submission.
        ready: A heap, by their numbers, of those that need not be held any more.
    """

    def __init__(self, executor: Executor) -> None:
        self.works: dict[Operation, ParkedOperation] = {}
        self._executor = executor
        self.ready: list[tuple[int, ParkedOperation]] = []
        self._hazards = Hazards()

    def hold(
        self, operation: Operation, wake: Callable[[ParkedOperation], None]
    ) -> ParkedOperation | None:
        """What holds work back, or will hold back other work; None if there is no such thing.

        Args:
            operation: The work.
            wake: Called, without the lock, once a timeline that it waits for is reached or fails.
        """
        alone = not self.works and self._executor.width == 1
        if alone and not operation.sync:
            return None
        queue = None if operation.host else self._executor.queue
        held = ParkedOperation(operation, operation.waits, queue)
        if alone and not held.unmet():
            return None
        with GRAPH.lock:
            overtakes = overtaking(operation)
            enter(held, *self._hazards.place(held, overtakes))
            self.works[operation] = held
            _wait_for_timelines(held, wake)
            if overtakes is not None:
                self.find_deadlock(held)
        if held.waiting or held.blockers:
            operation.tell_watchers()
        return held

    def find_deadlock(self, held: ParkedOperation) -> None:
        """Find out whether it can never run, and why (`Held.cause`)."""
        with GRAPH.lock:
            held.cause = deadlock(held)
            if held.cause is not None:
                forget_timelines(held)

    def look_again(self, held: ParkedOperation) -> None:
        """Find out whether work is still to be held."""
        if held.operation in self.works and not (held.begun or held.ready):
            held.waiting = held.must_wait()
            self.release(held)

    def comes_later(self, held: ParkedOperation) -> bool:
        """Whether work that could begin is ready again, as earlier work is to signal less.

        The timeline that resumed it may not have come to that work yet.
        """
        before = (self.works.get(work) for work in signalling_before(held.operation))
        for other in with_blockers(filter(None, before)):
            if other.waiting:
                self.look_again(other)
        if not (self.ready and self.ready[0][0] < held.operation.number):
            return False
        self.release(held)
        return True

    def release(self, held: ParkedOperation) -> None:
        """Let work run, if nothing holds it."""
        if held.operation in self.works and not (held.blockers or held.waiting or held.ready):
            held.ready = True
            heapq.heappush(self.ready, (held.operation.number, held))

    def take_ready(self) -> ParkedOperation:
        """Take the first one that is ready; it is begun, or held again."""
        held = heapq.heappop(self.ready)[1]
        held.ready = False
        return held

    def begin(self, held: ParkedOperation) -> None:
        """It runs from now on."""
        with GRAPH.lock:
            forget_timelines(held)
            held.waits.clear()
        held.begun = True

    def drop(self, held: ParkedOperation) -> bool:
        """It will not be done; what follows it keeps its order. False where it has begun."""
        if held.dropped or held.begun:
            return False
        with GRAPH.lock:
            held.dropped = True
            forget_timelines(held)
        return True

    def remove(self, operation: Operation) -> None:
        """What followed an operation need not wait for it any more."""
        held = self.works.pop(operation, None)
        if held is None:
            return
        with GRAPH.lock:
            self._hazards.remove(held)
            leave(held)
        for follower in held.followers:
            self.release(follower)

    def clear(self) -> list[Operation]:
        """Hold nothing any more; what had not begun."""
        left = [work for work, held in self.works.items() if not (held.dropped or held.begun)]
        with GRAPH.lock:
            for held in self.works.values():
                leave(held)
        self.works.clear()
        self.ready.clear()
        self._hazards = Hazards()
        return left


def _wait_for_timelines(held: ParkedOperation, wake: Callable[[ParkedOperation], None]) -> None:
    for timeline, value in held.unmet():
        waiter = timeline.when(value, functools.partial(wake, held), held.queue, held)
        if waiter is not None:
            held.waiters.append((timeline, waiter))
    held.waiting = held.must_wait()
