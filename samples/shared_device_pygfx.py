"""One device for pygfx and a graph: pygfx draws, a network enlarges, pygfx shows both.

Nothing leaves the device: the graph reads the texture that pygfx has rendered to, and writes the
one that pygfx puts onto a quad. All goes through one queue, so each sees what was done before.

    python samples/shared_device_pygfx.py [--output PATH] [--frames N] [--window]

For pygfx 0.17: `pip install ".[samples,graphics]"`, and glfw for --window.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pygfx as gfx
import wgpu
from PIL import Image
from pygfx.renderers.wgpu.engine.update import ensure_wgpu_object

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.models import load_weights, super_resolution
from webnn_py import MLCommandEncoder, MLGraphBuilder, ml

WIDTH, HEIGHT = 160, 120
USAGE = wgpu.TextureUsage


class Knot:
    """What is to be enlarged: a scene of pygfx's, rendered to a texture."""

    def __init__(self) -> None:
        usage = USAGE.RENDER_ATTACHMENT | USAGE.TEXTURE_BINDING
        self.texture = texture(WIDTH, HEIGHT, usage)
        # Textures get linear light unless it is encoded; the network was trained on encoded photos.
        self._renderer = gfx.renderers.WgpuRenderer(
            self.texture, pixel_scale=2, ppaa="none", gamma_correction=1 / 2.2
        )
        material = gfx.MeshPhongMaterial(color="#ff9040", shininess=60)
        self._knot = gfx.Mesh(gfx.torus_knot_geometry(1, 0.35, 128, 24), material)
        self._scene, light = gfx.Scene(), gfx.DirectionalLight(intensity=3)
        light.local.position = (2, 4, 5)
        sky = gfx.Background.from_color("#16233f", "#5f7fb0")
        self._scene.add(sky, gfx.AmbientLight(intensity=0.4), light, self._knot)
        self._camera = gfx.PerspectiveCamera(45, WIDTH / HEIGHT)
        self._camera.show_object(self._knot, scale=0.95)

    def draw(self, seconds: float) -> None:
        """Render and submit."""
        self._knot.local.euler = (0.3 * seconds, seconds, 0)
        self._renderer.render(self._scene, self._camera)


def texture(width: int, height: int, usage: int) -> gfx.Texture:
    """A texture of pygfx's, whose colours are encoded as sRGB."""
    size, usage = (width, height, 1), usage | USAGE.COPY_SRC
    return gfx.Texture(dim=2, size=size, format="rgba8unorm", colorspace="srgb", usage=usage)


def show(canvas: Any) -> None:
    """Have a canvas of rendercanvas draw, whenever it wants to."""
    device = gfx.renderers.wgpu.get_shared().device  # which pygfx made, and makes textures on
    context = ml.create_context_sync(device)
    b = MLGraphBuilder(context)
    weights = load_weights("super_resolution")
    graph = b.build_sync({"high": super_resolution(b, weights, HEIGHT, WIDTH)})

    knot = Knot()
    enlarged = texture(2 * WIDTH, 2 * HEIGHT, USAGE.STORAGE_BINDING | USAGE.TEXTURE_BINDING)
    low, high = ensure_wgpu_object(knot.texture), ensure_wgpu_object(enlarged)
    scene, camera = gfx.Scene(), gfx.OrthographicCamera(2, HEIGHT / WIDTH)
    for x, shown in ((-0.5, knot.texture), (0.5, enlarged)):
        pixels = gfx.TextureMap(shown, filter="nearest")
        quad = gfx.Mesh(gfx.plane_geometry(1, HEIGHT / WIDTH), gfx.MeshBasicMaterial(map=pixels))
        quad.local.x = x
        scene.add(quad)
    renderer = gfx.renderers.WgpuRenderer(canvas, ppaa="none", pixel_filter="nearest")
    drawn = 0

    def draw() -> None:
        nonlocal drawn
        drawn += 1
        knot.draw(drawn / 30)
        encoder = MLCommandEncoder(context)
        encoder.dispatch(graph, {"low": low}, {"high": high})
        device.queue.submit([encoder.finish()])
        renderer.render(scene, camera)

    canvas.request_draw(draw)


def main(output: Path, frames: int = 10) -> None:
    """Draw frames without a window, and save the last one."""
    from rendercanvas.offscreen import RenderCanvas

    canvas = RenderCanvas(size=(4 * WIDTH, 2 * HEIGHT), pixel_ratio=1)
    show(canvas)
    for _ in range(frames):
        picture = np.asarray(canvas.draw())[..., :3]
    output.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(output, optimize=True)
    print(f"{frames} frames of pygfx {gfx.__version__}; picture (drawn, enlarged): {output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("out/shared_device_pygfx.png"))
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--window", action="store_true", help="show it until the window is closed")
    options = parser.parse_args()
    if options.window:
        from rendercanvas.auto import RenderCanvas, loop

        show(RenderCanvas(size=(4 * WIDTH, 2 * HEIGHT), update_mode="continuous"))
        loop.run()
    else:
        main(options.output, options.frames)
