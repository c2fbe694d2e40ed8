"""Kernels that are taken from disk: those that would have been written, and only those."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.compiler.compiled import legal, legalized
from tests.graphs import Build, normal
from tests.property.graphs import seeded_case
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.core import cache
from webnn_py.engines.webgpu.compiler import kernel_cache, kernel_list
from webnn_py.engines.webgpu.compiler.compiled import Compiled, compile_graph
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph

GPU, SOFTWARE = Features(workgroup_bytes=49152), Features(f16=False, int64=False, kind="cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "MIN_CACHED_NODES", 1)
    return tmp_path / "cache" / kernel_cache.KIND


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs whose kernels are written."""
    graphs = []

    def write(graph: Graph, *others: Any) -> Any:
        graphs.append(graph)
        return plain(graph, *others)

    plain = kernel_list.kernels_of
    monkeypatch.setattr(kernel_list, "kernels_of", write)
    return graphs


def network(seed: int = 0, slope: float = 0.5) -> Build:
    """Convolutions that differ in numbers, a concat in place, a divided product, a softmax."""

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [1, 8, 14, 14])
        for channels in (8, 16):
            filters = b.constant(normal(16, channels, 3, 3, seed=seed))
            x = b.leaky_relu(b.conv2d(x, filters, padding=[1, 1, 1, 1]), alpha=slope)
        x = b.concat([x, b.sigmoid(x)], 1)
        flat = b.reshape(b.mul(x, b.constant(slope, "float32")), [1, 6272])
        return {"y": b.softmax(b.matmul(flat, b.constant(normal(6272, 16, seed=seed))), 1)}

    return record


def compiled(graph: Graph, features: Features = GPU) -> Compiled:
    return compile_graph(graph, features, cached=True)


def shown(made: Compiled) -> tuple[Any, ...]:
    """All of it, with names for values."""
    rest = [(k.name, k.workgroups, k.times, k.numbers, k.tile) for k in made.kernels]
    sizes = [[(p.offset, p.size) for p in (*k.reads, *k.writes)] for k in made.kernels]
    constants = [made.graph.names[value] for value in made.constants]
    return made.describe(), made.code(), made.nodes(), rest, sizes, constants, made.plan.sizes


def assert_recalled(graph: Graph, features: Features, written: list[Graph]) -> None:
    """The second time nothing is written, and all is as it is without a cache."""
    wanted = shown(compile_graph(graph, features))
    written.clear()
    assert shown(compiled(graph, features)) == wanted
    assert shown(compiled(graph, features)) == wanted
    assert len(written) == 1


@pytest.mark.parametrize("features", [GPU, SOFTWARE], ids=["gpu", "cpu"])
def test_networks(features: Features, written: list[Graph]) -> None:
    assert_recalled(legal(network(), features), features, written)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int, written: list[Graph]) -> None:
    features = (GPU, SOFTWARE)[seed % 2]
    assert_recalled(legalized(seeded_case(seed).graph, features), features, written)


def test_tuned_tiles(written: list[Graph]) -> None:
    from webnn_py.engines.webgpu.compiler.tuning import candidates

    graph = legal(network(), GPU)
    kind = next(iter(candidates(graph, GPU)))
    tile = [name for name in kind.kernels if name][-1]
    tuned = replace(GPU, tiles=MappingProxyType({kind.key: tile}))
    compiled(graph, GPU)
    assert_recalled(graph, tuned, written)
    assert any(kernel.tile == tile for kernel in compiled(graph, tuned).kernels)


def test_other_weights_have_the_same_kernels(written: list[Graph]) -> None:
    compiled(legal(network(0), GPU))
    other = legal(network(1), GPU)
    made = compiled(other)
    assert len(written) == 1
    assert set(made.constants) <= set(other.constants)


def test_other_numbers_are_another_graph(written: list[Graph]) -> None:
    made = [compiled(legal(network(slope=slope), GPU)) for slope in (0.5, 0.25)]
    assert len(written) == 2
    assert made[0].code() != made[1].code()


def test_zeros_with_signs_are_told_apart(written: list[Graph]) -> None:
    def divided(zero: float) -> Build:
        return lambda b: {"y": b.div(b.input("x", "float32", [4]), b.constant(zero, "float32"))}

    for zero in (0.0, -0.0):
        assert_recalled(legal(divided(zero), GPU), GPU, written)


def test_other_devices_and_other_versions(
    written: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = legal(network(), GPU)
    compiled(graph)
    compiled(graph, replace(GPU, max_bindings=10))
    assert len(written) == 2
    monkeypatch.setattr(cache, "__version__", "0.0.1")
    cache.source_fingerprint.cache_clear()
    compiled(graph)
    cache.source_fingerprint.cache_clear()
    assert len(written) == 3


def test_other_sources(written: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = legal(network(), GPU)
    compiled(graph)
    monkeypatch.setattr(cache, "source_fingerprint", lambda *folders: "changed")
    compiled(graph)
    assert len(written) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole.replace(b"+", b"-", 1),
        lambda whole: b"\xff" + whole[1:],
        lambda whole: cache._with_checksum("[]").encode(),
        lambda whole: cache._with_checksum('{"codes":[],"scratch":[]}').encode(),
    ],
    ids=["empty", "cut off", "changed", "no text", "a list", "another file"],
)
def test_damaged_files_are_written_anew(
    damage: Callable[[bytes], bytes], folder: Path, written: list[Graph]
) -> None:
    graph = legal(network(), GPU)
    wanted = shown(compiled(graph))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert shown(compiled(graph)) == wanted
    assert len(written) == 2
    assert file.read_bytes() == whole


def test_small_graphs_leave_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "MIN_CACHED_NODES", 100)
    compiled(legal(network(), GPU))
    assert not folder.exists()


def test_the_cache_turned_off(written: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBNN_CACHE", "0")
    graph = legal(network(), GPU)
    compiled(graph)
    compiled(graph)
    assert len(written) == 2


def test_a_folder_that_cannot_be_written(folder: Path, written: list[Graph]) -> None:
    folder.parent.mkdir()
    folder.touch()  # which root cannot write into either
    graph = legal(network(), GPU)
    compiled(graph)
    compiled(graph)
    assert len(written) == 2


def test_the_disk_stays_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "MAX_CACHE_BYTES", 50_000)
    for slope in np.linspace(0.1, 0.9, 6).tolist():
        compiled(legal(network(slope=slope), GPU))
        assert 0 < sum(path.stat().st_size for path in folder.iterdir()) <= 50_000


def test_many_at_once(folder: Path) -> None:
    graphs = [legal(network(slope=slope), GPU) for slope in (0.25, 0.5)]
    wanted = [shown(compile_graph(graph, GPU)) for graph in graphs]
    made: list[bool] = []

    def work(number: int) -> None:
        for _ in range(3):
            graph = number % 2
            made.append(shown(compiled(graphs[graph])) == wanted[graph])

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [True] * 18
    assert len(list(folder.iterdir())) == 2
