"""GPU buffers that tests write and read, and recordings that they submit."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

from tests.internals import context_of
from webnn_py import MLCommandEncoder, MLContext, MLGraph
from webnn_py.engines.webgpu.runtime.fallback import device_of

STORAGE = wgpu.BufferUsage.STORAGE
COPIES = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
Array = np.ndarray[Any, Any]
TRIPLE = """
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3u) { data[id.x] *= 3.0; }
"""


def buffer_of(device: Any, array: Array, usage: int = STORAGE | COPIES) -> Any:
    """A buffer with an array's contents."""
    return device.create_buffer_with_data(data=np.ascontiguousarray(array), usage=usage)


def empty_buffer(device: Any, size: int, usage: int = STORAGE | COPIES) -> Any:
    """A buffer of zeros."""
    return device.create_buffer(size=size, usage=usage)


def read(buffer: Any, shape: Any = -1, dtype: Any = np.float32, offset: int = 0) -> Array:
    """A buffer's contents from `offset`, which must have COPY_SRC; as many as the shape has."""
    size = None if shape == -1 else int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = device_of(buffer).queue.read_buffer(buffer, offset, -(-size // 4) * 4 if size else None)
    return np.frombuffer(data, np.uint8)[:size].view(dtype).reshape(shape)


def device_for(graph: MLGraph) -> Any:
    """Return the device of a graph's context."""
    return context_of(graph).device


def encoder_of(graph: MLGraph) -> MLCommandEncoder:
    """Return an encoder on a graph's context."""
    return MLCommandEncoder(context_of(graph))


def submit(encoder: MLCommandEncoder, context: MLContext) -> None:
    """Finish a recording and submit it."""
    context.device.queue.submit([encoder.finish()])


def run_recorded(graph: MLGraph, inputs: Any, outputs: Any) -> None:
    """Dispatch once in a recording of its own, and submit it."""
    encoder = MLCommandEncoder(context_of(graph))
    encoder.dispatch(graph, inputs, outputs)
    submit(encoder, context_of(graph))


def dispatched(device: Any, code: str, buffer: Any, workgroups: int) -> Any:
    """A command buffer of the user's: a compute pass over the whole of a buffer."""
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}],
    )
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(workgroups)
    compute.end()
    return encoder.finish()


def tripling(context: MLContext, buffer: Any) -> Any:
    """A command buffer of the user's that triples six floats."""
    return dispatched(context.device, TRIPLE, buffer, 6)


def copying(context: MLContext, source: Any, target: Any) -> Any:
    """A command buffer of the user's that copies six floats."""
    encoder = context.device.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, 0, target, 0, 24)
    return encoder.finish()
