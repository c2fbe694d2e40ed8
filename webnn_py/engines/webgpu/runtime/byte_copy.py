"""Copies of tensors: of just their bytes, and of buffers that only kernels may read or write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wgpu

from webnn_py.engines.webgpu.runtime.devices.binding import Binding, copy_binding
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device

WORD = 4
THREADS = 1 << 20
"""Invocations of a copy by a kernel at most; each copies every so manieth word."""
GROUP = 64


def copy_exactly(gpu: Device, source: Binding, target: Binding, size: int) -> Callable[[Any], None]:
    """What records the copy of `size` bytes, though copies are of whole words.

    The last word of both is brought together in a buffer of its own, merged there, and put back.
    Where a buffer's usage allows no copy, a kernel makes it, which needs STORAGE of both.
    """
    if not _can_copy(source, target, size):
        return _copy_by_kernel(gpu, source, target, size)
    whole = size // WORD * WORD
    if whole == size:
        return lambda encoder: copy_binding(encoder, source, target)
    pipeline = gpu.pipelines.get("the end of a result", _merging(size - whole))
    words = gpu.buffer(2 * WORD, STORAGE | COPIES, "the end of a result")
    entry = {"binding": 0, "resource": {"buffer": words, "offset": 0, "size": 2 * WORD}}
    layout = pipeline.get_bind_group_layout(0)
    group = gpu.handle.create_bind_group(layout=layout, entries=[entry])

    def record(encoder: Any) -> None:
        if whole:
            copy_binding(encoder, _first(source, whole), _first(target, whole))
        for place, binding in enumerate((source, target)):
            start = binding.offset + whole
            encoder.copy_buffer_to_buffer(binding.buffer, start, words, place * WORD, WORD)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        encoder.copy_buffer_to_buffer(words, 0, target.buffer, target.offset + whole, WORD)

    return record


def _can_copy(source: Binding, target: Binding, size: int) -> bool:
    wanted = COPIES if size % WORD else wgpu.BufferUsage.COPY_DST
    readable = source.buffer.usage & wgpu.BufferUsage.COPY_SRC
    return bool(readable) and target.buffer.usage & wanted == wanted


def _copy_by_kernel(
    gpu: Device, source: Binding, target: Binding, size: int
) -> Callable[[Any], None]:
    whole = -(-size // WORD) * WORD
    most = gpu.features.binding_bytes // gpu.offset_alignment * gpu.offset_alignment
    dispatches = []
    for start in range(0, whole, most):
        length = min(most, whole - start)
        used = size % WORD if start + length == whole else 0
        pipeline = gpu.pipelines.get("the copy of a tensor", _copying(used))
        parts = (Binding(p.buffer, p.offset + start, length) for p in (source, target))
        group = gpu.bind_group(pipeline.get_bind_group_layout(0), [part.entry for part in parts])
        dispatches.append((pipeline, group, -(-min(length // WORD, THREADS) // GROUP)))

    def record(encoder: Any) -> None:
        compute = encoder.begin_compute_pass()
        for pipeline, group, workgroups in dispatches:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(workgroups)
        compute.end()

    return record


def _copying(used: int) -> str:
    """A kernel that copies words, and of the last one only `used` bytes, or all where that is 0."""
    mask = (1 << 8 * used) - 1
    end = f"written[whole] = (given[whole] & {mask}u) | (written[whole] & {mask ^ 0xFFFFFFFF}u);"
    return f"""@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read_write> written: array<u32>;
@compute @workgroup_size({GROUP})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {{
  let whole = arrayLength(&given) - {min(used, 1)}u;
  for (var i = id.x; i < whole; i += n.x * {GROUP}u) {{ written[i] = given[i]; }}
  {f"if (id.x == 0u) {{ {end} }}" if used else ""}
}}
"""


def _first(binding: Binding, size: int) -> Binding:
    return Binding(binding.buffer, binding.offset, size)


def _merging(used: int) -> str:
    """A kernel that gives the first word the bytes of the second from byte `used` on."""
    mask = (1 << 8 * used) - 1
    return f"""@group(0) @binding(0) var<storage, read_write> words: array<u32, 2>;
@compute @workgroup_size(1)
fn main() {{ words[0] = (words[0] & {mask}u) | (words[1] & {mask ^ 0xFFFFFFFF}u); }}
"""
