"""What comes before what: held work, and the values of timelines that it waits for and signals.

Work comes before the value that it signals, a value before the next higher one and before the work
that waits for it. So each piece of work has few neighbours, however many use the same timelines.
Each node of this graph has a position, and nothing that comes before it has a later one. They have
the same where they come before each other, as may be while other work is still to signal.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from webnn_py.core.fork_guard import after_fork_in_child
from webnn_py.ordering.operation import ParkedOperation
from webnn_py.ordering.order_maintenance import Position, Positions
from webnn_py.ordering.timeline_state import TimelineState


@dataclass(slots=True, eq=False, weakref_slot=True)
class TimelineValue:
    """A value of a timeline that held work waits for or signals.

    Attributes:
        timeline: The timeline, which has these in the order of their values.
        value: The value.
        position: Its place before and after others.
        waiters: The work that waits for it.
        signallers: The work that signals it.
    """

    timeline: TimelineState
    value: int
    position: Position
    waiters: dict[ParkedOperation, None] = field(default_factory=dict)
    signallers: dict[ParkedOperation, None] = field(default_factory=dict)

    def holds(self, held: ParkedOperation) -> bool:
        """Whether one of its waiters may have to wait for it."""
        return held.must_wait() and not self.timeline.reached(self.value, held.queue)

    @property
    def previous(self) -> Iterator[TimelineValue]:
        """The next lower one, if there is one."""
        known = self.timeline.held
        place = bisect.bisect_left(known, self.value, key=_value)
        if place:
            yield known[place - 1]


Node = ParkedOperation | TimelineValue


class _Graph:
    """The held work of all contexts; who changes it or looks through it has the lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.positions = Positions()


GRAPH = _Graph()
after_fork_in_child(GRAPH.__init__)  # type: ignore[misc]  # a thread of the parent may have had the lock


class Search:
    """What is reached from some nodes, the nearest by its position first.

    Args:
        starts: The nodes.
        neighbours: What is reached from a node directly.
        direction: 1 to search for what comes later, -1 for what comes sooner.

    Attributes:
        found: What was reached so far.
    """

    def __init__(
        self, starts: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]], direction: int
    ) -> None:
        self.found: set[Node] = set()
        self._neighbours = neighbours
        self._direction = direction
        self._numbers = itertools.count()
        self._pending: list[tuple[int, int, Node]] = []
        self._add(starts)

    def step(self, end: int) -> Node | None:
        """Go on from the nearest node; None if there is none up to the label `end`."""
        if not self._pending or self._pending[0][0] > end * self._direction:
            return None
        node = heapq.heappop(self._pending)[2]
        self._add(self._neighbours(node))
        return node

    def _add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self.found:
                self.found.add(node)
                key = label_of(node) * self._direction
                heapq.heappush(self._pending, (key, next(self._numbers), node))


def label_of(node: Node) -> int:
    """What is lower for what comes sooner."""
    return _position(node).label


def later(node: Node, only_live: bool = True) -> Iterator[Node]:
    """What directly comes after a node.

    Args:
        node: The node.
        only_live: Leave out work that need not wait for a value now, but might have to again, and
            what work was to signal that failed.
    """
    if isinstance(node, ParkedOperation):
        yield from node.followers
        if not only_live or node.operation.signals:
            yield from node.signalled
        return
    for held in node.waiters:
        if not only_live or node.holds(held):
            yield held
    yield from first_held(node.timeline, node.value + 1)


def sooner(node: Node, only_live: bool = True) -> Iterator[Node]:
    """What directly comes before a node; as `later`, from the other end."""
    if isinstance(node, ParkedOperation):
        yield from node.blockers
        for awaited in node.awaited:
            if not only_live or awaited.holds(node):
                yield awaited
        return
    for held in node.signallers:
        if not only_live or held.operation.signals:
            yield held
    yield from node.previous


def first_held(timeline: TimelineState, value: int) -> Iterator[TimelineValue]:
    """The lowest value from this one on that held work waits for or signals, if there is one."""
    known = timeline.held
    place = bisect.bisect_left(known, value, key=_value)
    if place < len(known):
        yield known[place]


