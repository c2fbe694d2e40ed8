"""Parts of textures as inputs and outputs: crops, levels, layers, scale and bias."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.adapters import new_device
from tests.backend.buffers import empty_buffer, read, submit
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
from tests.graphs import awaited
from webnn_py import DataError, MLCommandEncoder, MLContext, MLGraphBuilder, NotSupportedError, ml

pytestmark = pytest.mark.kernels

X, Y, W, H = 2, 1, 3, 4
CROP: dict[str, Any] = {"origin": (X, Y), "size": (W, H)}
SCALES = {"none": (1.0, 0.0), "one": (2.5, -0.25), "each": ([0.5, 2.0, -1.5, 3.0], [0, 0.5, 1, -1])}


def cropped(texels: Any) -> Any:
    return texels[Y : Y + H, X : X + W]


def mapped(values: Any, scale: Any, bias: Any) -> Any:
    """NHWC or HWC values with a scale and a bias for the channels."""
    scale, bias = (v[: values.shape[-1]] if np.ndim(v) else v for v in (scale, bias))
    return values * scale + bias


def factors(scale: Any, bias: Any, channels: int) -> dict[str, Any]:
    if not np.ndim(scale):
        return {"scale": scale, "bias": bias}
    return {"scale": scale[:channels], "bias": np.array(bias[:channels])}


@pytest.mark.parametrize("scaling", SCALES)
@pytest.mark.parametrize("format_", FORMATS)
def test_parts_are_read(each_device: MLContext, format_: str, scaling: str) -> None:
    source, texels = texture(each_device.device, format_), some_texels(format_)
    fill(source, texels)
    channels, (scale, bias) = FORMATS[format_].channels, SCALES[scaling]
    given = {"texture": source, **CROP, **factors(scale, bias, channels)}
    result = awaited(copying(each_device, [1, channels, H, W]), {"x": given})["y"]
    wanted = planar(mapped(cropped(numbers(format_, texels)), scale, bias), channels)
    np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=6e-3 if "srgb" in format_ else 1e-5)


@pytest.mark.parametrize("scaling", SCALES)
@pytest.mark.parametrize(("format_", "usage"), WRITTEN)
def test_parts_are_written(each_device: MLContext, format_: str, usage: str, scaling: str) -> None:
    """And what lies around them stays."""
    before, texels = some_texels(format_, seed=2), cropped(some_texels(format_, seed=3))
    target = texture(each_device.device, format_, getattr(USAGE, usage) | EVERY & ~8)
    fill(target, before)
    channels, (scale, bias) = FORMATS[format_].channels, SCALES[scaling]
    scales, biases = (np.broadcast_to(v, 4)[:channels] for v in (scale, bias))
    x = ((numbers(format_, texels) - biases) / scales).astype(np.float32)
    given = {"texture": target, **CROP, **factors(scale, bias, channels)}
    run(copying(each_device, [1, H, W, channels]), x[None], given)
    after = texels_of(target)
    np.testing.assert_allclose(
        cropped(after).astype(float),
        texels.astype(float),
        rtol=1e-3,
        atol=1 if "norm" in format_ else 1e-5,
    )
    around = np.ones((HEIGHT, WIDTH), bool)
    around[Y : Y + H, X : X + W] = False
    assert after[around].tobytes() == before[around].tobytes()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_layouts_of_parts(each_device: MLContext, layout: str, data_type: str) -> None:
    source, target = (texture(each_device.device, "rgba32float") for _ in range(2))
    texels = some_texels("rgba32float", seed=4)
    fill(source, texels)
    wanted = mapped(cropped(texels)[..., :3].astype(np.float64), [2, 3, 4], [1, 0, -1])[None]
    wanted = wanted.transpose(0, 3, 1, 2) if layout == "nchw" else wanted
    graph = copying(each_device, list(wanted.shape), data_type)
    given = {"texture": source, **CROP, "scale": [2, 3, 4], "bias": [1, 0, -1]}
    np.testing.assert_allclose(awaited(graph, {"x": given})["y"], wanted, rtol=2e-3, atol=4e-3)
    back = {"texture": target, "size": (W, H), "scale": 0.5}
    run(graph, given, back)
    planes = wanted[0].transpose(1, 2, 0) if layout == "nchw" else wanted[0]
    np.testing.assert_allclose(texels_of(target)[:H, :W, :3], planes / 2, rtol=2e-3, atol=4e-3)
    assert (texels_of(target)[:H, :W, 3] == 1).all()


@pytest.mark.parametrize("usage", ["STORAGE_BINDING", "RENDER_ATTACHMENT"])
def test_levels_and_layers(gpu: MLContext, usage: str) -> None:
    made = {"size": (2 * WIDTH, 2 * HEIGHT, 3), "mip_level_count": 2}
    source = texture(gpu.device, "rgba8unorm", **made)
    target = texture(gpu.device, "rgba8unorm", getattr(USAGE, usage) | EVERY & ~8, **made)
    texels = some_texels("rgba8unorm", seed=5)
    fill(source, texels, mip_level=1, layer=2)
    place = {"mip_level": 1, "origin": (0, 0, 2)}
    graph = copying(gpu, [1, 4, HEIGHT, WIDTH])
    run(graph, {"texture": source, **place}, {"texture": target, "mip_level": 1, "origin": (0, 0)})
    np.testing.assert_array_equal(texels_of(target, mip_level=1), texels)
    assert not texels_of(target, mip_level=1, layer=1).any()
    assert not texels_of(target).any()


@pytest.mark.parametrize("size", [(1, 1), (1, 67), (1031, 3), (1281, 723)])
@pytest.mark.parametrize("usage", ["STORAGE_BINDING", "RENDER_ATTACHMENT"])
def test_odd_and_large_sizes(plain: MLContext, size: tuple[int, int], usage: str) -> None:
    """Whole textures, and all but their borders."""
    (width, height), made = size, {"size": (*size, 1)}
    source = texture(plain.device, "rgba8unorm", **made)
    targets = [
        texture(plain.device, "rgba8unorm", getattr(USAGE, usage) | USAGE.COPY_SRC, **made)
        for _ in range(2)
    ]
    texels = some_texels("rgba8unorm", seed=6, size=size)
    fill(source, texels)
    run(copying(plain, [1, 4, height, width]), source, targets[0])
    np.testing.assert_array_equal(texels_of(targets[0]), texels)
    if min(size) < 3:
        return
    inside = {"origin": (1, 1), "size": (width - 2, height - 2)}
    parts = [{"texture": t, **inside} for t in (source, targets[1])]
    run(copying(plain, [1, height - 2, width - 2, 4]), *parts)
    framed = np.zeros_like(texels)
    framed[1:-1, 1:-1] = texels[1:-1, 1:-1]
    np.testing.assert_array_equal(texels_of(targets[1]), framed)


def test_colours_of_srgb_textures_survive_the_way_through_a_graph(gpu: MLContext) -> None:
    """Decoded when they are read and encoded when they are drawn, all 256 of them."""
    made = {"size": (256, 1, 1)}
    source, target = (texture(gpu.device, "bgra8unorm-srgb", **made) for _ in range(2))
    texels = np.repeat(np.arange(256, dtype=np.uint8), 4).reshape(1, 256, 4)
    fill(source, texels)
    run(copying(gpu, [1, 4, 1, 256]), source, target)
    assert np.abs(texels_of(target).astype(int) - texels).max() <= 1


def test_parts_tell_open_sizes(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    graph = b.build_sync({"y": b.abs(b.input("x", "float32", [1, 3, "h", "w"]))})
    source, texels = texture(gpu.device, "rgba8unorm"), some_texels("rgba8unorm")
    fill(source, texels)
    result = awaited(graph, {"x": {"texture": source, **CROP}})["y"]
    np.testing.assert_allclose(result, planar(cropped(texels) / 255, 3), rtol=1e-6)
    with pytest.raises(DataError, match="input 'x': 3 x 4 texels from"):
        awaited(graph, {"x": {"texture": source, **CROP, "origin": (5, 1)}})


def test_parts_as_constants_and_in_slices(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    image, mask = (b.input(name, "float32", [1, c, H, W]) for name, c in (("image", 4), ("m", 1)))
    graph = b.build_sync({"y": b.mul(image, mask)})
    source, texels = texture(gpu.device, "rgba8unorm"), some_texels("rgba8unorm")
    fill(source, texels)
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"m": {"texture": source, **CROP, "scale": 2}})
    target = texture(gpu.device, "rgba32float")
    inputs = {"image": {"resource": {"texture": source.create_view(), **CROP}}}
    job = gpu.slice_dispatch(
        graph,
        inputs | {"m": np.ones((1, 1, H, W), np.float32)},
        {
            "y": {"texture": target, "origin": (4, 0), "size": (W, H)},
        },
    )
    while not encoder.dispatch_slice(job, budget_ms=1e-6):
        pass
    once = empty_buffer(gpu.device, 4 * H * W * 4)
    encoder.dispatch(graph, inputs, {"y": once})
    submit(encoder, gpu)
    values = cropped(texels) / 255
    np.testing.assert_allclose(texels_of(target)[:H, 4:], values, rtol=1e-6)
    wanted = planar(values * values[..., :1] * 2, 4)
    np.testing.assert_allclose(read(once, (1, 4, H, W)), wanted, rtol=1e-5)


def test_one_texture_as_input_and_output(gpu: MLContext) -> None:
    """A tile goes into the place of another one."""
    both, texels = texture(gpu.device, "rgba8unorm", size=(8, 4, 1)), some_texels("rgba8unorm")
    texels = some_texels("rgba8unorm", size=(8, 4))
    fill(both, texels)
    left, right = ({"texture": both, "origin": (x, 0), "size": (4, 4)} for x in (0, 4))
    run(copying(gpu, [1, 4, 4, 4]), left, right)
    np.testing.assert_array_equal(texels_of(both), texels[:, [*range(4), *range(4)]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"origin": (5, 0), "size": (3, 2)}, "3 x 2 texels from (5, 0) do not lie in the 7 x 5"),
        (
            {"origin": (7, 0)},
            "0 x 5 texels from (7, 0) do not lie in the 7 x 5 of the level. 'photo'",
        ),
        ({"size": (3, 0)}, "3 x 0 texels"),
        ({"size": (3, 2, 2)}, "level 0, layer 0 (2 of them), expected one of 1 levels"),
        ({"origin": (0, 0, 1)}, "level 0, layer 1 (1 of them)"),
        ({"mip_level": 1}, "level 1, layer 0 (1 of them), expected one of 1 levels"),
        ({"origin": 3}, "origin: got 3, expected a list"),
        ({"origin": (1,)}, "origin: got (1,), expected 2 numbers, or 3"),
        ({"origin": (-1, 0)}, "origin: got -1, expected an integer"),
        ({"scale": "2"}, "scale: got '2', expected a list"),
        ({"scale": [1, 2]}, "scale has 2 numbers, expected 1, or 4"),
        ({"bias": []}, "bias: got [], expected float32 numbers"),
        ({"bias": 1e39}, "bias: got 1e+39, expected float32 numbers"),
        ({"bias": float("nan")}, "bias: got nan, expected a finite number"),
        ({"offset": 4}, "unknown keys ['offset'] next to 'texture'; there are texture, mip_level"),
        ({"size": (3, 2)}, "a 3 x 2 rgba8unorm texture does not fit the shape [1, 4, 5, 7]"),
        ({"texture": 3}, "got 3, expected a GPUTexture or GPUTextureView"),
    ],
)
def test_parts_that_do_not_fit(gpu: MLContext, given: dict[str, Any], message: str) -> None:
    graph = copying(gpu, [1, 4, HEIGHT, WIDTH])
    source = texture(gpu.device, "rgba8unorm", label="photo")
    y = empty_buffer(gpu.device, 4 * HEIGHT * WIDTH * 4)
    part = {"texture": source} | given
    for inputs, outputs, what in (
        ({"x": part}, {"y": y}, "input 'x'"),
        ({"x": source}, {"y": part}, "output 'y'"),
    ):
        with pytest.raises(DataError, match=re.escape(f"{what}: {message}")):
            run(graph, inputs["x"], outputs["y"])
        with pytest.raises(DataError, match=re.escape(f"{what}: {message}")):
            awaited(graph, inputs, outputs)


def test_parts_of_views(gpu: MLContext) -> None:
    """A view has its own layer, and a part of it none."""
    source = texture(gpu.device, "rgba8unorm", size=(WIDTH, HEIGHT, 2))
    texels = some_texels("rgba8unorm", seed=7)
    fill(source, texels, layer=1)
    view = source.create_view(dimension="2d", base_array_layer=1, array_layer_count=1)
    graph = copying(gpu, [1, 4, H, W])
    result = awaited(graph, {"x": {"texture": view, **CROP}})["y"]
    np.testing.assert_allclose(result, planar(cropped(texels) / 255, 4), rtol=1e-6)
    with pytest.raises(DataError, match="or a level or layer of a view"):
        awaited(graph, {"x": {"texture": view, "origin": (X, Y, 1), "size": (W, H)}})


def test_outputs_into_parts_of_one_texture(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", [2, 2])
    graph = b.build_sync({"a": b.abs(x), "b": b.neg(x)})
    target = texture(gpu.device, "r32float")
    a, b_ = ({"texture": target, "origin": (i, 0), "size": (2, 2)} for i in (0, 2))
    data = np.arange(4, dtype=np.float32).reshape(2, 2)
    awaited(graph, {"x": data}, {"a": a, "b": b_})
    found = awaited(copying(gpu, [2, 4]), {"x": {"texture": target, "size": (4, 2)}})["y"]
    np.testing.assert_array_equal(found, np.hstack([data, -data]))
    for other in ({**b_, "origin": (1, 1)}, {"texture": target.create_view(), "size": (2, 2)}):
        with pytest.raises(DataError, match="outputs 'a' and 'b' share memory"):
            awaited(graph, {"x": data}, {"a": a, "b": other})


@pytest.mark.parametrize("written", [False, True])
def test_views_that_are_not_2d_leave_the_encoder_as_it_is(gpu: MLContext, written: bool) -> None:
    made = texture(gpu.device, "rgba32float")
    view = made.create_view(dimension="2d-array")
    width, height = made.size[:2]
    good = np.ones((1, 4, height, width), np.float32)
    target = empty_buffer(gpu.device, good.nbytes)
    graph = copying(gpu, [*good.shape])
    commands = gpu.device.create_command_encoder()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    with pytest.raises(DataError, match=r'cannot be bound as a 2d texture: .*dimension="2d"'):
        encoder.dispatch(
            graph, {"x": good if written else view}, {"y": view if written else target}
        )
    encoder.dispatch(graph, {"x": good}, {"y": target})
    gpu.device.queue.submit([commands.finish()])
    np.testing.assert_array_equal(read(target, good.shape), good)


@pytest.mark.parametrize(
    "view", [{"dimension": "2d-array"}, {"array_layer_count": 1, "usage": USAGE.TEXTURE_BINDING}]
)
def test_views_that_cannot_be_drawn_to_leave_the_encoder_as_it_is(
    gpu: MLContext, view: dict[str, Any]
) -> None:
    usage = USAGE.RENDER_ATTACHMENT | USAGE.TEXTURE_BINDING
    made = gpu.device.create_texture(size=(4, 2, 2), format="rgba8unorm-srgb", usage=usage)
    good = np.ones((1, 4, 2, 4), np.float32)
    target = empty_buffer(gpu.device, good.nbytes)
    graph = copying(gpu, [*good.shape])
    commands = gpu.device.create_command_encoder()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    with pytest.raises(DataError, match=r'cannot be drawn to: .*dimension="2d"'):
        encoder.dispatch(graph, {"x": good}, {"y": made.create_view(**{"dimension": "2d"} | view)})
    encoder.dispatch(graph, {"x": good}, {"y": target})
    gpu.device.queue.submit([commands.finish()])
    np.testing.assert_array_equal(read(target, good.shape), good)


def test_tensors_larger_than_a_binding(gpu: MLContext) -> None:
    limits = {"max-storage-buffer-binding-size": 1 << 20}
    device = new_device(required_limits=limits)
    if device.limits["max-storage-buffer-binding-size"] != 1 << 20:
        pytest.skip("this adapter gives devices larger bindings than were asked for")
    with ml.create_context_sync(device) as context:
        source = texture(device, "rgba8unorm", size=(512, 257, 1))
        graph = copying(context, [1, 4, 257, 512])
        with pytest.raises(NotSupportedError, match=r"input 'x': a texture's tensor of 2105344 by"):
            awaited(graph, {"x": source})
        part = {"texture": source, "size": (512, 64)}
        assert awaited(copying(context, [1, 4, 64, 512]), {"x": part})["y"].shape[2] == 64
