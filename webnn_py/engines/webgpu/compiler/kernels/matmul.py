"""GEMM: choose the template and its tile for a problem, and emit the WGSL.

The choices were measured; `docs/benchmarks/gemm.md` has the figures.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.fusing.inline_dequant import MAX_FUSED_ROWS
from webnn_py.engines.webgpu.compiler.kernels.costs import (
    ADD_KERNEL_US,
    MATRIX_COSTS,
    QUANTIZING_COSTS,
    Split,
    Tile,
    best_split,
    best_tile,
    fits,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_direct import DirectTile, emit_direct
from webnn_py.engines.webgpu.compiler.kernels.gemm_reduce import ReduceTile, emit_reduce
from webnn_py.engines.webgpu.compiler.kernels.gemm_subgroup import emit_subgroup
from webnn_py.engines.webgpu.compiler.kernels.gemm_tiled import emit_tiled
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import (
    GemmProblem,
    Limits,
    SharedTile,
    SubgroupTile,
    TileKernel,
)

__all__ = ["GemmProblem", "Limits", "Split", "TileKernel", "emit_gemm", "emit_tile", "split_of"]

MAX_REDUCE_ROWS = 16
"""Rows of a product whose invocations split k: each keeps all rows in registers."""

MAX_SHALLOW_K = 64
"""Extent of k up to which invocations should not split it."""

MIN_WIDE_COLUMNS = 2048
"""Columns from which there are enough workgroups to load twice as many columns in each."""

MAX_TINY_ELEMENTS = 256
"""Elements of C up to which a shallow product is too small for its own workgroup."""

MIN_SIMD_COLUMNS = 32
"""Fewer columns leave lanes of a software adapter's SIMD register idle."""

SIMD_LANES = 8
"""Lanes of a SIMD register, as software adapters use them."""


def emit_gemm(problem: GemmProblem, limits: Limits, device: str = "", tile: str = "") -> TileKernel:
    """Return the kernel that suits the problem's sizes and the device.

    Args:
        problem: Sizes, types and hooks.
        limits: The device's limits.
        device: "cpu" for a software adapter, anything else for a GPU.
        tile: Name of a tile to use if it fits.

    Returns:
        The kernel and its grid.
    """
    named = _emit_named(problem, tile, device, limits) if tile else None
    if named is not None:
        return named
    if device == "cpu":
        return _emit_on_cpu(problem, limits)
    if problem.by_matrices:
        tile_of_matrices = best_tile(problem, limits)
        assert tile_of_matrices is not None
        return emit_tile(problem, tile_of_matrices, limits)
    near = problem.sampled()
    if near.n <= MAX_FUSED_ROWS < near.m:
        problem, near = problem.transposed(), near.transposed()
    few, shallow = near.m <= MAX_FUSED_ROWS, near.k <= MAX_SHALLOW_K
    if few and not shallow:
        return emit_reduce(problem, _reduce_tile(near, limits), limits)
    if near.k < 8 or (shallow and (few or near.m * near.n <= MAX_TINY_ELEMENTS)):
        rows, cols = (4 if near.m >= 16 else 1), (4 if near.n >= 4 else 1)
        return emit_direct(problem, DirectTile(rows, cols, 64, "blocks"), limits)
    shared = best_tile(problem, limits)
    if shared is None:
        return emit_direct(problem, DirectTile(4, 4, 64, "blocks"), limits)
    return emit_tile(problem, shared, limits)


def emit_tile(problem: GemmProblem, tile: Tile, limits: Limits) -> TileKernel:
    """Return the kernel that multiplies through shared tiles, by subgroup matrices or without."""
    if isinstance(tile, SubgroupTile):
        return emit_subgroup(problem, tile, limits)
    return emit_tiled(problem, tile, limits)


def is_narrow(problem: GemmProblem) -> bool:
    """Whether the product has few rows or few columns."""
    near = problem.sampled()
    return min(near.m, near.n) <= MAX_FUSED_ROWS and not problem.by_matrices


def split_of(
    problem: GemmProblem, limits: Limits, device: str = "", adding: float = ADD_KERNEL_US
) -> Split | None:
    """Return how to split a product along k between workgroups; None where that does not pay.

    Args:
        problem: The product.
        limits: The device's limits.
        device: As for `emit_gemm`.
        adding: Minimum microseconds of the kernel that adds up the partial sums; 0 if there is
            none.
    """
    if device == "cpu" or is_narrow(problem):
        return None
    return best_split(problem, limits, adding)


def _reduce_tile(problem: GemmProblem, limits: Limits) -> ReduceTile:
    """Return the tile of a product with few rows."""
    many_rows = problem.m > 4 and problem.b_major == "n"
    columns, unroll = (8, 8) if many_rows else (4, 4)
    invocations = 256
    if problem.b_major == "n" and not many_rows:
        columns = 8 if problem.n >= MIN_WIDE_COLUMNS else 4
        invocations = 1024
    while invocations > limits.max_invocations:
        invocations //= 2
    slices = invocations // columns
    # With a short k, use fewer slices and more columns per workgroup.
    step = 4 if problem.b_major == "k" and problem.b4 is not None else 1
    while slices > 8 and slices * step * unroll > 2 * problem.k:
        slices //= 2
        columns *= 2
    return ReduceTile(columns, slices, unroll)


