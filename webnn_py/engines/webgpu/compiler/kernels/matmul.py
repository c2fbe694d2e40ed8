"""Matrix multiplication: chooses a template and its tile for a problem, and emits the WGSL.

The choices were measured; `docs/benchmarks/gemm.md` has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from webnn_py.engines.webgpu.compiler.kernels.gemm_direct import DirectTile, emit_direct
from webnn_py.engines.webgpu.compiler.kernels.gemm_reduce import ReduceTile, emit_reduce
from webnn_py.engines.webgpu.compiler.kernels.gemm_tiled import emit_tiled
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, TileKernel
from webnn_py.engines.webgpu.compiler.kernels.shared_tile import SharedTile
from webnn_py.engines.webgpu.compiler.kernels.tiles import named_tiles

__all__ = ["GemmProblem", "Limits", "TileKernel", "emit_gemm"]

MOST_ROWS = 16
"""Rows of a product whose invocations share k: each keeps all of them in registers."""

FEW_ROWS = 8
"""Up to so many rows a product is bound by reading B, and the invocations share k."""

SHALLOW = 64
"""Up to so large a k, dividing it between invocations does not pay."""

TINY = 256
"""Up to so many elements of C, a shallow product is too small for a workgroup of its own."""


PROCESSORS = 132
"""Processors of the large GPU the tiles were measured on."""

FEW_COLUMNS = 32
"""Fewer columns than this leave lanes of a SIMD register of a software adapter idle."""

SIMD = 8
"""Lanes of a SIMD register, as software adapters use them."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A tile, its TFLOP/s on a large GPU, and the workgroups from which it reaches them."""

    tile: SharedTile
    rate: float
    workgroups: int

    def of_halves(self, rate: float) -> _Choice:
        """The same for float16, of which twice as many fit and are loaded at once."""
        return _Choice(replace(self.tile, depth=2 * self.tile.depth), rate, self.workgroups)


@dataclass(frozen=True, slots=True)
class Split:
    """A product that is divided along k.

    Attributes:
        parts: How many.
        tile: The tile of each part.
    """

    parts: int
    tile: SharedTile


_TILES = (
    _Choice(SharedTile(128, 128, 16, 8, 8), 43, 250),
    _Choice(SharedTile(64, 64, 16, 8, 8), 33, 190),
    _Choice(SharedTile(64, 32, 32, 8, 4, slices=4), 27, 98),
    _Choice(SharedTile(32, 32, 32, 4, 4, slices=4), 23, 96),
    _Choice(SharedTile(16, 32, 64, 4, 4, slices=8), 19, 90),
    _Choice(SharedTile(16, 16, 64, 4, 4, slices=16), 15, 128),
)
_HALF_TILES = tuple(
    choice.of_halves(rate) for choice, rate in zip(_TILES, (60, 50, 42, 37, 31, 24), strict=True)
)
_SHALLOW_TILES = (*_TILES[:2], _Choice(SharedTile(32, 32, 32, 4, 4), 23, 96))


_DIVIDED = (
    _Choice(SharedTile(128, 128, 16, 8, 8), 38, 250),
    _Choice(SharedTile(64, 32, 16, 8, 4), 26, 600),
    _Choice(SharedTile(32, 32, 16, 4, 4), 20, 700),
    _Choice(SharedTile(32, 32, 32, 4, 4, slices=4), 13, 400),
)
"""Tiles of parts of k; what is gathered for them arrives late, so that more must be under way."""

_HALF_DIVIDED = tuple(
    choice.of_halves(rate) for choice, rate in zip(_DIVIDED, (50, 38, 30, 20), strict=True)
)

LONG = 1024
"""From so large a k on, workgroups may divide it."""

MOST_PARTS = 36
MOST_SUMS = 32 << 20
"""Bytes of the sums of all parts."""

ADDING = 3.0
"""Microseconds of the kernel that adds up the sums, at least."""

SUMS_RATE = 4e6
"""Bytes of sums a microsecond, written and read."""

