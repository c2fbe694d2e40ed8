"""Which held work must be done before which, and what can never run for that reason.

Values only rise. So the work that signals a value comes before the work that waits for it or for a
higher one, whatever was submitted first.
"""

from __future__ import annotations

from webnn_py.core.errors import OperationError
from webnn_py.ordering.hazards import Overtakes
from webnn_py.ordering.operation import Operation, ParkedOperation, Point
from webnn_py.ordering.timeline_state import TimelineState
from webnn_py.ordering.wait_graph import Node, Search, first_held, label_of, later, sooner

MOST_STEPS = 6
"""Of a deadlock, that a message tells of."""


def overtaking(operation: Operation) -> Overtakes | None:
    """Whether work waits, however indirectly, for what new work is to signal; None if none can."""
    if not any(timeline.awaited_from(value) for timeline, value in operation.signals):
        return None
    return _After(operation).__contains__


def deadlock(held: ParkedOperation) -> OperationError | None:
    """Why held work can never run, if it has to wait for itself.

    It has to where all that was accepted to signal what it waits for waits for it.
    """
    if held.position is None or not held.position.shared or held not in _After(held.operation):
        return None
    path = _path(held)
    if path is None or held not in _stuck(held):
        return None
    steps = path if len(path) <= MOST_STEPS else [*path[: MOST_STEPS - 1], "…", path[-1]]
    return OperationError(f"this can never run: {held.operation.title} {'; that '.join(steps)}")


class _After:
    """The held work that has to wait for other work, however indirectly.

    It is searched for from both ends in turn, and no further than is asked for: either end may be
    a chain of all that is held.

    Args:
        operation: The other work.
    """

    def __init__(self, operation: Operation) -> None:
        starts: list[Node] = [] if operation.held is None else [*operation.held.followers]
        self._signals: dict[TimelineState, int] = {}
        for timeline, value in operation.signals:
            self._signals[timeline] = min(value, self._signals.get(timeline, value))
            starts += first_held(timeline, value)
        self._after = Search(starts, later, 1)
        self._first = min(map(label_of, starts), default=0)
        self._free: set[Node] = set()  # that has not to wait for it

    def __contains__(self, held: ParkedOperation) -> bool:
        if held in self._after.found:
            return True
        if not self._after.found or label_of(held) < self._first or held in self._free:
            return False
        for value in held.awaited:
            least = self._signals.get(value.timeline)
            if least is not None and least <= value.value and value.holds(held):  # mostly so
                return True
        before = Search([held], self._sooner, -1)
        while (node := before.step(self._first)) is not None:
            if node in self._after.found or self._raises(node):
                return True
            if self._after.step(label_of(held)) is None:
                return held in self._after.found
        self._free |= before.found
        return False

    def _sooner(self, node: Node) -> list[Node]:
        return [other for other in sooner(node) if other not in self._free]

    def _raises(self, node: Node) -> bool:
        """Whether it is a value that the other work raises a timeline to, or a higher one."""
        if isinstance(node, ParkedOperation):
            return False
        value = self._signals.get(node.timeline)
        return value is not None and value <= node.value


def _path(start: ParkedOperation) -> list[str] | None:
    """How held work has to wait for itself, in words; None if it has not."""
    came_from: dict[ParkedOperation, tuple[ParkedOperation, Operation, Point | None] | None] = {
        start: None
    }
    scanned: dict[object, int] = {}
    pending = [start]
    while pending:
        held = pending.pop()
        for other, point in _before(held, scanned):
            if other is start.operation:
                steps = [_told(other, point)]
                while (link := came_from[held]) is not None:
                    held, other, point = link
                    steps.insert(0, _told(other, point))
                return steps
            if other.held is not None and other.held not in came_from:
                came_from[other.held] = held, other, point
                pending.append(other.held)
    return None


def _before(
    held: ParkedOperation, scanned: dict[object, int]
) -> list[tuple[Operation, Point | None]]:
    """What must be done before held work, but for what was scanned before.

    With each the point for which; None if they share memory.
    """
    found: list[tuple[Operation, Point | None]] = []
    for timeline, value in _unmet(held):
        above = scanned.get(timeline, -1)
        if above < value:
            scanned[timeline] = value
            found += [(work, (timeline, value)) for work in timeline.signallers(above, value)]
    return found + [(other.operation, None) for other in held.blockers]


def _told(work: Operation, point: Point | None) -> str:
    """Why work must be done before, in words."""
    if point is None:
        return f"comes after {work.title}, which uses the same memory"
    timeline, value = point
    return (
        f"waits for timeline {timeline.name} to reach {value} (now {timeline.value}), which"
        f" {work.title} is to signal"
    )


def _unmet(held: ParkedOperation) -> list[Point]:
    return held.unmet() if held.must_wait() else []


def _stuck(start: ParkedOperation) -> set[ParkedOperation]:
    """Of the held work that some work may have to wait for: what can never run."""
    stuck, pending = {start}, [start]
    watched: set[TimelineState] = set()
    while pending:
        held = pending.pop()
        unmet = _unmet(held)
        watched.update(timeline for timeline, _ in unmet)
        works = [work for timeline, _ in unmet for work in timeline.signallers()]
        for other in (*held.blockers, *(work.held for work in works)):
            if other is not None and other not in stuck:
                stuck.add(other)
                pending.append(other)
    while True:
        free = {held for held in stuck if not _is_stuck(held, stuck)}
        if not free:
            break
        stuck -= free
    if start not in stuck:  # it may be, once others signal what it waits for, or do not
        own = [timeline for timeline, _ in (*start.unmet(), *start.operation.signals)]
        for timeline in watched:
            timeline.watch(own)
    return stuck


def _is_stuck(held: ParkedOperation, stuck: set[ParkedOperation]) -> bool:
    """Whether held work can never run if some other work cannot."""
    if not held.blockers.isdisjoint(stuck):
        return True
    for timeline, value in _unmet(held):
        before = timeline.signallers(timeline.value, value)
        enough = timeline.signallers(value - 1)
        if any(work.held in stuck for work in before) and all(w.held in stuck for w in enough):
            return True
    return False
