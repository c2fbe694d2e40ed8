"""Submissions that wgpu-native would end the process over, each in a process of its own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.adapters import new_device
from tests.backend.buffers import buffer_of, dispatched, empty_buffer, read
from tests.backend.held import fail, worked
from tests.backend.tensors import LONG, ONES, SHAPE, buffer_behind, tensor
from tests.graphs import assert_awaits, doubling, lost_info
from tests.loops import under_asyncio
from tests.processes import run_alone
from webnn_py import (
    ContextLostError,
    MLCommandEncoder,
    MLContext,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)

Scenario = tuple[Any, Callable[[], object], str]
"""A command buffer, what makes it invalid, and what the error says then."""
STORAGE = wgpu.BufferUsage.STORAGE
COPIES = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
READABLE = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
CODE = """
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
@compute @workgroup_size(1) fn main() { data[0] *= 3.0; }
@vertex fn vertex(@location(0) at: vec4f) -> @builtin(position) vec4f { return at; }
@fragment fn fragment() -> @location(0) vec4f { return vec4f(1.0); }
"""


def copied(context: MLContext, target: Any) -> Any:
    """A command buffer that writes into a buffer."""
    encoder = context.device.create_command_encoder()
    encoder.copy_buffer_to_buffer(buffer_of(context.device, ONES), 0, target, 0, 24)
    return encoder.finish()


def a_copy(context: MLContext) -> Scenario:
    buffer = empty_buffer(context.device, 24)
    return copied(context, buffer), buffer.destroy, "command buffer 0 .*GPUBuffer is destroyed"


def a_mapped_buffer(context: MLContext) -> Scenario:
    buffer = empty_buffer(context.device, 24, READABLE)
    wait = lambda: buffer.map_async("READ").sync_wait()  # noqa: E731
    return copied(context, buffer), wait, "is mapped"


def a_buffer_being_mapped(context: MLContext) -> Scenario:
    buffer = empty_buffer(context.device, 24, READABLE)
    return copied(context, buffer), lambda: buffer.map_async("READ"), "is mapped"


def a_compute_pass(context: MLContext) -> Scenario:
    buffer = empty_buffer(context.device, 24)
    commands = dispatched(context.device, CODE, buffer, 1)
    return commands, buffer.destroy, "GPUBuffer is destroyed"


def drawing(context: MLContext, target: Any, bundled: bool = False) -> tuple[Any, Any]:
    """A command buffer that draws, and its vertices."""
    device = context.device
    module = device.create_shader_module(code=CODE)
    attribute = {"format": "float32x4", "offset": 0, "shader_location": 0}
    vertices = device.create_buffer(size=48, usage=wgpu.BufferUsage.VERTEX)
    pipeline = device.create_render_pipeline(
        layout="auto",
        vertex={
            "module": module,
            "entry_point": "vertex",
            "buffers": [{"array_stride": 16, "attributes": [attribute]}],
        },
        fragment={
            "module": module,
            "entry_point": "fragment",
            "targets": [{"format": "rgba8unorm"}],
        },
    )
    encoder = device.create_command_encoder()
    clear = {"view": target.create_view(), "load_op": "clear", "store_op": "store"}
    render = encoder.begin_render_pass(color_attachments=[clear])
    bundle = device.create_render_bundle_encoder(color_formats=["rgba8unorm"])
    draws = bundle if bundled else render
    draws.set_pipeline(pipeline)
    draws.set_vertex_buffer(0, vertices)
    draws.draw(3)
    if bundled:
        render.execute_bundles([bundle.finish()])
    render.end()
    return encoder.finish(), vertices


def a_render_target(context: MLContext) -> Scenario:
    target = image(context)
    return drawing(context, target)[0], target.destroy, "GPUTexture is destroyed"


def vertices_drawn(context: MLContext) -> Scenario:
    commands, vertices = drawing(context, image(context))
    return commands, vertices.destroy, "GPUBuffer is destroyed"


def a_render_bundle(context: MLContext) -> Scenario:
    commands, vertices = drawing(context, image(context), bundled=True)
    return commands, vertices.destroy, "GPUBuffer is destroyed"


def image(context: MLContext) -> Any:
    usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
    return context.device.create_texture(size=(4, 4, 1), format="rgba8unorm", usage=usage)


def a_recorded_graph(context: MLContext) -> Scenario:
    y = empty_buffer(context.device, 24)
    encoder = MLCommandEncoder(context)
    encoder.dispatch(doubling(context), {"x": ONES}, {"y": y})
    return encoder.finish(), y.destroy, "GPUBuffer is destroyed"


def a_recorded_graph_s_tensor(context: MLContext) -> Scenario:
    y = tensor(context, exportable=True)
    encoder = MLCommandEncoder(context, encoder=context.device.create_command_encoder())
    encoder.dispatch(doubling(context), {"x": ONES}, {"y": y})

    def destroy() -> None:  # which is not lent while commands wait that use it
        buffer = buffer_behind(y)
        type(buffer).destroy(buffer)

    return encoder._commands._encoder.finish(), destroy, "GPUBuffer is destroyed"


def an_exported_buffer(context: MLContext) -> Scenario:
    lent = tensor(context, ONES, exportable=True)
    loan = context.export_to_gpu(lent)
    buffer = loan.__enter__()

    def destroy() -> None:
        buffer.destroy()
        loan.__exit__(None, None, None)

    return copied(context, buffer), destroy, "GPUBuffer is destroyed"


def commands_submitted_elsewhere(context: MLContext) -> Scenario:
    commands = copied(context, empty_buffer(context.device, 24))
    return commands, lambda: context.device.queue.submit([commands]), "submitted before"


SCENARIOS = (
    a_copy,
    a_mapped_buffer,
    a_buffer_being_mapped,
    a_compute_pass,
    a_render_target,
    vertices_drawn,
    a_render_bundle,
    a_recorded_graph,
    a_recorded_graph_s_tensor,
    an_exported_buffer,
    commands_submitted_elsewhere,
)


def assert_refused(context: MLContext, scenario: Callable[[MLContext], Scenario]) -> None:
    """Submitted at once, and parked first; the context lives on."""
    commands, mark, message = scenario(context)
    mark()
    for _ in range(2):
        with pytest.raises(ValidationError, match=message):
            context.submit([commands])
        with pytest.raises(ValidationError, match=message):
            context.device.queue.submit([commands])

    parked, mark, message = scenario(context)
    timeline = Timeline()
    context.submit([parked], sync=[timeline(wait=1, signal=2)])
    mark()
    timeline.signal(1)
    with pytest.raises(OperationError, match=message):
        timeline.wait_sync(2, timeout=LONG)
    with pytest.raises(OperationError, match=f"waited for a timeline failed: .*{message}"):
        context.flush()
    context.flush()

    good, _, _ = scenario(context)
    context.submit([good])
    assert_awaits(context)


def destroy_after_the_loan(context: MLContext) -> None:
    graph, x, y = doubling(context), tensor(context, ONES, exportable=True), tensor(context)
    with context.export_to_gpu(x) as buffer:
        pass
    context.dispatch(graph, {"x": x}, {"y": y})
    buffer.destroy()
    context.dispatch(graph, {"x": x}, {"y": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)


def submit_on_a_lost_device(context: MLContext) -> None:
    commands = copied(context, empty_buffer(context.device, 24))
    context.device.destroy()
    with pytest.raises(ContextLostError, match="lost"):
        context.submit([commands])
    assert "lost" in lost_info(context).message


def submit_nothing_on_a_lost_device(context: MLContext) -> None:
    commands = context.device.create_command_encoder().finish()
    context.device.destroy()
    with pytest.raises(ContextLostError, match="lost"):
        context.submit([commands])


def refuse_all() -> None:
    with ml.create_context_sync(device_type="gpu") as context:
        for scenario in SCENARIOS:
            print(scenario.__name__, flush=True)
            assert_refused(context, scenario)
        print("destroyed after the loan", flush=True)
        destroy_after_the_loan(context)
        print("a lost device", flush=True)
        submit_on_a_lost_device(context)
    with ml.create_context_sync(device_type="gpu") as context:
        submit_nothing_on_a_lost_device(context)


def test_invalid_submissions_are_errors(gpu: MLContext) -> None:
    run_alone(refuse_all)


# What is noted for it harms nobody


def test_a_device_of_before_the_context(gpu: MLContext) -> None:
    device = new_device()
    source, target = buffer_of(device, ONES), empty_buffer(device, 24)
    encoder = device.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, 0, target, 0, 24)
    commands = encoder.finish()
    with ml.create_context_sync(device) as context:
        assert isinstance(device, wgpu.GPUDevice)
        assert type(device).__name__ == "GPUDevice"
        context.submit([commands])
        np.testing.assert_array_equal(read(target, SHAPE), ONES)
        with pytest.raises(ValidationError, match="submitted before"):
            context.submit([commands])
    device.queue.submit([])


def test_one_command_buffer_twice(gpu: MLContext) -> None:
    commands = copied(gpu, empty_buffer(gpu.device, 24))
    for submit in (gpu.submit, gpu.device.queue.submit):
        with pytest.raises(ValidationError, match=r"command buffer 1: .* given twice"):
            submit([commands, commands])


def test_a_submission_that_failed_can_be_made_again(gpu: MLContext) -> None:
    target, gate = empty_buffer(gpu.device, 24), Timeline()
    commands = copied(gpu, target)
    gpu.submit([commands], sync=[gate(wait=1)])
    with pytest.raises(ValidationError, match="submitted before"):
        gpu.submit([commands])
    fail(gate)
    under_asyncio(lambda: worked(gpu))
    with pytest.raises(OperationError, match="boom"):
        gpu.flush()
    gpu.submit([commands])
    np.testing.assert_array_equal(read(target, SHAPE), ONES)


def test_what_commands_use_is_not_kept_once_they_are_submitted(gpu: MLContext) -> None:
    buffer = empty_buffer(gpu.device, 24)
    gone, commands = weakref.ref(buffer), copied(gpu, buffer)
    del buffer
    gpu.submit([commands])
    gc.collect()
    assert gone() is None
