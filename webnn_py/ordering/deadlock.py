"""Order between parked operations, and detection of deadlocks.

Values only rise: an operation that signals a value comes before those that wait for it or for a
higher one, whatever the order of submission.
"""

from __future__ import annotations

from webnn_py.core.errors import OperationError
from webnn_py.ordering.hazards import Overtakes
from webnn_py.ordering.operation import Operation, ParkedOperation, Point
from webnn_py.ordering.timeline_state import TimelineState
from webnn_py.ordering.wait_graph import Node, Search, first_node, label_of, later, sooner

MAX_SHOWN_STEPS = 6
"""Most steps of a deadlock in a message."""


def overtaking(operation: Operation) -> Overtakes | None:
    """Return the test whether a parked operation waits, even indirectly, for a new one's signals.

    None if nothing waits for them.
    """
    if not any(timeline.has_waiter_from(value) for timeline, value in operation.signals):
        return None
    return _Successors(operation).__contains__


def find_deadlock(parked: ParkedOperation) -> OperationError | None:
    """Return the error of a parked operation that can never run, as it waits for itself; else None.

    It waits for itself if every accepted operation that signals an awaited value waits for it.
    """
    if (
        parked.position is None
        or not parked.position.shared
        or parked not in _Successors(parked.operation)
    ):
        return None
    path = _path(parked)
    if path is None or parked not in _stuck(parked):
        return None
    steps = path if len(path) <= MAX_SHOWN_STEPS else [*path[: MAX_SHOWN_STEPS - 1], "…", path[-1]]
    return OperationError(f"this can never run: {parked.operation.title} {'; that '.join(steps)}")


class _Successors:
    """The parked operations that come after an operation, however indirectly.

    The search runs from both ends in turn, only as far as a question needs: each end may be a chain
    of all parked operations.

    Args:
        operation: The operation.
    """

    def __init__(self, operation: Operation) -> None:
        starts: list[Node] = [] if operation.parked is None else [*operation.parked.followers]
        self._signals: dict[TimelineState, int] = {}
        for timeline, value in operation.signals:
            self._signals[timeline] = min(value, self._signals.get(timeline, value))
            starts += first_node(timeline, value)
        self._after = Search(starts, later, 1)
        self._first = min(map(label_of, starts), default=0)
        self._independent: set[Node] = set()  # nodes that do not come after it

    def __contains__(self, parked: ParkedOperation) -> bool:
        if parked in self._after.found:
            return True
        if not self._after.found or label_of(parked) < self._first or parked in self._independent:
            return False
        for value in parked.awaited:
            least = self._signals.get(value.timeline)  # the common case
            if least is not None and least <= value.value and value.holds(parked):
                return True
        before = Search([parked], self._sooner, -1)
        while (node := before.step(self._first)) is not None:
            if node in self._after.found or self._is_signalled(node):
                return True
            if self._after.step(label_of(parked)) is None:
                return parked in self._after.found
        self._independent |= before.found
        return False

    def _sooner(self, node: Node) -> list[Node]:
        return [other for other in sooner(node) if other not in self._independent]

    def _is_signalled(self, node: Node) -> bool:
        """Whether the operation signals this node's value, or a lower one of its timeline."""
        if isinstance(node, ParkedOperation):
            return False
        value = self._signals.get(node.timeline)
        return value is not None and value <= node.value


def _path(start: ParkedOperation) -> list[str] | None:
    """Describe how an operation waits for itself, step by step; None if it does not."""
    came_from: dict[ParkedOperation, tuple[ParkedOperation, Operation, Point | None] | None] = {
        start: None
    }
    scanned: dict[object, int] = {}
    pending = [start]
    while pending:
        parked = pending.pop()
        for other, point in _before(parked, scanned):
            if other is start.operation:
                steps = [_describe(other, point)]
                while (link := came_from[parked]) is not None:
                    parked, other, point = link
                    steps.insert(0, _describe(other, point))
                return steps
            if other.parked is not None and other.parked not in came_from:
                came_from[other.parked] = parked, other, point
                pending.append(other.parked)
    return None


def _before(
    parked: ParkedOperation, scanned: dict[object, int]
) -> list[tuple[Operation, Point | None]]:
    """Return the operations directly before a parked one, except for values scanned before.

    Each comes with the awaited point, or None for shared memory.
    """
    found: list[tuple[Operation, Point | None]] = []
    for timeline, value in _unmet(parked):
        above = scanned.get(timeline, -1)
        if above < value:
            scanned[timeline] = value
            found += [(work, (timeline, value)) for work in timeline.signallers(above, value)]
    return found + [(other.operation, None) for other in parked.blockers]


def _describe(work: Operation, point: Point | None) -> str:
    """Describe why an operation comes before another."""
    if point is None:
        return f"comes after {work.title}, which uses the same memory"
    timeline, value = point
    return (
        f"waits for timeline {timeline.name} to reach {value} (now {timeline.value}), which"
        f" {work.title} is to signal"
    )


def _unmet(parked: ParkedOperation) -> list[Point]:
    return parked.unmet() if parked.must_wait() else []


def _stuck(start: ParkedOperation) -> set[ParkedOperation]:
    """Return the operations that can never run, among those that `start` may wait for."""
    stuck, pending = {start}, [start]
    watched: set[TimelineState] = set()
    while pending:
        parked = pending.pop()
        unmet = _unmet(parked)
        watched.update(timeline for timeline, _ in unmet)
        works = [work for timeline, _ in unmet for work in timeline.signallers()]
        for other in (*parked.blockers, *(work.parked for work in works)):
            if other is not None and other not in stuck:
                stuck.add(other)
                pending.append(other)
    while True:
        free = {parked for parked in stuck if not _is_stuck(parked, stuck)}
        if not free:
            break
        stuck -= free
    if start not in stuck:  # a change in who signals may leave it stuck
        own = [timeline for timeline, _ in (*start.unmet(), *start.operation.signals)]
        for timeline in watched:
            timeline.watch(own)
    return stuck


def _is_stuck(parked: ParkedOperation, stuck: set[ParkedOperation]) -> bool:
    """Whether an operation can never run if the `stuck` ones cannot."""
    if not parked.blockers.isdisjoint(stuck):
        return True
    for timeline, value in _unmet(parked):
        before = timeline.signallers(timeline.value, value)
        enough = timeline.signallers(value - 1)
        if any(work.parked in stuck for work in before) and all(w.parked in stuck for w in enough):
            return True
    return False
