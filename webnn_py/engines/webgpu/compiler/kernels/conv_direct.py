"""2-D convolutions for software adapters: registers and direct loads, no tiles, no barriers.

An invocation computes four adjacent pixels of a few output channels. All invocations of a workgroup
have the same channels, so the weights are loaded once. A loaded pixel serves every channel and
every tap over it.
"""

from __future__ import annotations

from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.engines.webgpu.compiler.code.index import constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import BY_TILE, EntryPoint, Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.conv_kernel import Convolution
from webnn_py.engines.webgpu.compiler.loop_bounds import MAX_LOOP_ELEMENTS
from webnn_py.engines.webgpu.compiler.lower.window import always_inside, flat
from webnn_py.engines.webgpu.program.pieces import END_LOOP, loop, u32
from webnn_py.ir import Node
from webnn_py.ops.convolution import dims

STRIP_PIXELS = 4
"""Pixels of an invocation."""
MAX_CHANNELS = 4
"""Output channels of an invocation."""
WORKGROUP_SIZE = 64
MAX_ROW_TAPS = 16
"""Taps of a row, which are unrolled, up to which the kernel stays small."""


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Return a convolution with its epilogue, on software adapters; else None."""
    root = builder.storage(builder.root)
    if node.op != "conv2d" or root.per_word != 1 or builder.features.kind != "cpu":
        return None
    if builder.tile:  # only matrix products have tiles
        return None
    conv = Convolution(builder, node)
    if conv.kw > MAX_ROW_TAPS or conv.ins * conv.kh > MAX_LOOP_ELEMENTS:
        return None
    if builder.computes(conv.data) or builder.computes(conv.filter):
        return None
    reach = (STRIP_PIXELS - 1) * node.attrs["strides"][1] + (conv.kw - 1) * node.attrs["dilations"][
        1
    ]
    if reach > MAX_DIMENSION:  # columns past the end need 32-bit indices, too
        return None
    strips = -(-conv.width // STRIP_PIXELS) * conv.height
    rows = conv.batch * conv.channels // _channels(conv)
    groups = (-(-strips // WORKGROUP_SIZE), rows, 1)
    if any(count > builder.features.grid for count in groups):
        return None
    builder.vector_out = conv.layout == "nchw" and builder.writes_vectors(conv.width)
    conv.emit_epilogue()
    entry = EntryPoint.of(WORKGROUP_SIZE, BY_TILE, _main(builder, conv))
    return builder.finish("conv2d", entry, groups)


def _channels(conv: Convolution) -> int:
    """Return the output channels of an invocation: a divisor of the group's."""
    return max(n for n in range(1, MAX_CHANNELS + 1) if conv.per_group % n == 0)


