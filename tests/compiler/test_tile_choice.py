"""Which template and tile a product gets; every tile is the choice for some product."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tests.compiler.test_gemm_emission import SIZES, problem
from tests.golden import Golden
from webnn_py.core.shape_tracing import Trace
from webnn_py.engines.webgpu.compiler.kernels import matmul
from webnn_py.engines.webgpu.compiler.kernels.costs import (
    COSTS,
    EIGHTS_COSTS,
    HALF_COSTS,
    MAX_QUICK_MULTIPLICATIONS,
    Cost,
    Split,
    best_split,
    best_tile,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import SharedTile
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
    ways += [
        ("", "", "f32", "k"),
        ("", "large", "f16", "k"),
        ("cpu", "", "f32", "n"),
        ("cpu", "", "f32", "k"),
    ]
    lines = []
    for (device, limits, compute, major), size in itertools.product(ways, PROBLEMS):
        how = (LIMITS[limits], device)
        name, tile = choice(monkeypatch, size, *how, compute=compute, b_major=major)
        given = " ".join(filter(None, (device or "gpu", limits, compute, major)))
        lines.append(f"{given} {size}: {name} {dataclasses.astuple(tile)}")
    golden("tiles.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("costs", "compute", "major"),
    [(COSTS, "f32", "n"), (HALF_COSTS, "f16", "n"), (EIGHTS_COSTS, "f16", "k")],
)
def test_every_tile_is_chosen_for_some_product(
    costs: Sequence[Cost], compute: str, major: Literal["n", "k"]
) -> None:
    found = set()
    pixels, channels = (49, 196, 784, 3136, 12544, 50176), (16, 64, 128, 512, 1024)
    for size in itertools.product(pixels, channels, (32, 64, 100, 576, 1152, 2304)):
        of = problem(1, *size, compute, b_major=major)
        split = best_split(of, LIMITS["large"])
        found.add(split.tile if split else best_tile(of, LIMITS["large"]))
    assert not {cost.tile for cost in costs} - found


def test_small_products_beside_others_have_workgroups_of_one_size() -> None:
    def invocations(size: Sequence[int], beside: bool) -> int:
        of, limits = problem(*size), dataclasses.replace(LIMITS["large"], may_share_dispatch=beside)
        split = best_split(of, limits)
        tile = split.tile if split else best_tile(of, limits)
        assert tile is not None
        return tile.invocations

    small, large = (1, 128, 384, 384), (1, 2048, 2048, 2048)
    assert invocations(small, beside=False) == 256
    assert invocations(small, beside=True) == 64
    assert invocations(large, beside=True) == invocations(large, beside=False) > 64


@pytest.mark.parametrize("compute", ["f32", "f16"])
@pytest.mark.parametrize(("rows", "k"), [(2600, 384), (2600, 1536), (64, 4608)])
def test_who_waits_gets_a_tile_that_is_compiled_soon(compute: str, rows: int, k: int) -> None:
    """The best one follows, where it is another."""

    def chosen(waits: bool) -> tuple[SharedTile | None, Split | None, int]:
        with Trace({"rows": rows}, for_any=waits) as trace:
            of = problem(1, trace.sizes["rows"], 1536, k, compute)
            made = best_tile(of, LIMITS["large"]), best_split(of, LIMITS["large"])
        found = trace.calculate([])({"rows": rows})
        assert found is not None
        return *made, found[1]

    best, sooner = chosen(waits=False), chosen(waits=True)
    assert best[2] == 0
    for one, other in zip(best[:2], sooner[:2], strict=True):
        if one is not None:
            assert other is not None
            assert written(other) <= MAX_QUICK_MULTIPLICATIONS
            assert one == other or written(one) > MAX_QUICK_MULTIPLICATIONS
    assert sooner[2] == (best[:2] != sooner[:2])
    assert best != sooner or k != 384


def written(made: SharedTile | Split) -> int:
    return (made.tile if isinstance(made, Split) else made).unrolled_multiplications
