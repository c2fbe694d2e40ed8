"""Copies of a tensor's exact bytes, also between buffers whose usage allows no copy commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wgpu

from webnn_py.engines.webgpu.runtime.devices.binding import Binding, copy_binding
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device

WORD_BYTES = 4
MAX_COPY_INVOCATIONS = 1 << 20
"""Invocations of a copy kernel; each copies words at a stride of all invocations."""
WORKGROUP_SIZE = 64


def copy_exactly(gpu: Device, source: Binding, target: Binding, size: int) -> Callable[[Any], None]:
    """Return a function that records the copy of exactly `size` bytes.

    Copy commands move whole words. So the last words of both buffers are copied into a scratch
    buffer, merged by a kernel, and copied back. If a buffer's usage allows no copy command, a
    kernel copies everything; both buffers then need the usage STORAGE.
    """
    if not _can_copy(source, target, size):
        return _copy_by_kernel(gpu, source, target, size)
    whole = size // WORD_BYTES * WORD_BYTES
    if whole == size:
        return lambda encoder: copy_binding(encoder, source, target)
    pipeline = gpu.pipelines.get("the end of a result", _merge_code(size - whole))
    words = gpu.buffer(2 * WORD_BYTES, STORAGE | COPIES, "the end of a result")
    entry = {"binding": 0, "resource": {"buffer": words, "offset": 0, "size": 2 * WORD_BYTES}}
    layout = pipeline.get_bind_group_layout(0)
    group = gpu.handle.create_bind_group(layout=layout, entries=[entry])

    def record(encoder: Any) -> None:
        if whole:
            copy_binding(encoder, _first(source, whole), _first(target, whole))
        for index, binding in enumerate((source, target)):
            start = binding.offset + whole
            at = index * WORD_BYTES
            encoder.copy_buffer_to_buffer(binding.buffer, start, words, at, WORD_BYTES)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        encoder.copy_buffer_to_buffer(words, 0, target.buffer, target.offset + whole, WORD_BYTES)

    return record


def _can_copy(source: Binding, target: Binding, size: int) -> bool:
    wanted = COPIES if size % WORD_BYTES else wgpu.BufferUsage.COPY_DST
    readable = source.buffer.usage & wgpu.BufferUsage.COPY_SRC
    return bool(readable) and target.buffer.usage & wanted == wanted


def _copy_by_kernel(
    gpu: Device, source: Binding, target: Binding, size: int
) -> Callable[[Any], None]:
    whole = -(-size // WORD_BYTES) * WORD_BYTES
    most = gpu.features.binding_bytes // gpu.offset_alignment * gpu.offset_alignment
    dispatches = []
    for start in range(0, whole, most):
        length = min(most, whole - start)
        used = size % WORD_BYTES if start + length == whole else 0
        pipeline = gpu.pipelines.get("the copy of a tensor", _copy_code(used))
        parts = (Binding(p.buffer, p.offset + start, length) for p in (source, target))
        group = gpu.bind_group(pipeline.get_bind_group_layout(0), [part.entry for part in parts])
        dispatches.append(
            (pipeline, group, -(-min(length // WORD_BYTES, MAX_COPY_INVOCATIONS) // WORKGROUP_SIZE))
        )

    def record(encoder: Any) -> None:
        compute = encoder.begin_compute_pass()
        for pipeline, group, workgroups in dispatches:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(workgroups)
        compute.end()

    return record


def _copy_code(used: int) -> str:
    """Return a kernel that copies words, but only `used` bytes of the last one if that is not 0."""
    mask = (1 << 8 * used) - 1
    end = f"written[whole] = (given[whole] & {mask}u) | (written[whole] & {mask ^ 0xFFFFFFFF}u);"
    return f"""@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read_write> written: array<u32>;
@compute @workgroup_size({WORKGROUP_SIZE})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {{
  let whole = arrayLength(&given) - {min(used, 1)}u;
  for (var i = id.x; i < whole; i += n.x * {WORKGROUP_SIZE}u) {{ written[i] = given[i]; }}
  {f"if (id.x == 0u) {{ {end} }}" if used else ""}
}}
"""


def _first(binding: Binding, size: int) -> Binding:
    return Binding(binding.buffer, binding.offset, size)


def _merge_code(used: int) -> str:
    """Return a kernel that takes `used` bytes of the first word and the rest of the second."""
    mask = (1 << 8 * used) - 1
    return f"""@group(0) @binding(0) var<storage, read_write> words: array<u32, 2>;
@compute @workgroup_size(1)
fn main() {{ words[0] = (words[0] & {mask}u) | (words[1] & {mask ^ 0xFFFFFFFF}u); }}
"""
