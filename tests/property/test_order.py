"""Random schedules with hazards, overtaking, failures and deadlocks do what a model allows.

Whatever happens is held against the model in the order in which it happens: work begins, ends and
fails only where the model says that it may then; and when nothing moves any more, nothing may that
the model says can. Work that is under way is interrupted by other work of its own context, where
that runs on several threads, and of the other one. WEBNN_RANDOM_CASES is the number of schedules
(300 if not set).
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.property.scheduling import (
    Array,
    ModelContext,
    ModelOperation,
    ModelTensor,
    ModelTimeline,
    all_of,
    can_never_run,
)
from webnn_py import ContextLostError, Timeline, TimelinePoint
from webnn_py.memory.overlap import EVERYTHING, Region, region_of
from webnn_py.ordering.operation import Executor, Operation, ParkedOperation, Run
from webnn_py.ordering.parked import ParkedOperations
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "300"))
CELLS = 5
STEPS = 24
BLOCK = 50
"""Schedules of one test."""
WIDTHS = {"inline": 1, "one thread": 1, "threads": 3}


class Side:
    """A schedule, the memory that its work uses, what its threads are to do, and its model."""

    def __init__(self, chance: random.Random) -> None:
        self.kind = chance.choice(list(WIDTHS))
        self.tasks: deque[Run] = deque()
        self.active = 0  # threads at work
        width = WIDTHS[self.kind]
        executor = Executor(self.tasks.append, inline=self.kind == "inline", width=width)
        self.schedule = Schedule(executor)
        _record_what_is_parked(self.schedule._parked_operations)
        self.model = ModelContext()
        self.late: list[ModelOperation] = []  # done, and still to signal
        self.cells = np.zeros(CELLS, np.int64)
        self.shadow = np.zeros(CELLS, np.int64)  # what the model's hold
        self.tensors = [ModelTensor(None) for _ in range(CELLS)]
        self.memory = chance.choice(["buffer", "array", "strided arrays"])

    def part(self, chance: random.Random) -> slice:
        """Some cells."""
        begin = chance.randrange(CELLS)
        if self.memory == "strided arrays":
            return slice(begin % 3, chance.choice([begin % 3 + 3, CELLS]), 2)
        return slice(begin, chance.choice([begin + 1, begin + 1, CELLS]))

    def region(self, part: slice) -> Region:
        """A part of its memory, as it would be of a buffer or of an array."""
        if self.memory == "buffer":
            return Region(id(self), part.start, part.stop)
        return region_of(self.cells[part])

    def take(self, chance: random.Random) -> Run:
        """What a thread does next: who gives it that may be interrupted before, for any time."""
        self.tasks.rotate(chance.randrange(len(self.tasks)))
        return self.tasks.popleft()


def _record_what_is_parked(holding: ParkedOperations) -> None:
    """Have it said when an operation is looked at first."""
    park = holding.park

    def parks(
        operation: Operation, wake: Callable[[ParkedOperation], None]
    ) -> ParkedOperation | None:
        assert isinstance(operation, Watched)
        operation.program.events.append(("placed", operation.twin))
        return park(operation, wake)

    holding.park = parks  # type: ignore[method-assign]


class Watched(Operation):
    """Says when it is known that it will not be done."""

    program: Program
    twin: Twin

    def fail_signals(self, error: BaseException) -> None:
        self.program.events.append(("broken", self.twin))
        super().fail_signals(error)


@dataclass(eq=False)
class Twin(ModelOperation):
    """The model of an operation, and what has happened to it."""

    side: Side = field(kw_only=True)
    number: int = field(kw_only=True)
    raises: bool = False
    begun: bool = False
    unwanted: bool = False

    @property
    def parked(self) -> bool:
        return bool(self.unmet()) or any(
            other.parked for other in self.before if isinstance(other, Twin)
        )


class Program:
    """Two schedules over memory and timelines, and their models."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sides = [Side(self.chance) for _ in range(2)]
        self.events: deque[tuple[str, Twin]] = deque()
        self.wrong: list[BaseException] = []
        self.ending = False
        self.twins: list[tuple[Operation, Twin]] = []
        self.timelines = [(Timeline(), ModelTimeline()) for _ in range(3)]
        self.last = [0] * len(self.timelines)

    # What happens

    def step(self) -> None:
        steps = [self.submit, self.signal, self.withdraw, self.replace_side]
        self.chance.choices(steps, [12, 3, 1, 0.2])[0]()

    def submit(self) -> None:
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            operation, twin = self.operation()
            self.events.append(("accepted", twin))
            twin.side.schedule.submit(operation)

    def operation(self) -> tuple[Operation, Twin]:
        chance, side = self.chance, self.chance.choice(self.sides)
        sync, waits, signals = self.points()
        reads = [side.part(chance) for _ in range(chance.randrange(3))]
        writes = [side.part(chance) for _ in range(chance.randrange(3))]
        everything = chance.random() < 0.03
        # What it is not known to read it may write as well.
        unknown = chance.choice(["reads", "writes"]) if everything else ""
        known_writes = [] if everything else [side.region(part) for part in writes]
        twin = Twin(
            list,
            waits=waits,
            signals=signals,
            uses=[tensor for part in reads for tensor in side.tensors[part]],
            writes=[tensor for part in writes for tensor in side.tensors[part]],
            everything=everything,
            side=side,
            number=len(self.twins),
            raises=chance.random() < 0.06,
        )

        def run() -> None:
            self.events.append(("begun", twin))
            read, wrote = seen(side.cells, reads), seen(side.cells, writes)
            try:
                self.meanwhile()
                assert seen(side.cells, reads) == read, "what it reads was written meanwhile"
                assert seen(side.cells, writes) == wrote, "what it writes was written meanwhile"
            except BaseException as error:  # which would be taken for the work's own
                self.wrong.append(error)
            if twin.raises:
                raise ValueError("boom")
            effect(side.cells)
            self.events.append(("done", twin))

        def effect(cells: Array) -> None:
            made = hash((twin.number, seen(cells, reads)))
            for part in writes:
                cells[part] = made

        def model_effect() -> list[Array]:
            effect(side.shadow)
            return [side.shadow]

        twin.effect = model_effect
        operation = Watched(
            run,
            lambda error: self.events.append(("failed", twin)),
            tuple(sync),
            slow=chance.random() < 0.3,
            reads=[EVERYTHING] if unknown == "reads" else [side.region(part) for part in reads],
            writes=[EVERYTHING] if unknown == "writes" else known_writes,
            title=f"work {twin.number}",
            kept_bytes=chance.choice([0, 1, 5]),
        )
        operation.program, operation.twin = self, twin
        self.twins.append((operation, twin))
        return operation, twin

    def points(self) -> tuple[list[TimelinePoint], Any, Any]:
        chance, sync = self.chance, []
        waits: list[tuple[ModelTimeline, int]] = []
        signals: list[tuple[ModelTimeline, int]] = []
        for index, (timeline, model) in enumerate(self.timelines):
            wait = signal = None
            if chance.random() < 0.3:
                wait = chance.randint(model.value, self.last[index] + 1)
            if chance.random() < 0.25:
                low = self.last[index] if chance.random() < 0.8 else model.value
                signal = low + chance.randint(1, 2)
                self.last[index] = max(self.last[index], signal)
            if wait is not None and (signal is None or wait < signal):
                waits.append((model, wait))
                sync.append(timeline(wait=wait))
            if signal is not None:
                signals.append((model, signal))
                sync.append(timeline(signal=signal))
        return sync, waits, signals

    def signal(self) -> None:
        """By the host, also what work is to signal."""
        index = self.chance.randrange(len(self.timelines))
        timeline, model = self.timelines[index]
        self.replay()
        awaited = bool(+model.expected)
        if not awaited or self.chance.random() < 0.2:
            value = model.value + 1 if awaited else max(self.last[index], model.value) + 1
            self.last[index] = max(self.last[index], value)
            model.signal(value)
            timeline.signal(value)

    def withdraw(self) -> None:
        if self.twins:
            self.replay()
            operation, twin = self.chance.choice(self.twins)
            twin.unwanted = twin in twin.side.model.waiting and not twin.begun
            twin.side.schedule.withdraw(operation)
            assert (("failed", twin) in self.events) == twin.unwanted

    def replace_side(self) -> None:
        """Destroy a context; another one takes its place."""
        if self.chance.random() < 0.4:
            index = self.chance.randrange(2)
            self.replay()
            side, self.sides[index] = self.sides[index], Side(self.chance)
            for twin in side.model.waiting:
                twin.unwanted = not twin.begun
            side.schedule.close(ContextLostError("gone"))
            self.replay()
            assert all(twin.begun for twin in side.model.waiting)
            side.model.ghosts.clear()

    def meanwhile(self) -> None:
        """What other threads do while work runs."""
        for _ in range(self.chance.randrange(4)):
            able = [side for side in self.sides if side.tasks and side.active < WIDTHS[side.kind]]
            if able and self.chance.random() < 0.8:
                self.work_on(self.chance.choice(able))
            elif self.chance.random() < 0.2 and not self.ending:
                self.step()

    def work_on(self, side: Side) -> None:
        side.active += 1
        try:
            side.take(self.chance)()
        finally:
            side.active -= 1

    def work(self) -> None:
        while able := [side for side in self.sides if side.tasks]:
            self.work_on(self.chance.choice(able))

    # What may happen

    @property
    def works(self) -> list[Any]:
        return all_of([side.model for side in self.sides])

    def replay(self) -> None:
        while self.events and not self.wrong:
            event, twin = self.events.popleft()
            getattr(self, event)(twin)
            self.catch_up()
        if self.wrong:
            raise self.wrong[0]

    def accepted(self, twin: Twin) -> None:
        twin.side.model.accept(twin)

    def placed(self, twin: Twin) -> None:
        if not twin.placed:
            twin.side.model.place(twin, [side.model for side in self.sides])

    def begun(self, twin: Twin) -> None:
        self.placed(twin)
        assert twin.can_run()
        assert not self.is_doomed(twin), "it began, and can never run"
        assert not twin.begun
        if WIDTHS[twin.side.kind] == 1:
            signals_before = filter(twin_signals_before(twin), twin.side.model.waiting)
            assert all(comes_after(work, twin.number) for work in signals_before)
        twin.begun = True

    def done(self, twin: Twin) -> None:
        twin.effect()
        self.end(twin)
        twin.outcome = "done"
        twin.side.late.append(twin)

    def broken(self, twin: Twin) -> None:
        """It will not be done: is there a reason?"""
        if twin.outcome is not None:  # an await was cancelled, and told so
            return
        assert (
            (twin.begun and twin.raises)
            or (twin.unwanted and not twin.begun)
            or (self.is_doomed(twin) and not twin.before)
            or can_never_run(twin, self.works)
            or twin.doomed
        ), "there is no reason to fail"
        twin.doomed = True
        for timeline, value in twin.signals:
            timeline.fail(value)
        twin.signals = []

    def failed(self, twin: Twin) -> None:
        assert twin.doomed
        assert twin.unwanted or not twin.before
        twin.outcome = "failed"
        if twin.unwanted:
            twin.side.model.waiting.remove(twin)
            twin.side.model.ghosts.append(twin)
            twin.waits = []
        else:
            self.end(twin)

    def end(self, twin: Twin) -> None:
        twin.side.model.waiting.remove(twin)
        for other in self.works:
            other.before.discard(twin)

    def is_doomed(self, twin: Twin) -> bool:
        return twin.doomed or any(timeline.doomed(value) for timeline, value in twin.waits)

    def catch_up(self) -> None:
        """Raise what finished work signals whose turn it is; forget what was cancelled."""
        for side in self.sides:
            while free := [ghost for ghost in side.model.ghosts if not ghost.before]:
                side.model.ghosts.remove(free[0])
                for other in self.works:
                    other.before.discard(free[0])
        for side in {id(twin.side): twin.side for _, twin in self.twins}.values():
            for twin in sorted(side.late, key=lambda twin: twin.number):
                if WIDTHS[side.kind] == 1 or not any(
                    map(twin_signals_before(twin), side_works(side))
                ):
                    side.late.remove(twin)
                    for timeline, value in twin.signals:
                        timeline.complete(value)

    def check(self) -> None:
        self.work()
        self.replay()
        for work in self.works:
            assert work.before or work.unmet(), f"work {work.number} could run, and does not"
            assert not can_never_run(work, self.works), "nobody is told that it can never run"
        for side in self.sides:
            np.testing.assert_array_equal(side.cells, side.shadow)
            assert side.schedule.settle() == [
                op for op, twin in self.twins if twin in side.model.waiting
            ]
        for timeline, model in self.timelines:
            assert timeline.value == model.value

    def finish(self) -> None:
        """The host signals all that is waited for; nothing is left."""
        self.ending = True
        for index, (timeline, model) in enumerate(self.timelines):
            model.signal(self.last[index] + 9)
            timeline.signal(model.value)
        self.check()
        assert all(twin.outcome is not None for _, twin in self.twins)
        for side in self.sides:
            assert not side.schedule._parked_operations._hazards._owners
            assert side.schedule._backlog._bytes == 0
        assert all(state_of(timeline)._waiters == [] for timeline, _ in self.timelines)


