"""Tiles that were measured on an adapter: what is found, remembered, used, and computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters import need_quick_compiler, new_device
from tests.internals import engine_of, prepared_for
from webnn_py import ContextLostError, MLContext, MLGraph, MLGraphBuilder, ml
from webnn_py.core import cache
from webnn_py.engines.webgpu.compiler.kernels.matmul import named_tiles
from webnn_py.engines.webgpu.compiler.tuning import candidates
from webnn_py.engines.webgpu.runtime import tuning
from webnn_py.engines.webgpu.runtime.devices import tile_cache
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.ir import Graph

RNG = np.random.default_rng(3)


@pytest.fixture
def remembering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def own(remembering: Path, gpu: MLContext) -> Iterator[MLContext]:
    """A context on a device that nobody else has."""
    need_quick_compiler(gpu.device, "every tile of a convolution")
    with ml.create_context_sync(new_device()) as context:
        yield context


def floats(*shape: int) -> Any:
    return RNG.normal(0, 1, shape).astype(np.float32)


def network(context: MLContext) -> MLGraph:
    """Two convolutions alike, another one, a product with few rows and one with many."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [1, 8, 9, 9])
    for _ in range(2):
        x = b.relu(b.conv2d(x, b.constant(floats(8, 8, 3, 3)), padding=[1, 1, 1, 1]))
    x = b.conv2d(x, b.constant(floats(20, 8, 1, 1)))
    y = b.matmul(b.reshape(x, [20, 81]), b.constant(floats(81, 40)))
    z = b.gemm(b.reshape(x, [1, 1620]), b.constant(floats(1620, 12)), c=b.constant(floats(12)))
    return b.build_sync({"y": y, "z": z})


def parts_of(context: MLContext, graph: MLGraph, **sizes: int) -> tuple[Device, Graph]:
    executable: Any = prepared_for(graph, **sizes).executable
    gpu: Device = engine_of(context).gpu
    return gpu, executable.compiled.graph


def results(context: MLContext, graph: MLGraph) -> dict[str, Any]:
    made = context.create_tensor_sync("float32", [1, 8, 9, 9], writable=True)
    context.write_tensor(made, np.linspace(-1, 1, 648, dtype=np.float32).reshape(1, 8, 9, 9))
    outputs = {
        name: context.create_tensor_sync(each, readable=True)
        for name, each in graph.outputs.items()
    }
    context.dispatch(graph, {"x": made}, outputs)
    return {name: context.read_tensor_sync(tensor) for name, tensor in outputs.items()}


