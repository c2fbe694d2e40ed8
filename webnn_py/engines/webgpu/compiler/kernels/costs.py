"""Cost model of tiled products: choose the tile and the split of k that take least time.

Each processor runs several workgroups at once, in waves. A wave advances along k in steps. A step
of one workgroup is bound by latency, of several by arithmetic. The times were measured on an H100
(`docs/benchmarks/gemm.md`); they predict other sizes to about 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from webnn_py.core.traced_queries import can_defer
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import (
    GemmProblem,
    Limits,
    SharedTile,
    SubgroupTile,
)

T = TypeVar("T")

Tile = SharedTile | SubgroupTile
"""Tiles of workgroups that step along k through shared memory."""

PROCESSORS = 132
"""Streaming multiprocessors of the measured GPU."""

MAX_PARTS = 36
"""Parts of k."""
MAX_SUM_BYTES = 32 << 20
"""Bytes of the partial sums."""

MIN_PART_DEPTH = 64
"""Minimum extent of a part along k."""

ADD_KERNEL_US = 2.6
"""Minimum microseconds of the kernel that adds up the partial sums."""

SUM_BYTES_PER_US = 5e6
"""Bytes of partial sums unrolled_multiplications and read in a microsecond."""

JOINT_INVOCATIONS = 64
"""Invocations of the workgroups of products that may run in one dispatch.

A dispatch has one workgroup size, and split-K tiles leave no room for others. Products that fill
all processors gain nothing from it, and float16 products do not always gain.
"""

DISPATCH_US = 2.3
"""Microseconds between two dependent dispatches."""

MAX_QUICK_MULTIPLICATIONS = 1024
"""Unrolled multiplications up to which drivers compile a tile in 0.2 s.

Tiles of twice as many take 0.4 to 0.7 s to compile, and run 5 to 20 % faster.
"""

MAX_SPLIT_TIME_RATIO = 0.95
"""Maximum time of a split product, relative to the whole, that is worth a second kernel."""


SPLIT_TIME_RATIO = 1.5
"""Time of a step of a tile that splits float32, relative to one of float16 of twice the depth."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured times of a tile, in microseconds.

    Attributes:
        tile: The tile.
        alone_us: One step along k of a workgroup that has a processor to itself.
        each_us: One step of each of several workgroups on one processor.
        resident: Workgroups that a processor runs at once.
        ends_us: Prologue and epilogue of a workgroup.
    """

    tile: Tile
    alone_us: float
    each_us: float
    resident: int
    ends_us: float


@dataclass(frozen=True, slots=True)
class Split:
    """A split-K product.

    Attributes:
        parts: Number of parts of k.
        tile: The tile of each part.
    """

    parts: int
    tile: Tile


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
"""Costs for float32."""
F16_COSTS = (
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
"""Costs for float16, which loads twice as many elements at once."""

F16_VEC8_COSTS = (
    Cost(SharedTile(64, 64, 32, 8, 4), 0.73, 0.59, 4, 0.3),
    Cost(SharedTile(64, 32, 32, 8, 4), 0.70, 0.34, 8, 0.8),
    Cost(SharedTile(32, 32, 32, 4, 4), 0.44, 0.19, 10, 0.3),
    Cost(SharedTile(16, 16, 64, 4, 4, 4), 0.46, 0.14, 10, 0.3),
    Cost(SharedTile(16, 16, 128, 4, 4, 16), 0.33, 0.30, 2, 0.8),
)
"""Costs for float16 where both operands are loaded eight elements at a time."""

MATRIX_COSTS = (
    Cost(SubgroupTile(128, 256, 32, 2, 4), 1.00, 1.00, 1, 3.0),
    Cost(SubgroupTile(128, 256, 32, 4, 4), 1.56, 0.97, 3, 7.4),
    Cost(SubgroupTile(192, 192, 32, 2, 4), 1.10, 1.10, 1, 4.3),
    Cost(SubgroupTile(128, 192, 32, 2, 4), 0.88, 0.88, 1, 4.0),
    Cost(SubgroupTile(128, 160, 32, 2, 2), 0.74, 0.74, 1, 3.9),
    Cost(SubgroupTile(128, 128, 64, 2, 4), 1.00, 1.00, 2, 3.1),
    Cost(SubgroupTile(128, 128, 64, 2, 2), 0.98, 0.98, 1, 5.2),
    Cost(SubgroupTile(128, 128, 32, 2, 2), 0.55, 0.55, 1, 3.0),
    Cost(SubgroupTile(128, 96, 64, 4, 2), 0.84, 0.84, 1, 1.9),
    Cost(SubgroupTile(128, 96, 32, 4, 1), 0.60, 0.45, 2, 2.0),
    Cost(SubgroupTile(128, 64, 64, 4, 2), 0.57, 0.57, 1, 4.9),
    Cost(SubgroupTile(128, 64, 32, 4, 2), 0.73, 0.48, 6, 1.8),
    Cost(SubgroupTile(96, 128, 64, 2, 2), 0.81, 0.81, 1, 2.7),
    Cost(SubgroupTile(96, 96, 64, 2, 2), 0.71, 0.71, 1, 2.0),
    Cost(SubgroupTile(96, 96, 32, 2, 2), 0.47, 0.36, 2, 2.4),
    Cost(SubgroupTile(64, 96, 64, 2, 2), 0.57, 0.57, 1, 1.7),
    Cost(SubgroupTile(64, 64, 64, 2, 2), 0.42, 0.39, 2, 0.6),
    Cost(SubgroupTile(64, 32, 64, 2, 1), 0.42, 0.25, 3, 0.3),
    Cost(SubgroupTile(32, 64, 64, 1, 2), 0.45, 0.25, 3, 0.3),
    Cost(SubgroupTile(32, 32, 64, 2, 2), 0.40, 0.19, 3, 0.3),
    Cost(SubgroupTile(32, 32, 128, 2, 2), 0.42, 0.35, 2, 0.6),
)
"""Costs for float16 by subgroup matrices.

