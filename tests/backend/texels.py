"""Textures that tests write and read, and graphs that copy them."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

from tests.backend.buffers import run_recorded
from tests.graphs import build
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.runtime.fallback import device_of
from webnn_py.engines.webgpu.runtime.textures.formats import FORMATS

USAGE = wgpu.TextureUsage
EVERY = USAGE.TEXTURE_BINDING | USAGE.STORAGE_BINDING | USAGE.COPY_SRC | USAGE.COPY_DST
BY_FEATURE = ("bgra8unorm", "rg32float")
"""Storage textures by a feature of the device alone."""
WIDTH, HEIGHT = 7, 5
WRITTEN = [
    (name, usage)
    for name, kind in FORMATS.items()
    for usage, possible in (("STORAGE_BINDING", kind.storage), ("RENDER_ATTACHMENT", kind.render))
    if possible and not (usage == "STORAGE_BINDING" and name in BY_FEATURE)
]
"""Formats, and what usage lets them be written."""
Array = np.ndarray[Any, Any]


def texture(
    device: Any, format_: str = "rgba32float", usage: int | None = None, **options: Any
) -> Any:
    """A texture of 7 x 5 texels."""
    if usage is None:
        usage = usage_of(format_)
    options = {"size": (WIDTH, HEIGHT, 1)} | options
    return device.create_texture(format=format_, usage=usage, **options)


def usage_of(format_: str) -> int:
    """Everything that a texture of this format may be made for on any device."""
    kind = FORMATS.get(format_)
    usage: int = EVERY & ~USAGE.STORAGE_BINDING
    if kind is not None and kind.storage and format_ not in BY_FEATURE:
        usage |= USAGE.STORAGE_BINDING
    return usage if kind is None or not kind.render else usage | USAGE.RENDER_ATTACHMENT


def element_of(format_: str) -> Any:
    if format_.endswith("32float"):
        return np.float32
    if format_.endswith("16float"):
        return np.float16
    return np.int8 if format_.endswith("snorm") else np.uint8


def fill(target: Any, texels: Array, mip_level: int = 0, layer: int = 0) -> None:
    """Write texels of shape [height, width, channels] as they lie in memory."""
    height, width = texels.shape[:2]
    device_of(target).queue.write_texture(
        {"texture": target, "mip_level": mip_level, "origin": (0, 0, layer)},
        np.ascontiguousarray(texels),
        {"bytes_per_row": texels[0].nbytes},
        (width, height, 1),
    )


def texels_of(source: Any, mip_level: int = 0, layer: int = 0) -> Array:
    """What lies in a texture, [height, width, channels]."""
    element = element_of(source.format)
    channels = FORMATS[source.format].channels
    width, height = (size >> mip_level for size in source.size[:2])
    data = device_of(source).queue.read_texture(
        {"texture": source, "mip_level": mip_level, "origin": (0, 0, layer)},
        {"bytes_per_row": width * channels * np.dtype(element).itemsize},
        (width, height, 1),
    )
    return np.frombuffer(data, element).reshape(height, width, channels)


def some_texels(format_: str, seed: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Array:
    rng = np.random.default_rng(seed)
    element = element_of(format_)
    shape = (size[1], size[0], FORMATS[format_].channels)
    if np.issubdtype(element, np.floating):
        return rng.normal(size=shape).astype(element)
    low = -127 if element is np.int8 else 0
    return rng.integers(low, 128 if element is np.int8 else 256, shape).astype(element)


def numbers(format_: str, texels: Array) -> Array:
    """Texels as the numbers that a format stands for, in the order r, g, b, a."""
    values = texels.astype(np.float64)
    if "norm" in format_:
        values = values / (127 if "snorm" in format_ else 255)
    if format_.startswith("bgra"):
        values = values[..., [2, 1, 0, 3]]
    if format_.endswith("-srgb"):
        low, high = values / 12.92, ((values + 0.055) / 1.055) ** 2.4
        colours = np.where(values <= 0.04045, low, high)
        values = np.concatenate([colours[..., :3], values[..., 3:]], axis=-1)
    return values


def copying(context: MLContext, shape: list[int], data_type: str = "float32") -> MLGraph:
    """y is x plus nothing, computed."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", data_type, shape)
        return {"y": builder.add(x, builder.constant(0.0, data_type))}

    return build(context, what)


def planar(values: Array, channels: int) -> Array:
    return values[None, ..., :channels].transpose(0, 3, 1, 2)


def run(graph: MLGraph, x: Any, y: Any) -> None:
    run_recorded(graph, {"x": x}, {"y": y})