def assert_alike(got: Any, wanted: Any, tile: str = "") -> None:
    """But for how sums are rounded: of them all the largest tells by how much."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * abs(wanted).max(), err_msg=tile)


def pretend(monkeypatch: pytest.MonkeyPatch, fastest: int) -> None:
    """That the kernel so far behind the first is the fastest, and graphs are with it."""

    def medians(gpu: Device, runs: dict[str, Any]) -> dict[str, float]:
        return {name: 2.0 - (n == min(fastest, len(runs) - 1)) for n, name in enumerate(runs)}

    monkeypatch.setattr(tuning, "_medians", medians)


def test_every_tile_computes_the_same(own: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(own)
    gpu, legal = parts_of(own, graph)
    wanted = results(own, graph)
    found = list(candidates(legal, gpu.features))
    assert sum(each.count for each in found) == 5
    assert {name for each in found for name in each.kernels} > {""}
    for tile in named_tiles(gpu.features.kind):
        keys = [each.key for each in found if tile in each.kernels]
        tiles = dict.fromkeys(keys, tile)
        monkeypatch.setattr(gpu, "features", dataclasses.replace(gpu.features, tiles=tiles))
        for name, got in results(own, own_copy(own, graph)).items():
            assert_alike(got, wanted[name], tile)


def own_copy(context: MLContext, graph: MLGraph) -> MLGraph:
    """The same graph, built again."""
    return graph.__copy__()


def test_what_is_found_is_remembered_and_used(
    own: MLContext, remembering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = network(own)
    assert "tuned" not in str(graph)
    before = results(own, graph)
    pretend(monkeypatch, fastest=2)
    told: list[tuple[int, int]] = []
    found = tuning.tune(*parts_of(own, graph), lambda *steps: told.append(steps))
    assert found.kept
    assert all(each.tile and each.before == 2 * each.after for each in found.found)
    kinds = len(found.found)
    assert told == [(n, kinds) for n in range(kinds + 1)]

    again = own_copy(own, graph)
    assert str(again).count("tuned") == 1
    with ml.create_context_sync(new_device()) as other:
        assert engine_of(other).gpu.features.tiles == engine_of(own).gpu.features.tiles
        loaded = network(other)
        assert str(loaded).count("tuned") == 1
    for name, got in results(own, again).items():
        assert_alike(got, before[name])


def test_what_is_found_is_used_for_sizes_alike(
    own: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = MLGraphBuilder(own)
    x = b.input("x", "float32", ["length", 81])
    graph = b.build_sync({"y": b.matmul(x, b.constant(floats(81, 40)))})
    graph.prepare_sync({"length": 20})
    gpu, legal = parts_of(own, graph, length=20)
    (found,) = candidates(legal, gpu.features)
    tiles = {found.key: next(name for name in found.kernels if name)}
    monkeypatch.setattr(gpu, "features", dataclasses.replace(gpu.features, tiles=tiles))
    again = own_copy(own, graph)
    for length, is_tuned in ((9, False), (20, True), (21, True), (41, False)):
        again.prepare_sync({"length": length})
        prepared = prepared_for(again, length=length)
        assert ("tuned" in prepared.executable.describe()) is is_tuned, length


def test_what_gains_nothing_is_not_remembered(
    own: MLContext, remembering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, fastest=0)
    found = tuning.tune(*parts_of(own, network(own)))
    assert not found.kept
    assert not any(each.tile for each in found.found)
    assert not (remembering / tile_cache.KIND).exists()


def test_it_measures(own: MLContext) -> None:
    b = MLGraphBuilder(own)
    x = b.input("x", "float32", [30, 30])
    graph = b.build_sync({"y": b.matmul(x, b.constant(floats(30, 30)))})
    found = tuning.tune(*parts_of(own, graph))
    (row,) = found.found
    assert 0 <= row.after <= row.before < 1  # a device's clock may not move in so short a time
    assert 0 <= found.after < 1


def test_what_is_much_slower_is_told_too(own: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph that has become so, by chance or not, the time is wanted all the same."""
    runs: dict[str, Any] = {"as it is": [], "tuned": []}
    monkeypatch.setattr(tuning, "_clock", lambda gpu: lambda commands: [1.0, 9.0][: len(commands)])
    found = tuning._medians(engine_of(own).gpu, runs)
    assert found == {"as it is": 1.0, "tuned": 9.0}


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": {"b": 1}, "c": "shared 1x1"}', "null"])
def test_damage_to_what_is_remembered_is_harmless(
    own: MLContext, remembering: Path, text: str
) -> None:
    gpu, _ = parts_of(own, network(own))
    adapter = gpu.handle.adapter
    cache.store_text(tile_cache.KIND, tile_cache.key_of(adapter, gpu.features), text)
    with ml.create_context_sync(new_device()) as context:
        keys = [each.key for each in candidates(parts_of(own, network(own))[1], gpu.features)]
        features = engine_of(context).gpu.features
        nonsense = {**features.tiles, **dict.fromkeys(keys, "shared 1x1")}
        engine_of(context).gpu.features = dataclasses.replace(features, tiles=nonsense)
        assert results(context, network(context)).keys() == {"y", "z"}


def test_other_adapters_and_versions_have_their_own(own: MLContext) -> None:
    gpu, _ = parts_of(own, network(own))
    adapter = gpu.handle.adapter
    key = tile_cache.key_of(adapter, gpu.features)
    assert tile_cache.__version__ in key
    assert adapter.info["device"] in key
    assert key != tile_cache.key_of(adapter, dataclasses.replace(gpu.features, f16=False, grid=9))
    tuned = dataclasses.replace(gpu.features, tiles={"a": "b"})
    assert key == tile_cache.key_of(adapter, tuned)


def test_programs_for_other_devices_are_not_tuned(
    own: MLContext, remembering: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = network(own)
    graph.compile_to(tmp_path / "before.mlprogram")
    pretend(monkeypatch, fastest=1)
    assert tuning.tune(*parts_of(own, graph)).kept
    own_copy(own, graph).compile_to(tmp_path / "after.mlprogram")
    assert (tmp_path / "before.mlprogram").read_bytes() == (
        tmp_path / "after.mlprogram"
    ).read_bytes()


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_device_lost_meanwhile_fails_clearly(own: MLContext, remembering: Path, at: int) -> None:
    parts = parts_of(own, network(own))

    def destroy(done: int, total: int) -> None:
        if done == at:
            own.device.destroy()

    with pytest.raises(ContextLostError, match="lost"):
        tuning.tune(*parts, destroy)
    assert not (remembering / tile_cache.KIND).exists()