Tiles of bytes are twice as deep: a step loads as many bytes and multiplies as many matrices.
"""

QUANTIZING_COSTS = (
    Cost(SubgroupTile(128, 128, 64, 4, 2), 0.84, 0.42, 2, 16.0),
    Cost(SubgroupTile(128, 64, 64, 4, 2), 0.84, 0.33, 3, 10.1),
    Cost(SubgroupTile(64, 128, 64, 2, 4), 0.72, 0.41, 4, 11.7),
    Cost(SubgroupTile(64, 64, 64, 2, 2), 0.71, 0.20, 5, 8.4),
    Cost(SubgroupTile(64, 64, 128, 2, 2), 0.94, 0.47, 2, 4.9),
    Cost(SubgroupTile(64, 32, 64, 2, 2), 0.55, 0.21, 6, 3.3),
    Cost(SubgroupTile(32, 64, 64, 2, 2), 0.78, 0.21, 7, 3.1),
)
"""Costs for bytes by subgroup matrices with long epilogues, which quantize.

These take as long as the product: it pays that a processor holds many small parts of C.
"""


def best_tile(problem: GemmProblem, limits: Limits) -> Tile | None:
    """Return the fastest tile; None if none fits the limits."""
    near = problem.sampled()
    times = {cost.tile: _time(near, cost) for cost in _fitting(near, limits)}
    return _fastest(times, lambda tile: tile, problem)


def best_split(problem: GemmProblem, limits: Limits, adding: float = ADD_KERNEL_US) -> Split | None:
    """Return how to split a product along k between workgroups; None where that does not pay.

    Args:
        problem: The product.
        limits: The device's limits.
        adding: Minimum microseconds of the kernel that adds up the partial sums; 0 if there is
            none.
    """
    near = problem.sampled()
    fitting = _fitting(near, limits)
    whole = min((_time(near, cost) for cost in fitting), default=0.0)
    elements = near.batch * near.m * near.n
    most = min(MAX_PARTS, MAX_SUM_BYTES // (4 * elements), near.k // MIN_PART_DEPTH)
    times = {
        Split(parts, cost.tile): adding
        + 8 * parts * elements / SUM_BYTES_PER_US
        + _time(near, cost, parts)
        for cost in fitting
        for parts in range(2, most + 1)
        if near.k % (parts * cost.tile.depth) == 0
    }
    if min(times.values(), default=whole) >= MAX_SPLIT_TIME_RATIO * whole:
        return None
    best = _fastest(times, lambda split: split.tile, problem)
    # The split must divide the other sizes of a traced problem, too.
    return best if best and problem.k % (best.parts * best.tile.depth) == 0 else None


def _fastest(
    times: Mapping[T, float], tile_of: Callable[[T], Tile], problem: GemmProblem
) -> T | None:
    """Return the fastest option; a quick one to compile if the best may follow later."""
    best = min(times, key=lambda option: times[option], default=None)
    if best is None or tile_of(best).unrolled_multiplications <= MAX_QUICK_MULTIPLICATIONS:
        return best
    if not can_defer(problem.batch, problem.m, problem.n, problem.k):
        return best
    soon = [
        option
        for option in times
        if tile_of(option).unrolled_multiplications <= MAX_QUICK_MULTIPLICATIONS
    ]
    return min(soon, key=lambda option: times[option], default=best)


def prefer_equal_workgroups(problems: Sequence[GemmProblem], limits: Limits) -> bool:
    """Whether products that may run in one dispatch should have workgroups of one size.

    Args:
        problems: The products.
        limits: The device's limits, with `may_share_dispatch`.
    """
    problems, own = (
        [problem.sampled() for problem in problems],
        replace(limits, may_share_dispatch=False),
    )
    return _together(problems, limits) < _together(problems, own)


def _together(problems: Sequence[GemmProblem], limits: Limits) -> float:
    """Return the microseconds of products; equal workgroup sizes share a dispatch."""
    taken: dict[int, list[tuple[float, float]]] = {}
    adding = 0.0
    for problem in problems:
        split = best_split(problem, limits)
        tile = split.tile if split else best_tile(problem, limits)
        parts = split.parts if split else 1
        for cost in _fitting(problem, limits):
            if cost.tile == tile:
                each = _steps(problem, tile, parts) * cost.each_us + cost.ends_us / cost.resident
                busy = _count(problem, tile, parts) * each / PROCESSORS
                alone = _time(problem, cost, parts)
                taken.setdefault(tile.invocations, []).append((alone, busy))
        adding = max(adding, ADD_KERNEL_US * (parts > 1))
    dispatches = (
        DISPATCH_US + max(*(alone for alone, _ in times), sum(busy for _, busy in times))
        for times in taken.values()
    )
    return sum(dispatches) + adding


def fits(tile: Tile, problem: GemmProblem, limits: Limits) -> bool:
    """Whether the device can multiply the problem by a tile."""
    matrix = limits.matrix_of(problem.compute)
    if isinstance(tile, SubgroupTile) and not tile.divides_into(matrix):
        return False
    small = tile.storage(problem) <= limits.max_workgroup_storage
    return small and tile.invocations <= limits.max_invocations


def _fitting(problem: GemmProblem, limits: Limits) -> list[Cost]:
    """Return the costs of tiles within the limits."""
    is_f16 = problem.compute == "f16"
    f16_costs = F16_VEC8_COSTS if problem.has_vec8_loads else F16_COSTS
    costs: Sequence[Cost] = (*MATRIX_COSTS, *f16_costs) if is_f16 else COSTS
    if problem.by_matrices:
        costs = {"i8": _costs_of_bytes, "split": _costs_of_halves}.get(
            problem.compute, lambda _: MATRIX_COSTS
        )(problem)
    fitting = [cost for cost in costs if fits(cost.tile, problem, limits)]
    is_small = problem.batch * problem.m * problem.n <= PROCESSORS * 64 * 64
    if limits.may_share_dispatch and is_small:
        return [cost for cost in fitting if cost.tile.invocations == JOINT_INVOCATIONS] or fitting
    return fitting


def _costs_of_bytes(problem: GemmProblem) -> Sequence[Cost]:
    """Return the costs of a product of bytes."""
    if problem.long_stores:
        return QUANTIZING_COSTS
    # A tile of twice the depth takes as long as one of float16.
    return [
        replace(cost, tile=replace(cost.tile, depth=2 * cost.tile.depth)) for cost in MATRIX_COSTS
    ]


def _costs_of_halves(problem: GemmProblem) -> Sequence[Cost]:
    """Return the costs of a product of float32 by halves.

    A tile of half the depth has as many bytes, and takes 1.5 times as long, as each step multiplies
    three times and splits what it loads.
    """
    halved = []
    for cost in MATRIX_COSTS:
        tile = replace(cost.tile, depth=cost.tile.depth // 2)
        alone_us, each_us = (SPLIT_TIME_RATIO * us for us in (cost.alone_us, cost.each_us))
        if isinstance(tile, SubgroupTile) and tile.fits_split:
            halved.append(replace(cost, tile=tile, alone_us=alone_us, each_us=each_us))
    return halved


def _time(problem: GemmProblem, cost: Cost, parts: int = 1) -> float:
    """Return the microseconds of the multiplying kernel, without its launch."""
    count, steps = _count(problem, cost.tile, parts), _steps(problem, cost.tile, parts)

    def wave(workgroups: int) -> float:
        step = max(cost.alone_us, workgroups * cost.each_us)
        return steps * step + cost.ends_us if workgroups else 0.0

    waves, rest = divmod(-(-count // PROCESSORS), cost.resident)
    return waves * wave(cost.resident) + wave(rest)


def _count(problem: GemmProblem, tile: Tile, parts: int) -> int:
    """Return the number of workgroups."""
    return -(-problem.m // tile.rows) * -(-problem.n // tile.cols) * problem.batch * parts


def _steps(problem: GemmProblem, tile: Tile, parts: int) -> int:
    """Return the steps along k of each workgroup."""
    return math.ceil(problem.k / parts / tile.depth)
