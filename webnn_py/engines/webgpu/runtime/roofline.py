"""Roofline of a device: peak arithmetic and memory bandwidth, and waking it to full clock.

Arithmetic is measured by multiply-adds in registers, bandwidth by a copy. A GPU that was idle for a
second runs at a fifth of its clock at first and raises it step by step.
"""

from __future__ import annotations

from typing import Any

import wgpu

from webnn_py.engines.profile import Roof, until_steady
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.profiling import clock_of
from webnn_py.engines.webgpu.runtime.webgpu_api import DispatchCommands

ARITHMETIC = """
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@compute @workgroup_size(GROUP) fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let factor = 0.5 + f32(g.x) * 1e-9;
  var a = vec4<f32>(f32(g.x));
  var b = a + 1.0; var c = a + 2.0; var d = a + 3.0;
  for (var i = 0u; i < ITERATIONSu; i++) {
    a = fma(a, vec4<f32>(factor), b); b = fma(b, vec4<f32>(factor), c);
    c = fma(c, vec4<f32>(factor), d); d = fma(d, vec4<f32>(factor), a);
  }
  out[g.x] = a + b + c + d;
}
"""
COPY = """
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> source: array<vec4<f32>>;
@compute @workgroup_size(GROUP) fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  out[g.x] = source[g.x];
}
"""
MAX_WORKGROUP_SIZE = 256
"""Invocations of a workgroup, unless the device allows fewer."""
FLOP_PER_ITERATION = 4 * 4 * 2


def measure_roof(gpu: Device) -> Roof:
    """Measure a device's peak FLOP/s and bytes/s; takes some tenths of a second."""
    groups, iterations = (4096, 1024) if gpu.hardware else (64, 256)
    group = _group(gpu)
    groups = min(groups, gpu.features.grid)
    invocations = groups * group
    copied = min(256 << 20 if gpu.hardware else 32 << 20, gpu.features.binding_bytes)
    copy_groups = min(copied // 16 // group, gpu.features.grid)
    usage = wgpu.BufferUsage.STORAGE
    out, source = (gpu.buffer(max(copied, invocations * 16), usage, "roof") for _ in range(2))
    arithmetic = _commands(gpu, ARITHMETIC.replace("ITERATIONS", str(iterations)), [out], groups)
    copy = _commands(gpu, COPY, [out, source], copy_groups)
    seconds = clock_of(gpu).measure([arithmetic, copy] * 4)
    return Roof(
        invocations * iterations * FLOP_PER_ITERATION / max(min(seconds[::2]), 1e-9),
        2 * copy_groups * group * 16 / max(min(seconds[1::2]), 1e-9),
    )


WAKING_KERNELS, WAKING_GROUPS, WAKING_ITERATIONS = 16, 1, 4096
"""Kernels, workgroups and iterations of one measurement while waking: some milliseconds.

One workgroup keeps an H100 busy and raises its clock in 0.3 s, half of the time that a copy needs.
"""
AWAKE_RATIO = 1.05
"""A device is awake if the kernel takes at most so many times its shortest time."""


def wake(gpu: Device) -> None:
    """Keep hardware busy until its clock is up, so that measurements do not depend on history."""
    if not gpu.hardware:
        return
    out = gpu.buffer(WAKING_GROUPS * MAX_WORKGROUP_SIZE * 16, wgpu.BufferUsage.STORAGE, "waking")
    code = ARITHMETIC.replace("ITERATIONS", str(WAKING_ITERATIONS))
    commands = [_commands(gpu, code, [out], WAKING_GROUPS)] * WAKING_KERNELS
    clock = clock_of(gpu)
    taken = until_steady(lambda: min(clock.measure(commands)), AWAKE_RATIO * gpu.awake)
    gpu.awake = min(taken, gpu.awake or taken)


def _group(gpu: Device) -> int:
    return min(MAX_WORKGROUP_SIZE, gpu.features.invocations)


def _commands(gpu: Device, code: str, buffers: list[Any], groups: int) -> DispatchCommands:
    pipeline = gpu.pipelines.get("roof", code.replace("GROUP", str(_group(gpu))))
    bound = [{"buffer": buffer, "offset": 0, "size": buffer.size} for buffer in buffers]
    group = gpu.bind_group(pipeline.get_bind_group_layout(0), bound)
    return gpu.webgpu.DispatchCommands([(pipeline, group, (), groups, 1, 1, 1)])
