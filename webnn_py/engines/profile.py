"""What the steps of a run take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from webnn_py.core.gil_yield import checkpoints
from webnn_py.ir import Node
from webnn_py.ops.flops import flops


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a run, measured.

    Attributes:
        name: What runs it: a kernel, or an engine.
        nodes: What it computes.
        seconds: That it took.
        flop: Arithmetic operations.
        bytes: That it reads and writes, each tensor once.
    """

    name: str
    nodes: tuple[Node, ...]
    seconds: float
    flop: int
    bytes: int


def step_of(
    name: str, nodes: Sequence[Node], seconds: float, count: Callable[[Node], int] = flops
) -> StepTime:
    """The step that computes some nodes.

    It reads what they do not make themselves, and writes what none of them reads.
    """
    read = {value for node in nodes for value in node.operands}
    made = {value for node in nodes for value in node.outputs}
    moved = sum(value.byte_length for value in read ^ made)
    return StepTime(name, tuple(nodes), seconds, sum(map(count, nodes)), moved)


CORE_FLOPS = 150e9
"""Arithmetic operations a second, in float32, that few cores of a CPU exceed."""


def least_seconds(nodes: Iterable[Node]) -> float:
    """What a CPU takes to compute some nodes, at least."""
    return sum(map(flops, checkpoints(nodes))) / (CORE_FLOPS * (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class RunTime:
    """One run, measured.

    Attributes:
        steps: In the order in which they ran, the same for each run of an executable; none where
            an engine does not tell.
        seconds: The whole run, its steps not held apart.
        clock: "gpu" where the device's own clock was read, else "host".
    """

    steps: tuple[StepTime, ...]
    seconds: float
    clock: str


@dataclass(frozen=True, slots=True)
class Roof:
    """What a device does at most, measured.

    Attributes:
        flops: Arithmetic operations a second, in float32.
        bytes: Bytes read and written a second.
    """

    flops: float
    bytes: float


def median_run(runs: Sequence[RunTime]) -> RunTime:
    """The medians of several runs of one executable, step by step."""
    steps = tuple(
        replace(same[0], seconds=statistics.median(step.seconds for step in same))
        for same in zip(*(run.steps for run in runs), strict=True)
    )
    whole = statistics.median(run.seconds for run in runs)
    return replace(runs[0], steps=steps, seconds=whole)


PAUSE, LONGEST = 0.005, 0.1
"""Seconds of a look at other threads (some systems count time in ticks of 0.004), and of all looks.

Those of ONNX Runtime spin for 0.025.
"""


def wait_for_threads() -> None:
    """Wait until no thread of this process computes: those of a run before may spin for the next.

    What is measured then has its cores for itself, whatever ran before. Threads that go on are
    waited for no longer than `LONGEST`.
    """
    end = time.perf_counter() + LONGEST
    while time.perf_counter() < end:
        spent = time.process_time()
        time.sleep(PAUSE)
        if time.process_time() - spent < PAUSE / 2:
            return


STEADY, LONGEST_RISE = 1.0, 4.0
"""Seconds for which hardware is no faster once its clock is up, and after which it is, or never.

An H100 that has rested for a second takes up to two to raise its clock from 345 MHz to 1980, in
steps of up to 0.6.
"""
FASTER = 0.98
"""Of the time of the fastest run, what is no chance."""


def until_steady(
    run: Callable[[], float], enough: float = 0.0, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Run again and again until that gets no faster: hardware that has rested is slow at first.

    Args:
        run: Returns the seconds that it took, however it knows.
        enough: As fast as it gets, as far as is known.
        clock: Tells seconds.

    Returns:
        Those of the fastest run.
    """
    best, begin = run(), clock()
    improved = begin
    while best > enough and clock() < min(improved + STEADY, begin + LONGEST_RISE):
        taken = run()
        if taken < FASTER * best:
            improved = clock()
        best = min(best, taken)
    return best


def timed(work: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
