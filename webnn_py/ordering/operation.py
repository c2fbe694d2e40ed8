"""Operations of a context: where they run, their state while parked, the order of their signals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""A timeline, and a value that an operation waits for or signals."""

PARKED_WARNING_SECONDS = 10.0
"""Seconds after which a blocked caller gets a log message that says what it waits for."""


class Memory(Protocol):
    """Memory that an operation reads or writes."""

    @property
    def region(self) -> Region:
        """Its address range."""


@dataclass(slots=True, eq=False)
class Operation:
    """One piece of work in a context's order.

    Attributes:
        run: Does the work, or submits it to a queue that keeps the order.
        fail: Called with the error if the work will not be done.
        sync: The timeline points that it waits for and signals.
        slow: Run it on the worker only.
        host: It uses host memory when it runs. So it waits until earlier work is done, not only
            until that is submitted to the same device queue.
        reads: The memory that it reads and others may write.
        writes: The memory that it writes.
        title: Its name in messages.
        kept_bytes: Bytes of host memory that it keeps until it is done.
        keep: Copies memory that the caller may change after the submission returns; called unless
            the operation has run by then.
        number: Its place in the order of submission.
        parked: Its parked state, while it is parked or parked operations follow it.
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
    parked: ParkedOperation | None = None

    @property
    def signals(self) -> list[Point]:
        """The timelines that it raises, with the values."""
        return [(state_of(p.timeline), p.signal) for p in self.sync if p.signal is not None]

    @property
    def waits(self) -> list[Point]:
        """The timelines that it waits for, with the values."""
        return [(state_of(p.timeline), p.wait) for p in self.sync if p.wait is not None]

    def uses(self, region: Region, writing: bool = False) -> bool:
        """Whether it uses a region, or, if `writing`, whether it writes it."""
        used = self.writes if writing else (*self.reads, *self.writes)
        return any(memory.region.overlaps(region) for memory in used)

    def abandon(self, error: BaseException) -> None:
        """Fail the operation and its signals."""
        self.fail_signals(error)
        self.fail(error)

    def refuse(self, error: BaseException) -> None:
        """Fail the signals of an operation that was never submitted; else do nothing."""
        self.sync = tuple(
            point
            for point in self.sync
            if point.signal is not None and state_of(point.timeline).failure(point.signal) is None
        )
        for timeline, value in self.signals:
            timeline.expect(value, self)
        self.fail_signals(error)

    def notify_watchers(self) -> None:
        """Have operations recheck themselves whose progress depends on its signals."""
        for timeline, _ in self.signals:
            timeline.notify_watchers()

    def fail_signals(self, error: BaseException) -> None:
        """Fail the values that it was to signal."""
        signals, self.sync = self.signals, tuple(p for p in self.sync if p.signal is None)
        for timeline, value in signals:
            timeline.fail(value, error, self)
            timeline.notify_watchers()

    def describe_state(self) -> str:
        """Describe what it is waiting for, for a message."""
        parked = self.parked
        if parked is None:
            return "runs, or is about to"
        for timeline, value in parked.waits if parked.waiting else ():
            if timeline.value < value:
                return f"waits for timeline {timeline.name} to reach {value}, now {timeline.value}"
        before = [other for other in with_blockers([parked]) if other is not parked]
        if not before:
            return "runs, or is about to"
        waiting = [other for other in before if other.waiting]
        first = min(waiting or before, key=lambda other: other.operation.number).operation
        return f"waits behind {first.title}, which {first._describe_briefly()}"

    @property
    def is_parked(self) -> bool:
        """Whether it waits for a timeline, or behind an operation that does."""
        parked = self.parked
        return parked is not None and parked.is_parked

    def _describe_briefly(self) -> str:
        """Describe what it is waiting for, without the operations before it."""
        parked = self.parked
        for timeline, value in parked.waits if parked is not None and parked.waiting else ():
            if timeline.value < value:
                return f"waits for timeline {timeline.name} to reach {value}, now {timeline.value}"
        return "is not done"


@dataclass(slots=True, eq=False, weakref_slot=True)
class ParkedOperation:
    """State of an operation that cannot run yet, or that parked operations follow.

    Attributes:
        operation: The operation.
        waits: The points that it waits for, until it begins.
        queue: Device queue; work submitted to it counts as done for these waits.
        waiting: At the last check, awaited values were missing but could still be reached.
        blockers: Operations that must be done before, as they share memory.
        followers: Operations that must be done after, likewise.
        waiters: Its registrations at timelines.
        awaited: Graph nodes of the values that it waits for.
        signalled: Graph nodes of the values that it signals.
        position: Its place in the maintained order of the graph.
        ready: It is queued to run or to be dropped.
        begun: It is running.
        cause: Why it can never run, if so.
        dropped: It will not run, and nobody needs to know; its followers keep their order.
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
        """Return the awaited points that are not reached."""
        return [
            (timeline, value)
            for timeline, value in self.waits
            if not timeline.reached(value, self.queue)
        ]

    def must_wait(self) -> bool:
        """Whether an awaited value is missing and all missing ones can still be reached."""
        if not self.waits or self.cause is not None or self.dropped:
            return False
        unmet = self.unmet()
        return bool(unmet) and all(timeline.failure(value) is None for timeline, value in unmet)

    def failure(self) -> BaseException | None:
        """Return the error of an awaited value that will never be reached, or None."""
        for timeline, value in self.unmet():
            cause = timeline.failure(value)
            if cause is not None:
                return unreached(timeline, value, cause)
        return None

    @property
    def is_parked(self) -> bool:
        """Whether it waits for a timeline, or behind an operation that does."""
        return any(parked.must_wait() for parked in with_blockers([self]))