def _main(builder: KernelBuilder, conv: Convolution) -> list[str]:
    channels = _channels(conv)
    blocks = conv.channels // channels
    across = -(-conv.width // STRIP_PIXELS)
    q, row, o = symbol("q", across * conv.height), symbol("wid.y"), symbol("o", conv.channels)
    lines = [
        f"  let q = wid.x * {u32(WORKGROUP_SIZE)} + lid;",
        f"  if (q >= {u32(across * conv.height)}) {{ return; }}",
        f"  let oy = {q // across};",
        f"  let ox = {q % across * STRIP_PIXELS};",
        f"  let n = {row // blocks};",
        f"  let o = {row % blocks * channels};",
        f"  let first = {o // conv.per_group * conv.ins};",
        *(f"  var acc{r} = vec4<f32>(0.0);" for r in range(channels)),
        "  " + loop(f"for (var k = 0u; k < {u32(conv.ins)}; k++)", conv.ins),
    ]
    # Unroll only the row of taps: software drivers take minutes to compile larger code.
    lines.append("    " + loop(f"for (var ky = 0u; ky < {u32(conv.kh)}; ky++)", conv.kh))
    lines += [*_row(builder, conv, channels), f"    {END_LOOP}"]
    return [*lines, f"  {END_LOOP}", *_stores(builder, conv, channels)]


def _row(builder: KernelBuilder, conv: Convolution, channels: int) -> list[str]:
    """Emit one row of taps: load the pixels under it once, then multiply and add."""
    attrs = conv.node.attrs
    stride, dilation = attrs["strides"][1], attrs["dilations"][1]
    offsets = sorted(
        {p * stride + x * dilation for p in range(STRIP_PIXELS) for x in range(conv.kw)}
    )
    lines = [f"      {line}" for line in _pixels(builder, conv, offsets)]
    weights = builder.storage(conv.filter)
    at = builder.element(conv.filter)
    o, k, ky = symbol("o", conv.channels), symbol("k", conv.ins), symbol("ky", conv.kh)
    for x in range(conv.kw):
        lanes = ", ".join(f"s{p * stride + x * dilation}" for p in range(STRIP_PIXELS))
        lines.append(f"      let v{x} = vec4<f32>({lanes});")
        for r in range(channels):
            place = {"o": o + r, "i": k, "h": ky, "w": constant(x)}
            tap = flat(conv.filter_layout, conv.filter, place)
            weight = weights.load(at, builder.places.at(conv.filter, tap))
            lines.append(f"      acc{r} += {weight} * v{x};")
    return lines


def _pixels(builder: KernelBuilder, conv: Convolution, offsets: list[int]) -> list[str]:
    """Emit names s<offset> for the pixels of one input row, zeros outside."""
    attrs = conv.node.attrs
    height, width = dims(conv.data.shape, conv.layout, "hw")
    top, left = attrs["padding"][0], attrs["padding"][2]
    oy, ox, ky = symbol("oy", conv.height), symbol("ox"), symbol("ky", conv.kh)
    n, channel = symbol("n", conv.batch), symbol("first") + symbol("k", conv.ins)
    iy = oy * attrs["strides"][0] + ky * attrs["dilations"][0] - top
    safe_row = top == 0 and always_inside(conv.node, 0, height)
    lines = [f"let iy = {iy};"]
    row = iy.named("iy")
    if not safe_row:
        lines.append(f"let row = {row.min(height - 1)};")
        row = symbol("row", height)
    last = (-(-conv.width // STRIP_PIXELS) * STRIP_PIXELS - 1) * attrs["strides"][1]
    last += (conv.kw - 1) * attrs["dilations"][1] - left
    safe_column = left == 0 and last < width
    # Negative coordinates wrap to huge ones.
    checks = [] if safe_row else [f"(iy < {u32(height)})"]
    storage = builder.storage(conv.data)
    for offset in offsets:
        column, inside = ox * attrs["strides"][1] + (offset - left), checks
        if not safe_column:
            lines.append(f"let x{offset} = {column};")
            column = symbol(f"x{offset}").min(width - 1)
            inside = [*checks, f"(x{offset} < {u32(width)})"]
        place = {"n": n, "c": channel, "h": row, "w": column}
        pixel = builder.places.at(conv.data, flat(conv.layout, conv.data, place))
        value = storage.load(builder.element(conv.data), pixel)
        if inside:
            # Not &&: SwiftShader takes minutes to compile the branches of a few dozen.
            value = f"select(0.0, {value}, {' & '.join(inside)})"
        lines.append(f"let s{offset} = {value};")
    return lines


def _stores(builder: KernelBuilder, conv: Convolution, channels: int) -> list[str]:
    """Emit the stores of all channels."""
    lines: list[str] = []
    n, o = symbol("n", conv.batch), symbol("o", conv.channels)
    oy, ox = symbol("oy", conv.height), symbol("ox")
    for r in range(channels):
        place = {"n": n, "c": o + r, "h": oy, "w": ox}
        if builder.vector_out:
            index = flat(conv.layout, conv.node.output, place)
            lines.append(f"  {conv.put('put4', index, o + r, f'acc{r}')}")
            continue
        for p in range(STRIP_PIXELS):
            index = flat(conv.layout, conv.node.output, place | {"w": ox + p})
            store = conv.put("put", index, o + r, f"acc{r}.{'xyzw'[p]}")
            always = conv.width % STRIP_PIXELS == 0 or p == 0
            lines.append(
                f"  {store}" if always else f"  if ({ox + p} < {u32(conv.width)}) {{ {store} }}"
            )
    return lines
