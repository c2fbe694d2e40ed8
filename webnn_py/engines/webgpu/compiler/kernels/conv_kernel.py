"""2-D convolutions as implicit GEMM: an im2col operand is gathered from the input.

NCHW: filter [o, k] times windows [k, h * w]. NHWC: windows [h * w, k] times filter [k, o]. The
index k runs over input channel, row and column of the filter, in the filter's memory order.
"""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code.affine import coordinate
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.fusing.op_traits import elementwise_leaves
from webnn_py.engines.webgpu.compiler.kernel_builder import F16X8, Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.epilogue import WRITE4, emit_epilogue
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import LoadHook, Product
from webnn_py.engines.webgpu.compiler.kernels.matmul import GemmProblem
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import (
    add_loader,
    gemm_limits,
    halves_of,
    product_type,
    words_of_codes,
)
from webnn_py.engines.webgpu.compiler.legalize.integer_products import CODES_CONVOLUTION, SIGN
from webnn_py.engines.webgpu.compiler.legalize.split_products import SPLIT_CONVOLUTION
from webnn_py.engines.webgpu.compiler.lower.window import flat, window_position
from webnn_py.engines.webgpu.program.pieces import declared, i32, u32
from webnn_py.ir import Node, Value
from webnn_py.ops.convolution import dims

_WEIGHT, _COMPUTED, _PIXELS = declared("weight"), declared("computed"), declared("pixels")

MIN_GROUP_CHANNELS = 4
"""Output channels of a group from which a matrix product pays."""


