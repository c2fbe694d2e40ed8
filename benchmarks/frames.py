"""A large model beside a scene: what its slices take of each frame's GPU time.

    python -m benchmarks frames [--model resnet50] [--budget 2.0] [--frames 600] [--json FILE]

Every frame renders a scene (a full-screen shader) and records the next slice of the model's run;
then it is submitted and waited for, as a display would. GPU time is read from timestamps around the
slice.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

import webnn_py.onnx
from benchmarks.graph_matmul import open_device, stamp, stamped_seconds
from benchmarks.models import ENCODER, LIGHT, inputs_of, model
from benchmarks.report import Figures, machine, show, write_json
from webnn_py import MLCommandEncoder, MLContext, MLGraph, ml

SCENE = """
@vertex fn vertex(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
  return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}
@fragment fn pixel(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {
  return vec4<f32>(sin(at.x * 0.1), cos(at.y * 0.1), sin(at.x * at.y * 1e-4), 1.0);
}
"""
SIZE = (1280, 720, 1)
FORMAT = "rgba8unorm"


class Scene:
    """What a frame shows besides."""

    def __init__(self, device: Any) -> None:
        module = device.create_shader_module(code=SCENE)
        self._pipeline = device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "vertex"},
            fragment={
                "module": module,
                "entry_point": "pixel",
                "targets": [{"format": FORMAT}],
            },
        )
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT
        self._view = device.create_texture(size=SIZE, format=FORMAT, usage=usage).create_view()

    def render(self, encoder: Any) -> None:
        """Record the scene's pass."""
        target = {"view": self._view, "load_op": "clear", "store_op": "store"}
        draw = encoder.begin_render_pass(color_attachments=[target])
        draw.set_pipeline(self._pipeline)
        draw.draw(3)
        draw.end()


def measure(
    context: MLContext, graph: MLGraph, inputs: dict[str, Any], budget: float, frames: int
) -> Figures:
    """Slices of run after run, a frame each."""
    device = context.device
    scene, queries = Scene(device), device.create_query_set(type="timestamp", count=2)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    outputs, whole = (
        {
            name: device.create_buffer(size=4 * math.prod(d.shape), usage=usage)
            for name, d in graph.outputs.items()
        }
        for _ in range(2)
    )
    recorder = MLCommandEncoder(context)
    recorder.dispatch(graph, inputs, whole)
    device.queue.submit([recorder.finish()])
    taken, runs, slices, wrong = [], 0, [0], 0
    job = context.slice_dispatch(graph, inputs, outputs)
    for _ in range(frames):
        encoder = device.create_command_encoder()
        scene.render(encoder)
        stamp(encoder, queries, 0)
        done = MLCommandEncoder(context, encoder=encoder).dispatch_slice(job, budget_ms=budget)
        stamp(encoder, queries, 1)
        taken.append(stamped_seconds(device, encoder, queries) * 1e3)
        slices[-1] += 1
        if done:
            runs += 1
            slices.append(0)
            for name, buffer in outputs.items():
                same = device.queue.read_buffer(buffer) == device.queue.read_buffer(whole[name])
                wrong += not same
            job = context.slice_dispatch(graph, inputs, outputs)
    p50, p99 = np.percentile(taken, [50, 99])
    return {
        "budget ms": budget,
        "frames": frames,
        "runs": runs,
        "frames a run, first": slices[0],
        "frames a run, last": slices[-2] if runs else None,
        "p50 ms": float(p50),
        "p99 ms": float(p99),
        "most ms": max(taken),
        "wrong results": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=[*LIGHT, ENCODER], default="resnet50")
    parser.add_argument("--budget", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = open_device()
    found = model(options.model)
    with ml.create_context_sync(device) as context:
        graph = webnn_py.onnx.load(found, context)
        rows = [
            measure(context, graph, inputs_of(found), budget, options.frames)
            for budget in options.budget
        ]
    title = f"{options.model} in slices, {device.adapter.info['device']}"
    show(
        title,
        ["", *(str(row["budget ms"]) for row in rows)],
        [[key, *(row[key] for row in rows)] for key in rows[0]],
    )
    write_json(options.json, machine(device.adapter.info["device"]) | {"rows": rows})


if __name__ == "__main__":
    main()
