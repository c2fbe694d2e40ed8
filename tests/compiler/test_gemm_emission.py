"""Properties of the emitted matrix multiplication kernels that need no device."""

from __future__ import annotations

import itertools
import math
import re
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.compiled import kernels
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.kernels.gemm_tiled import emit_tiled
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import SharedTile
from webnn_py.engines.webgpu.compiler.kernels.gemm_wgsl import fold_grid
from webnn_py.engines.webgpu.compiler.kernels.matmul import (
    GemmProblem,
    Limits,
    TileKernel,
    emit_gemm,
)
from webnn_py.engines.webgpu.program.plan import COUNTED_LOOP_MARK
from webnn_py.engines.webgpu.program.storage import Features

TILE = SharedTile(64, 64, 16, 8, 8)
BYTES = {"f32": 4, "i32": 4, "u32": 4, "f16": 2}
DEVICES = ("", "cpu")
LIMITS = (Limits(), Limits(49152, 1024), Limits(max_invocations=128), Limits(16384, 256, 64))
SIZES = (
    (1, 1, 1, 1),
    (1, 1, 1000, 4096),
    (1, 4096, 1, 33),
    (3, 5, 70, 9),
    (1, 128, 384, 1536),
    (1, 512, 49, 4608),
    (1, 1024, 1024, 1024),
    (1, 4096, 4096, 4096),
    (100_000, 2, 2, 2),
    (4096, 16, 16, 16),
    (70_000, 7, 40, 100),
)


def problem(
    batch: int,
    m: int,
    n: int,
    k: int,
    compute: str = "f32",
    a_major: Literal["k", "m"] = "k",
    b_major: Literal["n", "k"] = "n",
    wide: bool = True,
) -> GemmProblem:
    """A problem whose hooks name their arguments; those of several where sizes allow."""
    along_a, along_b = (k if a_major == "k" else m), (n if b_major == "n" else k)
    eights = wide and compute == "f16" and k % 8 == 0
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        compute=compute,
        a=lambda b, row, depth: f"a_at({b}, {row}, {depth})",
        b=lambda b, depth, col: f"b_at({b}, {depth}, {col})",
        a4=(lambda b, row, depth: f"a4_at({b}, {row}, {depth})")
        if wide and along_a % 4 == 0
        else None,
        b4=(lambda b, depth, col: f"b4_at({b}, {depth}, {col})")
        if wide and along_b % 4 == 0
        else None,
        a8=(lambda b, row, depth: f"a8_at({b}, {row}, {depth})")
        if eights and a_major == "k"
        else None,
        b8=(lambda b, depth, col: f"b8_at({b}, {depth}, {col})")
        if eights and b_major == "k"
        else None,
        store=lambda b, row, col, value: f"put({b}, {row}, {col}, {value});",
        store4=(lambda b, row, col, value: f"put4({b}, {row}, {col}, {value});")
        if wide and n % 4 == 0
        else None,
        a_major=a_major,
        b_major=b_major,
    )


def shared_bytes(code: str) -> int:
    """Bytes of all `var<workgroup>` declarations."""
    total = 0
    for declared in re.findall(r"var<workgroup> \w+: (.*);", code):
        counts = [int(count) for count in re.findall(r", (\d+)>", declared)]
        element = re.search(r"(vec4<)?(f32|f16|i32|u32)", declared)
        assert element is not None
        total += math.prod(counts) * BYTES[element[2]] * (4 if element[1] else 1)
    return total


def invocations(code: str) -> int:
    found = re.search(r"@workgroup_size\((\d+)\)", code)
    assert found is not None
    return int(found[1])


def check(kernel: TileKernel, limits: Limits) -> None:
    code = kernel.entry.printed()
    assert shared_bytes(code) <= limits.max_workgroup_storage
    assert invocations(code) <= limits.max_invocations
    assert all(1 <= count <= limits.max_workgroups_per_dim for count in kernel.workgroups)
    # Arrays in registers spill: the only arrays are shared, and nothing is declared with one.
    for line in code.splitlines():
        assert "array<" not in line or line.startswith("var<workgroup> gemm_"), line
    names = re.findall(r"^(?:fn|var<workgroup>) (\w+)", code, re.MULTILINE)
    assert "main" in names
    assert all(name == "main" or name.startswith("gemm_") for name in names), names
    assert len(names) == len(set(names))
    assert "@group" not in code
    assert "enable" not in code


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernels_stay_within_limits(
    size: tuple[int, int, int, int], limits: Limits, device: str
) -> None:
    for compute, wide in itertools.product(BYTES, (True, False)):
        check(emit_gemm(problem(*size, compute, wide=wide), limits, device), limits)


