"""Tiles by name, which a product may be told to have in the place of the one chosen for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.kernels.gemm_direct import DirectTile
from webnn_py.engines.webgpu.compiler.kernels.gemm_reduce import ReduceTile
from webnn_py.engines.webgpu.compiler.kernels.shared_tile import SharedTile


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
