"""Runs recorded in slices give what whole runs give, whatever happens between the slices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.graphs import normal
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    Timeline,
    ValidationError,
    ml,
)

X = normal(1, 3, 16, 16)
USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
TINY = 1e-9  # one kernel a slice


def network(context: MLContext, layers: int = 4) -> MLGraph:
    """Convolutions, one after the other, each read by a sum at the end."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", X.shape)
    total = h = b.conv2d(x, b.constant(normal(8, 3, 3, 3)), padding=[1] * 4)
    for seed in range(layers):
        h = b.tanh(b.conv2d(h, b.constant(normal(8, 8, 3, 3, seed=seed)), padding=[1] * 4))
        total = b.add(total, h)
    return b.build_sync({"y": total, "z": b.reduce_mean(total)})


def buffers(context: MLContext, graph: MLGraph) -> dict[str, Any]:
    return {
        name: context.device.create_buffer(size=4 * int(np.prod(d.shape)), usage=USAGE)
        for name, d in graph.outputs.items()
    }


def read(context: MLContext, outputs: Mapping[str, Any]) -> dict[str, bytes]:
    queue = context.device.queue
    return {name: bytes(queue.read_buffer(buffer)) for name, buffer in outputs.items()}


def whole(context: MLContext, graph: MLGraph, x: Any = X) -> dict[str, bytes]:
    """What one dispatch gives."""
    outputs = buffers(context, graph)
    encoder = MLCommandEncoder(context)
    encoder.dispatch(graph, {"x": x}, outputs)
    context.device.queue.submit([encoder.finish()])
    return read(context, outputs)


def frames(
    context: MLContext, job: Any, budget: float, between: Callable[[Any], None] = lambda e: None
) -> int:
    """Record and submit to the end; how many slices that took."""
    count, done = 0, False
    while not done:
        encoder = context.device.create_command_encoder()
        done = MLCommandEncoder(context, encoder=encoder).dispatch_slice(job, budget_ms=budget)
        between(encoder)
        context.device.queue.submit([encoder.finish()])
        count += 1
        assert count < 10_000
    return count


def record(context: MLContext, job: Any) -> bool:
    """Record one kernel and submit it; whether it was the last one."""
    encoder = MLCommandEncoder(context)
    done = encoder.dispatch_slice(job, budget_ms=TINY)
    context.submit([encoder.finish()])
    return done


@pytest.mark.parametrize("budget", [TINY, 0.05, 1e9, sys.float_info.max])
def test_slices_give_what_a_whole_run_gives(each_device: MLContext, budget: float) -> None:
    graph = network(each_device)
    for _ in range(3):  # guessed, stamped, measured
        outputs = buffers(each_device, graph)
        job = each_device.slice_dispatch(graph, {"x": X}, outputs)
        count = frames(each_device, job, budget)
        assert read(each_device, outputs) == whole(each_device, graph)
        if budget >= 1e9:
            assert count == 1
        elif budget == TINY:  # the others depend on the device
            assert count > 1
        assert job.done
        assert job.progress == 1


def test_outputs_that_are_left_out_or_can_only_be_bound(gpu: MLContext) -> None:
    graph = network(gpu)
    usage = USAGE & ~wgpu.BufferUsage.COPY_DST
    outputs = {"y": gpu.device.create_buffer(size=8192, usage=usage)}
    job = gpu.slice_dispatch(graph, {"x": X}, outputs)
    frames(gpu, job, TINY)
    assert read(gpu, outputs)["y"] == whole(gpu, graph)["y"]


def test_other_runs_of_the_graph_between_slices(gpu: MLContext) -> None:
    graph = network(gpu)
    expected = whole(gpu, graph)
    outputs, others = buffers(gpu, graph), buffers(gpu, graph)

    def between(encoder: Any) -> None:
        MLCommandEncoder(gpu, encoder=encoder).dispatch(graph, {"x": 2 * X}, others)

    frames(gpu, gpu.slice_dispatch(graph, {"x": X}, outputs), TINY, between)
    assert read(gpu, outputs) == expected
    assert read(gpu, others) == whole(gpu, graph, 2 * X)


def test_two_runs_at_once(gpu: MLContext) -> None:
    graph = network(gpu)
    inputs = [X, -X]
    outputs = [buffers(gpu, graph) for _ in inputs]
    jobs = [gpu.slice_dispatch(graph, {"x": x}, o) for x, o in zip(inputs, outputs, strict=True)]
    left = list(jobs)
    while left:
        encoder = MLCommandEncoder(gpu)
        left = [job for job in left if not encoder.dispatch_slice(job, budget_ms=TINY)]
        gpu.submit([encoder.finish()])
    for x, made in zip(inputs, outputs, strict=True):
        assert read(gpu, made) == whole(gpu, graph, x)


