"""2-D convolutions as matrix products whose operand is gathered from the input.

NCHW: filter [o, k] times windows [k, h * w]. NHWC: windows [h * w, k] times filter [k, o]. The
index k runs over input channel, row and column of the filter in the filter's own order of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, Kernel, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import LoadHook
from webnn_py.engines.webgpu.compiler.kernels.matmul import GemmProblem, emit_gemm
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import gemm_limits
from webnn_py.engines.webgpu.compiler.kernels.tail import emit_tail
from webnn_py.engines.webgpu.compiler.lower.window import always_inside, flat
from webnn_py.ir import Node, Value
from webnn_py.ops.convolution import dims

FEWEST_CHANNELS = 4
"""Output channels of a group from which a matrix product pays."""


class Convolution:
    """The numbers of a convolution, and the WGSL that reads its operands."""

    def __init__(self, emission: KernelBuilder, node: Node) -> None:
        data, filter_, bias = node.inputs
        assert data is not None
        assert filter_ is not None
        self.emission, self.node = emission, node
        self.data, self.filter, self.bias = data, filter_, bias
        attrs = node.attrs
        self.layout: str = attrs["input_layout"]
        self.filter_layout: str = attrs["filter_layout"]
        outs, self.ins, self.kh, self.kw = dims(filter_.shape, self.filter_layout, "oihw")
        self.groups: int = attrs["groups"]
        self.per_group = outs // self.groups
        self.height, self.width = dims(node.output.shape, self.layout, "hw")
        self.batch = node.output.shape[0]
        self.k = self.ins * self.kh * self.kw
        self.order = [letter for letter in self.filter_layout if letter != "o"]

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the letters that k runs over."""
        return {"i": self.ins, "h": self.kh, "w": self.kw}

    def tap(self, k: str) -> dict[str, str]:
        """Channel, row and column of the filter for an index k."""
        sizes = [self.sizes[letter] for letter in self.order]
        names: dict[str, str] = {}
        for letter, size, inner in zip(self.order, sizes, shapes.strides(sizes), strict=True):
            part = k if inner == 1 else f"({k} / {inner}u)"
            first = letter == self.order[0] or all(
                self.sizes[o] == 1 for o in self.order[: self.order.index(letter)]
            )
            names[letter] = "0u" if size == 1 else part if first else f"({part} % {size}u)"
        return names

    def window_function(self) -> None:
        """`window(batch, k, p)`: the input's element under tap k of output place p, 0 outside."""
        body = Body(self.emission)
        tap = {name: body.let(place, name) for name, place in self.tap("k").items()}
        row = body.let(f"p / {self.width}u") if self.height > 1 else "0u"
        column = body.let(f"p % {self.width}u") if self.width > 1 else "0u"
        places, checks = self._places(body, (row, column), (tap["h"], tap["w"]))
        if checks:
            body.line(f"if (!({' && '.join(checks)})) {{ return 0.0; }}")
        image, group = self.split_batch("batch")
        channel = f"({group} * {self.ins}u + {tap['i']})" if self.groups > 1 else tap["i"]
        names = {"n": image, "c": channel, "h": f"u32({places[0]})", "w": f"u32({places[1]})"}
        element = body.load(self.data, flat(self.layout, self.data, names))
        body.line(f"return {element};")
        self.emission.function("window", "batch: u32, k: u32, p: u32", "f32", body)

    def _places(
        self, body: Body, at: Sequence[str], tap: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        attrs = self.node.attrs
        size = dims(self.data.shape, self.layout, "hw")
        places: list[str] = []
        checks: list[str] = []
        for i in (0, 1):
            low = attrs["padding"][2 * i]
            step = f"{at[i]} * {attrs['strides'][i]}u + {tap[i]} * {attrs['dilations'][i]}u"
            place = body.let(f"i32({step}) - {low}" if low else f"i32({step})", "p")
            if low:
                checks.append(f"{place} >= 0")
            if not always_inside(self.node, i, size[i]):
                checks.append(f"{place} < {size[i]}")
            places.append(place)
        return places, checks

    def split_batch(self, batch: str) -> tuple[str, str]:
        """Image and group of a batch index."""
        if self.groups == 1:
            return batch, "0u"
        return f"({batch} / {self.groups}u)", f"({batch} % {self.groups}u)"

    def weight_function(self) -> None:
        """`weight(batch, o, k)`: the filter's element for an output channel of the group."""
        body = Body(self.emission)
        _, group = self.split_batch("batch")
        out = f"({group} * {self.per_group}u + o)" if self.groups > 1 else "o"
        names = {"o": out} | {name: body.let(at, name) for name, at in self.tap("k").items()}
        element = body.load(self.filter, flat(self.filter_layout, self.filter, names))
        body.line(f"return {element};")
        self.emission.function("weight", "batch: u32, o: u32, k: u32", "f32", body)

    def place(self, batch: str, channel: str, position: str) -> str:
        """Flat index of an output element."""
        image, group = self.split_batch(batch)
        area = self.height * self.width
        channels = self.per_group * self.groups
        own = f"({group} * {self.per_group}u + {channel})" if self.groups > 1 else channel
        if self.layout == "nchw":
            return f"({image} * {channels}u + {own}) * {area}u + {position}"
        return f"({image} * {area}u + {position}) * {channels}u + {own}"

    def add_bias(self, body: Body, index: str, total: str) -> str:
        """The result with its channel's bias."""
        assert self.bias is not None
        area = self.height * self.width
        channels = self.per_group * self.groups
        at = (
            f"{index} / {area}u % {channels}u"
            if self.layout == "nchw"
            else f"{index} % {channels}u"
        )
        return f"{total} + {body.load(self.bias, at)}"


def emit(emission: KernelBuilder, anchor: Node) -> Kernel | None:
    """A convolution with its epilogue, unless its groups are too small for a product."""
    root = emission.storage(emission.root)
    if anchor.op != "conv2d" or root.per_word != 1:
        return None
    conv = Convolution(emission, anchor)
    if conv.per_group < FEWEST_CHANNELS:
        return None
    problem = _planar(conv) if conv.layout == "nchw" else _interleaved(conv)
    tile = emit_gemm(problem, gemm_limits(emission), emission.features.kind)
    return emission.finish("conv2d", tile.code, tile.workgroups)


def _vector_out(conv: Convolution, extent: int) -> bool:
    element = conv.emission.storage(conv.emission.root).element
    conv.emission.vector_out = extent % 4 == 0 and element in ("f32", "f16")
    emit_tail(conv.emission, conv.node, conv.add_bias if conv.bias is not None else None)
    return conv.emission.vector_out


def _planar(conv: Convolution) -> GemmProblem:
    """NCHW: C[o, hw]."""
    conv.window_function()
    conv.weight_function()
    area = conv.height * conv.width
    vector = _vector_out(conv, area)
    return GemmProblem(
        m=conv.per_group,
        n=area,
        k=conv.k,
        batch=conv.batch * conv.groups,
        a=lambda batch, row, k: f"weight({batch}, {row}, {k})",
        b=lambda batch, k, col: f"window({batch}, {k}, {col})",
        a4=_weight_vectors(conv),
        b4=_pixel_vectors(conv),
        store=lambda batch, row, col, value: f"put({conv.place(batch, row, col)}, {value});",
        store4=(lambda batch, row, col, value: f"put4({conv.place(batch, row, col)}, {value});")
        if vector
        else None,
    )


def _vectors(conv: Convolution, value: Value) -> Callable[[str], str] | None:
    """Loads of four consecutive elements of a stored operand, as vec4<f32>."""
    emission = conv.emission
    if value in emission.producers and not emission.is_stored(value):
        return None
    at = emission.vector(value)
    if at is None:
        return None
    if emission.storage(value).element == "f32":
        return lambda index: at(f"({index}) >> 2u")
    return lambda index: f"vec4<f32>({at(f'({index}) >> 2u')})"


def _weight_vectors(conv: Convolution) -> LoadHook | None:
    """The filter four taps at a time, where they are consecutive in memory."""
    if conv.filter_layout not in ("oihw", "ohwi") or conv.k % 4:
        return None
    load = _vectors(conv, conv.filter)
    if load is None:
        return None
    per_group = conv.per_group

    def weight(batch: str, row: str, k: str) -> str:
        _, group = conv.split_batch(batch)
        out = f"({group} * {per_group}u + {row})" if conv.groups > 1 else row
        return load(f"{out} * {conv.k}u + {k}")

    return weight


def _pixel_vectors(conv: Convolution) -> LoadHook | None:
    """The input four pixels at a time, where the window is one pixel and moves by one."""
    attrs = conv.node.attrs
    area = conv.height * conv.width
    moves = (*attrs["strides"], conv.kh, conv.kw)
    if moves != (1, 1, 1, 1) or any(attrs["padding"]) or area % 4:
        return None
    load = _vectors(conv, conv.data)
    if load is None:
        return None
    channels = conv.ins * conv.groups

    def pixels(batch: str, k: str, col: str) -> str:
        image, group = conv.split_batch(batch)
        channel = f"({group} * {conv.ins}u + {k})" if conv.groups > 1 else k
        return load(f"({image} * {channels}u + {channel}) * {area}u + {col}")

    return pixels


def _interleaved(conv: Convolution) -> GemmProblem:
    """NHWC: C[hw, o]."""
    conv.window_function()
    conv.weight_function()
    vector = _vector_out(conv, conv.per_group)
    return GemmProblem(
        m=conv.height * conv.width,
        n=conv.per_group,
        k=conv.k,
        batch=conv.batch * conv.groups,
        a=lambda batch, row, k: f"window({batch}, {k}, {row})",
        b=lambda batch, k, col: f"weight({batch}, {col}, {k})",
        store=lambda batch, row, col, value: f"put({conv.place(batch, col, row)}, {value});",
        store4=(lambda batch, row, col, value: f"put4({conv.place(batch, col, row)}, {value});")
        if vector
        else None,
    )