LATE, HARDLY_LATE = 1.8, 1.3
"""How much longer than promised tiles take whose elements are late.

The latter where there are twice as many workgroups as need be, of which others work meanwhile.
"""

GAIN = 0.9
"""How much of the time a divided product may take at most to be worth a second kernel."""


def emit_gemm(problem: GemmProblem, limits: Limits, device: str = "", tile: str = "") -> TileKernel:
    """Emits the kernel that suits the problem's sizes and the device.

    Args:
        problem: Sizes, types and hooks.
        limits: The device's limits.
        device: "cpu" for a software adapter, anything else for graphics hardware.
        tile: The name of the tile to take, if it fits.

    Returns:
        The kernel and its grid.
    """
    named = _named(problem, tile, device, limits) if tile else None
    if named is not None:
        return named
    if device == "cpu":
        return _on_software(problem, limits)
    if problem.n <= FEW_ROWS < problem.m:
        problem = problem.transposed()
    few, shallow = problem.m <= FEW_ROWS, problem.k <= SHALLOW
    if few and not shallow:
        return emit_reduce(problem, _reduction(problem, limits), limits)
    if problem.k < 8 or (shallow and (few or problem.m * problem.n <= TINY)):
        rows, cols = (4 if problem.m >= 16 else 1), (4 if problem.n >= 4 else 1)
        return emit_direct(problem, DirectTile(rows, cols, 64, "blocks"), limits)
    shared = _tile(problem, limits)
    if shared is None:
        return emit_direct(problem, DirectTile(4, 4, 64, "blocks"), limits)
    return emit_tiled(problem, shared, limits)


def _tile(problem: GemmProblem, limits: Limits) -> SharedTile | None:
    """The tile that promises the shortest time, or None where no tile fits the limits."""

    def seconds(choice: _Choice) -> float:
        return _promised(problem, choice, _workgroups(problem, choice.tile))

    fitting = [choice for choice in _choices(problem) if _fits(choice.tile, problem, limits)]
    if not fitting:
        return None
    best = min(fitting, key=seconds).tile
    deeper = replace(best, depth=2 * best.depth)
    alone = _workgroups(problem, best) <= PROCESSORS
    if (
        best == _choices(problem)[-1].tile
        and alone
        and problem.k >= 8 * deeper.depth
        and _fits(deeper, problem, limits)
    ):
        # With one workgroup to a processor, fewer and longer steps are faster.
        return deeper
    return best


def split_of(problem: GemmProblem, limits: Limits, device: str = "") -> Split | None:
    """How to divide a product along k between workgroups, where that pays."""
    few = min(problem.m, problem.n) <= FEW_ROWS
    if device == "cpu" or few or problem.k < LONG or not problem.is_float:
        return None
    tile = _tile(problem, limits)
    if tile is None:
        return None
    splits = [
        Split(parts, choice.tile)
        for choice in _divided(problem)
        for parts in range(2, MOST_PARTS + 1)
        if problem.k % (parts * choice.tile.depth) == 0
        and parts * _elements(problem) * 4 <= MOST_SUMS
        and _fits(choice.tile, problem, limits)
    ]
    times = [_divided_time(problem, split) for split in splits]
    best = min(times, default=math.inf)
    return splits[times.index(best)] if best < GAIN * _time(problem, tile) else None


def _divided_time(problem: GemmProblem, split: Split) -> float:
    """Microseconds that both kernels are estimated to take."""
    choice = next(choice for choice in _divided(problem) if choice.tile == split.tile)
    count = _workgroups(problem, split.tile)
    sums = 8 * split.parts * _elements(problem) / SUMS_RATE
    return ADDING + sums + _promised(problem, choice, count, split.parts)


