"""Measured times of runs and their steps, and the waits that make measurements fair."""

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
    """The measured time of one step of a run.

    Attributes:
        name: Name of the kernel or engine that runs it.
        nodes: The nodes that it computes.
        seconds: Its duration.
        flop: Number of arithmetic operations.
        bytes: Number of bytes that it reads and writes, each tensor once.
    """

    name: str
    nodes: tuple[Node, ...]
    seconds: float
    flop: int
    bytes: int


def step_of(
    name: str, nodes: Sequence[Node], seconds: float, count: Callable[[Node], int] = flops
) -> StepTime:
    """Return the measured step of some nodes.

    It reads the operands that none of them computes, and writes the outputs that none of them
    reads.
    """
    read = {value for node in nodes for value in node.operands}
    made = {value for node in nodes for value in node.outputs}
    moved = sum(value.byte_length for value in read ^ made)
    return StepTime(name, tuple(nodes), seconds, sum(map(count, nodes)), moved)


CORE_FLOPS = 150e9
"""Arithmetic operations per second in float32 that few CPU cores exceed."""


def least_seconds(nodes: Iterable[Node]) -> float:
    """Return a lower bound of the seconds that a CPU takes to compute some nodes."""
    return sum(map(flops, checkpoints(nodes))) / (CORE_FLOPS * (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class RunTime:
    """The measured time of one run.

    Attributes:
        steps: The steps in the order of execution, the same for each run of an executable; empty if
            the engine does not know them.
        seconds: Duration of the whole run, measured without waits between steps.
        clock: "gpu" if the device's own clock was read, else "host".
    """

    steps: tuple[StepTime, ...]
    seconds: float
    clock: str


@dataclass(frozen=True, slots=True)
class Roof:
    """The roofline of a device: its measured peak speeds.

    Attributes:
        flops: Arithmetic operations per second in float32.
        bytes: Bytes read and written per second.
    """

    flops: float
    bytes: float


def median_run(runs: Sequence[RunTime]) -> RunTime:
    """Return the medians of several runs of one executable, for each step."""
    steps = tuple(
        replace(same[0], seconds=statistics.median(step.seconds for step in same))
        for same in zip(*(run.steps for run in runs), strict=True)
    )
    whole = statistics.median(run.seconds for run in runs)
    return replace(runs[0], steps=steps, seconds=whole)


IDLE_CHECK_SECONDS, MAX_IDLE_WAIT_SECONDS = 0.005, 0.1
"""Duration of one check for busy threads, and of all checks.

Some systems count processor time in ticks of 0.004 s. ONNX Runtime's threads spin for 0.025 s.
"""


def wait_for_threads() -> None:
    """Wait until no other thread of this process computes, for at most MAX_IDLE_WAIT_SECONDS.

    An engine's threads may spin after a run; waiting gives the next measured run all cores.
    """
    end = time.perf_counter() + MAX_IDLE_WAIT_SECONDS
    while time.perf_counter() < end:
        spent = time.process_time()
        time.sleep(IDLE_CHECK_SECONDS)
        if time.process_time() - spent < IDLE_CHECK_SECONDS / 2:
            return


STEADY_SECONDS, MAX_RISE_SECONDS = 1.0, 4.0
"""Time without improvement after which the clock counts as steady, and longest wait for that.

After a second of rest, an H100 takes up to 2 s to raise its clock from 345 to 1,980 MHz, in steps
of up to 0.6 s.
"""
IMPROVEMENT_RATIO = 0.98
"""Largest ratio of a run's time to the best one that counts as an improvement and not as noise."""


def until_steady(
    run: Callable[[], float], enough: float = 0.0, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Repeat a run until it gets no faster, because idle hardware starts with a low clock.

    Args:
        run: Function that runs once and returns the seconds taken.
        enough: Known best time in seconds, at which to stop.
        clock: Function that returns the time in seconds.

    Returns:
        The seconds of the fastest run.
    """
    best, begin = run(), clock()
    improved = begin
    while best > enough and clock() < min(improved + STEADY_SECONDS, begin + MAX_RISE_SECONDS):
        taken = run()
        if taken < IMPROVEMENT_RATIO * best:
            improved = clock()
        best = min(best, taken)
    return best


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
