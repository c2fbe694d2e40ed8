"""Conversions between textures and tensors: one dispatch to read texels, one pass to write them.

A part of w x h texels with c channels is a float tensor with the last dimensions [c, h, w] (NCHW)
or [h, w, c] (NHWC); NCHW if both fit. The batch is 1. With one channel, the channel dimension may
be missing. Channels are numbers as the format defines them: 0..1 for unorm formats, linear for
-srgb formats. They are multiplied by the scale, then the bias is added. Writing three channels sets
alpha to 1; writing one channel makes grey.

A compute pass writes texels if the texture can be a storage texture, else a render pass does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import wgpu

from webnn_py.core.dimensions import span
from webnn_py.core.errors import DataError, NotSupportedError
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.textures.code import TILE, Conversion, Layout
from webnn_py.engines.webgpu.runtime.textures.formats import FORMATS, why_not
from webnn_py.engines.webgpu.runtime.textures.parts import TexturePart, part_of, title, usages
from webnn_py.ir import Shape, Value

Record = Callable[[Any], None]


def layout_of(shape: Sequence[int], width: int, height: int, most: int) -> Layout | None:
    """Return the layout in which a shape covers the texels, or None.

    Args:
        shape: The tensor's shape.
        width: Texels in a row.
        height: Rows.
        most: Channels of the texture.
    """
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


def shape_of(given: Any, shape: Shape, what: str) -> Shape | None:
    """Return the one shape that the texels allow for a tensor with open dimensions, else None."""
    part = part_of(given, what)
    _check_format(part, what)
    width, height = part.size
    channels = range(1, FORMATS[part.format].channels + 1)
    covered: list[Shape] = [(height, width)]
    for c in channels:
        for dims in ((c, height, width), (height, width, c)):
            covered += [dims, (1, *dims)]
    fitting = {
        dims for dims in covered if len(dims) == len(shape) and all(map(_may_be, shape, dims))
    }
    return fitting.pop() if len(fitting) == 1 else None


def _may_be(size: int, number: int) -> bool:
    low, high = span(size)
    return low <= number <= high


def load(gpu: Device, given: Any, entry: dict[str, Any], value: Value, what: str) -> Record:
    """Return a function that records the conversion of texels into a tensor's buffer."""
    part, conversion = _checked(gpu, given, value, what)
    _check_usage(part, what, "TEXTURE_BINDING")
    _check_view(gpu, part, {"texture": {"sample_type": "unfilterable-float"}}, what)
    return _computing(gpu, part, conversion, conversion.load_code(gpu.features), entry)


def store(gpu: Device, given: Any, entry: dict[str, Any], value: Value, what: str) -> Record:
    """Return a function that records the conversion of a tensor's buffer into texels."""
    part, conversion = _checked(gpu, given, value, what)
    kind = FORMATS[part.format]
    if kind.storage and part.texture.usage & wgpu.TextureUsage.STORAGE_BINDING:
        _check_view(gpu, part, {"storage_texture": {"format": part.format}}, what)
        return _computing(gpu, part, conversion, conversion.store_code(gpu.features), entry)
    ways = (("STORAGE_BINDING", kind.storage), ("RENDER_ATTACHMENT", kind.render))
    _check_usage(part, what, *reversed([name for name, possible in ways if possible]))
    _check_target(gpu, part, what)
    return _drawing(gpu, part, conversion, conversion.draw_code(gpu.features), entry)


def _check_usage(part: TexturePart, what: str, *names: str) -> None:
    """Raise a DataError if a texture has none of these usages."""
    if not any(part.texture.usage & getattr(wgpu.TextureUsage, name) for name in names):
        raise DataError(
            f"{what}: the texture's usage lacks {' or '.join(names)}: {title(part.texture)}, made"
            f" for {usages(part.texture)}"
        )


def _check_view(gpu: Device, part: TexturePart, bound: dict[str, Any], what: str) -> None:
    """Raise a DataError if a view cannot be bound, which only a trial shows.

    The error would otherwise come during recording, and leave a pass open.
    """
    if part.given is part.texture:
        return
    entry = {"binding": 0, "visibility": wgpu.ShaderStage.COMPUTE, **bound}
    try:
        layout = gpu.handle.create_bind_group_layout(entries=[entry])
        gpu.bind_group(layout, [part.given])
    except gpu.webgpu.LIBRARY.GPUValidationError as error:
        raise _unfit(what, "bound as a 2d texture", error) from error


