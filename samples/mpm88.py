"""A liquid of 8,192 particles, simulated by a program of three kernels, 500 steps a frame.

The kernels are WGSL of the sample's own, after Taichi's mpm88. The program is also saved, for the
runtimes without Python.

    python samples/mpm88.py [--picture PATH] [--program PATH] [--positions PATH] [--frames N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).parents[1]))

from webnn_py import MLContext, MLProgram, ml

PARTICLES, GRID, STEPS = 8192, 128, 500
KERNELS = (Path(__file__).parent / "mpm88.wgsl").read_text()
SIZE = 256
"""Pixels of one picture."""
WATER, NIGHT = (80, 170, 235), (14, 22, 38)
Positions = NDArray[np.float32]


def first_positions() -> Positions:
    """Two blocks of liquid, one above the other [PARTICLES, 2]."""
    places = np.random.default_rng(88).random((PARTICLES, 2), np.float32)
    upper = np.arange(PARTICLES) % 2 == 0
    corner = np.where(upper[:, None], [0.55, 0.6], [0.1, 0.05])
    size = np.where(upper[:, None], [0.3, 0.3], [0.4, 0.4])
    return np.asarray(corner + size * places, np.float32)


def simulation(context: MLContext, steps: int, dt: float = 1e-4) -> MLProgram:
    """Moves the particles in the argument `position` by so many steps."""
    program = MLProgram(context)
    position = program.argument("position", "float32", [PARTICLES, 2])
    velocity = program.buffer("float32", [PARTICLES, 2])
    affine = program.buffer("float32", [PARTICLES, 2, 2])
    volume = program.buffer("float32", [PARTICLES], initial=np.ones(PARTICLES, np.float32))
    sums = program.buffer("int32", [GRID, GRID, 3])
    flow = program.buffer("float32", [GRID, GRID, 2])
    resources = [position, velocity, affine, volume, sums, flow]
    step = program.sequence()
    for name, count in (
        ("particles_to_grid", PARTICLES),
        ("move_grid", GRID * GRID),
        ("grid_to_particles", PARTICLES),
    ):
        constants = {"dt": dt}
        step.compute(KERNELS, resources, count // 64, entry_point=name, constants=constants)
    program.append(step, repeat=steps)
    return program


def drawn(positions: Positions) -> Image.Image:
    """The particles in a square, the origin below on the left; drawn larger, for soft edges."""
    image = Image.new("RGB", (4 * SIZE, 4 * SIZE), NIGHT)
    draw = ImageDraw.Draw(image)
    for x, y in positions * [4 * SIZE, -4 * SIZE] + [0, 4 * SIZE]:
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=WATER)
    return image.resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def main(
    picture: Path, saved: Path | None, frames: int, first: Path | None = None
) -> list[Positions]:
    """Draw the beginning and some frames side by side; returns the positions."""
    context = ml.create_context_sync(device_type="gpu")
    program = simulation(context, STEPS)
    positions = first_positions()
    if first is not None:
        positions.tofile(first)
    moments = [positions.copy()]
    for _ in range(frames):
        program.run_sync({"position": positions})  # which moves them
        moments.append(positions.copy())
    chosen = [moments[round(place)] for place in np.linspace(0, frames, 4)]
    strip = Image.new("RGB", (4 * SIZE, SIZE))
    for number, moment in enumerate(chosen):
        strip.paste(drawn(moment), (number * SIZE, 0))
    picture.parent.mkdir(parents=True, exist_ok=True)
    strip.save(picture)
    print(f"{frames} frames of {STEPS} steps on {context.device.adapter.summary}: {picture}")
    if saved is not None:
        program.save(saved)
        print(f"the program: {saved}, {saved.stat().st_size:,} bytes")
    return moments


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("out/mpm88.png"))
    parser.add_argument("--program", type=Path, help="save it there, for other runtimes")
    parser.add_argument("--positions", type=Path, help="write the first positions there")
    parser.add_argument("--frames", type=int, default=12)
    options = parser.parse_args()
    main(options.picture, options.program, options.frames, options.positions)
