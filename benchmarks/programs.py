"""A simulation of many small kernels: one submission a kernel, a program, a recorded program.

The liquid of samples/mpm88.py, 3 kernels a step: frames a second of wgpu-py as it is mostly used
(encoder, pass, dispatch and submit for each kernel), and of the same kernels as an MLProgram.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

from benchmarks.report import interleaved, machine, ratio, show, write_json
from samples.mpm88 import GRID, KERNELS, PARTICLES, first_positions, simulation
from webnn_py import MLCommandEncoder, MLContext, ml

STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
DT = 1e-4
Frame = tuple[Callable[[], None], Any]
"""What computes a frame, and the buffer of the particles' positions."""


def finish(device: Any) -> None:
    """Wait until all that was submitted is done."""
    buffer = device.create_buffer(size=4, usage=STORAGE)
    device.queue.read_buffer(buffer)


def one_by_one(context: MLContext, steps: int) -> Frame:
    """Runs a frame with an encoder, a pass and a submission for each kernel."""
    device = context.device
    module = device.create_shader_module(code=KERNELS)
    kinds = ["storage"] * 6
    entries = [
        {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
        for i, kind in enumerate(kinds)
    ]
    layout = device.create_bind_group_layout(entries=entries)
    sizes = [8 * PARTICLES, 8 * PARTICLES, 16 * PARTICLES, 4 * PARTICLES, 12 * GRID**2, 8 * GRID**2]
    buffers = [device.create_buffer(size=size, usage=STORAGE) for size in sizes]
    device.queue.write_buffer(buffers[0], 0, first_positions())
    device.queue.write_buffer(buffers[3], 0, np.ones(PARTICLES, np.float32))
    group = device.create_bind_group(
        layout=layout,
        entries=[
            {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for i, buffer in enumerate(buffers)
        ],
    )
    kernels = []
    for name, count in (
        ("particles_to_grid", PARTICLES),
        ("move_grid", GRID**2),
        ("grid_to_particles", PARTICLES),
    ):
        pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": name, "constants": {"dt": DT}},
        )
        kernels.append((pipeline, count // 64))

    def frame() -> None:
        for _ in range(steps):
            for pipeline, groups in kernels:
                encoder = device.create_command_encoder()
                compute = encoder.begin_compute_pass()
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(groups)
                compute.end()
                device.queue.submit([encoder.finish()])
        finish(device)

    return frame, buffers[0]


def as_program(context: MLContext, steps: int, recorded: bool) -> Frame:
    """Runs a frame with an MLProgram over a buffer, by `run_sync` or by a recording."""
    program = simulation(context, steps, DT)
    program.compile_sync()
    device = context.device
    positions = device.create_buffer_with_data(data=first_positions(), usage=STORAGE)

    def run() -> None:
        program.run_sync({"position": positions})

    def record() -> None:
        encoder = device.create_command_encoder()
        MLCommandEncoder(context, encoder=encoder).execute(program, {"position": positions})
        device.queue.submit([encoder.finish()])
        finish(device)

    return (record if recorded else run), positions


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="steps a frame")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    context = ml.create_context_sync(device_type="gpu")
    cases = {
        "a submission for each kernel": one_by_one(context, options.steps),
        "MLProgram.run_sync": as_program(context, options.steps, recorded=False),
        "MLCommandEncoder.execute": as_program(context, options.steps, recorded=True),
    }

    found = []
    for frame, positions in cases.values():
        frame()
        found.append(np.frombuffer(context.device.queue.read_buffer(positions), np.float32))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

    def timed(frame: Callable[[], None]) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            frame()
            return time.perf_counter() - begin

        return run

    seconds = interleaved({n: timed(frame) for n, (frame, _) in cases.items()}, options.rounds)
    first = seconds[next(iter(cases))]
    rows = [
        (name, 1 / sorted(taken)[len(taken) // 2], ratio(first, taken))
        for name, taken in seconds.items()
    ]
    adapter = context.device.adapter.summary
    show(
        f"{PARTICLES:,} particles, {options.steps} steps of 3 kernels a frame, on {adapter}",
        ("", "frames a second", "times the first"),
        rows,
    )
    write_json(options.json, {"machine": machine(adapter), "seconds a frame": seconds})
    return seconds


if __name__ == "__main__":
    main()