def _emit_on_cpu(problem: GemmProblem, limits: Limits) -> TileKernel:
    """Return a kernel without barriers: software adapters run a workgroup in SIMD lanes."""
    near = problem.sampled()
    if near.n < MIN_SIMD_COLUMNS <= near.m:
        problem, near = problem.transposed(), near.transposed()
    rows = _even_block(near.m, 8)
    if near.n < MIN_SIMD_COLUMNS:
        cols = 8 if near.n >= 8 else 4 if near.n >= 4 else near.n
        return emit_direct(problem, DirectTile(rows, cols, 16, "blocks"), limits)
    cols = _even_block(-(-near.n // SIMD_LANES), 8)
    if problem.b_major == "n" and problem.b4 is not None:
        cols = -(-cols // 4) * 4
    return emit_direct(problem, DirectTile(rows, cols, SIMD_LANES), limits)


def _even_block(extent: int, most: int) -> int:
    """Return the smallest block that needs no more blocks than `most` does."""
    blocks = -(-extent // most)
    return -(-extent // blocks)


def _emit_named(problem: GemmProblem, name: str, kind: str, limits: Limits) -> TileKernel | None:
    """Return the kernel with a named tile; None where the product or the limits forbid it."""
    named = named_tiles(kind).get(name)
    if named is None:
        return None
    if problem.prologue is not None and not isinstance(named.tile, ReduceTile):
        return None
    if named.transposed:
        problem = problem.transposed()
    match named.tile:
        case SharedTile() | SubgroupTile() as tile:
            return emit_tile(problem, tile, limits) if fits(tile, problem, limits) else None
        case DirectTile() as tile:
            return emit_direct(problem, tile, limits)
        case ReduceTile() as tile:
            small = tile.columns * tile.slices <= limits.max_invocations
            few = problem.m <= MAX_REDUCE_ROWS
            return emit_reduce(problem, tile, limits) if small and few else None


@dataclass(frozen=True, slots=True)
class NamedTile:
    """A tile, and whether the product is transposed: Cᵀ = Bᵀ·Aᵀ."""

    tile: Tile | DirectTile | ReduceTile
    transposed: bool = False

    @property
    def name(self) -> str:
        """The name in tables and listings."""
        match self.tile:
            case SharedTile() as tile:
                block = f"{tile.block_rows}x{tile.block_cols}"
                text = f"shared {tile.rows}x{tile.cols}x{tile.depth} {block}"
                text += f" in {tile.slices}" if tile.slices > 1 else ""
            case SubgroupTile(rows, cols, depth, down, across):
                text = f"matrix {rows}x{cols}x{depth} {down}x{across}"
            case DirectTile(rows, cols, lanes, spread):
                text = f"direct {rows}x{cols} {lanes} {spread}"
            case ReduceTile(columns, slices, unroll):
                text = f"reduce {columns}x{slices} {unroll}"
        return f"{text} turned" if self.transposed else text


_HARDWARE: Sequence[Tile | DirectTile | ReduceTile] = (
    *(cost.tile for cost in (*MATRIX_COSTS, *QUANTIZING_COSTS)),
    SharedTile(128, 128, 16, 8, 8),
    SharedTile(128, 64, 16, 8, 8),
    SharedTile(64, 128, 16, 8, 8),
    SharedTile(64, 64, 16, 8, 8),
    SharedTile(64, 64, 32, 8, 8),
    SharedTile(64, 64, 16, 4, 4),
    SharedTile(32, 64, 32, 4, 4),
    SharedTile(32, 32, 32, 4, 4),
    SharedTile(32, 32, 32, 4, 4, slices=2),
    SharedTile(32, 32, 32, 4, 4, slices=4),
    SharedTile(16, 32, 64, 4, 4, slices=8),
    SharedTile(16, 16, 64, 4, 4, slices=16),
    SharedTile(16, 16, 128, 4, 4, slices=16),
    DirectTile(4, 4, 64, "blocks"),
    DirectTile(2, 4, 64, "blocks"),
    ReduceTile(4, 64, 4),
    ReduceTile(8, 32, 8),
    ReduceTile(16, 16, 4),
)
_SOFTWARE: Sequence[DirectTile] = (  # few, because software drivers compile slowly
    DirectTile(8, 4, 8),
    DirectTile(4, 4, 8),
    DirectTile(4, 4, 16, "blocks"),
)


@functools.cache
def named_tiles(kind: str) -> Mapping[str, NamedTile]:
    """Return the tiles to measure for a kind of adapter, by name.

    Args:
        kind: "cpu" for a software adapter, which is slow at barriers, else "gpu".
    """
    tiles = _SOFTWARE if kind == "cpu" else _HARDWARE
    named = [NamedTile(tile, transposed) for transposed in (False, True) for tile in tiles]
    return {tile.name: tile for tile in named}
