"""Textures as inputs and outputs of graphs: formats, layouts, views, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import device_for, empty_buffer, read
from tests.backend.texels import (
    EVERY,
    FORMATS,
    HEIGHT,
    USAGE,
    WIDTH,
    WRITTEN,
    copying,
    fill,
    numbers,
    planar,
    run,
    some_texels,
    texels_of,
    texture,
)
from tests.graphs import awaited, build
from webnn_py import (
    DataError,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    ml,
)

pytestmark = pytest.mark.kernels

# Formats


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_is_read(each_device: MLContext, format_: str) -> None:
    source, texels = texture(each_device.device, format_), some_texels(format_)
    fill(source, texels)
    channels = FORMATS[format_].channels
    graph = copying(each_device, [1, channels, HEIGHT, WIDTH])
    result = awaited(graph, {"x": source})["y"]
    wanted = planar(numbers(format_, texels), channels)
    np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=2e-3 if "srgb" in format_ else 1e-6)


@pytest.mark.parametrize(("format_", "usage"), WRITTEN)
def test_writable_formats_are_written(each_device: MLContext, format_: str, usage: str) -> None:
    """By a compute pass into storage textures, by a render pass into others."""
    texels = some_texels(format_, seed=1)
    channels = FORMATS[format_].channels
    graph = copying(each_device, [1, channels, HEIGHT, WIDTH])
    target = texture(each_device.device, format_, getattr(USAGE, usage) | USAGE.COPY_SRC)
    x = planar(numbers(format_, texels), channels).astype(np.float32)
    results = awaited(graph, {"x": x}, {"y": target})
    assert results["y"] is target
    assert texels_of(target).tolist() == texels.tolist()  # to the bit


def test_normalized_formats_clamp(gpu: MLContext) -> None:
    target = texture(gpu.device, "rgba8unorm")
    x = np.broadcast_to(np.float32([-1, 0.5, 2, 1]), (1, HEIGHT, WIDTH, 4))
    run(copying(gpu, [1, HEIGHT, WIDTH, 4]), np.ascontiguousarray(x), target)
    assert np.abs(texels_of(target).astype(int) - [0, 128, 255, 255]).max() <= 1


# Layouts


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "chw", "hwc"])
def test_layouts_and_channels(gpu: MLContext, layout: str, channels: int) -> None:
    source, target = (texture(gpu.device, "rgba32float") for _ in range(2))
    texels = some_texels("rgba32float", seed=2)
    fill(source, texels)
    wanted = planar(texels, channels) if "ch" in layout else texels[None, ..., :channels]
    wanted = wanted if layout[0] == "n" else wanted[0]
    graph = copying(gpu, list(wanted.shape))
    np.testing.assert_array_equal(awaited(graph, {"x": source})["y"], wanted)
    run(graph, np.ascontiguousarray(wanted), target)
    written = texels_of(target)
    if channels == 1:  # grey
        colours = texels[..., [0, 0, 0]]
    else:
        colours = np.where(np.arange(3) < channels, texels[..., :3], 0)
    np.testing.assert_array_equal(written[..., :3], colours)
    np.testing.assert_array_equal(written[..., 3], texels[..., 3] if channels == 4 else 1)


def test_one_channel_may_have_no_dimension(gpu: MLContext) -> None:
    source, target = (texture(gpu.device, "r32float") for _ in range(2))
    texels = some_texels("r32float")
    fill(source, texels)
    run(copying(gpu, [HEIGHT, WIDTH]), source, target)
    np.testing.assert_array_equal(texels_of(target), texels)


def test_planes_come_before_pixels_where_both_fit(gpu: MLContext) -> None:
    source = texture(gpu.device, "rgba32float", size=(3, 3, 1))
    texels = np.arange(36, dtype=np.float32).reshape(3, 3, 4)
    fill(source, texels)
    result = awaited(copying(gpu, [1, 3, 3, 3]), {"x": source})["y"]
    np.testing.assert_array_equal(result, planar(texels, 3))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("format_", ["rgba8unorm", "bgra8unorm", "rgba16float", "r32float"])
def test_float16_operands(each_device: MLContext, format_: str, layout: str) -> None:
    """Also where two of them share a word, of texels in two rows, and the last word is half."""
    source, target = (texture(each_device.device, format_) for _ in range(2))
    texels = some_texels(format_, seed=3)
    fill(source, texels)
    channels = min(FORMATS[format_].channels, 3)
    wanted = planar(numbers(format_, texels), channels)
    wanted = wanted if layout == "nchw" else wanted.transpose(0, 2, 3, 1)
    graph = copying(each_device, list(wanted.shape), "float16")
    result = awaited(graph, {"x": source})["y"]
    np.testing.assert_allclose(result, wanted.astype(np.float16), rtol=1e-3, atol=1e-3)
    run(graph, source, target)
    written, given = (numbers(format_, t)[..., :channels] for t in (texels_of(target), texels))
    np.testing.assert_allclose(written, given, rtol=1e-3, atol=5e-3)


# Views and recordings


def test_views_of_textures(gpu: MLContext) -> None:
    source, target = (texture(gpu.device, "rgba8unorm") for _ in range(2))
    texels = some_texels("rgba8unorm", seed=4)
    fill(source, texels)
    run(copying(gpu, [1, 4, HEIGHT, WIDTH]), source.create_view(), target.create_view())
    np.testing.assert_array_equal(texels_of(target), texels)


def test_the_first_level_of_a_texture_with_several(gpu: MLContext) -> None:
    source, target = (texture(gpu.device, "rgba8unorm", mip_level_count=2) for _ in range(2))
    texels = some_texels("rgba8unorm", seed=5)
    fill(source, texels)
    graph = copying(gpu, [1, 4, HEIGHT, WIDTH])
    run(graph, source, target)
    np.testing.assert_array_equal(texels_of(target), texels)
    with pytest.raises(DataError, match="input 'x': a view of a texture with 2 mip levels"):
        run(graph, source.create_view(base_mip_level=1), target)


def test_a_texture_in_place(gpu: MLContext) -> None:
    both = texture(gpu.device, "r32float")
    texels = some_texels("r32float", seed=6)
    fill(both, texels)

    def upside_down(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": builder.reverse(builder.input("x", "float32", [HEIGHT, WIDTH]), axes=[0])}

    run(build(gpu, upside_down), both, both)
    np.testing.assert_array_equal(texels_of(both), texels[::-1])


def test_textures_between_the_user_s_passes(gpu: MLContext) -> None:
    low, high = (texture(gpu.device, "rgba8unorm", EVERY | USAGE.RENDER_ATTACHMENT) for _ in "ab")
    commands = gpu.device.create_command_encoder()
    cleared = {
        "view": low.create_view(),
        "load_op": "clear",
        "store_op": "store",
        "clear_value": (0.2, 0.4, 0.6, 1),
    }
    commands.begin_render_pass(color_attachments=[cleared]).end()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    encoder.dispatch(copying(gpu, [1, 3, HEIGHT, WIDTH]), {"x": low}, {"y": high})
    copied = texture(gpu.device, "rgba8unorm")
    commands.copy_texture_to_texture({"texture": high}, {"texture": copied}, (WIDTH, HEIGHT, 1))
    gpu.device.queue.submit([commands.finish()])
    assert (texels_of(copied) == [51, 102, 153, 255]).all()


def test_a_canvas_s_current_texture_is_written(plain: MLContext) -> None:
    """It is encoded as sRGB, and made for rendering alone."""
    offscreen = pytest.importorskip("rendercanvas.offscreen", reason="rendercanvas is missing")
    canvas = offscreen.RenderCanvas(size=(WIDTH, HEIGHT), pixel_ratio=1)
    surface = canvas.get_context("wgpu")
    surface.configure(device=plain.device, format="rgba8unorm-srgb")
    graph = copying(plain, [1, 4, HEIGHT, WIDTH])
    texels = some_texels("rgba8unorm-srgb", seed=8)
    x = planar(numbers("rgba8unorm-srgb", texels), 4).astype(np.float32)
    canvas.request_draw(lambda: run(graph, x, surface.get_current_texture()))
    assert np.asarray(canvas.draw()).tolist() == texels.tolist()


def test_textures_as_constants(gpu: MLContext) -> None:
    source, y = texture(gpu.device, "r32float"), empty_buffer(gpu.device, HEIGHT * WIDTH * 4)
    texels = some_texels("r32float", seed=7)
    fill(source, texels)
    graph = copying(gpu, [HEIGHT, WIDTH])
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"x": source})
    gpu.device.queue.submit([encoder.finish()])
    fill(source, np.zeros_like(texels))
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, {}, {"y": y})
    gpu.device.queue.submit([encoder.finish()])
    np.testing.assert_array_equal(read(y, (HEIGHT, WIDTH)), texels[..., 0])


# What is refused


def refuse(graph: MLGraph, message: str, x: Any = None, y: Any = None) -> None:
    """Both modes refuse, and the graph runs after that."""
    shape = graph.inputs["x"].shape
    good_x = np.zeros(shape, graph.inputs["x"].data_type)
    good_y = empty_buffer(device_for(graph), good_x.nbytes)
    what = "input 'x'" if y is None else "output 'y'"
    for go in (run, lambda graph, x, y: awaited(graph, {"x": x}, {"y": y})):
        with pytest.raises(DataError, match=f"{what}: {message}"):
            go(graph, good_x if x is None else x, good_y if y is None else y)
        go(graph, good_x, good_y)


def test_shapes_that_do_not_fit(gpu: MLContext) -> None:
    for shape in (
        [1, 3, WIDTH, HEIGHT],
        [1, 5, HEIGHT, WIDTH],
        [2, 3, HEIGHT, WIDTH],
        [HEIGHT * WIDTH],
        [1, 1, 3, HEIGHT, WIDTH],
    ):
        message = r"a 7 x 5 rgba32float texture does not fit the shape"
        refuse(copying(gpu, shape), message, x=texture(gpu.device))
        refuse(copying(gpu, shape), message, y=texture(gpu.device))
    one_channel = copying(gpu, [1, 2, HEIGHT, WIDTH])
    refuse(one_channel, "a 7 x 5 r32float texture", x=texture(gpu.device, "r32float"))


def test_textures_that_cannot_be_used(gpu: MLContext) -> None:
    graph, device = copying(gpu, [1, 1, HEIGHT, WIDTH]), gpu.device
    destroyed = texture(device)
    view = destroyed.create_view()
    destroyed.destroy()
    refuse(graph, "the GPUTexture is destroyed", x=destroyed)
    refuse(graph, "the GPUTexture is destroyed", y=destroyed)
    refuse(graph, "the GPUTextureView is destroyed", x=view)
    refuse(graph, "the texture's usage lacks TEXTURE_BINDING", x=texture(device, usage=EVERY & ~4))
    for format_, ways in (
        ("rgba8unorm", "RENDER_ATTACHMENT or STORAGE_BINDING"),
        ("rgba8snorm", "STORAGE_BINDING"),
        ("bgra8unorm-srgb", "RENDER_ATTACHMENT"),
    ):
        made = texture(device, format_, USAGE.COPY_SRC | USAGE.COPY_DST, label="frame")
        message = f"the texture's usage lacks {ways}: 'frame' is a 7 x 5 {format_} texture, made"
        refuse(graph, rf"{message} for COPY_DST \| COPY_SRC", y=made)
    for format_, reason in (
        ("rgba32uint", "it holds integers"),
        ("depth32float", "it holds depth or stencil"),
        ("rgb10a2unorm", "have a pass of yours draw it"),
    ):
        made = texture(device, format_, USAGE.TEXTURE_BINDING | USAGE.RENDER_ATTACHMENT)
        refuse(graph, f"texture format {format_} is not supported: {reason}", x=made)
        refuse(graph, f"texture format {format_} is not supported: {reason}", y=made)
    many = texture(device, "rgba8unorm", 4 | 16, sample_count=4)
    refuse(graph, "expected a 2d texture with one sample", x=many)
    volume = texture(device, size=(WIDTH, HEIGHT, 2), dimension="3d")
    refuse(graph, "expected a 2d texture", x=volume)


def test_textures_of_another_device(gpu: MLContext) -> None:
    graph = copying(gpu, [1, 1, HEIGHT, WIDTH])
    with ml.create_context_sync(device_type="gpu") as other:
        refuse(graph, "the GPUTexture belongs to another GPUDevice", x=texture(other.device))
        view = texture(other.device).create_view()
        refuse(graph, "the GPUTextureView belongs to another GPUDevice", y=view)


def test_textures_hold_floats(gpu: MLContext) -> None:
    def integers(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": builder.abs(builder.input("x", "int32", [HEIGHT, WIDTH]))}

    message = "a texture needs a float operand, this one is int32"
    refuse(build(gpu, integers), message, x=texture(gpu.device))
    refuse(build(gpu, integers), message, y=texture(gpu.device))
