"""Matrix multiplication: chooses a template and its tile for a problem, and emits the WGSL.

The choices were measured; `docs/benchmarks/gemm.md` has the figures.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.fusing.inline_dequant import FEW_ROWS
from webnn_py.engines.webgpu.compiler.kernels.costs import (
    ADDING,
    Split,
    best_split,
    best_tile,
    fits,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_direct import DirectTile, emit_direct
from webnn_py.engines.webgpu.compiler.kernels.gemm_reduce import ReduceTile, emit_reduce
from webnn_py.engines.webgpu.compiler.kernels.gemm_tiled import emit_tiled
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import (
    GemmProblem,
    Limits,
    SharedTile,
    TileKernel,
)

__all__ = ["GemmProblem", "Limits", "Split", "TileKernel", "emit_gemm", "split_of"]

MOST_ROWS = 16
"""Rows of a product whose invocations share k: each keeps all of them in registers."""

SHALLOW = 64
"""Up to so large a k, dividing it between invocations does not pay."""

MANY_COLUMNS = 2048
"""From so many columns on, workgroups are enough that read twice as many together."""

TINY = 256
"""Up to so many elements of C, a shallow product is too small for a workgroup of its own."""

FEW_COLUMNS = 32
"""Fewer columns than this leave lanes of a SIMD register of a software adapter idle."""

SIMD = 8
"""Lanes of a SIMD register, as software adapters use them."""


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
    near = problem.sampled()
    if near.n <= FEW_ROWS < near.m:
        problem, near = problem.transposed(), near.transposed()
    few, shallow = near.m <= FEW_ROWS, near.k <= SHALLOW
    if few and not shallow:
        return emit_reduce(problem, _reduction(near, limits), limits)
    if near.k < 8 or (shallow and (few or near.m * near.n <= TINY)):
        rows, cols = (4 if near.m >= 16 else 1), (4 if near.n >= 4 else 1)
        return emit_direct(problem, DirectTile(rows, cols, 64, "blocks"), limits)
    shared = best_tile(problem, limits)
    if shared is None:
        return emit_direct(problem, DirectTile(4, 4, 64, "blocks"), limits)
    return emit_tiled(problem, shared, limits)


def is_narrow(problem: GemmProblem) -> bool:
    """Whether it has few rows or few columns."""
    near = problem.sampled()
    return min(near.m, near.n) <= FEW_ROWS


def split_of(
    problem: GemmProblem, limits: Limits, device: str = "", adding: float = ADDING
) -> Split | None:
    """How to divide a product along k between workgroups, where that pays.

    Args:
        problem: The product.
        limits: The device's limits.
        device: As for `emit_gemm`.
        adding: Microseconds of the kernel that adds up the sums, at least; 0 if there is none.
    """
    if device == "cpu" or is_narrow(problem) or not problem.is_float:
        return None
    return best_split(problem, limits, adding)


def _reduction(problem: GemmProblem, limits: Limits) -> ReduceTile:
    many_rows = problem.m > 4 and problem.b_major == "n"
    columns, unroll = (8, 8) if many_rows else (4, 4)
    invocations = 256
    if problem.b_major == "n" and not many_rows:
        columns = 8 if problem.n >= MANY_COLUMNS else 4
        invocations = 1024
    while invocations > limits.max_invocations:
        invocations //= 2
    slices = invocations // columns
    # A short k has less to divide, and more columns share a workgroup.
    step = 4 if problem.b_major == "k" and problem.b4 is not None else 1
    while slices > 8 and slices * step * unroll > 2 * problem.k:
        slices //= 2
        columns *= 2
    return ReduceTile(columns, slices, unroll)


def _on_software(problem: GemmProblem, limits: Limits) -> TileKernel:
    """Without barriers: a software adapter runs the lanes of a workgroup as one SIMD register."""
    near = problem.sampled()
    if near.n < FEW_COLUMNS <= near.m:
        problem, near = problem.transposed(), near.transposed()
    rows = _even(near.m, 8)
    if near.n < FEW_COLUMNS:
        cols = 8 if near.n >= 8 else 4 if near.n >= 4 else near.n
        return emit_direct(problem, DirectTile(rows, cols, 16, "blocks"), limits)
    cols = _even(-(-near.n // SIMD), 8)
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
            return emit_tiled(problem, tile, limits) if fits(tile, problem, limits) else None
        case DirectTile() as tile:
            return emit_direct(problem, tile, limits)
        case ReduceTile() as tile:
            small = tile.columns * tile.slices <= limits.max_invocations
            few = problem.m <= MOST_ROWS
            return emit_reduce(problem, tile, limits) if small and few else None


@dataclass(frozen=True, slots=True)
class NamedTile:
    """A tile, and whether the product is turned over: Cᵀ = Bᵀ·Aᵀ."""

    tile: SharedTile | DirectTile | ReduceTile
    turned: bool = False

    @property
    def name(self) -> str:
        """What tables and listings call it."""
        match self.tile:
            case SharedTile() as tile:
                block = f"{tile.block_rows}x{tile.block_cols}"
                text = f"shared {tile.rows}x{tile.cols}x{tile.depth} {block}"
                text += f" in {tile.slices}" if tile.slices > 1 else ""
            case DirectTile(rows, cols, lanes, spread):
                text = f"direct {rows}x{cols} {lanes} {spread}"
            case ReduceTile(columns, slices, unroll):
                text = f"reduce {columns}x{slices} {unroll}"
        return f"{text} turned" if self.turned else text


_HARDWARE: Sequence[SharedTile | DirectTile | ReduceTile] = (
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
_SOFTWARE: Sequence[DirectTile] = (  # few, since their drivers compile for long
    DirectTile(8, 4, 8),
    DirectTile(4, 4, 8),
    DirectTile(4, 4, 16, "blocks"),
)


@functools.cache
def named_tiles(kind: str) -> Mapping[str, NamedTile]:
    """The tiles that suit a kind of adapter, by their names.

    Args:
        kind: "cpu" for a software adapter, which is slow at barriers, else "gpu".
    """
    tiles = _SOFTWARE if kind == "cpu" else _HARDWARE
    turned = (NamedTile(tile, turned) for turned in (False, True) for tile in tiles)
    return {named.name: named for named in turned}