def seen(cells: Array, parts: list[slice]) -> tuple[Any, ...]:
    return tuple(tuple(cells[part].tolist()) for part in parts)


def side_works(side: Side) -> Iterator[Any]:
    yield from side.late
    yield from side.model.waiting


def twin_signals_before(twin: Twin) -> Any:
    """Whether other work is to signal less first, on one of the timelines."""

    def comes_first(other: Twin) -> bool:
        return (
            other.number < twin.number
            and (other in twin.side.late or not other.parked)
            and any(
                one is timeline and low < min(value, timeline.limit or value)
                for one, low in other.signals
                for timeline, value in twin.signals
            )
        )

    return comes_first


def comes_after(work: Any, number: int) -> bool:
    """Whether work comes after other work of that number or a higher one, as that signals."""
    return any(
        other.number >= number or comes_after(other, number)
        for other in work.before
        if isinstance(other, Twin)
    )


def try_schedule(seed: int) -> None:
    program = Program(seed)
    for _ in range(STEPS):
        program.step()
        program.check()
    program.finish()


@pytest.mark.parametrize("block", range(max(1, CASES // BLOCK)))
def test_random_schedules(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try_schedule(seed)


@pytest.mark.parametrize("seed", [4113, 6475])
def test_a_cycle_that_closes_when_other_work_is_held(seed: int) -> None:
    """None of what is in the cycle waits for the timelines of that work itself."""
    try_schedule(seed)
