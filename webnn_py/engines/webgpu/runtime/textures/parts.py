"""Textures as users give them: whole, or the part of one, with a scale and a bias."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import wgpu

from webnn_py.core import convert
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors

KEYS = ("texture", "mip_level", "origin", "size", "scale", "bias")
NEUTRAL = (("scale", 1.0), ("bias", 0.0))
LARGEST = 3.4028234663852886e38


def is_texture(value: object) -> bool:
    """A texture, a view of one, or a part of either."""
    if isinstance(value, (wgpu.GPUTexture, wgpu.GPUTextureView)):
        return True
    try:
        return isinstance(value, Mapping) and "texture" in value
    except Exception:  # whatever its own methods raise
        return False


@dataclass(frozen=True, slots=True)
class TexturePart:
    """Texels of one level and layer, and how their numbers change on the way.

    Attributes:
        given: The texture, or a view of it.
        size: Texels, (width, height).
        origin: The first texel, (x, y).
        mip_level: Of the texture.
        layer: Of the texture.
        scale: What numbers are multiplied by, each channel or all.
        bias: What is then added.
    """

    given: Any
    size: tuple[int, int]
    origin: tuple[int, int] = (0, 0)
    mip_level: int = 0
    layer: int = 0
    scale: tuple[float, ...] = (1.0,)
    bias: tuple[float, ...] = (0.0,)

    @property
    def texture(self) -> Any:
        """The texture, perhaps of a view."""
        return texture_of(self.given)

    @property
    def format(self) -> str:
        """Of the texture; wgpu-py has no views in another one."""
        return str(self.texture.format)

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """What it takes of the texture; of a view nothing is known but its texture."""
        if self.given is not self.texture:
            return ()
        (x, y), (width, height), level, layer = self.origin, self.size, self.mip_level, self.layer
        return (level, level + 1), (layer, layer + 1), (x, x + width), (y, y + height)

    @property
    def changes_numbers(self) -> bool:
        """Whether there is a scale or a bias."""
        return self.scale != (1.0,) or self.bias != (0.0,)

    def view(self) -> Any:
        """A view of its level and layer."""
        if self.given is not self.texture:
            return self.given
        with device_errors("viewing a texture"):
            return self.given.create_view(
                dimension="2d",
                base_mip_level=self.mip_level,
                mip_level_count=1,
                base_array_layer=self.layer,
                array_layer_count=1,
            )


def texture_of(given: Any) -> Any:
    """The texture that a view is of, or a texture itself."""
    return given.texture if isinstance(given, wgpu.GPUTextureView) else given


def resource_of(value: Any, what: str) -> Any:
    """The texture or view that is given, itself or with the part to use."""
    resource = (
        convert.mapping(value, what, DataError)["texture"] if isinstance(value, Mapping) else value
    )
    if not isinstance(resource, (wgpu.GPUTexture, wgpu.GPUTextureView)):
        raise DataError(f"{what}: got {shown(resource)}, expected a GPUTexture or GPUTextureView")
    return resource


def part_of(value: Any, what: str) -> TexturePart:
    """The part of a texture that is given.

    Raises:
        DataError: It is no part of a 2d texture with one sample a texel.
    """
    resource = resource_of(value, what)
    texture = texture_of(resource)
    if texture.dimension != "2d" or texture.sample_count != 1:
        raise DataError(
            f"{what}: expected a 2d texture with one sample a texel (resolve others into one)."
            f" {title(texture)}, {texture.dimension} with {texture.sample_count}"
        )
    if resource is not texture and texture.mip_level_count > 1:
        raise _unknown_place(texture, what)
    if resource is value:
        return TexturePart(resource, texture.size[:2])
    given = convert.mapping(value, what, DataError)
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise DataError(
            f"{what}: unknown keys {shown(unknown)} next to 'texture'; there are {', '.join(KEYS)}"
        )
    try:
        level = convert.unsigned(given.get("mip_level", 0), "mip_level")
        x, y, layer = _numbers(given.get("origin", (0, 0)), "origin", 0)
        scale, bias = (_factors(given.get(key, one), key) for key, one in NEUTRAL)
        width, height, layers = texture.size
        width, height = max(1, width >> level), max(1, height >> level)
        rest = (max(width - x, 0), max(height - y, 0))
        *size, depth = _numbers(given.get("size", rest), "size", 1)
    except ValidationError as error:
        raise DataError(f"{what}: {error}") from None
    if resource is not texture and (level or layer):
        raise _unknown_place(texture, what)
    if level >= texture.mip_level_count or layer >= layers or depth != 1:
        raise DataError(
            f"{what}: level {level}, layer {layer} ({depth} of them), expected one of"
            f" {texture.mip_level_count} levels and one of {layers} layers. {title(texture)}"
        )
    if min(size) < 1 or x + size[0] > width or y + size[1] > height:
        raise DataError(
            f"{what}: {size[0]} x {size[1]} texels from ({x}, {y}) do not lie in the"
            f" {width} x {height} of the level. {title(texture)}"
        )
    return TexturePart(resource, (size[0], size[1]), (x, y), level, layer, scale, bias)


def _unknown_place(texture: Any, what: str) -> DataError:
    """Of a view nothing is known but its texture."""
    return DataError(
        f"{what}: a view of a texture with {texture.mip_level_count} mip levels, or a level or"
        ' layer of a view, and wgpu does not say of which; give {"texture": texture,'
        ' "mip_level": level, "origin": (x, y, layer)}'
    )


def title(texture: Any) -> str:
    """A texture for messages: label, format and size."""
    width, height, _ = texture.size
    name = shown(texture.label) if texture.label else "it"
    return f"{name} is a {width} x {height} {texture.format} texture"


def usages(texture: Any) -> str:
    """The names of what a texture was made for."""
    kinds = wgpu.TextureUsage
    return " | ".join(name for name in dir(kinds) if texture.usage & getattr(kinds, name))


def _numbers(value: object, key: str, third: int) -> tuple[int, int, int]:
    """Two whole numbers, or three."""
    given = convert.unsigned_list(value, key)
    if len(given) not in (2, 3):
        raise ValidationError(f"{key}: got {shown(value)}, expected 2 numbers, or 3")
    return given[0], given[1], given[2] if len(given) == 3 else third


def _factors(value: object, key: str) -> tuple[float, ...]:
    """A number for all channels, or one for each, that float32 holds."""
    one = isinstance(value, numbers.Real)
    factors = (convert.double(value, key),) if one else convert.double_list(value, key)
    if not factors or max(map(abs, factors)) > LARGEST:
        raise ValidationError(f"{key}: got {shown(value)}, expected float32 numbers")
    return factors