def test_a_run_that_begins_before_the_last_slice_of_another_is_submitted(gpu: MLContext) -> None:
    graph = network(gpu)
    inputs = [X, -X]
    outputs = [buffers(gpu, graph) for _ in inputs]
    recorded: list[list[Any]] = []
    for x, made in zip(inputs, outputs, strict=True):
        job, slices = gpu.slice_dispatch(graph, {"x": x}, made), []
        while not job.done:
            encoder = MLCommandEncoder(gpu)
            encoder.dispatch_slice(job, budget_ms=TINY)
            slices.append(encoder.finish())
        recorded.append(slices)
    for pair in zip(*recorded, strict=True):
        gpu.submit(pair)
    for x, made in zip(inputs, outputs, strict=True):
        assert read(gpu, made) == whole(gpu, graph, x)


def test_inputs_are_read_first_and_outputs_written_last(gpu: MLContext) -> None:
    graph = network(gpu)
    expected = whole(gpu, graph)
    array = X.copy()
    source = gpu.device.create_buffer_with_data(data=X, usage=USAGE)
    for x, spoil in (
        (array, lambda: array.fill(0)),
        (source, lambda: gpu.device.queue.write_buffer(source, 0, np.zeros_like(X))),
    ):
        outputs = buffers(gpu, graph)
        job = gpu.slice_dispatch(graph, {"x": x}, outputs)
        if x is array:
            spoil()
        done = False
        while not done:
            assert not any(map(any, read(gpu, outputs).values()))
            encoder = MLCommandEncoder(gpu)
            done = encoder.dispatch_slice(job, budget_ms=TINY)
            gpu.submit([encoder.finish()])
            spoil()
        assert read(gpu, outputs) == expected


def test_a_recurrence_is_cut_within(gpu: MLContext) -> None:
    steps, size = 40, 5
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", [steps, 1, 3])
    weights = b.constant(normal(1, 4 * size, 3)), b.constant(normal(1, 4 * size, size))
    h, c = b.lstm(x, *weights, steps=steps, hidden_size=size)
    graph = b.build_sync({"y": h, "z": c})
    given = normal(steps, 1, 3)
    outputs = buffers(gpu, graph)
    frames(gpu, gpu.slice_dispatch(graph, {"x": given}, outputs), TINY)
    assert read(gpu, outputs) == whole(gpu, graph, given)


def test_tensors_and_open_sizes(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", ["n", 4])
    graph = b.build_sync({"y": b.softmax(b.relu(x), 1)})
    for n in (1, 6):
        given = normal(n, 4)
        source = gpu.create_tensor_sync("float32", [n, 4], writable=True)
        target = gpu.create_tensor_sync("float32", [n, 4], readable=True)
        gpu.write_tensor(source, given)
        frames(gpu, gpu.slice_dispatch(graph, {"x": source}, {"y": target}), TINY)
        e = np.exp(np.maximum(given, 0))
        np.testing.assert_allclose(
            gpu.read_tensor_sync(target), e / e.sum(1, keepdims=True), rtol=1e-5
        )


def test_constants_of_the_graph(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x, w = b.input("x", "float32", [4]), b.input("w", "float32", [4])
    graph = b.build_sync({"y": b.exp(b.mul(x, w))})
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"w": np.full(4, 2, np.float32)})
    gpu.submit([encoder.finish()])
    outputs = buffers(gpu, graph)
    frames(gpu, gpu.slice_dispatch(graph, {"x": np.ones(4, np.float32)}, outputs), TINY)
    np.testing.assert_allclose(
        np.frombuffer(read(gpu, outputs)["y"], np.float32), np.exp(2), rtol=1e-5
    )


def test_textures(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", [1, 4, 2, 2])
    graph = b.build_sync({"y": b.sub(b.constant(1.0, "float32"), x)})
    usage = wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_DST
    usage |= wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.COPY_SRC
    source, target = (
        gpu.device.create_texture(size=(2, 2, 1), format="rgba8unorm", usage=usage)
        for _ in range(2)
    )
    data = np.arange(0, 160, 10, np.uint8)
    layout = {"offset": 0, "bytes_per_row": 8, "rows_per_image": 2}
    gpu.device.queue.write_texture({"texture": source}, data, layout, (2, 2, 1))
    frames(gpu, gpu.slice_dispatch(graph, {"x": source}, {"y": target}), TINY)
    got = gpu.device.queue.read_texture({"texture": target}, layout, (2, 2, 1))
    np.testing.assert_array_equal(np.frombuffer(got, np.uint8), 255 - data)


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), "much"])
def test_budgets_that_are_refused(gpu: MLContext, budget: Any) -> None:
    graph = network(gpu)
    job = gpu.slice_dispatch(graph, {"x": X}, buffers(gpu, graph))
    with pytest.raises(ValidationError, match="budget_ms"):
        MLCommandEncoder(gpu).dispatch_slice(job, budget_ms=budget)