class Convolution:
    """The sizes of a convolution, and emitters of WGSL that reads its operands."""

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        data, filter_, third, *tops = node.inputs
        assert data is not None
        assert filter_ is not None
        self.builder, self.node = builder, node
        is_of_codes = node.op == CODES_CONVOLUTION
        self.is_split = node.op == SPLIT_CONVOLUTION
        self.data, self.filter = data, filter_
        self.bias: Value | None = None if is_of_codes else third
        self.outside: Value | None = third if is_of_codes else None
        attrs = node.attrs
        self.layout: str = attrs["input_layout"]
        self._is_nchw = self.layout == "nchw"
        self.filter_layout: str = attrs["filter_layout"]
        outs, self.ins, self.kh, self.kw = dims(filter_.shape[-4:], self.filter_layout, "oihw")
        self.groups: int = attrs["groups"]
        self.channels = outs
        self.per_group: int = outs // self.groups
        self.height, self.width = dims(node.output.shape, self.layout, "hw")
        self.area: int = self.height * self.width
        self.batch = node.output.shape[0]
        self.k = self.ins * self.kh * self.kw
        self.compute: str = product_type(builder, node, data, filter_)
        extents = self.batch * self.area, self.per_group, self.k
        halves = halves_of(builder, extents, data, filter_)
        self.by_matrices = is_of_codes or self.is_split or halves is not None
        for name, top in zip(("image_top", "channel_top"), tops, strict=False):
            assert top is not None
            add_loader(builder, name, top)
        if is_of_codes:
            self.compute = "i8"
        elif halves is not None:
            (self.data, self.filter), self.compute = halves, "f16"
        # Matrix tiles are large: pixels of all images are rows of one product, so that small
        # images leave no tile empty.
        has_matrices = gemm_limits(builder).matrix_of(self.multiplied) is not None
        self.joins_images = has_matrices and self.groups == 1 and not self._is_nchw
        self.rows = self.batch * self.area if self.joins_images else self.area

    @property
    def multiplied(self) -> str:
        """The type of the product, as of `GemmProblem`; `compute` is that of its loads."""
        return "split" if self.is_split else self.compute

    @property
    def is_halved(self) -> bool:
        """Whether the filter is stored in halves."""
        return self.is_split and self.builder.storage(self.filter).element == "f16"

    def image_top(self, batch: Index, row: Index) -> str:
        """Emit the largest magnitude of the image of a pixel."""
        image, _, _ = self.pixel(batch, row)
        return f"{declared('image_top')}({image})"

    def channel_top(self, batch: Index, channel: Index) -> str:
        """Emit the largest magnitude of an output channel's filter."""
        return f"{declared('channel_top')}({channel})"

    @property
    def is_pixelwise(self) -> bool:
        """Whether the window is one pixel, with stride 1 and no padding."""
        attrs = self.node.attrs
        moves = (*attrs["strides"], self.kh, self.kw)
        return moves == (1, 1, 1, 1) and not any(attrs["padding"])

    @property
    def order(self) -> str:
        """The letters of the filter's dimensions that form k."""
        return self.filter_layout.replace("o", "")

    @property
    def _sizes(self) -> dict[str, int]:
        return {"i": self.ins, "h": self.kh, "w": self.kw}

    def tap(self, k: Index) -> dict[str, Index]:
        """Return channel, row and column of the filter for an index k."""
        shape = [self._sizes[letter] for letter in self.order]
        return {letter: coordinate(shape, axis, k) for axis, letter in enumerate(self.order)}

    def window(self, batch: Index, k: Index, place: Index) -> str:
        """Emit the input element under tap k of an output pixel."""
        tap = self.tap(k)
        taps = ", ".join(str(tap[letter]) for letter in "ihw")
        return f"{declared('window')}({batch}, {taps}, {place})"

    def window_function(
        self, load: Callable[[Index, Index], str] | None = None, width: int = 1
    ) -> None:
        """Add `window(batch, i, h, w, p)`: the input element under a tap of pixel p, 0 outside.

        With a load of several channels from i on, the function is `window4`, `window8` and so on.
        """
        one, four = self.compute, f"vec4<{self.compute}>"
        if self.compute == "i8":
            one, four = "i32", "u32"
        kind = {1: one, 4: four}.get(width, F16X8)
        body = Body(self.builder)
        tap = {letter: symbol(letter, size) for letter, size in self._sizes.items()}
        image, group, p = self.pixel(symbol("batch", self.products), symbol("p", self.rows))
        at = body.let(p // self.width), body.let(p % self.width)
        (row, column), inside = window_position(body, at, (tap["h"], tap["w"]), self.node)
        if inside:
            outside = self._code_outside(body, width) if self.compute == "i8" else f"{kind}()"
            body.line(f"if (!({inside})) {{ return {outside}; }}")
        places = {"n": image, "c": group * self.ins + tap["i"], "h": row, "w": column}
        place = flat(self.layout, self.data, places)
        channel = places["c"]
        parameters = "batch: u32, i: u32, h: u32, w: u32, p: u32"
        if load is None:
            self._return(body, self.data, place)
        else:
            body.line(f"return {load(place, channel)};")
        name = f"window{width}" if width > 1 else "window"
        self.builder.function(name, parameters, kind, body)

    def _code_outside(self, body: Body, width: int) -> str:
        """Emit the signed code of the padding, or the words of several."""
        shift = SIGN if self.data.data_type == "uint8" else 0
        known = 0 if self.outside is None else self.builder.scalar(self.outside)
        if known is not None or self.outside is None:
            number = int(known or 0) - shift
            code, word = i32(number), u32(number % 256 * 0x01010101)
        else:
            code = f"(i32({body.load(self.outside, constant(0))}) - {shift})"
            word = f"((bitcast<u32>({code}) & 0xffu) * 0x01010101u)"
        return {1: code, 4: word}.get(width, f"{F16X8}({word})")

    def _return(self, body: Body, value: Value, place: Index) -> None:
        """Emit the end of a function: return an element of an operand."""
        if self.compute == "i8":
            code = body.load(value, place)
            is_unsigned = value.data_type == "uint8"
            body.line(f"return i32({code}) - {SIGN};" if is_unsigned else f"return {code};")
        elif self.compute == "f32":
            body.line(f"return {body.load(value, place)};")
        elif self.builder.computes(value):
            body.line(f"return {self.compute}({body.load(value, place)});")
        else:
            at = self.builder.places.at(value, place)
            body.line(f"return {self.builder.element(value)(str(at))};")

    @property
    def products(self) -> int:
        """Number of independent products."""
        return 1 if self.joins_images else self.batch * self.groups

    def split_batch(self, batch: Index) -> tuple[Index, Index]:
        """Return image and group of a batch index."""
        return batch // self.groups, batch % self.groups

    def pixel(self, batch: Index, row: Index) -> tuple[Index, Index, Index]:
        """Return image, group and pixel of a row of a product."""
        if self.joins_images:
            return row // self.area, constant(0), row % self.area
        return *self.split_batch(batch), row

    def weight_function(self) -> None:
        """Add `weight(batch, o, k)`: the filter element for an output channel of the group.

        A filter in halves is loaded by vectors only.
        """
        if self.is_halved:
            return
        body = Body(self.builder)
        _, group = self.split_batch(symbol("batch", self.products))
        places = {
            "o": group * self.per_group + symbol("o", self.per_group),
            **self.tap(symbol("k")),
        }
        self._return(body, self.filter, flat(self.filter_layout, self.filter, places))
        kind = "i32" if self.compute == "i8" else self.compute
        self.builder.function("weight", "batch: u32, o: u32, k: u32", kind, body)

    def store(
        self, function: str, batch: Index, channel: Index, position: Index, value: str
    ) -> str:
        """Emit the statement that stores one output element of a group, or four by `put4`."""
        return f"{self.epilogue(function, batch, channel, position, value)};"

    def epilogue(
        self, function: str, batch: Index, channel: Index, position: Index, value: str
    ) -> str:
        """Emit the call of an epilogue function for an output element of a group."""
        own = self.split_batch(batch)[1] * self.per_group + channel
        return self._call(function, self.place(batch, channel, position), own, value)

    def place(self, batch: Index, channel: Index, position: Index) -> Index:
        """Return the flat index of an output element of a group."""
        if self.joins_images:
            return position * self.channels + channel
        image, group = self.split_batch(batch)
        own = group * self.per_group + channel
        if self._is_nchw:
            return (image * self.channels + own) * self.area + position
        return (image * self.area + position) * self.channels + own

    def put_at(self, function: str, place: Index, value: str) -> str:
        """Emit the store by an epilogue function; derive the channel from the flat index."""
        return self.put(function, place, self._channel(place), value)

    def put(self, function: str, place: Index, channel: Index, value: str) -> str:
        """Emit the store by an epilogue function."""
        return f"{self._call(function, place, channel, value)};"

    def _call(self, function: str, place: Index, channel: Index, value: str) -> str:
        return f"{declared(function)}({place}, {channel}, {value})"

    def emit_epilogue(self) -> None:
        """Add the epilogue functions that `put` calls, with a channel parameter."""
        channel = self._channel(symbol("i"))
        finish = self._add_bias if self.bias is not None else None
        emit_epilogue(self.builder, self.node, finish, channel, step=0 if self._is_nchw else 1)

    def _channel(self, index: Index) -> Index:
        """Return the channel of an output element."""
        return coordinate(self.node.output.shape, self.layout.index("c"), index)

    def _add_bias(self, body: Body, index: Index, total: str) -> str:
        """Add the channel's bias to the result."""
        assert self.bias is not None
        return f"{total} + {body.load(self.bias, self._channel(index))}"


def product(builder: KernelBuilder, node: Node) -> Product | None:
    """Return a convolution as a matrix product; None if its groups are too small for one."""
    per_word = builder.storage(builder.root).per_word
    if per_word != 1 and not (node.op == CODES_CONVOLUTION and per_word == 4):
        return None
    conv = Convolution(builder, node)
    if conv.per_group < MIN_GROUP_CHANNELS:
        return None
    if conv.layout == "nchw":
        return Product(_nchw_problem(conv), conv.place, conv.put_at, conv.emit_epilogue)

    def place(batch: Index, row: Index, col: Index) -> Index:
        return conv.place(batch, col, row)

    return Product(_nhwc_problem(conv), place, conv.put_at, conv.emit_epilogue)


def _vector_out(conv: Convolution, extent: int) -> bool:
    """Store vec4s if they align with rows of `extent` elements; return whether they do."""
    conv.builder.vector_out = conv.builder.writes_vectors(extent)
    return conv.builder.vector_out


def _nchw_problem(conv: Convolution) -> GemmProblem:
    """NCHW: C[o, hw]."""
    conv.window_function()
    conv.weight_function()
    vector = _vector_out(conv, conv.area)
    return GemmProblem(
        m=conv.per_group,
        n=conv.area,
        k=conv.k,
        batch=conv.products,
        compute=conv.multiplied,
        by_matrices=conv.by_matrices,
        looped=True,
        a=lambda batch, row, k: f"{_WEIGHT}({batch}, {row}, {k})",
        b=conv.window,
        a4=_weight_load(conv, 4),
        a_major="m" if conv.filter_layout.endswith("o") else "k",
        k_run=conv.ins if conv.order.endswith("i") else 1,
        b4=_pixel_load(conv),
        a_top=conv.channel_top if conv.is_split else None,
        b_top=conv.image_top if conv.is_split else None,
        store=lambda batch, row, col, value: conv.store("put", batch, row, col, value),
        store4=(lambda batch, row, col, value: conv.store("put4", batch, row, col, value))
        if vector
        else None,
    )


def _vector_load(conv: Convolution, value: Value, width: int) -> Callable[[Index], str] | None:
    """Return a load of four elements, eight f16 or sixteen bytes, of a stored operand."""
    builder = conv.builder
    has_eights = conv.compute == "f16" or (value is conv.filter and conv.is_halved)
    if builder.computes(value) or (width == 8 and not has_eights):
        return None
    if conv.compute == "i8":
        return words_of_codes(builder, value, width)
    at = builder.vector(value) if width == 4 else builder.eights(value)
    if at is None:
        return None
    shift = width.bit_length() - 1
    if width == 8 or builder.storage(value).element == conv.compute:
        return lambda index: at(f"{builder.places.at(value, index).enclosed} >> {u32(shift)}")
    return lambda index: f"vec4<f32>({at(f'{builder.places.at(value, index).enclosed} >> 2u')})"


def _input_load(conv: Convolution, width: int) -> Callable[[Index, Index], str] | None:
    """Return a load of consecutive input elements, by flat index and channel of the first."""
    load = _vector_load(conv, conv.data, width)
    if load is None and (width > 4 or conv.compute == "i8"):
        return None
    if load is None:
        axis = conv.layout.index("c")
        return add_prologue(conv.builder, conv.data, axis, conv.compute)
    return lambda place, channel: load(place)


def _weight_load(conv: Convolution, width: int, first: int = 0) -> LoadHook | None:
    """Return a load of several consecutive taps of the filter, if memory allows.

    Args:
        conv: The convolution.
        width: Number of taps.
        first: Index of the filter's first element.
    """
    along = conv.per_group if conv.filter_layout.endswith("o") else conv.k
    if along % width:
        return None
    load = _vector_load(conv, conv.filter, width)
    if load is None:
        return None

    def column(batch: Index, row: Index, k: Index) -> str:
        _, group = conv.split_batch(batch)
        return load(k * conv.channels + group * conv.per_group + row)

    if conv.filter_layout.endswith("o"):
        return column

    def weight(batch: Index, row: Index, k: Index) -> str:
        _, group = conv.split_batch(batch)
        return load((group * conv.per_group + row) * conv.k + k + first)

    return weight


def _pixel_load(conv: Convolution) -> LoadHook | None:
    """Return a load of four input pixels, for pixelwise convolutions."""
    if not conv.is_pixelwise or not divides(4, conv.area):
        return None
    load = _input_load(conv, 4)
    if load is None:
        return None

    def pixels(batch: Index, k: Index, col: Index) -> str:
        # Images and their groups are contiguous.
        place = (batch * conv.ins + k) * conv.area + col
        return load(place, conv.split_batch(batch)[1] * conv.ins + k)

    return pixels


def _nhwc_problem(conv: Convolution) -> GemmProblem:
    """NHWC: C[hw, o]."""
    conv.window_function()
    conv.weight_function()
    vector = _vector_out(conv, conv.per_group)
    last = conv.filter_layout.endswith("o")
    wide = 16 if conv.compute == "i8" else 8
    weights, more = _weight_load(conv, 4), None if last else _weight_load(conv, wide)
    lows = _weight_load(conv, wide, conv.filter.size // 2) if conv.is_halved else None
    return GemmProblem(
        m=conv.rows,
        n=conv.per_group,
        k=conv.k,
        batch=conv.products,
        compute=conv.multiplied,
        by_matrices=conv.by_matrices,
        looped=True,
        a=lambda batch, row, k: conv.window(batch, k, row),
        b=lambda batch, k, col: f"{_WEIGHT}({batch}, {col}, {k})",
        a4=_channel_load(conv, 4),
        b4=None if weights is None else lambda batch, k, col: weights(batch, col, k),
        a8=_channel_load(conv, wide),
        b8=None if more is None else lambda batch, k, col: more(batch, col, k),
        b_low8=None if lows is None else lambda batch, k, col: lows(batch, col, k),
        a_top=conv.image_top if conv.is_split else None,
        b_top=conv.channel_top if conv.is_split else None,
        b_major="n" if last else "k",
        store=lambda batch, row, col, value: conv.store("put", batch, col, row, value),
        store4=(lambda batch, row, col, value: conv.store("put4", batch, col, row, value))
        if vector
        else None,
        result4=(lambda batch, row, col, value: conv.epilogue("result4", batch, col, row, value))
        if vector
        else None,
        write4=lambda batch, row, col, made: f"{WRITE4}({conv.place(batch, col, row)}, {made});",
    )


def _channel_load(conv: Convolution, width: int) -> LoadHook | None:
    """Return a load of several input channels, if they are consecutive along k."""
    if conv.ins % width or not conv.order.endswith("i"):
        return None
    load = _input_load(conv, width)
    if load is None:
        return None
    if conv.is_pixelwise:

        def pixel(batch: Index, row: Index, k: Index) -> str:
            image, group = conv.split_batch(batch)
            channel = group * conv.ins + k
            place = (image * conv.area + row) * (conv.groups * conv.ins) + channel
            return load(place, channel)

        return pixel
    conv.window_function(load, width)

    def channels(batch: Index, row: Index, k: Index) -> str:
        tap = conv.tap(k)
        taps = ", ".join(str(tap[letter]) for letter in "ihw")
        return f"{declared(f'window{width}')}({batch}, {taps}, {row})"

    return channels


def add_prologue(
    builder: KernelBuilder, value: Value, axis: int, compute: str
) -> Callable[[Index, Index], str] | None:
    """Add functions that compute four consecutive elements of the input (a prologue).

    Args:
        builder: The kernel's builder.
        value: The input, computed element by element.
        axis: The axis of the channels.
        compute: WGSL type of the elements.

    Returns:
        An emitter of the call, by the first element's flat index and channel. All four have that
        channel unless channels are the last axis. None if the input is stored, or its operands are
        not aligned to vec4s.
    """
    if not builder.computes(value):
        return None
    leaves = elementwise_leaves(value, builder.producers, builder.is_stored) or []
    whole = [leaf for leaf in leaves if leaf.shape == value.shape]
    vectors = [at for leaf in whole if (at := builder.vector(leaf)) is not None]
    if not whole or len(vectors) < len(whole):
        return None
    last, channels = axis == len(value.shape) - 1, value.shape[axis]
    # With pixel and channel as parameters, operands in wider rows need no division.
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
        arguments = ", ".join(f"q{number}.{lane}" for number in range(len(names)))
        where = f"{place}, {channel + n}" if last else f"{i + n}, channel"
        elements.append(f"{compute}({_COMPUTED}({where}, {arguments}))")
    lines.append(f"  return vec4<{compute}>({', '.join(elements)});")
    parameters, text = f"{place}: u32, channel: u32", "\n".join(["", *lines, ""])
    builder.functions.append(Function.of("pixels", parameters, f"vec4<{compute}>", text))

    def call(index: Index, channel: Index) -> str:
        return f"{_PIXELS}({(index - channel) // channels if last else index}, {channel})"

    return call
