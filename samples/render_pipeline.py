"""A graph between a compute pass and a render pass, all in one submit.

A photo is a texture; a compute pass of ours halves it; a super-resolution graph doubles it again;
a render pass of ours draws bicubic and network side by side. Offscreen, written as a PNG.

    python samples/render_pipeline.py [--output PATH]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import wgpu
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.models import load_weights, super_resolution
from webnn_py import MLCommandEncoder, MLGraphBuilder, ml

SHADERS = (Path(__file__).parent / "render_pipeline.wgsl").read_text()
Photo = NDArray[np.uint8]


def texture(device: wgpu.GPUDevice, width: int, height: int, *usages: str) -> wgpu.GPUTexture:
    usage = wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST
    for name in usages:
        usage |= getattr(wgpu.TextureUsage, name)
    return device.create_texture(size=(width, height, 1), format="rgba8unorm", usage=usage)


def download(device: wgpu.GPUDevice, source: wgpu.GPUTexture) -> Photo:
    width, height, _ = source.size
    data = device.queue.read_texture(
        {"texture": source}, {"bytes_per_row": width * 4}, (width, height, 1)
    )
    return np.frombuffer(data, np.uint8).reshape(height, width, 4)[..., :3]


def psnr(photo: Photo, other: Photo) -> float:
    """Peak signal-to-noise ratio in dB."""
    error = np.mean((photo.astype(np.float64) - other) ** 2)
    return float(10 * np.log10(255**2 / error))


def main(output: Path) -> dict[str, float]:
    """Draw the picture; returns the PSNR of both enlargements against the photo."""
    photo = np.ascontiguousarray(load_sample_image("flower.jpg")[:426])
    height, width = photo.shape[:2]
    context = ml.create_context_sync(device_type="gpu")
    device = context.device
    builder = MLGraphBuilder(context)
    weights = load_weights("super_resolution")
    high = super_resolution(builder, weights, height // 2, width // 2)
    graph = builder.build_sync({"high": high})

    original = texture(device, width, height, "TEXTURE_BINDING")
    low = texture(device, width // 2, height // 2, "STORAGE_BINDING", "TEXTURE_BINDING")
    enlarged = texture(device, width, height, "STORAGE_BINDING", "TEXTURE_BINDING")
    canvas = texture(device, 2 * width, height, "RENDER_ATTACHMENT")
    rgba = np.dstack([photo, np.full((height, width), 255, np.uint8)])
    device.queue.write_texture(
        {"texture": original}, rgba, {"bytes_per_row": width * 4}, (width, height, 1)
    )
    module = device.create_shader_module(code=SHADERS)
    halve = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "halve"}
    )
    draw = device.create_render_pipeline(
        layout="auto",
        vertex={"module": module, "entry_point": "corners"},
        fragment={
            "module": module,
            "entry_point": "compare",
            "targets": [{"format": "rgba8unorm"}],
        },
    )

    def bind(pipeline: object, *textures: wgpu.GPUTexture) -> wgpu.GPUBindGroup:
        return device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),  # type: ignore[attr-defined]
            entries=[{"binding": i, "resource": t.create_view()} for i, t in enumerate(textures)],
        )

    commands = device.create_command_encoder()
    compute = commands.begin_compute_pass()
    compute.set_pipeline(halve)
    compute.set_bind_group(0, bind(halve, original, low))
    compute.dispatch_workgroups(-(-width // 16), -(-height // 16))
    compute.end()
    MLCommandEncoder(context, encoder=commands).dispatch(graph, {"low": low}, {"high": enlarged})
    render = commands.begin_render_pass(
        color_attachments=[{"view": canvas.create_view(), "load_op": "clear", "store_op": "store"}]
    )
    render.set_pipeline(draw)
    render.set_bind_group(0, bind(draw, low, enlarged))
    render.draw(3)
    render.end()
    device.queue.submit([commands.finish()])

    output.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(download(device, canvas)).save(output)
    bicubic = Image.fromarray(download(device, low)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    figures = {
        "bicubic": psnr(photo, np.asarray(bicubic)),
        "network": psnr(photo, download(device, enlarged)),
    }
    gain = figures["network"] - figures["bicubic"]
    print(f"PSNR: bicubic {figures['bicubic']:.2f} dB, network {figures['network']:.2f} dB", end="")
    print(f" ({gain:+.2f} dB), one submit on {device.adapter.info['device']}")
    print(f"picture (left bicubic, right network): {output}")
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("out/render_pipeline.png"))
    main(parser.parse_args().output)
