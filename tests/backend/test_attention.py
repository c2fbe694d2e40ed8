"""Attention by one kernel: results by every tile, on devices with more and with fewer limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attention_cases import Attention, of_sizes
from tests.graphs import awaited, build, kernels_of
from tests.internals import executable_of, prepared_for
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.attention_tile import SMALLEST, AttentionTile
from webnn_py.engines.webgpu.compiler.kernels import attention_few_rows, attention_kernel

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
    """The scores would take more than 128 MiB; the plan has no room for them."""
    case = Attention(batch=(8,), rows=2052, columns=2048, depth=4, width=4)
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


# The composite operator


@dataclass(frozen=True)
class Composite:
    """A call of `scaled_dot_product_attention`.

    Attributes:
        heads: Of queries, and of keys and values.
        sizes: Queries, keys, elements of a key, elements of a value.
        options: Options of the operator.
        lengths: Number of keys of each batch.
        mask: Shape of the mask.
        mask_type: Data type of the mask.
        data_type: Data type of all other operands.
    """

    heads: tuple[int, int]
    sizes: tuple[int, int, int, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    mask: tuple[int, ...] | None = None
    mask_type: str = "uint8"
    data_type: str = "float32"
    batches: int = 2

    def __call__(self, b: MLGraphBuilder) -> dict[str, MLOperand]:
        given = {name: b.input(name, str(a.dtype), a.shape) for name, a in self.inputs().items()}
        return {"y": b.scaled_dot_product_attention(**given, **self.options)}

    def inputs(self) -> dict[str, Any]:
        """Random ones; what lies behind the lengths is no number."""
        rng = np.random.default_rng(0)
        (heads, shared), (rows, keys, size, width) = self.heads, self.sizes
        shapes = {
            "query": (self.batches, heads, rows, size),
            "key": (self.batches, shared, keys, size),
            "value": (self.batches, shared, keys, width),
        }
        made: dict[str, Any] = {
            name: rng.standard_normal(shape).astype(self.data_type)
            for name, shape in shapes.items()
        }
        if self.mask is not None:
            kept = rng.random(self.mask) < 0.8
            added = np.where(kept, rng.standard_normal(self.mask), -np.inf)
            made["mask"] = (kept if self.mask_type == "uint8" else added).astype(self.mask_type)
        if self.lengths:
            made["lengths"] = np.array(self.lengths, np.int64)
        return made


FEW_ROWS = [
    Composite((4, 4), (1, 70, 64, 64), data_type="float16"),
    Composite((6, 2), (3, 150, 20, 12), {"causal": True}, lengths=(150, 70)),
    Composite((8, 1), (4, 200, 8, 6), {"window": 9, "softcap": 1.5}, lengths=(190,)),
    Composite((12, 2), (3, 130, 33, 65), {"scale": 0.3}, mask=(2, 12, 3, 130)),
    Composite((2, 1), (15, 40, 17, 130), {"causal": True, "window": 70}, batches=1),
    Composite((2, 2), (5, 300, 3, 1), {"causal": True}, (3, 0), (1, 300), "float32"),
]
MANY_ROWS = [
    Composite((4, 2), (35, 150, 24, 48), {"causal": True}, lengths=(150, 90)),
    Composite((3, 3), (40, 200, 7, 5), {"causal": True, "window": 33}, data_type="float16"),
    Composite((2, 1), (33, 64, 8, 8), {"softcap": 2.0}, (), (2, 1, 33, 64), "float32"),
    Composite((2, 2), (70, 20, 8, 8), {"causal": True}, (), (20,)),
]


@pytest.mark.parametrize("case", [*FEW_ROWS, *MANY_ROWS], ids=str)
def test_the_composite_is_kept_whole(
    hardware: MLContext, reference: MLContext, case: Composite
) -> None:
    check_composite(hardware, reference, case)


def check_composite(context: MLContext, reference: MLContext, case: Composite) -> None:
    if case.data_type == "float16" and "shader-f16" not in context.device.features:
        pytest.skip("the adapter has no shader-f16")
    inputs, graph = case.inputs(), build(context, case)
    got = awaited(graph, inputs)["y"]
    assert set(kernels_of(graph, inputs)) == {"attention"}
    expected = awaited(build(reference, case), inputs)["y"]
    tolerance = TOLERANCES[case.data_type]
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", FEW_ROWS[1:3], ids=str)
def test_parts_of_several_tiles_of_keys(
    hardware: MLContext, reference: MLContext, monkeypatch: pytest.MonkeyPatch, case: Composite
) -> None:
    monkeypatch.setattr(attention_few_rows, "MAX_WORKGROUPS", 4)
    check_composite(hardware, reference, case)


@pytest.mark.parametrize("case", MANY_ROWS[:2], ids=str)
def test_loops_that_are_written_out(
    hardware: MLContext, reference: MLContext, monkeypatch: pytest.MonkeyPatch, case: Composite
) -> None:
    """As for more keys than loops may have iterations."""
    monkeypatch.setattr(attention_kernel, "MAX_KEYS_IN_LOOPS", 1)
    check_composite(hardware, reference, case)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sizes(hardware: MLContext, reference: MLContext, data: st.DataObject) -> None:
    shared, group, width = (data.draw(st.integers(1, most)) for most in (3, 4, 70))
    rows = data.draw(st.integers(1, 40))
    keys, size = data.draw(st.integers(1, 140)), data.draw(st.integers(1, 70))
    options = {
        "causal": data.draw(st.booleans()),
        "window": data.draw(st.none() | st.integers(1, 150)),
        "softcap": data.draw(st.sampled_from([None, 2.0])),
    }
    lengths = tuple(data.draw(st.lists(st.integers(0, keys + 3), max_size=2)))
    mask = data.draw(st.sampled_from([None, (keys,), (1, shared * group, rows, 1)]))
    kind = data.draw(st.sampled_from(["uint8", "float32"]))
    sizes = (rows, keys, size, width)
    case = Composite((shared * group, shared), sizes, options, lengths, mask, kind)
    check_composite(hardware, reference, case)


@pytest.mark.parametrize("rows", [2, 20])
def test_keys_behind_the_lengths_are_not_read(hardware: MLContext, rows: int) -> None:
    case = Composite((2, 2), (rows, 130, 8, 8), lengths=(66, 30))
    inputs = case.inputs()
    expected = awaited(build(hardware, case), inputs)["y"]
    for name, number in (("key", np.nan), ("value", np.inf)):
        for batch, length in enumerate(case.lengths):
            inputs[name][batch, :, length:] = number
    np.testing.assert_array_equal(awaited(build(hardware, case), inputs)["y"], expected)


@pytest.mark.parametrize("rows", [1, 24])
def test_open_sizes(hardware: MLContext, reference: MLContext, rows: int) -> None:
    """One graph for several lengths of a cache, as a decoder has it."""

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        query = b.input("query", "float32", ["batch", 4, "rows", 8])
        key, value = (b.input(n, "float32", ["batch", 2, "keys", 8]) for n in ("key", "value"))
        lengths = b.input("lengths", "int64", ["batch"])
        return {
            "y": b.scaled_dot_product_attention(query, key, value, causal=True, lengths=lengths)
        }

    graph, expected = build(hardware, what), build(reference, what)
    for keys in (40, 65, 300):
        case = Composite((4, 2), (rows, keys, 8, 8), lengths=(keys - 3, keys))
        got, wanted = (awaited(each, case.inputs())["y"] for each in (graph, expected))
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("sizes", [[1, 2, 4100, 4], ["batch", 2, "rows", 4]], ids=str)
def test_no_buffer_has_the_scores(gpu: MLContext, sizes: Sequence[Any]) -> None:
    """They would take 128 MiB."""

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", sizes)
        return {"y": b.scaled_dot_product_attention(x, x, x, causal=True)}

    graph = build(gpu, what)
    x = np.random.default_rng(0).standard_normal((1, 2, 4100, 4)).astype(np.float32)
    got = awaited(graph, {"x": x})["y"]
    for row in (0, 99, 4099):
        seen = x[0, :, : row + 1]
        scores = np.einsum("hd,hkd->hk", x[0, :, row], seen) / 2
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        wanted = np.einsum("hk,hkd->hd", weights, seen)
        np.testing.assert_allclose(got[0, :, row], wanted, atol=1e-5)
    is_open = isinstance(sizes[0], str)
    made = prepared_for(graph, batch=1, rows=4100).executable if is_open else executable_of(graph)
    assert made.compiled.plan.total == 0


def test_open_sizes_whose_scores_no_tensor_can_have(gpu: MLContext) -> None:
    """32,768 tokens of 12 heads: 48 GiB of scores."""

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", ["batch", 12, "rows", 64])
        return {"y": b.scaled_dot_product_attention(x, x, x)}

    compiled = prepared_for(build(gpu, what), batch=1, rows=32768).executable.compiled
    assert [kernel.name for kernel in compiled.kernels] == ["attention"]
    assert compiled.plan.total == 0
