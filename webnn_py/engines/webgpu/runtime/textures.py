"""Textures as tensors: one dispatch that reads texels into a buffer, or writes them from one.

A texture of w x h texels with c channels is a float tensor whose last dimensions are [c, h, w]
(NCHW) or [h, w, c] (NHWC), NCHW where both would fit; a channel dimension may be left out where
there is one channel, and the batch is 1. Channels are numbers as the format defines them: 0..1 for
unorm formats, linear for -srgb ones. Three channels written leave alpha at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import wgpu

from webnn_py.core.dimensions import span
from webnn_py.core.errors import DataError, NotSupportedError
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.engines.webgpu.runtime.device import Device
from webnn_py.engines.webgpu.runtime.errors import device_errors
from webnn_py.ir import Shape, Value

CHANNELS = {
    "r8unorm": 1,
    "r16float": 1,
    "r32float": 1,
    "rg8unorm": 2,
    "rg16float": 2,
    "rg32float": 2,
    "rgba8unorm": 4,
    "rgba8unorm-srgb": 4,
    "rgba8snorm": 4,
    "bgra8unorm": 4,
    "bgra8unorm-srgb": 4,
    "rgba16float": 4,
    "rgba32float": 4,
}
WRITABLE = ("r32float", "rgba8unorm", "rgba8snorm", "rgba16float", "rgba32float")
TILE = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies over texels.

    Attributes:
        width: Texels in a row.
        height: Rows.
        channels: Channels of the tensor.
        planar: Whether the channels are the outer dimension (NCHW).
    """

    width: int
    height: int
    channels: int
    planar: bool

    def index(self, channel: int) -> str:
        """Flat index of a channel at texel (x, y)."""
        if self.planar:
            return f"({channel * self.height}u + y) * {self.width}u + x"
        return f"(y * {self.width}u + x) * {self.channels}u + {channel}u"


def layout_of(shape: Sequence[int], width: int, height: int, most: int) -> Layout | None:
    """The layout in which a shape covers a texture with up to `most` channels, or None."""
    dims = list(shape)
    if len(dims) == 4 and dims[0] == 1:
        dims = dims[1:]
    if len(dims) == 2:
        dims = [1, *dims]
    if len(dims) != 3:
        return None
    if dims[1:] == [height, width] and dims[0] <= most:
        return Layout(width, height, dims[0], True)
    if dims[:2] == [height, width] and dims[2] <= most:
        return Layout(width, height, dims[2], False)
    return None


def shape_of(given: Any, shape: Shape) -> Shape | None:
    """The shape of a tensor with open dimensions that a texture covers, if there is but one."""
    texture = given.texture if isinstance(given, wgpu.GPUTextureView) else given
    width, height = texture.size[0], texture.size[1]
    channels = range(1, CHANNELS.get(str(texture.format), 0) + 1)
    covered: list[Shape] = [(height, width)]
    for c in channels:
        for dims in ((c, height, width), (height, width, c)):
            covered += [dims, (1, *dims)]
    found = {made for made in covered if len(made) == len(shape) and all(map(_may_be, shape, made))}
    return found.pop() if len(found) == 1 else None


def _may_be(size: int, number: int) -> bool:
    low, high = span(size)
    return low <= number <= high


def load(gpu: Device, texture: Any, entry: dict[str, Any], value: Value, what: str) -> Any:
    """What records the conversion of a texture into a tensor's buffer."""
    view, layout, _ = _check(texture, value, what, "TEXTURE_BINDING", tuple(CHANNELS))
    storage = storage_of(value.data_type, gpu.features)
    if storage.per_word != 1:
        raise NotSupportedError(
            f"{what}: a texture into {value.data_type} needs the device feature shader-f16"
        )
    return _recorder(gpu, _load_code(layout, storage.element, gpu.features), entry, view, layout)


def store(gpu: Device, texture: Any, entry: dict[str, Any], value: Value, what: str) -> Any:
    """What records the conversion of a tensor's buffer into a texture."""
    view, layout, format_ = _check(texture, value, what, "STORAGE_BINDING", WRITABLE)
    code = _store_code(layout, value.data_type, format_, gpu.features)
    return _recorder(gpu, code, entry, view, layout)


