"""WGSL of the conversions between texels and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.engines.webgpu.runtime.textures.formats import FORMATS

TILE = 8
"""Texels along each side of a workgroup."""

_PART = "struct Part { origin: vec2<u32>, scale: vec4<f32>, bias: vec4<f32> }\n"

_CORNERS = """
@vertex fn corners(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
  return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor over texels.

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
        """Return the WGSL of the flat index of a channel at texel (x, y)."""
        if self.planar:
            return f"({channel * self.height}u + y) * {self.width}u + x"
        return f"(y * {self.width}u + x) * {self.channels}u + {channel}u"

    def place(self) -> tuple[str, str, str]:
        """Return the WGSL of channel, x and y of the flat index i."""
        w, h, c = (f"{size}u" for size in (self.width, self.height, self.channels))
        if self.planar:
            return f"i / ({w} * {h})", f"i % {w}", f"i / {w} % {h}"
        return f"i % {c}", f"i / {c} % {w}", f"i / ({c} * {w})"


@dataclass(frozen=True, slots=True)
class Conversion:
    """Everything the code of a conversion depends on.

    Attributes:
        data_type: The tensor's data type.
        layout: The tensor's layout.
        format: The texture's format.
        moved: Whether the part's origin is not (0, 0).
        scaled: Whether there is a scale or a bias.
    """

    data_type: str
    layout: Layout
    format: str
    moved: bool
    scaled: bool

    @property
    def placed(self) -> bool:
        """Return whether the code reads origin, scale and bias from a uniform buffer."""
        return self.moved or self.scaled

    def load_code(self, features: Features) -> str:
        """Return a compute shader that converts `image` to `data`."""
        storage = storage_of(self.data_type, features)
        image = "@group(0) @binding(1) var image: texture_2d<f32>;\n"
        head = self._head(storage.element, "read_write", 2) + image
        texel = f"textureLoad(image, vec2<u32>(x, y){self._plus_origin}, 0)"
        if storage.per_word == 1:
            writes = [
                f"data[{self.layout.index(c)}] = "
                f"{storage.element}({self._scaled(f'texel.{channel}', channel)});"
                for c, channel in enumerate("rgba"[: self.layout.channels])
            ]
            return head + self._main([f"let texel = {texel};", *writes])
        return head + self._packing(texel)

    def _packing(self, texel: str) -> str:
        """Return the code that packs two float16 numbers, maybe of two texels, into a word."""
        from webnn_py.engines.webgpu.compiler.code import prelude

        layout = self.layout
        size = layout.width * layout.height * layout.channels
        channel, x, y = layout.place()
        element = "\n".join(
            [
                "fn element(i: u32) -> u32 {",
                f"  if (i >= {size}u) {{ return 0u; }}",
                f"  let channel = {channel};",
                f"  let x = {x};",
                f"  let y = {y};",
                f"  let texel = {texel};",
                f"  return wn_half_bits({self._scaled('texel[channel]', '[channel]')});",
                "}\n",
            ]
        )
        main = self._main(
            [
                f"for (var i = (y * {layout.width}u + x) * 2u; i < {size}u;"
                f" i += {layout.width * layout.height * 2}u) {{",
                "  data[i >> 1u] = element(i) | (element(i + 1u) << 16u);",
                "}",
            ]
        )
        return prelude.used(element) + element + main

    def store_code(self, features: Features) -> str:
        """Return a compute shader that converts `data` to `image`."""
        image = f"@group(0) @binding(1) var image: texture_storage_2d<{self.format}, write>;\n"
        at = f"vec2<u32>(x, y){self._plus_origin}"
        return (
            self._head(storage_of(self.data_type, features).element, "read", 2)
            + image
            + self._main([f"textureStore(image, {at}, texel(x, y));"])
            + self._texel(features)
        )

    def draw_code(self, features: Features) -> str:
        """Return a vertex and a fragment shader that draw `data` to a texture."""
        minus = " - part.origin" if self.moved else ""
        main = "\n".join(
            [
                "@fragment fn main(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {",
                f"  let place = vec2<u32>(at.xy){minus};",
                "  return texel(place.x, place.y);",
                "}\n",
            ]
        )
        head = self._head(storage_of(self.data_type, features).element, "read", 1)
        return head + _CORNERS + main + self._texel(features)

    def _texel(self, features: Features) -> str:
        """Return a WGSL function that reads the texel at (x, y) from `data`."""
        from webnn_py.engines.webgpu.compiler.code.index import symbol

        storage = storage_of(self.data_type, features)
        channels = "rgba"[: self.layout.channels]
        loads = [
            (storage.load("data[{}]".format, symbol(f"i{c}")), channel)
            for c, channel in enumerate(channels)
        ]
        parts = [self._scaled(load, channel) for load, channel in loads]
        if len(parts) == 1 and FORMATS[self.format].channels == 4:
            parts *= 3
        parts += ["0.0"] * (3 - len(parts)) + (["1.0"] if len(parts) < 4 else [])
        lines = [
            "fn texel(x: u32, y: u32) -> vec4<f32> {",
            *(f"  let i{c} = {self.layout.index(c)};" for c in range(len(channels))),
            f"  return vec4<f32>({', '.join(parts)});",
            "}\n",
        ]
        return "\n".join(lines)

    @property
    def _plus_origin(self) -> str:
        return " + part.origin" if self.moved else ""

    def _scaled(self, number: str, channel: str) -> str:
        if not self.scaled:
            return number
        member = channel if channel.startswith("[") else f".{channel}"
        return f"{number} * part.scale{member} + part.bias{member}"

    def _head(self, element: str, access: str, bindings: int) -> str:
        """Return the declarations of the tensor's buffer and, as last binding, the uniforms."""
        enable = "enable f16;\n" if element == "f16" else ""
        data = f"@group(0) @binding(0) var<storage, {access}> data: array<{element}>;\n"
        if not self.placed:
            return enable + data
        uniform = f"@group(0) @binding({bindings}) var<uniform> part: Part;\n"
        return enable + data + _PART + uniform

    def _main(self, statements: Sequence[str]) -> str:
        """Return the entry point of a compute shader with one invocation for each texel."""
        lines = [
            f"@compute @workgroup_size({TILE}, {TILE})",
            "fn main(@builtin(global_invocation_id) g: vec3<u32>) {",
            "  let x = g.x;",
            "  let y = g.y;",
            f"  if (x >= {self.layout.width}u || y >= {self.layout.height}u) {{ return; }}",
            *(f"  {statement}" for statement in statements),
            "}\n",
        ]
        return "\n".join(lines)
