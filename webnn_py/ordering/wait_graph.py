"""Wait-for graph: parked operations and the timeline values that they wait for and signal.

An operation comes before the values that it signals. A value comes before the next higher value of
its timeline, and before the operations that wait for it. So a node has few neighbours, however many
operations use a timeline.

Each node has a position, and no predecessor has a later one. Nodes share a position if they come
before each other, which is possible while other operations may still signal.
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
    """A value of a timeline that parked operations wait for or signal.

    Attributes:
        timeline: The timeline, which holds these nodes sorted by value.
        value: The value.
        position: Its place in the maintained order.
        waiters: The operations that wait for it.
        signallers: The operations that signal it.
    """

    timeline: TimelineState
    value: int
    position: Position
    waiters: dict[ParkedOperation, None] = field(default_factory=dict)
    signallers: dict[ParkedOperation, None] = field(default_factory=dict)

    def holds(self, parked: ParkedOperation) -> bool:
        """Whether one of its waiters may still have to wait for it."""
        return parked.must_wait() and not self.timeline.reached(self.value, parked.queue)

    @property
    def previous(self) -> Iterator[TimelineValue]:
        """The node of the next lower value, if any."""
        known = self.timeline.parked_values
        place = bisect.bisect_left(known, self.value, key=_value)
        if place:
            yield known[place - 1]


Node = ParkedOperation | TimelineValue


class _Graph:
    """The graph of all contexts; hold its lock to change or search it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.positions = Positions()


GRAPH = _Graph()
after_fork_in_child(GRAPH.__init__)  # type: ignore[misc]  # a thread of the parent may hold the lock


class Search:
    """Search from some nodes in the order of positions.

    Args:
        starts: The first nodes.
        neighbours: Returns the neighbours of a node.
        direction: 1 to search successors, -1 to search predecessors.

    Attributes:
        found: The nodes reached so far.
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
        """Visit the nearest node and return it; None if there is none up to the label `end`."""
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
    """Return the label of a node's position: lower for earlier nodes."""
    return _position(node).label


def later(node: Node, only_live: bool = True) -> Iterator[Node]:
    """Yield the nodes directly after a node.

    Args:
        node: The node.
        only_live: Omit operations that need not wait for a value at present, and the signals of
            operations that failed.
    """
    if isinstance(node, ParkedOperation):
        yield from node.followers
        if not only_live or node.operation.signals:
            yield from node.signalled
        return
    for parked in node.waiters:
        if not only_live or node.holds(parked):
            yield parked
    yield from first_node(node.timeline, node.value + 1)


def sooner(node: Node, only_live: bool = True) -> Iterator[Node]:
    """Yield the nodes directly before a node; arguments as of `later`."""
    if isinstance(node, ParkedOperation):
        yield from node.blockers
        for awaited in node.awaited:
            if not only_live or awaited.holds(node):
                yield awaited
        return
    for parked in node.signallers:
        if not only_live or parked.operation.signals:
            yield parked
    yield from node.previous


def first_node(timeline: TimelineState, value: int) -> Iterator[TimelineValue]:
    """Yield the node of the lowest value that is at least `value`, if any."""
    known = timeline.parked_values
    place = bisect.bisect_left(known, value, key=_value)
    if place < len(known):
        yield known[place]


def enter(
    parked: ParkedOperation, before: Iterable[ParkedOperation], after: Iterable[ParkedOperation]
) -> None:
    """Add an operation between its neighbours in memory and the values of its timelines."""
    parked.blockers.update(before)
    parked.followers += after
    awaited = [_node(*point) for point in parked.waits if point[0].value < point[1]]
    signalled = [_node(*point) for point in parked.operation.signals]
    parked.awaited += awaited
    parked.signalled += signalled
    _put_between(parked)
    for other in parked.blockers:
        other.followers.append(parked)
    for other in parked.followers:
        other.blockers.add(parked)
    for value in awaited:
        value.waiters[parked] = None
    for value in signalled:
        value.signallers[parked] = None
    parked.operation.parked = parked


def forget_timelines(parked: ParkedOperation) -> None:
    """Stop the operation's waits for timelines."""
    parked.waiting = False
    for timeline, waiter in parked.waiters:
        timeline.forget(waiter)
    parked.waiters.clear()
    for awaited in parked.awaited:
        awaited.waiters.pop(parked, None)
        _forget_if_unused(awaited)
    parked.awaited.clear()


def leave(parked: ParkedOperation) -> None:
    """Remove an operation that is done or was dropped."""
    forget_timelines(parked)
    for signalled in parked.signalled:
        signalled.signallers.pop(parked, None)
        _forget_if_unused(signalled)
    parked.signalled.clear()
    parked.operation.parked = None
    for follower in parked.followers:
        follower.blockers.discard(parked)
    if parked.position is not None:
        GRAPH.positions.disown(parked, parked.position)
        parked.position = None


def _node(timeline: TimelineState, value: int) -> TimelineValue:
    """Return the node of a value; create it if there is none."""
    positions = GRAPH.positions
    following = next(first_node(timeline, value), None)
    if following is None:
        position = positions.end()
    elif following.value == value:
        return following
    elif following.position.shared:  # perhaps with the value before
        position = following.position
    else:
        position = positions.before(following.position)
    made = TimelineValue(timeline, value, position)
    positions.own(made, position)
    bisect.insort(timeline.parked_values, made, key=_value)
    return made


def _forget_if_unused(value: TimelineValue) -> None:
    if not (value.waiters or value.signallers):
        known = value.timeline.parked_values
        del known[bisect.bisect_left(known, value.value, key=_value)]
        GRAPH.positions.disown(value, value.position)


def _put_between(parked: ParkedOperation) -> None:
    """Give an operation its position; move nodes in the way, from the end with fewer of them."""
    positions = GRAPH.positions
    following = list(later(parked, only_live=False))
    before = list(sooner(parked, only_live=False))
    if not following:  # directly after its predecessors, so that searches stay near
        last = max(map(_position, before), key=_label, default=None)
        place = positions.end() if last is None else positions.after(last)
        parked.position = positions.own(parked, place)
        return
    start = min(map(_position, following), key=_label)
    wrong = [node for node in before if label_of(node) >= start.label]
    if not wrong:
        parked.position = positions.own(parked, positions.before(start))
        return
    last = max(map(_position, wrong), key=_label)
    back = Search(wrong, lambda node: sooner(node, only_live=False), -1)
    forth = Search(following, lambda node: later(node, only_live=False), 1)
    while back.step(start.label) is not None:
        if forth.step(last.label) is None and forth.found.isdisjoint(wrong):
            parked.position = positions.own(parked, positions.after(last))
            _move([n for n in forth.found if label_of(n) <= last.label], parked.position)
            return
    moved = {node for node in back.found if label_of(node) >= start.label}
    around = Search(
        moved.intersection(following), lambda node: moved.intersection(later(node, False)), 1
    )
    while around.step(last.label) is not None:
        pass
    anchor = _move(moved - around.found, start.before)
    parked.position = positions.own(parked, positions.after(anchor))
    for node in around.found:  # it comes both before and after the operation
        _put(node, parked.position)


def _move(nodes: Iterable[Node], anchor: Position) -> Position:
    """Move nodes directly after a position, in their order; return the last one's new position."""
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
