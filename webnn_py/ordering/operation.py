"""One piece of work in a context's order, and what holds it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from webnn_py.core.completion import Completion
from webnn_py.core.messages import LOG
from webnn_py.memory.overlap import Region
from webnn_py.ordering.order_maintenance import Position
from webnn_py.ordering.timeline import TimelinePoint, state_of
from webnn_py.ordering.timeline_state import TimelineState, TimelineWaiter, unreached

T = TypeVar("T")
Run = Callable[[], None]
Point = tuple[TimelineState, int]
"""A timeline, and a value that work waits for or signals."""

PARKED_WARNING_SECONDS = 10.0
"""Seconds after which who blocks for parked work is told what it waits for."""


class Memory(Protocol):
    """What work reads or writes."""

    @property
    def region(self) -> Region:
        """Where it lies."""


@dataclass(slots=True, eq=False)
class Operation:
    """One piece of work.

    Attributes:
        run: Does it, or hands it to a queue that keeps the order.
        fail: Is told why it will not be done.
        sync: What it waits for and signals.
        slow: Only the worker runs it.
        host: It uses host memory when it runs, so that it waits for work that is done, not only
            for work that is submitted before it to the same device queue.
        reads: The memory that it reads and others may write.
        writes: The memory that it writes.
        title: What messages call it.
        kept_bytes: Bytes of host memory that it keeps until it is done.
        keep: Copies what others may change once its submission has returned; called unless it has
            run by then.
        number: Its place in the order of submission.
        held: What holds it back, while something does or it is followed by what it holds back.
    """

    run: Run
    fail: Callable[[BaseException], None]
    sync: tuple[TimelinePoint, ...] = ()
    slow: bool = False
    host: bool = False
    reads: Sequence[Memory] = ()
    writes: Sequence[Memory] = ()
    title: str = "work"
    kept_bytes: int = 0
    keep: Run | None = None
    number: int = -1
    held: ParkedOperation | None = None

    @property
    def signals(self) -> list[Point]:
        """The timelines that it raises, and to what."""
        return [(state_of(p.timeline), p.signal) for p in self.sync if p.signal is not None]

    @property
    def waits(self) -> list[Point]:
        """The timelines that it waits for, and their values."""
        return [(state_of(p.timeline), p.wait) for p in self.sync if p.wait is not None]

    def uses(self, region: Region, writing: bool = False) -> bool:
        """Whether it reads or writes in a region, or writes."""
        used = self.writes if writing else (*self.reads, *self.writes)
        return any(memory.region.overlaps(region) for memory in used)

    def abandon(self, error: BaseException) -> None:
        """It will not be done, and so not signal either."""
        self.break_promises(error)
        self.fail(error)

    def refuse(self, error: BaseException) -> None:
        """It was never submitted, and so does not signal; changes nothing if it was."""
        self.sync = tuple(
            point
            for point in self.sync
            if point.signal is not None and state_of(point.timeline).failure(point.signal) is None
        )
        for timeline, value in self.signals:
            timeline.expect(value, self)
        self.break_promises(error)

    def tell_watchers(self) -> None:
        """Work that may count on what it signals is to look again."""
        for timeline, _ in self.signals:
            timeline.tell_watchers()

    def break_promises(self, error: BaseException) -> None:
        """It will not signal."""
        signals, self.sync = self.signals, tuple(p for p in self.sync if p.signal is None)
        for timeline, value in signals:
            timeline.fail(value, error, self)
            timeline.tell_watchers()

    def standing(self) -> str:
        """How far it is, in words."""
        held = self.held
        if held is None:
            return "runs, or is about to"
        for timeline, value in held.waits if held.waiting else ():
            if timeline.value < value:
                return f"waits for timeline {timeline.name} to reach {value}, now {timeline.value}"
        before = [other for other in with_blockers([held]) if other is not held]
        if not before:
            return "runs, or is about to"
        parked = [other for other in before if other.waiting]
        first = min(parked or before, key=lambda other: other.operation.number).operation
        return f"waits behind {first.title}, which {first.standing_alone()}"

    @property
    def parked(self) -> bool:
        """Whether it waits for a timeline, or behind what does."""
        held = self.held
        return held is not None and held.parked

    def standing_alone(self) -> str:
        """As `standing`, in few words."""
        held = self.held
        for timeline, value in held.waits if held is not None and held.waiting else ():
            if timeline.value < value:
                return f"waits for timeline {timeline.name} to reach {value}, now {timeline.value}"
        return "is not done"


@dataclass(slots=True, eq=False, weakref_slot=True)
class ParkedOperation:
    """Work that cannot run yet.

    Attributes:
        operation: The work.
        waits: What it waits for, until it begins.
        queue: For what of these need only be submitted to the same device queue.
        waiting: When looked at last, not all was reached that it waits for, but still could be.
        blockers: What must be done before it, as they share memory.
        followers: What it must be done before, likewise.
        waiters: What to forget at its timelines.
        awaited: The values of timelines that it waits for, as nodes of the graph of what is held.
        signalled: Those that it raises them to, likewise.
        position: Its place before and after others.
        ready: It stands in line to be run, or dropped.
        begun: It runs.
        cause: Why it can never run, if that is so.
        dropped: It is not done and nobody is to be told; what follows it keeps its order.
    """

    operation: Operation
    waits: list[Point]
    queue: object = None
    waiting: bool = False
    blockers: set[ParkedOperation] = field(default_factory=set)
    followers: list[ParkedOperation] = field(default_factory=list)
    waiters: list[tuple[TimelineState, TimelineWaiter]] = field(default_factory=list)
    awaited: list[Any] = field(default_factory=list)
    signalled: list[Any] = field(default_factory=list)
    position: Position | None = None
    ready: bool = False
    begun: bool = False
    cause: BaseException | None = None
    dropped: bool = False

    def unmet(self) -> list[Point]:
        """What is not reached that it waits for."""
        return [
            (timeline, value)
            for timeline, value in self.waits
            if not timeline.reached(value, self.queue)
        ]

    def must_wait(self) -> bool:
        """Whether it may still be that all is reached that it waits for, and is not so now."""
        if not self.waits or self.cause is not None or self.dropped:
            return False
        unmet = self.unmet()
        return bool(unmet) and all(timeline.failure(value) is None for timeline, value in unmet)

    def failure(self) -> BaseException | None:
        """Why what it waits for will not be reached, if that is so."""
        for timeline, value in self.unmet():
            cause = timeline.failure(value)
            if cause is not None:
                return unreached(timeline, value, cause)
        return None

    @property
    def parked(self) -> bool:
        """Whether it waits for a timeline, or behind what does."""
        return any(held.must_wait() for held in with_blockers([self]))


def with_blockers(works: Iterable[ParkedOperation]) -> Iterator[ParkedOperation]:
    """Held work, and all that must be done before it, each once."""
    pending = list(dict.fromkeys(works))
    seen = set(pending)
    while pending:
        held = pending.pop()
        yield held
        pending += held.blockers - seen
        seen |= held.blockers


def wait_in_order(done: Completion[T], operation: Operation) -> T:
    """Block this thread for the result of work; log it once where the work stays parked for long.

    What waits on this very thread would never end it, and nobody else may know.
    """
    try:
        return done.wait(PARKED_WARNING_SECONDS)
    except TimeoutError:
        if done.done:
            raise
    if operation.parked:
        LOG.warning(
            "%s waits since %g s and %s",
            operation.title,
            PARKED_WARNING_SECONDS,
            operation.standing(),
        )
    return done.wait()


def signalling_before(operation: Operation) -> Iterator[Operation]:
    """Work that is to signal less than an operation on one of its timelines, by its number before.

    Numbers tell of work of the same context alone.
    """
    for timeline, value in operation.signals:
        for work in timeline.signallers(-1, value - 1):
            if work.number < operation.number:
                yield work


def complete(operation: Operation) -> None:
    """What it signals is reached."""
    for timeline, value in operation.signals:
        timeline.complete(value, operation)
