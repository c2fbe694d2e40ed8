"""What a device does at most: multiplications and additions in registers, and a copy.

And how to have it do so: a GPU that has rested for a second works at a fifth of its clock, and
raises that step by step.
"""

from __future__ import annotations

from typing import Any

import wgpu

from webnn_py.engines.profile import Roof, until_steady
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.profiling import clock_of
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import DispatchCommands

ARITHMETIC = """
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@compute @workgroup_size(GROUP) fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let factor = 0.5 + f32(g.x) * 1e-9;
  var a = vec4<f32>(f32(g.x));
  var b = a + 1.0; var c = a + 2.0; var d = a + 3.0;
  for (var i = 0u; i < ROUNDSu; i++) {
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
MOST_IN_GROUP = 256
"""Invocations of a workgroup, or what the device has at most."""
OPERATIONS_A_ROUND = 4 * 4 * 2


def measure_roof(gpu: Device) -> Roof:
    """Measure a device; takes some tenths of a second."""
    groups, rounds = (4096, 1024) if gpu.hardware else (64, 256)
    group = _group(gpu)
    groups = min(groups, gpu.features.grid)
    invocations = groups * group
    copied = min(256 << 20 if gpu.hardware else 32 << 20, gpu.features.binding_bytes)
    copy_groups = min(copied // 16 // group, gpu.features.grid)
    usage = wgpu.BufferUsage.STORAGE
    out, source = (gpu.buffer(max(copied, invocations * 16), usage, "roof") for _ in range(2))
    arithmetic = _commands(gpu, ARITHMETIC.replace("ROUNDS", str(rounds)), [out], groups)
    copy = _commands(gpu, COPY, [out, source], copy_groups)
    seconds = clock_of(gpu).measure([arithmetic, copy] * 4)
    return Roof(
        invocations * rounds * OPERATIONS_A_ROUND / max(min(seconds[::2]), 1e-9),
        2 * copy_groups * group * 16 / max(min(seconds[1::2]), 1e-9),
    )


WAKING, WAKING_GROUPS, WAKING_ROUNDS = 16, 1, 4096
"""Kernels at once that wake a device, of so many workgroups and rounds: some milliseconds.

One workgroup keeps an H100 busy, which has its clock up in 0.3 s: half of what a copy takes.
"""
AWAKE = 1.05
"""Times the seconds of such a kernel on a device that is awake: it need not be woken."""


def wake(gpu: Device) -> None:
    """Have hardware compute until its clock is up, so that nothing depends on what ran before."""
    if not gpu.hardware:
        return
    out = gpu.buffer(WAKING_GROUPS * MOST_IN_GROUP * 16, wgpu.BufferUsage.STORAGE, "waking")
    code = ARITHMETIC.replace("ROUNDS", str(WAKING_ROUNDS))
    commands = [_commands(gpu, code, [out], WAKING_GROUPS)] * WAKING
    clock = clock_of(gpu)
    taken = until_steady(lambda: min(clock.measure(commands)), AWAKE * gpu.awake)
    gpu.awake = min(taken, gpu.awake or taken)


def _group(gpu: Device) -> int:
    return min(MOST_IN_GROUP, gpu.features.invocations)


def _commands(gpu: Device, code: str, buffers: list[Any], groups: int) -> DispatchCommands:
    pipeline = gpu.pipelines.get("roof", code.replace("GROUP", str(_group(gpu))))
    bound = [{"buffer": buffer, "offset": 0, "size": buffer.size} for buffer in buffers]
    group = gpu.bind_group(pipeline.get_bind_group_layout(0), bound)
    return DispatchCommands([(pipeline, group, (), groups, 1, 1, 1)])