def _check_target(gpu: Device, part: TexturePart, what: str) -> None:
    """Raise a DataError if a view cannot be drawn to, which only a trial shows.

    The error would otherwise make the user's commands invalid.
    """
    if part.given is part.texture:
        return
    if not gpu.webgpu.FREEING.is_available:  # the trial's commands would leak
        return
    encoder = gpu.encoder("a view")
    try:
        encoder.begin_render_pass(color_attachments=[_attachment(part)]).end()
        gpu.webgpu.free_when_dropped(encoder.finish())
    except gpu.webgpu.LIBRARY.GPUValidationError as error:
        raise _unfit(what, "drawn to", error) from error


def _unfit(what: str, use: str, error: BaseException) -> DataError:
    """Return the error for a view that cannot be used this way."""
    why = str(error).splitlines()[-1].strip()
    return DataError(
        f'{what}: the view cannot be {use}: {why}. Make it with dimension="2d", or give'
        ' {"texture": texture, "origin": (x, y, layer)}'
    )


def _attachment(part: TexturePart) -> dict[str, Any]:
    """Return the color attachment of a render pass."""
    return {"view": part.view(), "load_op": "load", "store_op": "store"}


def _check_format(part: TexturePart, what: str) -> None:
    """Raise a DataError for a texture whose format is not supported."""
    if part.format not in FORMATS:
        raise DataError(
            f"{what}: texture format {part.format} is not supported: {why_not(part.format)}."
            f" {title(part.texture)}"
        )


def _checked(gpu: Device, given: Any, value: Value, what: str) -> tuple[TexturePart, Conversion]:
    part = part_of(given, what)
    _check_format(part, what)
    if value.data_type not in ("float32", "float16"):
        raise DataError(f"{what}: a texture needs a float operand, this one is {value.data_type}")
    width, height = part.size
    channels = FORMATS[part.format].channels
    layout = layout_of(value.shape, width, height, channels)
    if layout is None:
        raise DataError(
            f"{what}: a {width} x {height} {part.format} texture does not fit the shape"
            f" {list(value.shape)}; expected [1, c, {height}, {width}] or"
            f" [1, {height}, {width}, c] with c <= {channels}"
        )
    for name, factors in (("scale", part.scale), ("bias", part.bias)):
        if len(factors) not in (1, layout.channels):
            raise DataError(
                f"{what}: {name} has {len(factors)} numbers, expected 1, or {layout.channels}: one"
                " for each channel of the tensor"
            )
    most = gpu.features.binding_bytes
    if buffer_bytes(value) > most:
        raise NotSupportedError(
            f"{what}: a texture's tensor of {buffer_bytes(value)} bytes; this device's"
            f" max-storage-buffer-binding-size is {most}. Request a device with more, or give parts"
            " of the texture to a smaller input or output"
        )
    moved = part.origin != (0, 0)
    return part, Conversion(value.data_type, layout, part.format, moved, part.changes_numbers)


def _resources(
    gpu: Device, part: TexturePart, conversion: Conversion, resources: list[Any]
) -> list[Any]:
    """Return the resources to bind, with a uniform buffer if the code reads one."""
    if not conversion.placed:
        return resources
    channels = conversion.layout.channels
    factors = [
        number
        for given, neutral in ((part.scale, 1.0), (part.bias, 0.0))
        for number in [*(given * channels)[:channels], *[neutral] * (4 - channels)]
    ]
    data = struct.pack("4I8f", *part.origin, 0, 0, *factors)
    usage = wgpu.BufferUsage.UNIFORM
    uniform = gpu.handle.create_buffer_with_data(data=data, usage=usage)
    return [*resources, {"buffer": uniform, "offset": 0, "size": len(data)}]


def _computing(
    gpu: Device, part: TexturePart, conversion: Conversion, code: str, entry: dict[str, Any]
) -> Record:
    view, layout = part.view(), conversion.layout

    def record(encoder: Any) -> None:
        with device_errors("converting a texture"):
            pipeline = gpu.pipelines.get("texture", code)
            bound = _resources(gpu, part, conversion, [entry, view])
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, gpu.bind_group(pipeline.get_bind_group_layout(0), bound))
            compute.dispatch_workgroups(-(-layout.width // TILE), -(-layout.height // TILE), 1)
            compute.end()

    return record


def _drawing(
    gpu: Device, part: TexturePart, conversion: Conversion, code: str, entry: dict[str, Any]
) -> Record:
    target = _attachment(part)

    def record(encoder: Any) -> None:
        with device_errors("drawing a texture"):
            pipeline = gpu.pipelines.get("texture", code, target=part.format)
            bound = _resources(gpu, part, conversion, [entry])
            draw = encoder.begin_render_pass(color_attachments=[target])
            draw.set_pipeline(pipeline)
            draw.set_bind_group(0, gpu.bind_group(pipeline.get_bind_group_layout(0), bound))
            draw.set_scissor_rect(*part.origin, *part.size)
            draw.draw(3)
            draw.end()

    return record
