"""Runs that have no place in the order of their context: which of them share memory."""

from __future__ import annotations

import random

import numpy as np

from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering.operation import Operation
from webnn_py.ordering.timeline import state_of
from webnn_py.ordering.unordered import UnorderedRun, UnorderedRuns


def test_runs_that_share_memory_are_told_apart_from_those_that_do_not() -> None:
    draw, memory = random.Random(0), np.zeros((12, 6), np.float32)
    for _ in range(300):
        runs, begun = UnorderedRuns(), list[UnorderedRun]()
        for _ in range(12):
            row, rows, column = draw.randrange(12), draw.randint(1, 3), draw.randrange(6)
            part = memory[row : row + rows] if draw.random() < 0.7 else memory[row:, column]
            buffer = [Region(7, row, row + rows)]
            reads = buffer if draw.random() < 0.2 else []
            writes = buffer if draw.random() < 0.2 and not reads else [region_of(part)]
            shared = any(run.shares(reads, writes) for run in begun)
            made = runs.begin(reads, writes, ("y",))
            assert (made is None) == shared
            if made is not None:
                begun.append(made)
            if begun and draw.random() < 0.3:
                begun.pop(draw.randrange(len(begun))).end()
        for run in begun:
            run.end()
            run.end()
        assert not runs


def test_regions_overlap_where_their_arrays_do() -> None:
    draw, memory = random.Random(0), np.zeros((6, 8), np.int16)

    def part() -> np.ndarray:
        rows, columns = (
            slice(begin := draw.randrange(size), draw.randint(begin + 1, size), draw.randint(1, 3))
            for size in memory.shape
        )
        found = memory[rows, columns]
        return found[::-1] if draw.random() < 0.3 else found.reshape(-1)[: draw.randint(1, 9)]

    for _ in range(2000):
        one, other = part(), part()
        assert region_of(one).overlaps(region_of(other)) == np.shares_memory(one, other)


def test_work_waits_for_the_end_of_runs_that_share_memory_with_it() -> None:
    runs, one, other = UnorderedRuns(), np.zeros(3), np.zeros(3)
    run = runs.begin((), [region_of(one)], ("y",))
    assert run is not None
    assert runs.waits(Operation(list, print, writes=(region_of(other),))) == ()
    (point,) = runs.waits(Operation(list, print, reads=(region_of(one),)))
    assert state_of(point.timeline).value == 0
    run.end()
    assert state_of(point.timeline).value == 1
