"""Texture arguments: a texture, a view, or a part of one with a scale and a bias."""

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
from webnn_py.engines.webgpu.runtime.webgpu_api import is_a

KEYS = ("texture", "mip_level", "origin", "size", "scale", "bias")
NEUTRAL = (("scale", 1.0), ("bias", 0.0))
MAX_FLOAT32 = 3.4028234663852886e38


def is_texture(value: object) -> bool:
    """Return whether a value is a texture, a view of one, or a part of either."""
    if is_a(value, "GPUTexture", "GPUTextureView"):
        return True
    try:
        return isinstance(value, Mapping) and "texture" in value
    except Exception:  # whatever its own methods raise
        return False


@dataclass(frozen=True, slots=True)
class TexturePart:
    """A rectangle of texels in one mip level and array layer, with a scale and a bias.

    Attributes:
        given: The texture, or a view of it.
        size: Texels, (width, height).
        origin: The first texel, (x, y).
        mip_level: The mip level of the texture.
        layer: The array layer of the texture.
        scale: Factor of the values: one for all channels, or one for each.
        bias: Summand after the scale: one for all channels, or one for each.
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
        """Return the texture, also of a view."""
        return texture_of(self.given)

    @property
    def format(self) -> str:
        """Return the texture's format; wgpu-py has no views in another format."""
        return str(self.texture.format)

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of level, layer, x and y; empty for a view, as they are unknown."""
        if self.given is not self.texture:
            return ()
        (x, y), (width, height), level, layer = self.origin, self.size, self.mip_level, self.layer
        return (level, level + 1), (layer, layer + 1), (x, x + width), (y, y + height)

    @property
    def changes_numbers(self) -> bool:
        """Return whether there is a scale or a bias."""
        return self.scale != (1.0,) or self.bias != (0.0,)

    def view(self) -> Any:
        """Return a view of the part's level and layer."""
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
    """Return the texture of a view, or the texture itself."""
    return given.texture if is_a(given, "GPUTextureView") else given


def resource_of(value: Any, what: str) -> Any:
    """Return the texture or view of an argument, which may be a mapping."""
    resource = (
        convert.mapping(value, what, DataError)["texture"] if isinstance(value, Mapping) else value
    )
    if not is_a(resource, "GPUTexture", "GPUTextureView"):
        raise DataError(f"{what}: got {shown(resource)}, expected a GPUTexture or GPUTextureView")
    return resource


def part_of(value: Any, what: str) -> TexturePart:
    """Parse a texture argument.

    Args:
        value: A texture, a view, or a mapping with the `KEYS`.
        what: The role of the argument, for messages.

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
    """Return the error for a view whose level or layer wgpu does not reveal."""
    return DataError(
        f"{what}: a view of a texture with {texture.mip_level_count} mip levels, or a level or"
        ' layer of a view, and wgpu does not say of which; give {"texture": texture,'
        ' "mip_level": level, "origin": (x, y, layer)}'
    )


def title(texture: Any) -> str:
    """Describe a texture for messages: label, format and size."""
    width, height, _ = texture.size
    name = shown(texture.label) if texture.label else "it"
    return f"{name} is a {width} x {height} {texture.format} texture"


def usages(texture: Any) -> str:
    """Return the names of a texture's usages."""
    kinds = wgpu.TextureUsage
    return " | ".join(name for name in dir(kinds) if texture.usage & getattr(kinds, name))


def _numbers(value: object, key: str, third: int) -> tuple[int, int, int]:
    """Return three whole numbers; `third` replaces a missing third one."""
    given = convert.unsigned_list(value, key)
    if len(given) not in (2, 3):
        raise ValidationError(f"{key}: got {shown(value)}, expected 2 numbers, or 3")
    return given[0], given[1], given[2] if len(given) == 3 else third


def _factors(value: object, key: str) -> tuple[float, ...]:
    """Return one number for all channels, or one for each, within float32's range."""
    one = isinstance(value, numbers.Real)
    factors = (convert.double(value, key),) if one else convert.double_list(value, key)
    if not factors or max(map(abs, factors)) > MAX_FLOAT32:
        raise ValidationError(f"{key}: got {shown(value)}, expected float32 numbers")
    return factors
