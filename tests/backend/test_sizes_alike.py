"""Graphs with open dimensions compile little for sizes that they have not met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import awaited, normal
from tests.internals import prepared_for
from webnn_py import MLContext, MLGraph, MLGraphBuilder
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable

Made = Callable[[], int]
WIDTH = 8
WEIGHTS = normal(WIDTH, WIDTH)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """How many pipelines were made since it was asked last."""
    names: list[str] = []
    make = PipelineCache._make

    def counted(self: PipelineCache, name: str, key: Any) -> Any:
        names.append(name)
        return make(self, name, key)

    def since() -> int:
        count = len(names)
        names.clear()
        return count

    monkeypatch.setattr(PipelineCache, "_make", counted)
    return since


def attending(context: MLContext, batch: Any, length: Any) -> MLGraph:
    """Attention, and what else depends on sizes: means, divisors, places counted from the end."""
    b = MLGraphBuilder(context, dimensions={"length": (3, None)})
    x = b.input("x", "float32", [batch, length, WIDTH])
    last = b.gather(x, b.constant(np.array([-1, 0], np.int32)), axis=1)
    scores = b.matmul(b.matmul(x, b.constant(WEIGHTS)), b.transpose(x, permutation=[0, 2, 1]))
    y = b.matmul(b.softmax(scores, 2), x)
    outputs = {
        "y": y,
        "last": last,
        "mean": b.reduce_mean(y, axes=[1]),
        "turned": b.transpose(b.reshape(y, [x.shape[1], x.shape[0] * WIDTH])),
        "reflected": b.pad(x, [0, 2, 0], [0, 1, 0], mode="reflection"),
        "sums": b.cumulative_sum(x, axis=1),
    }
    return b.build_sync(outputs)


@pytest.mark.parametrize("device", ["gpu", "plain", "one_by_one"])
def test_hardly_anything_is_compiled_for_sizes_alike(
    request: pytest.FixtureRequest, made: Made, device: str
) -> None:
    context: MLContext = request.getfixturevalue(device)
    graph = attending(context, "batch", "length")
    compiled = []
    for length in (67, 69, 71, 73, 75, 77):
        x = normal(3, length, WIDTH, seed=length)
        found = awaited(graph, {"x": x})
        compiled.append(made())
        wanted = awaited(attending(context, 3, length), {"x": x})
        made()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    assert compiled[0] > 0
    assert sum(compiled[2:]) < 3, compiled


def test_a_cache_that_grows_is_compiled_for_a_few_times(gpu: MLContext, made: Made) -> None:
    """Lengths are of four kinds, by what is left of fours, and of some more by their tiles."""
    b = MLGraphBuilder(gpu)
    x, past = b.input("x", "float32", [1, WIDTH]), b.input("past", "float32", ["past", WIDTH])
    kept = b.concat([past, x], 0)
    weights = b.softmax(b.matmul(x, b.transpose(kept)), 1)
    graph = b.build_sync({"y": b.matmul(weights, kept), "kept": kept})
    cache, compiled = normal(65, WIDTH), []
    for step in range(24):
        token = normal(1, WIDTH, seed=step)
        found = awaited(graph, {"x": token, "past": cache})
        cache = np.concatenate([cache, token])
        np.testing.assert_array_equal(found["kept"], cache)
        scores = np.exp(token @ cache.T - (token @ cache.T).max())
        np.testing.assert_allclose(found["y"], scores / scores.sum() @ cache, rtol=1e-4, atol=1e-5)
        compiled.append(made())
    assert compiled[0] > 0
    assert sum(compiled[12:]) < 8, compiled


@pytest.mark.parametrize("first", ["7", "65"])
def test_sizes_may_come_in_any_order(gpu: MLContext, first: str) -> None:
    graph = attending(gpu, "batch", "length")
    rng = np.random.default_rng(int(first))
    drawn = rng.integers([1, 3], [5, 80], (8, 2)).tolist()
    for batch, length in [(1, int(first)), *drawn]:
        x = normal(batch, length, WIDTH, seed=length)
        found = awaited(graph, {"x": x})
        wanted = awaited(attending(gpu, batch, length), {"x": x})
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_sizes_alike_share_their_weights(gpu: MLContext) -> None:
    graph = attending(gpu, 1, "length")
    places = []
    for length in (67, 69, 71, 73):
        awaited(graph, {"x": normal(1, length, WIDTH, seed=length)})
        executable = prepared_for(graph, length=length).executable
        assert isinstance(executable, WebGPUExecutable)
        places.append(executable.loaded.places_of(executable.compiled.constants))
    assert places[1]
    assert places[1] == places[2] == places[3]


def buffers_of(graph: MLGraph, length: int) -> dict[int, int]:
    """Bytes of the buffers between its kernels."""
    executable = prepared_for(graph, length=length).executable
    assert isinstance(executable, WebGPUExecutable)
    between = executable.loaded.places_of(executable.compiled.plan.slots)
    return {id(place.buffer): place.buffer.size for place in between.values()}


def test_runs_for_all_sizes_compute_in_a_few_buffers(gpu: MLContext) -> None:
    """Those that were made for smaller ones before are there besides."""
    graph = attending(gpu, 1, "length")
    there: dict[int, int] = {}
    for length in range(30, 130):
        awaited(graph, {"x": normal(1, length, WIDTH)})
        there |= buffers_of(graph, length)
    largest = buffers_of(graph, 129)
    assert len(there) <= 12 * len(largest)
    assert sum(there.values()) < 4 * sum(largest.values())
    again = [buffers_of(graph, length) for length in (128, 90, 40)]
    for length in (17, 29):
        awaited(graph, {"x": normal(1, length, WIDTH)})
        assert buffers_of(graph, length).keys() <= largest.keys()
    assert again == [buffers_of(graph, length) for length in (128, 90, 40)]


def test_listings_are_of_the_sizes(gpu: MLContext) -> None:
    graph = attending(gpu, "batch", "length")
    for length in (67, 69, 71):
        awaited(graph, {"x": normal(2, length, WIDTH)})
        prepared = prepared_for(graph, batch=2, length=length)
        assert f"float32[2,{length},{WIDTH}]" in str(prepared.listing)
        steps = prepared.executable.steps()
        assert steps is not None
        assert [value.shape for value in steps.graph.inputs] == [(2, length, WIDTH)]
        made = {value.shape for node in steps.graph.nodes for value in node.outputs}
        assert {value.shape for _, value in steps.graph.outputs} <= made
        assert (2, length, WIDTH) in made
