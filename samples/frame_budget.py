"""A large network beside an animated scene: whole runs make it stutter, slices do not.

Every frame is waited for, as a display would. A photo is classified every so many frames: first by
a `dispatch` in one of them, then by `dispatch_slice`, with a budget of GPU time a frame. Frames'
times are plotted; the answers are the same. On a GPU, where a run takes a millisecond, try 0.1.

    python samples/frame_budget.py [--output PATH] [--budget MS] [--frames N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import wgpu
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples import photo_classifier
from webnn_py import MLCommandEncoder, MLContext, MLGraph, MLSlicedDispatch, ml, onnx

SCENE = (Path(__file__).parent / "frame_budget.wgsl").read_text()
SIZE, RATE, EVERY = (320, 180, 1), 60, 50
Work = Callable[[int, wgpu.GPUCommandEncoder], None]
"""Records what a frame does besides the scene, by the frame's number."""


class Scene:
    """Something that moves, drawn into a texture."""

    def __init__(self, device: Any) -> None:
        self._device = device
        module = device.create_shader_module(code=SCENE)
        targets = [{"format": "rgba8unorm"}]
        self._pipeline = device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "corners"},
            fragment={"module": module, "entry_point": "balls", "targets": targets},
        )
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        self._seconds = device.create_buffer(size=4, usage=usage)
        self._group = device.create_bind_group(
            layout=self._pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": self._seconds, "offset": 0, "size": 4}}],
        )
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT
        canvas = device.create_texture(size=SIZE, format="rgba8unorm", usage=usage)
        self._target = {"view": canvas.create_view(), "load_op": "clear", "store_op": "store"}

    def run(self, frames: int, work: Work) -> list[float]:
        """Draw frames; the milliseconds that each took, until the device was done with it."""
        taken = []
        for number in range(frames):
            start = time.perf_counter()
            self._device.queue.write_buffer(self._seconds, 0, np.float32(number / RATE).tobytes())
            commands = self._device.create_command_encoder()
            work(number, commands)
            render = commands.begin_render_pass(color_attachments=[self._target])
            render.set_pipeline(self._pipeline)
            render.set_bind_group(0, self._group)
            render.draw(3)
            render.end()
            self._device.queue.submit([commands.finish()])
            self._device.queue.read_buffer(self._seconds)  # waits for all before
            taken.append((time.perf_counter() - start) * 1e3)
        return taken


class Whole:
    """Called for each frame: classifies a photo every so many, in one of them."""

    def __init__(self, context: MLContext, graph: MLGraph) -> None:
        self._context, self._graph = context, graph
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self._inputs = {"image": photo_classifier.photo()}
        self._scores = context.device.create_buffer(size=4 * 1000, usage=usage)

    def __call__(self, number: int, commands: wgpu.GPUCommandEncoder) -> None:
        """Record a whole run, or nothing."""
        if number % EVERY == 0:
            encoder = MLCommandEncoder(self._context, encoder=commands)
            encoder.dispatch(self._graph, self._inputs, {"scores": self._scores})

    def answer(self) -> bytes:
        """The scores, as they lie in memory."""
        return bytes(self._context.device.queue.read_buffer(self._scores))


class Sliced(Whole):
    """Does so in as many frames as the budget asks for."""

    def __init__(self, context: MLContext, graph: MLGraph, budget: float) -> None:
        super().__init__(context, graph)
        self._budget, self.slices = budget, 0
        self._job: MLSlicedDispatch | None = None

    def __call__(self, number: int, commands: wgpu.GPUCommandEncoder) -> None:
        """Record the next slice of a run, or nothing."""
        if self._job is None and number % EVERY == 0:
            outputs = {"scores": self._scores}
            self._job = self._context.slice_dispatch(self._graph, self._inputs, outputs)
            self.slices = 0
        if self._job is not None:
            encoder = MLCommandEncoder(self._context, encoder=commands)
            self.slices += 1
            if encoder.dispatch_slice(self._job, budget_ms=self._budget):
                self._job = None


def plot(rows: dict[str, list[float]], output: Path) -> None:
    """The times of frames as bars, a row for each way, all to one scale."""
    width, height, left, right = 960, 110, 130, 110
    picture = Image.new("RGB", (width, height * len(rows) + 40), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(15)
    most = max(map(max, rows.values()))
    for row, (title, taken) in enumerate(rows.items()):
        floor, step = height * (row + 1), (width - left - right) / len(taken)
        for number, milliseconds in enumerate(taken):
            x, tall = left + number * step, max((height - 25) * milliseconds / most, 1)
            draw.rectangle((x, floor - tall, x + step - 2, floor), fill="#2563eb")
        draw.line((left, floor, width - right, floor), fill="#6b7280")
        draw.text((15, floor - 45), title, fill="black", font=font)
        peak = f"median {np.median(taken):.0f}\nmost {max(taken):.0f} ms"
        draw.text((width - right + 12, floor - 45), peak, fill="black", font=font)
    caption = f"Time of each of {len(taken)} frames; a photo is classified every {EVERY}"
    draw.text((left, floor + 12), caption, fill="black", font=font)
    output.parent.mkdir(parents=True, exist_ok=True)
    picture.save(output, optimize=True)


def main(output: Path, budget: float = 4.0, frames: int = 150) -> dict[str, list[float]]:
    """Plot the frames' times, and return them in milliseconds for each way."""
    path = photo_classifier.export()
    with ml.create_context_sync(device_type="gpu") as context:
        graph, scene = onnx.load(path, context), Scene(context.device)
        whole, sliced = Whole(context, graph), Sliced(context, graph, budget)
        for work in (whole, sliced):  # pipelines are made, kernels measured
            scene.run(2 * EVERY, work)
        rows = {
            "scene alone": scene.run(frames, lambda number, commands: None),
            "whole runs": scene.run(frames, whole),
            f"slices of\n{budget:g} ms": scene.run(frames, sliced),
        }
        answers = [work.answer() for work in (whole, sliced)]
    plot(rows, output)
    for title, taken in rows.items():
        print(f"{' '.join(title.split()):16} median {np.median(taken):6.1f} ms,", end=" ")
        print(f"at most {max(taken):6.1f} ms a frame")
    best = photo_classifier.labels()[np.frombuffer(answers[0], np.float32).argmax()]
    same = "the same scores" if answers[0] == answers[1] else "OTHER SCORES"
    print(f"{sliced.slices} slices a run, {same}: {best}; picture: {output}")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("out/frame_budget.png"))
    parser.add_argument("--budget", type=float, default=4.0, help="milliseconds of GPU time")
    parser.add_argument("--frames", type=int, default=150)
    options = parser.parse_args()
    main(options.output, options.budget, options.frames)
