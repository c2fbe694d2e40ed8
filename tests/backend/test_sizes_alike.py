"""Graphs with open dimensions compile little for sizes that they have not met."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.backend.test_slices import frames
from tests.graphs import awaited, normal
from tests.internals import bindings_of, prepared_for
from webnn_py import MLCommandEncoder, MLContext, MLGraph, MLGraphBuilder, MLTensor
from webnn_py.engines.webgpu.runtime import device_template
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable

Made = Callable[[], int]
WIDTH = 8
WEIGHTS = normal(WIDTH, WIDTH)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """How many pipelines were made since it was asked last."""
    names: list[str] = []
    make = PipelineCache._compile

    def counted(self: PipelineCache, name: str, key: Any) -> Any:
        names.append(name)
        return make(self, name, key)

    def since() -> int:
        count = len(names)
        names.clear()
        return count

    monkeypatch.setattr(PipelineCache, "_compile", counted)
    return since


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Made:
    """How many bind groups were made since it was asked last."""
    count = itertools.count()
    bind, last = Device.bind_places, 0

    def counted(self: Device, *given: Any) -> Any:
        next(count)
        return bind(self, *given)

    def since() -> int:
        nonlocal last
        before, last = last, next(count) + 1
        return last - before - 1

    monkeypatch.setattr(Device, "bind_places", counted)
    return since


def attending(context: MLContext, batch: Any, length: Any) -> MLGraph:
    """Attention, and what else depends on sizes: means, divisors, places counted from the end."""
    b = MLGraphBuilder(context, dimensions={"length": (3, None)} if length == "length" else {})
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


def means(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `attending` has as "mean"."""
    scores = x @ WEIGHTS @ x.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    made: np.ndarray[Any, Any] = (weights / weights.sum(2, keepdims=True) @ x).mean(1)
    return made


@pytest.mark.parametrize("device", ["gpu", "plain", "software"])
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
        places.append(bindings_of(executable.loaded, executable.compiled.constants))
    assert places[1]
    assert places[1] == places[2] == places[3]


def test_bind_groups_are_made_once_for_many_sizes(gpu: MLContext, bound: Made) -> None:
    """Anew where buffers grow or are shared by too many; what ran before leaves nothing there."""
    graph, made = attending(gpu, 1, "length"), []
    awaited(graph, {"x": np.full((1, 150, WIDTH), np.nan, np.float32)})
    for length in (67, *range(145, 75, -1)):
        x = normal(1, length, WIDTH, seed=length)
        found = awaited(graph, {"x": x})
        made.append(bound())
        np.testing.assert_allclose(found["mean"], means(x), rtol=1e-4, atol=1e-5)
    assert made[0] > 0
    assert sum(map(bool, made)) < 12, made


def test_many_numbers_lie_in_buffers_of_their_own(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_template, "MAX_WORDS_BUFFER_BYTES", 1)
    graph, buffers = attending(gpu, 1, "length"), set()
    for length in (66, 68, 72, 76, 80):
        x = normal(1, length, WIDTH, seed=length)
        np.testing.assert_allclose(awaited(graph, {"x": x})["mean"], means(x), rtol=1e-4, atol=1e-5)
        buffers.add(prepared_for(graph, length=length).executable.loaded.words.buffer)
    assert len(buffers) == 5


@pytest.mark.parametrize("lengths", [(70, 72, 75), (75, 72, 70)])
def test_sizes_alike_are_recorded_side_by_side(gpu: MLContext, lengths: Sequence[int]) -> None:
    """In one submission, each with the numbers that it reads; in slices, too."""
    graph = attending(gpu, 1, "length")
    given = {n: normal(1, n, WIDTH, seed=n) for n in (67, *lengths)}
    wanted = {n: awaited(attending(gpu, 1, n), {"x": x}) for n, x in given.items()}
    awaited(graph, {"x": given[67]})
    encoder, outputs = MLCommandEncoder(gpu), {}
    for length in lengths:
        shapes = graph.output_shapes({"length": length})
        outputs[length] = {
            name: gpu.create_tensor_sync("float32", shape, readable=True)
            for name, shape in shapes.items()
        }
        encoder.dispatch(graph, {"x": given[length]}, outputs[length])
    gpu.submit([encoder.finish()])
    for length in lengths:
        assert_read(gpu, outputs[length], wanted[length])
        job = gpu.slice_dispatch(graph, {"x": given[length]}, outputs[length])
        frames(gpu, job, budget=0.01)
        assert_read(gpu, outputs[length], wanted[length])


def assert_read(
    context: MLContext, tensors: Mapping[str, MLTensor], wanted: Mapping[str, Any]
) -> None:
    for name, tensor in tensors.items():
        np.testing.assert_allclose(
            context.read_tensor_sync(tensor), wanted[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


def buffers_of(graph: MLGraph, length: int) -> dict[int, int]:
    """Bytes of the buffers between its kernels."""
    executable = prepared_for(graph, length=length).executable
    assert isinstance(executable, WebGPUExecutable)
    between = bindings_of(executable.loaded, executable.compiled.plan.slots)
    return {id(place.buffer): place.buffer.size for place in between.values()}


def test_runs_for_all_sizes_compute_in_a_few_buffers(gpu: MLContext) -> None:
    """Those that were made for smaller ones before are there besides."""
    graph = attending(gpu, 1, "length")
    there: dict[int, int] = {}
    for length in range(30, 130, 3):
        awaited(graph, {"x": normal(1, length, WIDTH)})
        there |= buffers_of(graph, length)
    largest = buffers_of(graph, 129)
    assert len(there) <= 12 * len(largest)
    assert sum(there.values()) < 4 * sum(largest.values())
    again = [buffers_of(graph, length) for length in (126, 90, 42)]
    for length in (17, 29):
        awaited(graph, {"x": normal(1, length, WIDTH)})
        assert buffers_of(graph, length).keys() <= largest.keys()
    assert again == [buffers_of(graph, length) for length in (126, 90, 42)]


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
