"""Which template and tile a product gets; every tile is the choice for some product."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from tests.compiler.test_gemm_emission import SIZES, problem
from tests.golden import Golden
from webnn_py.engines.webgpu.compiler.kernels import matmul
from webnn_py.engines.webgpu.compiler.kernels.costs import COSTS, HALF_COSTS
from webnn_py.engines.webgpu.compiler.kernels.matmul import Limits, TileKernel, emit_gemm

PROBLEMS = (
    *SIZES,
    (1, 2, 40, 64),
    (1, 2, 40, 70),
    (1, 8, 4096, 4096),
    (1, 9, 8, 65),
    (1, 16, 16, 1024),
    (1, 16, 16, 1023),
    (1, 36, 12, 64),
    (1, 16, 16, 64),
    (1, 40, 32, 40),
    (1, 64, 64, 7),
    (1, 64, 64, 8),
    (1, 300, 300, 300),
    (1, 450, 520, 300),
    (1, 1500, 1500, 64),
    (1, 1500, 1500, 65),
    (1, 2048, 2048, 2048),
    (8, 197, 64, 197),
    (64, 1, 5, 1000),
)
LIMITS = {"": Limits(), "large": Limits(49152, 1024), "small": Limits(4096, 64)}


def choice(monkeypatch: pytest.MonkeyPatch, size: Any, *how: Any, **more: Any) -> tuple[str, Any]:
    """The template and the tile that a product is emitted with."""
    made: list[tuple[str, Any]] = []
    for name in ("emit_tiled", "emit_direct", "emit_reduce"):

        def emit(problem: Any, tile: Any, limits: Limits, name: str = name) -> TileKernel:
            made.append((name, tile))
            return TileKernel("", (1, 1, 1))

        monkeypatch.setattr(matmul, name, emit)
    emit_gemm(problem(*size, **more), *how)
    (found,) = made
    return found


def test_choices(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [("", limits, compute, "n") for limits in LIMITS for compute in ("f32", "f16")]
    ways += [("", "", "f32", "k"), ("cpu", "", "f32", "n"), ("cpu", "", "f32", "k")]
    lines = []
    for (device, limits, compute, major), size in itertools.product(ways, PROBLEMS):
        how = (LIMITS[limits], device)
        name, tile = choice(monkeypatch, size, *how, compute=compute, b_major=major)
        given = " ".join(filter(None, (device or "gpu", limits, compute, major)))
        lines.append(f"{given} {size}: {name} {dataclasses.astuple(tile)}")
    golden("tiles.txt", "\n".join(lines) + "\n")


def test_every_tile_is_chosen_for_some_product(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        choice(monkeypatch, size, Limits(49152, 1024), compute=compute)[1]
        for compute in ("f32", "f16")
        for size in PROBLEMS
    }
    assert not {cost.tile for cost in (*COSTS, *HALF_COSTS)} - found