def with_blockers(works: Iterable[ParkedOperation]) -> Iterator[ParkedOperation]:
    """Yield parked operations and all that must be done before them, each once."""
    pending = list(dict.fromkeys(works))
    seen = set(pending)
    while pending:
        parked = pending.pop()
        yield parked
        pending += parked.blockers - seen
        seen |= parked.blockers


def wait_in_order(done: Completion[T], operation: Operation) -> T:
    """Block this thread for the result of an operation; log once if it stays parked for long.

    The missing signal may have to come from this very thread, which nobody else could know.
    """
    try:
        return done.wait(PARKED_WARNING_SECONDS)
    except TimeoutError:
        if done.done:
            raise
    if operation.is_parked:
        LOG.warning(
            "%s waits since %g s and %s",
            operation.title,
            PARKED_WARNING_SECONDS,
            operation.describe_state(),
        )
    return done.wait()


def signalling_before(operation: Operation) -> Iterator[Operation]:
    """Yield earlier operations that signal a lower value of a timeline that this one signals.

    Numbers order operations of the same context only.
    """
    for timeline, value in operation.signals:
        for work in timeline.signallers(-1, value - 1):
            if work.number < operation.number:
                yield work


def complete(operation: Operation) -> None:
    """Raise the timelines that an operation signals."""
    for timeline, value in operation.signals:
        timeline.complete(value, operation)


def perform(operation: Operation) -> None:
    """Run an operation."""
    operation.run()


@dataclass(frozen=True, slots=True)
class Executor:
    """Where and how a context's operations run.

    Attributes:
        worker: Runs functions on a thread of the context, in order.
        signal: Raises the timelines of an operation once its work is done.
        on_parked: Called when an operation waits for a timeline; submits the recorded commands.
        queue: Identity of the device queue that keeps the order, if there is one.
        inline: Operations that are not slow run on the thread that submits them.
        perform: Runs an operation.
        width: Number of operations that may run at once.
    """

    worker: Callable[[Run], None]
    signal: Callable[[Operation], None] = complete
    on_parked: Callable[[], object] = lambda: None
    queue: object = None
    inline: bool = False
    perform: Callable[[Operation], None] = perform
    width: int = 1


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
