"""Inputs of convolutions that are computed as they are loaded, four elements at a time."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.code.affine import coordinate
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.fusing.op_traits import elementwise_leaves
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.ir import Value


def computed_pixels(
    builder: KernelBuilder, value: Value, axis: int, compute: str
) -> Callable[[Index, Index], str] | None:
    """Emits the functions that compute four consecutive elements of a value.

    Args:
        builder: Of the kernel.
        value: What is computed, element by element.
        axis: That of the channels.
        compute: WGSL type of the elements.

    Returns:
        A call, given the flat index of the first element and its channel, which all four have
        unless channels are side by side. None if the value is stored, or what it is computed from
        does not lie in vec4s.
    """
    if not builder.computes(value):
        return None
    leaves = elementwise_leaves(value, builder.producers, builder.is_stored) or []
    whole = [leaf for leaf in leaves if leaf.shape == value.shape]
    vectors = [at for leaf in whole if (at := builder.vector(leaf)) is not None]
    if not whole or len(vectors) < len(whole):
        return None
    last, channels = axis == len(value.shape) - 1, value.shape[axis]
    # By pixel and channel, what lies in wider rows is found without dividing by their number.
    channel = symbol("channel", channels)
    place = "pixel" if last else "i"
    i = symbol(place, value.size // channels) * channels + channel if last else symbol(place)
    body = Body(builder)
    body.name(coordinate(value.shape, axis, i), "channel")
    lines: list[str] = []

    def load(at: Callable[[str], str], place: Index) -> None:
        lines.append(f"  let q{len(lines)} = vec4<f32>({at(f'{place.enclosed} >> 2u')});")

    for leaf, at in zip(whole, vectors, strict=True):
        body.preset(leaf, None, f"e{len(lines)}")
        load(at, builder.places.at(leaf, i))
    for leaf in leaves:
        if last and leaf.shape[-1:] == value.shape[-1:] and leaf.size == leaf.shape[-1]:
            by_channel = builder.vector(leaf)
            if by_channel is not None:
                body.preset(leaf, None, f"e{len(lines)}")
                load(by_channel, builder.places.at(leaf, channel))
    body.line(f"return {body.load(value, i)};")
    names = [f"e{number}: f32" for number in range(len(lines))]
    builder.function("computed", ", ".join([f"{place}: u32", "channel: u32", *names]), "f32", body)
    elements = []
    for n, lane in enumerate("xyzw"):
        given = ", ".join(f"q{number}.{lane}" for number in range(len(names)))
        where = f"{place}, {channel + n}" if last else f"{i + n}, channel"
        elements.append(f"{compute}(computed({where}, {given}))")
    lines.append(f"  return vec4<{compute}>({', '.join(elements)});")
    head = f"fn pixels({place}: u32, channel: u32) -> vec4<{compute}> {{"
    builder.functions.append("\n".join([head, *lines, "}"]))

    def call(index: Index, channel: Index) -> str:
        return f"pixels({(index - channel) // channels if last else index}, {channel})"

    return call
