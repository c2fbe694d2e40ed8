"""Random schedules with hazards, overtaking and deadlocks do what a sequential model does.

After every step, just that work is done which the model says can be done, and memory holds what it
holds in the model. WEBNN_RANDOM_CASES is the number of schedules (300 if not set).
"""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.property.scheduling import (
    ModelContext,
    ModelOperation,
    ModelTensor,
    ModelTimeline,
    simulate,
)
from webnn_py import Timeline
from webnn_py.memory.overlap import Region
from webnn_py.ordering.executor import Executor
from webnn_py.ordering.operation import Operation, Run
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "300"))
CELLS = 4
STEPS = 24
BLOCK = 50
"""Schedules of one test."""


@dataclass
class Program:
    """One or two schedules over memory and timelines, and their models."""

    chance: random.Random
    tasks: deque[Run] = field(default_factory=deque)
    pairs: list[tuple[Operation, ModelOperation]] = field(default_factory=list)
    ended: dict[Operation, str] = field(default_factory=dict)
    signals: list[tuple[ModelTimeline, int, Operation, ModelOperation]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        kinds = [self.chance.choice(["inline", "host", "wide"]) for _ in range(2)]
        self.schedules = [
            Schedule(Executor(self.tasks.append, inline=k == "inline", width=1 + 2 * (k == "wide")))
            for k in kinds
        ]
        self.models = [ModelContext() for _ in kinds]
        self.cells = [[0] * CELLS for _ in kinds]
        self.shadows = [[0] * CELLS for _ in kinds]  # what the cells hold in the model
        self.tensors = [[ModelTensor(None) for _ in range(CELLS)] for _ in kinds]
        self.timelines = [(Timeline(), ModelTimeline()) for _ in range(3)]
        self.last = [0] * len(self.timelines)

    def submit(self) -> None:
        chance, side = self.chance, self.chance.randrange(2)
        cells, shadows, tensors = self.cells[side], self.shadows[side], self.tensors[side]
        reads = chance.sample(range(CELLS), chance.randrange(3))
        writes = chance.sample(range(CELLS), chance.randrange(1, 3))
        sync, waits, signals = [], [], []
        for index, (timeline, model) in enumerate(self.timelines):
            low = model.value
            if chance.random() < 0.3:
                value = chance.randint(low, self.last[index] + 1)
                waits.append((model, value))
                sync.append(timeline(wait=value))
            if chance.random() < 0.25:
                value = self.last[index] = self.last[index] + chance.randint(1, 2)
                if waits and waits[-1][0] is model and waits[-1][1] >= value:
                    waits.pop()
                    sync.pop()
                signals.append((model, value))
                sync.append(timeline(signal=value))
        number = len(self.pairs)

        def effect() -> list[Any]:
            made = hash((number, *(shadows[r] for r in reads)))
            for w in writes:
                shadows[w] = made
            return [np.zeros(0)]

        def run() -> None:
            made = hash((number, *(cells[r] for r in reads)))
            for w in writes:
                cells[w] = made
            self.end("done", operation)

        operation = Operation(
            run,
            lambda error: self.end(str(error), operation),
            tuple(sync),
            slow=chance.random() < 0.3,
            reads=[Region(side + 1, r, r + 1) for r in reads],
            writes=[Region(side + 1, w, w + 1) for w in writes],
        )
        uses = [tensors[r] for r in reads]
        written = [tensors[w] for w in writes]
        twin = ModelOperation(effect, [], written, waits, list(signals), uses=uses)
        self.signals += [(model, value, operation, twin) for model, value in signals]
        self.pairs.append((operation, twin))
        self.schedules[side].submit(operation)
        self.work()  # so that the model sees a schedule that has looked at all
        self.models[side].submit(twin, self.models)

    def end(self, how: str, operation: Operation) -> None:
        assert operation not in self.ended, "it ended twice"
        self.ended[operation] = how

    def signal(self) -> None:
        """By the host: what no work was accepted to signal."""
        index = self.chance.randrange(len(self.timelines))
        timeline, model = self.timelines[index]
        if not +model.expected:
            self.last[index] = model.value = max(self.last[index], model.value) + 1
            model.limit = None
            timeline.signal(model.value)

    def withdraw(self) -> None:
        if self.pairs:
            operation, twin = self.chance.choice(self.pairs)
            for schedule, model in zip(self.schedules, self.models, strict=True):
                schedule.withdraw(operation)
                model.withdraw(twin)

    def work(self) -> None:
        while self.tasks:
            self.tasks.popleft()()

    @property
    def failed(self) -> bool:
        """Whether what was to signal a timeline failed."""
        return any(model.limit is not None for _, model in self.timelines)

    @property
    def ambiguous(self) -> bool:
        """Whether one signal failed and a higher one was given, so that it matters which was first.

        It is not said which, where they do not depend on each other.
        """
        for _, model in self.timelines:
            mine = [entry[1:] for entry in self.signals if entry[0] is model]
            given = [v for v, one, two in mine if "done" in (self.ended.get(one), two.outcome)]
            failed = [
                v for v, one, two in mine if {self.ended.get(one), two.outcome} - {"done", None}
            ]
            if min(failed, default=2**64) < max(given, default=0):
                return True
        return False

    def check(self) -> None:
        self.work()
        simulate(self.models)
        if self.ambiguous:
            return
        for operation, twin in self.pairs:
            how = self.ended.get(operation)
            assert (how == "done") == (twin.outcome == "done"), (operation.title, how, twin.outcome)
            assert (how is None) == (twin.outcome is None)
        assert self.cells == self.shadows
        for timeline, model in self.timelines:
            assert timeline.value == model.value

    def finish(self) -> None:
        """The host signals all that is waited for; nothing is left."""
        for index, (timeline, model) in enumerate(self.timelines):
            model.value, model.limit = self.last[index] + 9, None
            timeline.signal(model.value)
        self.check()
        assert len(self.ended) == len(self.pairs)
        for schedule in self.schedules:
            assert schedule.settle() == []
            assert not schedule._hazards._owners
        assert all(state_of(timeline)._waiters == [] for timeline, _ in self.timelines)


@pytest.mark.parametrize("block", range(max(1, CASES // BLOCK)))
def test_random_schedules(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        program = Program(random.Random(seed))
        for _ in range(STEPS):
            step = program.chance.choices(
                [program.submit, program.signal, program.withdraw], [12, 3, 1]
            )[0]
            step()
            program.check()
            if program.failed or program.ambiguous:
                break
        program.finish()