@given(
    st.tuples(*(st.integers(1, 5000) for _ in range(4))),
    st.sampled_from(sorted(BYTES)),
    st.sampled_from(("k", "m")),
    st.sampled_from(("n", "k")),
    st.booleans(),
    st.sampled_from(DEVICES),
)
def test_any_problem_can_be_emitted(
    size: tuple[int, int, int, int],
    compute: str,
    a_major: Literal["k", "m"],
    b_major: Literal["n", "k"],
    wide: bool,
    device: str,
) -> None:
    given_problem = problem(*size, compute, a_major, b_major, wide)
    first, second = (emit_gemm(given_problem, Limits(), device) for _ in range(2))
    assert first == second
    check(first, Limits())


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_software_adapters_get_no_barriers(size: tuple[int, int, int, int]) -> None:
    code = emit_gemm(problem(*size), Limits(), "cpu").entry.printed()
    assert "workgroupBarrier" not in code
    assert "var<workgroup>" not in code


def test_large_products_are_fully_unrolled() -> None:
    kernel = emit_gemm(problem(1, 4096, 4096, 4096), Limits())
    # 16 steps of k, 8 rows and 4 vec4s of columns an invocation, in one loop along k.
    assert kernel.entry.printed().count("= fma(") == 16 * 8 * 4
    assert kernel.entry.printed().count("for (") == 1
    assert kernel.workgroups == (32, 32, 1)


def test_products_that_are_not_large_go_over_four_steps_at_a_time() -> None:
    """Drivers compile for as long as the code is."""

    def steps_written(k: int, compute: str = "f32") -> int:
        tile = SharedTile(64, 64, 16, 8, 8)
        code = emit_tiled(problem(1, 512, 512, k, compute), tile, Limits()).entry.printed()
        return code.count("= fma(") // (8 * 2)

    assert steps_written(1024) == 4
    assert steps_written(2048) == 16
    assert steps_written(1024, "f16") == 16


def test_halves_are_multiplied_in_pairs() -> None:
    code = emit_gemm(problem(1, 2048, 2048, 2048, "f16"), Limits()).entry.printed()
    products = re.findall(r"= fma\((\S+), \S+, \S+\);", code)
    assert products
    assert all(re.fullmatch(r"a\d_\d\.(xyxy|zwzw)", product) for product in products)


def test_a_matrix_times_a_vector_divides_k() -> None:
    code = emit_gemm(problem(1, 1, 4096, 4096), Limits()).entry.printed()
    assert "gemm_partial" in code
    turned = emit_gemm(problem(1, 4096, 1, 4096), Limits()).entry.printed()
    assert "gemm_partial" in turned
    assert "b4_at" not in turned
    assert "a4_at" in turned


def test_only_ragged_sizes_are_guarded() -> None:
    assert "min(" not in emit_gemm(problem(1, 256, 256, 64), Limits()).entry.printed()
    ragged = emit_gemm(problem(1, 250, 260, 70), Limits()).entry.printed()
    assert re.search(r"min\(row_in, 249u\)", ragged)
    assert re.search(r"min\(col_in, 256u\)", ragged)
    assert "k_in < 70u" in ragged


