"""A video call's background, blurred: camera, segmentation and blending, one submit a frame.

A compute pass of ours makes the camera's frame, a graph finds the person in it, a render pass of
ours blurs the rest. Frames stay on the device: only the last one is read, for the picture. The
camera is drawn, a figure before a photo, and the network is a small one that is fitted to it when
the sample starts (`segmentation.py`): it would not find you.

    python samples/background_blur.py [--output PATH] [--frames N] [--window]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.segmentation import fit, segmentation
from webnn_py import MLCommandEncoder, MLContext, MLGraphBuilder, ml

SHADERS = (Path(__file__).parent / "background_blur.wgsl").read_text()
WIDTH, HEIGHT, RATE = 384, 256, 30
FITTED = np.arange(0.0, 28.0, 3.5)
"""Seconds whose frames the network is fitted to."""
USAGE = wgpu.TextureUsage


class Call:
    """The three steps of a frame, on one device."""

    def __init__(self, context: MLContext, canvas_format: str = "rgba8unorm") -> None:
        self._context, device = context, context.device
        self.device = device
        photo = np.ascontiguousarray(load_sample_image("china.jpg"))
        rgba = np.dstack([photo, np.full(photo.shape[:2], 255, np.uint8)])
        height, width, _ = photo.shape
        scenery = self._texture("rgba8unorm", USAGE.COPY_DST, (width, height))
        device.queue.write_texture(
            {"texture": scenery}, rgba, {"bytes_per_row": width * 4}, (width, height, 1)
        )
        self.frame = self._texture("rgba8unorm", USAGE.STORAGE_BINDING)
        self.mask = self._texture("r8unorm", USAGE.RENDER_ATTACHMENT)  # the graph draws into it
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        self._moment = device.create_buffer(size=4, usage=usage)
        module = device.create_shader_module(code=SHADERS)
        self._camera = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "camera"}
        )
        targets = [{"format": canvas_format}]
        self._blend = device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "corners"},
            fragment={"module": module, "entry_point": "blend", "targets": targets},
        )
        moment = {"buffer": self._moment, "offset": 0, "size": 4}
        views = [made.create_view() for made in (scenery, self.frame, self.mask)]
        self._seen = self._bind(self._camera, views[0], views[1], moment)
        self._blended = self._bind(self._blend, views[1], views[2])
        frames = []
        for seconds in FITTED:
            commands = device.create_command_encoder()
            self._record_camera(commands, seconds)
            device.queue.submit([commands.finish()])
            frames.append(download(device, self.frame))
        b = MLGraphBuilder(context)
        self._graph = b.build_sync({"mask": segmentation(b, fit(frames), HEIGHT, WIDTH)})

    def draw(self, seconds: float, canvas: wgpu.GPUTexture) -> None:
        """Submit the frame of a moment: nothing waits, nothing is read."""
        commands = self.device.create_command_encoder()
        self._record_camera(commands, seconds)
        encoder = MLCommandEncoder(self._context, encoder=commands)
        encoder.dispatch(self._graph, {"frame": self.frame}, {"mask": self.mask})
        target = {"view": canvas.create_view(), "load_op": "clear", "store_op": "store"}
        render = commands.begin_render_pass(color_attachments=[target])
        render.set_pipeline(self._blend)
        render.set_bind_group(0, self._blended)
        render.draw(3)
        render.end()
        self.device.queue.submit([commands.finish()])

    def _record_camera(self, commands: wgpu.GPUCommandEncoder, seconds: float) -> None:
        self.device.queue.write_buffer(self._moment, 0, np.float32(seconds).tobytes())
        compute = commands.begin_compute_pass()
        compute.set_pipeline(self._camera)
        compute.set_bind_group(0, self._seen)
        compute.dispatch_workgroups(WIDTH // 8, HEIGHT // 8)
        compute.end()

    def _texture(self, format: str, usage: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Any:
        usage |= USAGE.TEXTURE_BINDING | USAGE.COPY_SRC
        return self.device.create_texture(size=(*size, 1), format=format, usage=usage)

    def _bind(self, pipeline: Any, *resources: Any) -> Any:
        entries = [{"binding": i, "resource": made} for i, made in enumerate(resources)]
        layout = pipeline.get_bind_group_layout(0)
        return self.device.create_bind_group(layout=layout, entries=entries)


def download(device: wgpu.GPUDevice, source: wgpu.GPUTexture) -> NDArray[np.uint8]:
    channels = 1 if source.format == "r8unorm" else 4
    layout = {"bytes_per_row": WIDTH * channels}
    data = device.queue.read_texture({"texture": source}, layout, (WIDTH, HEIGHT, 1))
    return np.frombuffer(data, np.uint8).reshape(HEIGHT, WIDTH, channels)


def main(output: Path, frames: int = 60) -> float:
    """Draw frames and the picture; returns how much of person and mask is both, 0 to 1."""
    with ml.create_context_sync(device_type="gpu") as context:
        call, device = Call(context), context.device
        usage = USAGE.RENDER_ATTACHMENT | USAGE.COPY_SRC
        canvas = device.create_texture(size=(WIDTH, HEIGHT, 1), format="rgba8unorm", usage=usage)
        start = time.perf_counter()
        for number in range(1, frames + 1):
            call.draw(number / RATE, canvas)
        seen, mask, blurred = (download(device, t) for t in (call.frame, call.mask, canvas))
        rate = frames / (time.perf_counter() - start)
    person, found = seen[..., 3] > 127, mask[..., 0] > 127
    overlap = float((person & found).sum() / (person | found).sum())
    panels = [seen[..., :3], np.repeat(mask, 3, axis=2), blurred[..., :3]]
    output.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.hstack(panels)).quantize(128).save(output, optimize=True)
    print(f"{frames} frames, {rate:.0f} a second, one submit each; the mask fits the person to")
    print(f"{overlap:.1%} (intersection over union); picture (frame, mask, blurred): {output}")
    return overlap


def show(canvas: Any, loop: Any) -> None:
    """Draw into a canvas of rendercanvas until it is closed."""
    with ml.create_context_sync(device_type="gpu") as context:
        surface = canvas.get_context("wgpu")
        format_ = surface.get_preferred_format(context.device.adapter).removesuffix("-srgb")
        surface.configure(device=context.device, format=format_)
        call, start = Call(context, format_), time.perf_counter()
        canvas.request_draw(
            lambda: call.draw(time.perf_counter() - start, surface.get_current_texture())
        )
        loop.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("out/background_blur.png"))
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--window", action="store_true", help="show it until the window is closed")
    options = parser.parse_args()
    if options.window:
        from rendercanvas.auto import RenderCanvas, loop

        show(RenderCanvas(size=(WIDTH, HEIGHT), update_mode="continuous"), loop)
    else:
        main(options.output, options.frames)