def _time(problem: GemmProblem, tile: SharedTile) -> float:
    """Microseconds that one kernel is estimated to take."""
    choices = (*_choices(problem), _Choice(tile, _TILES[-1].rate, _TILES[-1].workgroups))
    choice = next(choice for choice in choices if choice.tile == tile)
    count = _workgroups(problem, tile)
    late = problem.b4 is None or tile.slices > 1
    factor = 1.0 if not late else LATE if count < 2 * choice.workgroups else HARDLY_LATE
    return factor * _promised(problem, choice, count)


def _promised(problem: GemmProblem, choice: _Choice, count: int, parts: int = 1) -> float:
    """Microseconds at a tile's rate, which it reaches with enough workgroups."""
    operations = 2 * count * choice.tile.rows * choice.tile.cols * problem.k
    busy = min(1.0, count * parts / choice.workgroups)
    return operations / (choice.rate * 1e6 * busy)


def _elements(problem: GemmProblem) -> int:
    return problem.batch * problem.m * problem.n


def _choices(problem: GemmProblem) -> tuple[_Choice, ...]:
    """The tiles for a product."""
    if problem.k <= SHALLOW:
        return _SHALLOW_TILES
    return _HALF_TILES if problem.compute == "f16" else _TILES


def _divided(problem: GemmProblem) -> tuple[_Choice, ...]:
    """The tiles for parts of k."""
    return _HALF_DIVIDED if problem.compute == "f16" else _DIVIDED


def _fits(tile: SharedTile, problem: GemmProblem, limits: Limits) -> bool:
    small = tile.storage(problem) <= limits.max_workgroup_storage
    return small and tile.invocations <= limits.max_invocations


def _workgroups(problem: GemmProblem, tile: SharedTile) -> int:
    return -(-problem.m // tile.rows) * -(-problem.n // tile.cols) * problem.batch


def _reduction(problem: GemmProblem, limits: Limits) -> ReduceTile:
    invocations = 256
    while invocations > limits.max_invocations:
        invocations //= 2
    many_rows = problem.m > 4 and problem.b_major == "n"
    columns, unroll = (8, 8) if many_rows else (4, 4)
    slices = invocations // columns
    # A short k has less to divide, and more columns share a workgroup.
    step = 4 if problem.b_major == "k" and problem.b4 is not None else 1
    while slices > 8 and slices * step * unroll > 2 * problem.k:
        slices //= 2
        columns *= 2
    return ReduceTile(columns, slices, unroll)


def _on_software(problem: GemmProblem, limits: Limits) -> TileKernel:
    """Without barriers: a software adapter runs the lanes of a workgroup as one SIMD register."""
    if problem.n < FEW_COLUMNS <= problem.m:
        problem = problem.transposed()
    rows = _even(problem.m, 8)
    if problem.n < FEW_COLUMNS:
        cols = 8 if problem.n >= 8 else 4 if problem.n >= 4 else problem.n
        return emit_direct(problem, DirectTile(rows, cols, 16, "blocks"), limits)
    cols = _even(-(-problem.n // SIMD), 8)
    if problem.b_major == "n" and problem.b4 is not None:
        cols = -(-cols // 4) * 4
    return emit_direct(problem, DirectTile(rows, cols, SIMD), limits)


def _even(extent: int, most: int) -> int:
    """The block that divides an extent into as few blocks as `most` does, but evenly."""
    blocks = -(-extent // most)
    return -(-extent // blocks)


def _named(problem: GemmProblem, name: str, kind: str, limits: Limits) -> TileKernel | None:
    """The kernel of a product with a tile; None where the product or the limits do not allow it."""
    named = named_tiles(kind).get(name)
    if named is None:
        return None
    if named.turned:
        problem = problem.transposed()
    match named.tile:
        case SharedTile() as tile:
            return emit_tiled(problem, tile, limits) if _fits(tile, problem, limits) else None
        case DirectTile() as tile:
            return emit_direct(problem, tile, limits)
        case ReduceTile() as tile:
            fits = tile.columns * tile.slices <= limits.max_invocations and problem.m <= MOST_ROWS
            return emit_reduce(problem, tile, limits) if fits else None
