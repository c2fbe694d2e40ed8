"""Attention by one kernel: results by every tile, on devices with more and with fewer limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.attention_cases import Attention, of_sizes
from tests.graphs import awaited, build, kernels_of
from tests.internals import executable_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.attention_tile import SMALLEST, AttentionTile
from webnn_py.engines.webgpu.compiler.kernels import attention_kernel

pytestmark = pytest.mark.kernels

AsDevice = Callable[..., MLContext]
TOLERANCES = {"float32": 2e-6, "float16": 4e-3}
"""Of results around one."""

CASES = [
    *of_sizes([(32, 32, 16, 16), (16, 16, 1, 1), (17, 129, 5, 3), (33, 65, 7, 130)]),
    *of_sizes([(40, 70, 40, 20)], batch=()),
    *of_sizes([(20, 200, 64, 64)], batch=(2,), mask=(20, 200)),
    *of_sizes([(24, 48, 32, 32)], batch=(1, 4), mask=(1, 1, 1, 48), packed=True),
    *of_sizes([(18, 66, 12, 8)], mask=(2, 1, 18, 66), chosen=True),
    *of_sizes([(31, 64, 72, 256)], batch=(3,), turned=True),
    *of_sizes([(31, 61, 10, 9)], batch=(5,), shared=True),
]
CASES = [case for n, case in enumerate(CASES) if case.data_type == "float32" or n % 3 == 0]
"""Both data types take the same kernel but for how its numbers are spelled."""
TILES = [SMALLEST, AttentionTile(teams=2), AttentionTile(fours=2), AttentionTile(keys=2, teams=4)]


def check(context: MLContext, case: Attention, alone: bool = True) -> None:
    if case.data_type == "float16" and "shader-f16" not in context.device.features:
        pytest.skip("the adapter has no shader-f16")
    graph, inputs = build(context, case), case.inputs()
    got = awaited(graph, inputs)["y"]
    if alone:
        assert kernels_of(graph, inputs)[0] == "attention"
    tolerance = TOLERANCES[case.data_type]
    np.testing.assert_allclose(got, case.expected(inputs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results(hardware: MLContext, case: Attention) -> None:
    check(hardware, case)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("case", of_sizes([(35, 150, 24, 48)], mask=(35, 150))[:1], ids=str)
def test_results_by_every_tile(
    hardware: MLContext, monkeypatch: pytest.MonkeyPatch, case: Attention, tile: AttentionTile
) -> None:
    limits = executable_of(build(hardware, Attention())).compiled.features
    if not tile.fits("f32" if case.data_type == "float32" else "f16", limits):
        pytest.skip("the adapter has less workgroup memory, or fewer invocations")
    monkeypatch.setattr(attention_kernel, "tile_for", lambda *_: tile)
    check(hardware, case)


@pytest.mark.parametrize("case", of_sizes([(33, 190, 40, 24)]), ids=str)
def test_default_limits_are_enough(as_device: AsDevice, case: Attention) -> None:
    check(as_device(kind="gpu", workgroup_bytes=16384, invocations=256), case)


def test_less_workgroup_memory_takes_separate_products(as_device: AsDevice) -> None:
    check(as_device(kind="gpu", workgroup_bytes=8192), Attention(), alone=False)


def test_a_folded_grid(as_device: AsDevice) -> None:
    check(as_device(kind="gpu", grid=7), Attention(batch=(5, 3), rows=50))


def test_long_rows_without_their_matrix(hardware: MLContext) -> None:
    """The scores would take 128 MiB; the plan has no room for them."""
    case = Attention(batch=(8,), rows=2048, columns=2048, depth=4, width=4)
    check(hardware, case, alone=False)
    plan = executable_of(build(hardware, case)).compiled.plan
    assert plan.total < 1 << 20


def test_what_follows_is_in_the_same_kernel(hardware: MLContext) -> None:
    case = Attention()

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        (made,) = case(b).values()
        return {"y": b.relu(b.add(made, b.input("rest", "float32", list(made.shape))))}

    graph, inputs = build(hardware, what), case.inputs()
    rest = np.random.default_rng(1).normal(size=(2, 3, 32, 16)).astype(np.float32)
    got = awaited(graph, {**inputs, "rest": rest})["y"]
    np.testing.assert_allclose(got, np.maximum(case.expected(inputs) + rest, 0), atol=2e-6)
    assert kernels_of(graph, {**inputs, "rest": rest}) == ["attention"]


@pytest.mark.parametrize("large", [1e30, np.inf])
def test_values_behind_the_last_key_weigh_nothing(hardware: MLContext, large: float) -> None:
    """Whatever lies at the last one, which is read in their place."""
    case = Attention(batch=(2,), rows=16, columns=33, depth=8, width=8)
    inputs = case.inputs()
    inputs["v"][1, -1, :] = large
    got = awaited(build(hardware, case), inputs)["y"]
    np.testing.assert_allclose(got[0], case.expected(inputs)[0], atol=2e-6)
    assert np.all(got[1] > 1e20)