def enter(
    held: ParkedOperation, before: Iterable[ParkedOperation], after: Iterable[ParkedOperation]
) -> None:
    """Add held work between what it shares memory with, and the values of its timelines."""
    held.blockers.update(before)
    held.followers += after
    awaited = [_known(*point) for point in held.waits if point[0].value < point[1]]
    signalled = [_known(*point) for point in held.operation.signals]
    held.awaited += awaited
    held.signalled += signalled
    _put_between(held)
    for other in held.blockers:
        other.followers.append(held)
    for other in held.followers:
        other.blockers.add(held)
    for value in awaited:
        value.waiters[held] = None
    for value in signalled:
        value.signallers[held] = None
    held.operation.held = held


def forget_timelines(held: ParkedOperation) -> None:
    """Held work does not wait for timelines any more."""
    held.waiting = False
    for timeline, waiter in held.waiters:
        timeline.forget(waiter)
    held.waiters.clear()
    for awaited in held.awaited:
        awaited.waiters.pop(held, None)
        _forget_if_unused(awaited)
    held.awaited.clear()


def leave(held: ParkedOperation) -> None:
    """Held work is done, or will not be."""
    forget_timelines(held)
    for signalled in held.signalled:
        signalled.signallers.pop(held, None)
        _forget_if_unused(signalled)
    held.signalled.clear()
    held.operation.held = None
    for follower in held.followers:
        follower.blockers.discard(held)
    if held.position is not None:
        GRAPH.positions.disown(held, held.position)
        held.position = None


def _known(timeline: TimelineState, value: int) -> TimelineValue:
    """A value, which is new or known."""
    positions = GRAPH.positions
    following = next(first_held(timeline, value), None)
    if following is None:
        position = positions.end()
    elif following.value == value:
        return following
    elif following.position.shared:  # by the one before, perhaps
        position = following.position
    else:
        position = positions.before(following.position)
    made = TimelineValue(timeline, value, position)
    positions.own(made, position)
    bisect.insort(timeline.held, made, key=_value)
    return made


def _forget_if_unused(value: TimelineValue) -> None:
    if not (value.waiters or value.signallers):
        known = value.timeline.held
        del known[bisect.bisect_left(known, value.value, key=_value)]
        GRAPH.positions.disown(value, value.position)


def _put_between(held: ParkedOperation) -> None:
    """Give held work its position; what is in the way is moved, from the end where that is less."""
    positions = GRAPH.positions
    following = list(later(held, only_live=False))
    before = list(sooner(held, only_live=False))
    if not following:  # next to what it waits for: what is far from it need not be looked through
        last = max(map(_position, before), key=_label, default=None)
        place = positions.end() if last is None else positions.after(last)
        held.position = positions.own(held, place)
        return
    start = min(map(_position, following), key=_label)
    wrong = [node for node in before if label_of(node) >= start.label]
    if not wrong:
        held.position = positions.own(held, positions.before(start))
        return
    last = max(map(_position, wrong), key=_label)
    back = Search(wrong, lambda node: sooner(node, only_live=False), -1)
    forth = Search(following, lambda node: later(node, only_live=False), 1)
    while back.step(start.label) is not None:
        if forth.step(last.label) is None and forth.found.isdisjoint(wrong):
            held.position = positions.own(held, positions.after(last))
            _move([n for n in forth.found if label_of(n) <= last.label], held.position)
            return
    moved = {node for node in back.found if label_of(node) >= start.label}
    around = Search(
        moved.intersection(following), lambda node: moved.intersection(later(node, False)), 1
    )
    while around.step(last.label) is not None:
        pass
    anchor = _move(moved - around.found, start.before)
    held.position = positions.own(held, positions.after(anchor))
    for node in around.found:  # it comes before and after the work
        _put(node, held.position)


def _move(nodes: Iterable[Node], anchor: Position) -> Position:
    """Move nodes directly after a position, in their order; the position of the last one."""
    old = None
    for position, node in sorted(
        ((_position(n), n) for n in nodes), key=lambda pair: pair[0].label
    ):
        if position is not old:
            anchor, old = GRAPH.positions.after(anchor), position
        _put(node, anchor)
    return anchor


def _put(node: Node, position: Position) -> None:
    GRAPH.positions.disown(node, _position(node))
    node.position = GRAPH.positions.own(node, position)


def _position(node: Node) -> Position:
    assert node.position is not None
    return node.position


def _label(position: Position) -> int:
    return position.label


def _value(known: TimelineValue) -> int:
    return known.value