@pytest.mark.parametrize(
    ("columns", "rows", "batch", "most"),
    [(3, 4, 5, 65535), (3, 4, 5, 4), (1, 1, 60, 4), (7, 2, 1, 5), (61, 1, 1, 4)],
)
def test_a_folded_grid_visits_every_place_once(
    columns: int, rows: int, batch: int, most: int
) -> None:
    grid = fold_grid(columns, rows, batch, Limits(max_workgroups_per_dim=most))
    assert max(grid.workgroups) <= most
    visited = []
    for x, y, z in itertools.product(*(range(count) for count in grid.workgroups)):
        place: dict[str, int] = {"x": x, "y": y, "z": z}
        for line in grid.prologue:
            line = re.sub(r"(\d)u\b", r"\1", line).replace("wid.", "").replace("/", "//")
            stop = re.fullmatch(r"if \((.*)\) \{ return; \}", line)
            if stop and eval(stop[1], {}, place):
                break
            if not stop:
                name, value = line.removeprefix("let ").removesuffix(";").split(" = ")
                place[name] = eval(value, {}, place)
        else:
            visited.append((place["gemm_col"], place["gemm_row"], place["gemm_batch"]))
    assert sorted(visited) == sorted(itertools.product(range(columns), range(rows), range(batch)))


def test_a_grid_beyond_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed a grid of 2 in each dimension"):
        fold_grid(3, 3, 1, Limits(max_workgroups_per_dim=2))
    with pytest.raises(ValueError, match="cannot be counted in 32 bits"):
        fold_grid(70_000, 70_000, 1, Limits())


def test_transposing_swaps_the_operands() -> None:
    given_problem = problem(1, 8, 12, 16, b_major="k")
    turned = given_problem.transposed()
    assert (turned.m, turned.n, turned.k) == (12, 8, 16)
    assert (turned.a_major, turned.b_major) == ("k", "k")
    assert turned.a("0", "i", "j") == given_problem.b("0", "j", "i")
    assert turned.b("0", "i", "j") == given_problem.a("0", "j", "i")
    assert turned.a4 is not None
    assert turned.a4("0", "i", "j") == "b4_at(0, j, i)"
    assert turned.store("0", "i", "j", "v") == given_problem.store("0", "j", "i", "v")
    assert turned.store4 is None


def test_impossible_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        problem(1, 0, 3, 3)
    with pytest.raises(ValueError, match="compute must be one of"):
        problem(1, 3, 3, 3, "f64")
    good = problem(1, 3, 5, 3)
    with pytest.raises(ValueError, match="divisible by 4, got 5"):
        GemmProblem(m=3, n=5, k=3, a=good.a, b=good.b, b4=good.b, store=good.store)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_rows_of_all_batches_are_those_of_one_product_with_weights(kind: str) -> None:
    """So the code knows neither batches nor rows, where whole tiles cover them."""

    def code(batch: int, rows: int) -> str:
        def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
            x = b.input("x", "float32", [batch, rows, 64])
            product = b.matmul(b.abs(x), b.constant(np.ones((64, 96), np.float32)))
            return {"y": b.relu(b.add(product, b.constant(np.ones(96, np.float32))))}

        *_, product = kernels(what, Features(kind=kind))
        return product.code

    assert code(2, 64) == code(4, 32) == code(1, 128) == code(8, 16)


@pytest.mark.parametrize("k", [64, 72])
def test_large_blocks_load_their_last_tiles_again_and_nothing_beyond(k: int) -> None:
    code = emit_tiled(
        problem(1, 128, 128, k), SharedTile(128, 128, 16, 8, 16), Limits()
    ).entry.printed()
    found = re.search(r"let next_k = min\(k0 \+ 16u, (\d+)u\);", code)
    assert found is not None
    assert int(found[1]) == (k - 1) // 16 * 16


@pytest.mark.parametrize("compute", ["f32", "f16"])
def test_large_products_alone_count_the_iterations_of_their_loops(compute: str) -> None:
    def counts(m: int, n: int, k: int) -> bool:
        return (
            COUNTED_LOOP_MARK
            in emit_tiled(problem(1, m, n, k, compute), TILE, Limits()).entry.printed()
        )

    assert counts(1024, 1024, 1024)
    assert not counts(512, 512, 512)
    assert not counts(1, 4096, 25088)


@pytest.mark.parametrize(("what", "once"), [("gelu", True), ("tanh", True), ("sigmoid", False)])
def test_long_code_behind_a_product_stands_once(what: str, once: bool) -> None:
    def build(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [2324, 384])
        weights = b.constant(np.ones((384, 1536), np.float32))
        return {"y": getattr(b, what)(b.matmul(x, weights))}

    (kernel,) = kernels(build, Features())
    assert (len(re.findall(r"gemm_store4\(batch, row0", kernel.code)) == 1) == once
