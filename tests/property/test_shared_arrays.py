"""Random work on one array of the user's, by tensors over it and views of it, keeps its order.

Awaited and synchronous runs write into views with any strides, tensors lie over rows of the same
array (copies of them on a GPU), and some of the work waits for a timeline. A model does one thing
after the other, and lets what shares no element with parked work overtake it.

WEBNN_RANDOM_CASES is the number of programs of each context (30 if not set).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.property.scheduling import LOOP, Awaited
from tests.threads import LONG, in_threads
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLTensor,
    Timeline,
    TimelinePoint,
    ml,
)

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "30"))
STEPS = 30
ROWS, COLUMNS = 6, 8
SHAPES: list[tuple[int, ...]] = [(4,), (6,), (2, 3), (3, 2), (2, 8), (1, 4)]
TENSORS = 3

Array = np.ndarray[Any, Any]
View = Callable[[Array], Array]
"""A part of any array of the shape."""
Cells = frozenset[object]
Graphs = dict[tuple[int, ...], MLGraph]


@dataclass(eq=False)
class Tensor:
    """A tensor, the rows that it was made of, and what it holds where it does not lie over them."""

    made: MLTensor
    rows: View
    own: Array | None


@dataclass(eq=False)
class Work:
    """One piece of work, what it reads and writes, and what it does in the model."""

    title: str
    reads: Cells
    writes: Cells
    effect: Callable[[], None]
    wait: int = 0
    awaited: Awaited | None = None
    cancelled: bool = False

    def shares(self, other: Work) -> bool:
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


class Program:
    """Work on one array, and what the model makes of it."""

    def __init__(self, context: MLContext, graphs: Graphs, seed: int) -> None:
        self.context = context
        self.graphs = graphs
        self.draw = random.Random(seed)
        self.array = np.zeros((ROWS, COLUMNS), np.int32)
        self.model = self.array.copy()
        self.numbers = np.arange(self.array.size).reshape(self.array.shape)
        self.go = Timeline()
        self.parked: list[Work] = []
        self.told: list[str] = []
        self.tensors = [self.tensor() for _ in range(TENSORS)]

    # What work is done on

    def tensor(self) -> Tensor:
        row, column = self.draw.randrange(ROWS - 1), self.draw.randrange(COLUMNS - 3)
        if self.draw.random() < 0.5:
            part: Any = (row, slice(column, column + 4))
        else:
            part = slice(row, row + 2)
        own = None if self.context.device_type == "cpu" else self.model[part].copy()
        given = self.array[part] if own is None else own.copy()
        return Tensor(self.context.from_dlpack(given), lambda array: array[part], own)

    def view(self, shape: tuple[int, ...] | None = None) -> tuple[tuple[int, ...], View]:
        """Elements at any strides, of a shape that there is a graph for."""
        draw = self.draw
        while True:
            parts = tuple(
                slice(draw.randrange(size), draw.choice([None, *range(size)]), draw.choice(steps))
                for size, steps in ((ROWS, [1, 1, 2, -1]), (COLUMNS, [1, 1, 2, 3, -1]))
            )
            part: Any = (draw.randrange(ROWS), parts[1]) if draw.random() < 0.5 else parts
            if draw.random() < 0.2:
                part = (parts[0], draw.randrange(COLUMNS))
            turned = draw.random() < 0.3

            def view(array: Array, part: Any = part, turned: bool = turned) -> Array:
                found: Array = array[part]
                return found.T if turned else found

            found = view(self.numbers).shape
            if found in ([shape] if shape else SHAPES):
                return found, view

    def cells(self, view: View) -> Cells:
        return frozenset(view(self.numbers).ravel().tolist())

    def cells_of(self, tensor: Tensor) -> Cells:
        return self.cells(tensor.rows) if tensor.own is None else frozenset([tensor])

    def held(self, tensor: Tensor) -> Array:
        """What the model's tensor holds, to be read or written."""
        return tensor.rows(self.model) if tensor.own is None else tensor.own

    def wait(self) -> int:
        return self.go.value + self.draw.randint(1, 2) if self.draw.random() < 0.3 else 0

    def sync(self, wait: int) -> list[TimelinePoint]:
        return [self.go(wait=wait)] if wait else []

    # What is done

    def step(self) -> None:
        steps = [self.fill, self.copy, self.dispatch, self.read, self.write]
        more = [self.compute, self.cancel, self.signal, self.replace]
        self.draw.choices([*steps, *more], [5, 3, 3, 3, 2, 2, 1, 3, 1])[0]()

    def fill(self) -> None:
        shape, view = self.view()
        number, wait = self.draw.randint(1, 99), self.wait()
        given = np.full(shape, number, np.int32)
        outputs = {"y": view(self.array)}
        execution = MLAwaitedExecution(self.context)
        run = execution.compute(self.graphs[shape], {"x": given}, outputs, self.sync(wait))
        given[...] = -1  # it was read
        writing = self.cells(view)

        def effect() -> None:
            view(self.model)[...] = 2 * number

        self.add(Work("fill", frozenset(), writing, effect, wait, LOOP.start(run)))

    def copy(self) -> None:
        """From a tensor into a view."""
        source, wait = self.draw.choice(self.tensors), self.wait()
        shape, view = self.view(source.made.shape)
        run = MLAwaitedExecution(self.context).compute(
            self.graphs[shape], {"x": source.made}, {"y": view(self.array)}, self.sync(wait)
        )

        def effect() -> None:
            view(self.model)[...] = 2 * self.held(source)

        reading, writing = self.cells_of(source), self.cells(view)
        self.add(Work("copy", reading, writing, effect, wait, LOOP.start(run)))

    def read(self) -> None:
        source = self.draw.choice(self.tensors)
        _, view = self.view(source.made.shape)
        run = self.context.read_tensor_async(source.made, view(self.array))

        def effect() -> None:
            view(self.model)[...] = self.held(source).copy()

        reading, writing = self.cells_of(source), self.cells(view)
        self.add(Work("read", reading, writing, effect, 0, LOOP.start(run)))

    def dispatch(self) -> None:
        source, target = self.draw.sample(self.tensors, 2)
        if source.made.shape != target.made.shape:
            return
        graph, wait = self.graphs[source.made.shape], self.wait()
        self.context.dispatch(graph, {"x": source.made}, {"y": target.made}, self.sync(wait))

        def effect() -> None:
            self.held(target)[...] = 2 * self.held(source)

        reading, writing = self.cells_of(source), self.cells_of(target)
        self.add(Work("dispatch", reading, writing, effect, wait))

    def write(self) -> None:
        target, number = self.draw.choice(self.tensors), self.draw.randint(1, 99)
        given = np.full(target.made.shape, number, np.int32)
        self.context.write_tensor(target.made, given)
        given[...] = -1

        def effect() -> None:
            self.held(target)[...] = number

        self.add(Work("write", frozenset(), self.cells_of(target), effect))

    def compute(self) -> None:
        """On a thread of its own, where nothing that is parked is in the way."""
        shape, view = self.view()
        number, writing = self.draw.randint(1, 99), self.cells(view)

        def effect() -> None:
            view(self.model)[...] = 2 * number

        work = Work("compute", frozenset(), writing, effect)
        if self.context.device_type == "gpu" or any(map(work.shares, self.parked)):
            return
        given = {"x": np.full(shape, number, np.int32)}
        execution = MLExecution(self.context)
        in_threads(lambda: execution.compute(self.graphs[shape], given, {"y": view(self.array)}))
        self.add(work)

    def cancel(self) -> None:
        """Of what is parked; what is behind it keeps its order."""
        awaited = [work for work in self.parked if work.awaited and not work.cancelled]
        if awaited:
            work = self.draw.choice(awaited)
            assert work.awaited is not None
            work.awaited.cancel(LONG)
            work.cancelled, work.wait = True, 0
            self.advance()

    def signal(self) -> None:
        self.go.signal(self.go.value + self.draw.randint(1, 2))
        self.advance()

    def replace(self) -> None:
        if self.context.device_type == "cpu":
            self.tensors[self.draw.randrange(TENSORS)] = self.tensor()

    # What follows

    def add(self, work: Work) -> None:
        self.told.append(f"{work.title} {sorted(map(str, work.writes))} at {work.wait}")
        self.parked.append(work)
        self.advance()

    def advance(self) -> None:
        """All runs that can, and nothing else."""
        done: list[Work] = []
        while able := [work for n, work in enumerate(self.parked) if self.can_run(n)]:
            for work in able:
                self.parked.remove(work)
                if not work.cancelled:
                    work.effect()
                    done.append(work)
        for work in done:
            if work.awaited is not None:
                work.awaited.result(LONG)
        self.context.flush()
        np.testing.assert_array_equal(self.array, self.model, err_msg="\n".join(self.told))

    def can_run(self, number: int) -> bool:
        work = self.parked[number]
        return work.wait <= self.go.value and not any(map(work.shares, self.parked[:number]))

    def finish(self) -> None:
        self.go.signal(self.go.value + 3)
        self.advance()
        assert not self.parked
        for tensor in self.tensors:
            found = self.context.read_tensor_sync(tensor.made)
            np.testing.assert_array_equal(found, self.held(tensor))


def doubling(context: MLContext, shape: tuple[int, ...]) -> MLGraph:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "int32", shape)
    return builder.build_sync({"y": builder.add(x, x)})


@pytest.fixture(params=["reference", "auto", "several", "gpu"])
def context(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each kind, and a CPU context of several threads."""
    if request.param == "gpu":
        yield request.getfixturevalue("gpu")
        return
    options: Any = {"workers": 3} if request.param == "several" else {"engine": request.param}
    with ml.create_context_sync(**options) as made:
        yield made


def test_work_on_one_array_keeps_its_order(context: MLContext) -> None:
    graphs = {shape: doubling(context, shape) for shape in SHAPES}
    for seed in range(CASES):
        program = Program(context, graphs, seed)
        for _ in range(STEPS):
            program.step()
        program.finish()
