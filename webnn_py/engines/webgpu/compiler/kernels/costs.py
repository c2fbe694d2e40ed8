"""How long products take by tile, and which tile and how many parts of k take least.

Workgroups come to a processor in waves of as many as it runs at once. A wave goes step by step
along k: a step of one workgroup waits for memory and barriers, of several for arithmetic. What this
takes was measured on an H100 (`docs/benchmarks/gemm.md`), and foretells other sizes to some 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from webnn_py.core.traced_queries import may_follow_later
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, SharedTile

T = TypeVar("T")

PROCESSORS = 132
"""Of the GPU that was measured."""

MOST_PARTS = 36
MOST_SUMS = 32 << 20
"""Bytes of the sums of all parts."""

SHORTEST = 64
"""Steps of k that a part has at least."""

ADDING = 2.6
"""Microseconds of the kernel that adds up the sums, at least."""

SUMS_RATE = 5e6
"""Bytes of sums a microsecond, written and read."""

TOGETHER = 64
"""Invocations of workgroups of products that may run in one dispatch: they are of one size there,
and those that divide k leave no room for others. Products that keep all processors busy themselves
gain nothing by it, and halves not always."""

DISPATCH = 2.3
"""Microseconds from one dispatch to another one that waits for it."""

COMPILED_SOON = 1024
"""Multiplications that are written out in tiles which drivers compile in 0.2 s; those of twice as
many, which they compile in 0.4 to 0.7 s, take 5 to 20 % less."""

GAIN = 0.95
"""How much of the time a divided product may take at most to be worth a second kernel."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a tile takes, in microseconds.

    Attributes:
        tile: The tile.
        alone: A step along k of a workgroup that has a processor for itself.
        each: A step of each of several workgroups on one processor.
        resident: Workgroups that a processor runs at once.
        ends: The beginning and end of a workgroup.
    """

    tile: SharedTile
    alone: float
    each: float
    resident: int
    ends: float


@dataclass(frozen=True, slots=True)
class Split:
    """A product that is divided along k.

    Attributes:
        parts: How many.
        tile: The tile of each part.
    """

    parts: int
    tile: SharedTile


COSTS = (
    Cost(SharedTile(128, 128, 16, 8, 16), 3.00, 1.45, 2, 0.8),
    Cost(SharedTile(128, 128, 16, 8, 8), 1.59, 1.52, 2, 1.5),
    Cost(SharedTile(128, 64, 16, 8, 8), 1.38, 0.82, 3, 0.8),
    Cost(SharedTile(64, 64, 16, 8, 8), 1.04, 0.44, 8, 0.3),
    Cost(SharedTile(64, 32, 16, 8, 4), 0.59, 0.26, 8, 0.8),
    Cost(SharedTile(32, 32, 16, 4, 4), 0.41, 0.18, 8, 0.8),
    Cost(SharedTile(64, 32, 32, 8, 4, 4), 0.63, 0.56, 2, 1.5),
    Cost(SharedTile(32, 32, 32, 4, 4, 4), 0.41, 0.35, 2, 0.8),
    Cost(SharedTile(32, 32, 64, 4, 4, 4), 0.78, 0.70, 2, 0.8),
    Cost(SharedTile(16, 16, 64, 4, 4, 16), 0.44, 0.26, 2, 0.8),
)
HALF_COSTS = (
    Cost(SharedTile(128, 128, 32, 8, 8), 2.4, 2.2, 2, 0.8),
    Cost(SharedTile(64, 64, 32, 8, 4), 0.90, 0.65, 6, 0.8),
    Cost(SharedTile(64, 32, 32, 8, 4), 1.04, 0.47, 6, 0.8),
    Cost(SharedTile(32, 32, 32, 4, 4), 0.59, 0.24, 8, 0.8),
    Cost(SharedTile(64, 32, 64, 8, 4, 4), 1.04, 0.82, 2, 0.8),
    Cost(SharedTile(32, 32, 64, 4, 4, 4), 0.73, 0.48, 2, 0.8),
    Cost(SharedTile(32, 32, 128, 4, 4, 4), 1.38, 1.20, 2, 0.3),
    Cost(SharedTile(16, 32, 128, 4, 4, 8), 0.97, 0.60, 2, 0.8),
    Cost(SharedTile(16, 16, 128, 4, 4, 16), 0.68, 0.41, 2, 0.8),
)
"""The same for float16, of which twice as many elements are loaded at once."""

EIGHTS_COSTS = (
    Cost(SharedTile(64, 64, 32, 8, 4), 0.73, 0.59, 4, 0.3),
    Cost(SharedTile(64, 32, 32, 8, 4), 0.70, 0.34, 8, 0.8),
    Cost(SharedTile(32, 32, 32, 4, 4), 0.44, 0.19, 10, 0.3),
    Cost(SharedTile(16, 16, 64, 4, 4, 4), 0.46, 0.14, 10, 0.3),
    Cost(SharedTile(16, 16, 128, 4, 4, 16), 0.33, 0.30, 2, 0.8),
)
"""The same where both operands are loaded eight halves at a time."""


def best_tile(problem: GemmProblem, limits: Limits) -> SharedTile | None:
    """The tile that takes least; None where none fits the limits."""
    near = problem.sampled()
    times = {cost.tile: _time(near, cost) for cost in _fitting(near, limits)}
    return _least(times, lambda tile: tile, problem)


def best_split(problem: GemmProblem, limits: Limits, adding: float = ADDING) -> Split | None:
    """How to divide a product along k between workgroups, where that pays.

    Args:
        problem: The product.
        limits: The device's limits.
        adding: Microseconds of the kernel that adds up the sums, at least; 0 if there is none.
    """
    near = problem.sampled()
    fitting = _fitting(near, limits)
    whole = min((_time(near, cost) for cost in fitting), default=0.0)
    elements = near.batch * near.m * near.n
    most = min(MOST_PARTS, MOST_SUMS // (4 * elements), near.k // SHORTEST)
    times = {
        Split(parts, cost.tile): adding
        + 8 * parts * elements / SUMS_RATE
        + _time(near, cost, parts)
        for cost in fitting
        for parts in range(2, most + 1)
        if near.k % (parts * cost.tile.depth) == 0
    }
    if min(times.values(), default=whole) >= GAIN * whole:
        return None
    best = _least(times, lambda split: split.tile, problem)
    # For other sizes, too.
    return best if best and problem.k % (best.parts * best.tile.depth) == 0 else None


def _least(
    times: Mapping[T, float], tile_of: Callable[[T], SharedTile], problem: GemmProblem
) -> T | None:
    """What takes least, or of what is compiled soon, if the best may follow later."""
    best = min(times, key=lambda made: times[made], default=None)
    if best is None or tile_of(best).written <= COMPILED_SOON:
        return best
    if not may_follow_later(problem.batch, problem.m, problem.n, problem.k):
        return best
    soon = [made for made in times if tile_of(made).written <= COMPILED_SOON]
    return min(soon, key=lambda made: times[made], default=best)


def agree(problems: Sequence[GemmProblem], limits: Limits) -> bool:
    """Whether halves that may be multiplied in one dispatch had better have workgroups of one size.

    Args:
        problems: The products.
        limits: With `beside`.
    """
    problems, own = [problem.sampled() for problem in problems], replace(limits, beside=False)
    return _together(problems, limits) < _together(problems, own)


def _together(problems: Sequence[GemmProblem], limits: Limits) -> float:
    """Microseconds of products of which those with workgroups of one size are one dispatch."""
    taken: dict[int, list[tuple[float, float]]] = {}
    adding = 0.0
    for problem in problems:
        split = best_split(problem, limits)
        tile = split.tile if split else best_tile(problem, limits)
        parts = split.parts if split else 1
        for cost in _fitting(problem, limits):
            if cost.tile == tile:
                each = _steps(problem, tile, parts) * cost.each + cost.ends / cost.resident
                busy = _count(problem, tile, parts) * each / PROCESSORS
                alone = _time(problem, cost, parts)
                taken.setdefault(tile.invocations, []).append((alone, busy))
        adding = max(adding, ADDING * (parts > 1))
    dispatches = (
        DISPATCH + max(*(alone for alone, _ in times), sum(busy for _, busy in times))
        for times in taken.values()
    )
    return sum(dispatches) + adding


def fits(tile: SharedTile, problem: GemmProblem, limits: Limits) -> bool:
    """Whether a workgroup may be so large and take so much shared memory."""
    small = tile.storage(problem) <= limits.max_workgroup_storage
    return small and tile.invocations <= limits.max_invocations


def _fitting(problem: GemmProblem, limits: Limits) -> list[Cost]:
    halves = problem.compute == "f16"
    half_costs = EIGHTS_COSTS if problem.in_eights else HALF_COSTS
    costs: Sequence[Cost] = half_costs if halves else COSTS
    fitting = [cost for cost in costs if fits(cost.tile, problem, limits)]
    is_small = problem.batch * problem.m * problem.n <= PROCESSORS * 64 * 64
    if limits.beside and is_small:
        return [cost for cost in fitting if cost.tile.invocations == TOGETHER] or fitting
    return fitting


def _time(problem: GemmProblem, cost: Cost, parts: int = 1) -> float:
    """Microseconds of the kernel that multiplies, without its launch."""
    count, steps = _count(problem, cost.tile, parts), _steps(problem, cost.tile, parts)

    def wave(workgroups: int) -> float:
        step = max(cost.alone, workgroups * cost.each)
        return steps * step + cost.ends if workgroups else 0.0

    waves, rest = divmod(-(-count // PROCESSORS), cost.resident)
    return waves * wave(cost.resident) + wave(rest)


def _count(problem: GemmProblem, tile: SharedTile, parts: int) -> int:
    """Workgroups."""
    return -(-problem.m // tile.rows) * -(-problem.n // tile.cols) * problem.batch * parts


def _steps(problem: GemmProblem, tile: SharedTile, parts: int) -> int:
    """Steps along k of each workgroup."""
    return math.ceil(problem.k / parts / tile.depth)