def _check(
    given: Any, value: Value, what: str, usage: str, formats: tuple[str, ...]
) -> tuple[Any, Layout, str]:
    texture = given.texture if isinstance(given, wgpu.GPUTextureView) else given
    format_ = str(texture.format)
    if format_ not in formats:
        raise DataError(
            f"{what}: texture format {format_} is not supported here; expected one of"
            f" {', '.join(formats)}"
        )
    if texture.dimension != "2d" or texture.sample_count != 1:
        raise DataError(f"{what}: expected a 2d texture with one sample a texel")
    if not texture.usage & getattr(wgpu.TextureUsage, usage):
        raise DataError(f"{what}: the texture's usage lacks {usage}")
    if value.data_type not in ("float32", "float16"):
        raise DataError(f"{what}: a texture needs a float operand, this one is {value.data_type}")
    width, height = texture.size[0], texture.size[1]
    layout = layout_of(value.shape, width, height, CHANNELS[format_])
    if layout is None:
        raise DataError(
            f"{what}: a {width} x {height} {format_} texture does not fit the shape"
            f" {list(value.shape)}; expected [1, c, {height}, {width}] or"
            f" [1, {height}, {width}, c] with c <= {CHANNELS[format_]}"
        )
    if given is not texture:
        if texture.mip_level_count > 1:
            raise DataError(
                f"{what}: a view of a texture with {texture.mip_level_count} mip levels, and wgpu"
                " does not say of which; give the texture for its first level"
            )
        return given, layout, format_
    with device_errors(f"{what}: viewing the texture"):
        view = texture.create_view(dimension="2d", mip_level_count=1, array_layer_count=1)
    return view, layout, format_


def _head(element: str) -> str:
    return "enable f16;\n" if element == "f16" else ""


def _main(layout: Layout, statements: Sequence[str]) -> str:
    return "\n".join(
        [
            f"@compute @workgroup_size({TILE}, {TILE})",
            "fn main(@builtin(global_invocation_id) g: vec3<u32>) {",
            "  let x = g.x;",
            "  let y = g.y;",
            f"  if (x >= {layout.width}u || y >= {layout.height}u) {{ return; }}",
            *(f"  {statement}" for statement in statements),
            "}",
        ]
    )


def _load_code(layout: Layout, element: str, features: Features) -> str:
    writes = [
        f"data[{layout.index(c)}] = {element}(texel.{'rgba'[c]});" for c in range(layout.channels)
    ]
    return (
        f"{_head(element)}"
        f"@group(0) @binding(0) var<storage, read_write> data: array<{element}>;\n"
        "@group(0) @binding(1) var image: texture_2d<f32>;\n"
        + _main(layout, ["let texel = textureLoad(image, vec2<u32>(x, y), 0);", *writes])
    )


def _store_code(layout: Layout, data_type: str, format_: str, features: Features) -> str:
    from webnn_py.engines.webgpu.compiler.index import symbol

    storage = storage_of(data_type, features)
    lines = [f"let i{c} = {layout.index(c)};" for c in range(layout.channels)]
    parts = [storage.load("data[{}]".format, symbol(f"i{c}")) for c in range(layout.channels)]
    parts += ["0.0"] * (3 - len(parts)) + (["1.0"] if len(parts) < 4 else [])
    if layout.channels == 1 and CHANNELS[format_] == 4:
        parts = [parts[0]] * 3 + ["1.0"]
    lines.append(f"textureStore(image, vec2<u32>(x, y), vec4<f32>({', '.join(parts)}));")
    return (
        f"{_head(storage.element)}"
        f"@group(0) @binding(0) var<storage, read> data: array<{storage.element}>;\n"
        f"@group(0) @binding(1) var image: texture_storage_2d<{format_}, write>;\n"
        + _main(layout, lines)
    )


def _recorder(
    gpu: Device, code: str, entry: dict[str, Any], view: Any, layout: Layout
) -> Callable[[Any], None]:
    def record(encoder: Any) -> None:
        with device_errors("converting a texture"):
            pipeline = gpu.pipelines.get("texture", code)
            group = gpu.bind_group(pipeline.get_bind_group_layout(0), [entry, view])
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(-(-layout.width // TILE), -(-layout.height // TILE), 1)
            compute.end()

    return record