def test_what_is_refused(gpu: MLContext, cpu: MLContext) -> None:
    graph = network(gpu)
    outputs = buffers(gpu, graph)
    with pytest.raises(InvalidStateError, match="GPU context"):
        cpu.slice_dispatch(graph, {"x": X}, outputs)
    with pytest.raises(DataError, match="outputs: got none"):
        gpu.slice_dispatch(graph, {"x": X}, {})
    bare = gpu.device.create_buffer(size=8192, usage=wgpu.BufferUsage.VERTEX)
    with pytest.raises(DataError, match=r"lacks STORAGE \(or COPY_DST\)"):
        gpu.slice_dispatch(graph, {"x": X}, outputs | {"y": bare})
    with pytest.raises(ValidationError, match="job: got"):
        MLCommandEncoder(gpu).dispatch_slice("job")  # type: ignore[arg-type]
    job = gpu.slice_dispatch(graph, {"x": X}, outputs)
    with ml.create_context_sync(device_type="gpu") as other, pytest.raises(DataError):
        MLCommandEncoder(other).dispatch_slice(job, budget_ms=1)
    assert frames(gpu, job, 1e9) == 1
    with pytest.raises(InvalidStateError, match="last slice was recorded"):
        MLCommandEncoder(gpu).dispatch_slice(job, budget_ms=1)


def test_a_resource_destroyed_between_slices(gpu: MLContext) -> None:
    graph = network(gpu)
    outputs = buffers(gpu, graph)
    job = gpu.slice_dispatch(graph, {"x": X}, outputs)
    encoder = MLCommandEncoder(gpu)
    assert not encoder.dispatch_slice(job, budget_ms=TINY)
    gpu.submit([encoder.finish()])
    outputs["y"].destroy()
    with pytest.raises(DataError, match="destroyed"):
        MLCommandEncoder(gpu).dispatch_slice(job, budget_ms=TINY)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", ["x", "y"])
def test_a_tensor_exported_or_destroyed_between_slices(
    gpu: MLContext, name: str, begun: bool
) -> None:
    graph = network(gpu)
    x, y = (
        gpu.create_tensor_sync("float32", shape, exportable=True)
        for shape in (X.shape, graph.outputs["y"].shape)
    )
    tensor = {"x": x, "y": y}[name]
    job = gpu.slice_dispatch(graph, {"x": x}, {"y": y})
    if begun:
        assert not record(gpu, job)
    exported = pytest.raises(InvalidStateError, match="the MLTensor is exported")
    with gpu.export_to_gpu(tensor), exported:
        record(gpu, job)
    assert not record(gpu, job)
    tensor.destroy()
    with pytest.raises(DataError, match="the MLTensor is destroyed"):
        record(gpu, job)


def test_a_tensor_of_a_context_that_is_lost_between_slices(gpu: MLContext) -> None:
    graph = network(gpu)
    with ml.create_context_sync(gpu.device) as other:
        y = other.create_tensor_sync("float32", graph.outputs["y"].shape)
        job = gpu.slice_dispatch(graph, {"x": X}, {"y": y})
        assert not record(gpu, job)
    with pytest.raises(DataError, match="own context is lost"):
        record(gpu, job)


def test_parked_work_on_a_tensor_of_the_run(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    graph = b.build_sync({"y": b.relu(b.input("x", "float32", [2]))})
    x, y, z = (gpu.create_tensor_sync("float32", [2], readable=True) for _ in range(3))
    timeline = Timeline()
    gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[timeline(wait=1)])
    job = gpu.slice_dispatch(graph, {"x": y}, {"y": z})
    with pytest.raises(InvalidStateError, match="waits for a timeline"):
        MLCommandEncoder(gpu).dispatch_slice(job, budget_ms=1)
    timeline.signal(1)
    assert frames(gpu, job, 1e9) == 1


def test_a_run_outlives_its_graph_but_not_its_context() -> None:
    with ml.create_context_sync(device_type="gpu") as context:
        graph = network(context)
        expected = whole(context, graph)
        outputs = buffers(context, graph)
        job = context.slice_dispatch(graph, {"x": X}, outputs)
        graph.destroy()
        frames(context, job, TINY)
        assert read(context, outputs) == expected
        encoder = MLCommandEncoder(context)
    with pytest.raises(ContextLostError):
        encoder.dispatch_slice(job, budget_ms=1)
