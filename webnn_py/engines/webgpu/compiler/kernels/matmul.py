"""Matrix multiplication: chooses a template and its tile for a problem, and emits the WGSL.

The choices were measured; `docs/benchmarks/gemm.md` has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webnn_py.engines.webgpu.compiler.kernels.gemm_direct import DirectTile, emit_direct
from webnn_py.engines.webgpu.compiler.kernels.gemm_reduce import ReduceTile, emit_reduce
from webnn_py.engines.webgpu.compiler.kernels.gemm_tiled import emit_tiled
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, TileKernel
from webnn_py.engines.webgpu.compiler.kernels.shared_tile import SharedTile
from webnn_py.engines.webgpu.compiler.kernels.tiles import emit_named

__all__ = ["GemmProblem", "Limits", "TileKernel", "emit_gemm"]

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
    _Choice(SharedTile(32, 32, 32, 4, 4, slices=4), 23, 96),
    _Choice(SharedTile(16, 32, 64, 4, 4, slices=8), 19, 90),
    _Choice(SharedTile(16, 16, 64, 4, 4, slices=16), 15, 128),
)
_HALF_TILES = (
    _Choice(SharedTile(128, 128, 32, 8, 8), 58, 250),
    _Choice(SharedTile(128, 128, 16, 8, 8), 53, 250),
    _Choice(SharedTile(64, 64, 16, 8, 8), 45, 190),
    *_TILES[2:],
)
_SHALLOW_TILES = (*_TILES[:2], _Choice(SharedTile(32, 32, 32, 4, 4), 23, 96))


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
    named = emit_named(problem, tile, device, limits) if tile else None
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
    choices: tuple[_Choice, ...] = _HALF_TILES if problem.compute == "f16" else _TILES
    if problem.k <= SHALLOW:
        choices = _SHALLOW_TILES

    def fits(tile: SharedTile) -> bool:
        small = tile.storage(problem) <= limits.max_workgroup_storage
        return small and tile.invocations <= limits.max_invocations

    def seconds(choice: _Choice) -> float:
        tile = choice.tile
        count = _workgroups(problem, tile)
        busy = min(1.0, count / choice.workgroups)
        return count * tile.rows * tile.cols / (choice.rate * busy)

    fitting = [choice for choice in choices if fits(choice.tile)]
    if not fitting:
        return None
    best = min(fitting, key=seconds).tile
    deeper = replace(best, depth=2 * best.depth)
    alone = _workgroups(problem, best) <= PROCESSORS
    if best == _TILES[-1].tile and alone and problem.k >= 8 * deeper.depth and fits(deeper):
        # With one workgroup to a processor, fewer and longer steps are faster.
        return deeper
    return best


def split_of(problem: GemmProblem, limits: Limits, device: str = "") -> Split | None:
    """How to divide a product along k between workgroups, where that pays."""
    return None


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
