"""Products by quantized weights of 4 or 8 bits, which stay packed in memory.

A product of few rows is bound by reading its weights. A group of `LANES` invocations computes one
column of every row: each invocation reads words of codes, so that neighbors read neighboring words,
and a scale for each word. The rows of x lie in shared memory. A code becomes a float without a
conversion: its bits are the last ones of a number's fraction, from which the number without them
and the zero point are subtracted.

Products of many rows are GEMMs, whose tiles unpack the weights as they load them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.fusing.inline_dequant import MAX_FUSED_ROWS
from webnn_py.engines.webgpu.compiler.kernel import Kernel, WorkgroupArray
from webnn_py.engines.webgpu.compiler.kernel_builder import F16X8, Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.epilogue import PUT, PUT4, emit_epilogue
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Product
from webnn_py.engines.webgpu.compiler.kernels.gemm_wgsl import entry_point, fold_grid
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import (
    Operand,
    gemm_limits,
    product_type,
)
from webnn_py.engines.webgpu.compiler.kernels.row_prologue import RowPrologue, computes_row
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, i32, loop, u32
from webnn_py.ir import Node

LANES = 32
"""Invocations that share a column."""
COLUMNS = 8
"""Columns of a workgroup."""
INVOCATIONS = LANES * COLUMNS

MAX_X_BYTES = 16 << 10
"""Bytes of x in shared memory: a multiprocessor still runs several workgroups."""
MAX_WORDS_AT_ONCE = 4
"""Words that an invocation loads before it uses them."""

_X, _PARTIAL, _ZERO = declared("packed_x"), declared("packed_partial"), declared("packed_zero")


@dataclass(frozen=True, slots=True)
class _Weights:
    """The codes, scales and zero points of a product, and emitters of their loads."""

    builder: KernelBuilder
    node: Node

    @property
    def bits(self) -> int:
        """The bits of a code on the device, where a code of a 4-bit data type takes a byte."""
        codes = self.node.inputs[1]
        assert codes is not None
        return 8 if codes.data_type in PACKED_4BIT else int(self.node.attrs["bits"])

    @property
    def per_word(self) -> int:
        """Codes of a word."""
        return 32 // self.bits

    @property
    def is_signed(self) -> bool:
        """Whether codes are signed; the kernels add 128 to them."""
        codes = self.node.inputs[1]
        assert codes is not None
        return codes.data_type.startswith("int")

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        scales = self.node.inputs[2]
        assert scales is not None
        return scales.shape[1]

    @property
    def words(self) -> int:
        """Words of a column in memory."""
        codes = self.node.inputs[1]
        assert codes is not None
        return math.prod(codes.shape[1:]) // (self.per_word if self.bits == 8 else 4)

    def word(self, column: Index, place: Index) -> str:
        """Emit the load of a word of codes, as unsigned ones."""
        codes = self.node.inputs[1]
        assert codes is not None
        made = self.builder.element(codes)(str(column * self.words + place))
        return f"({made} ^ 0x80808080u)" if self.is_signed else made

    def scale(self, column: Index, place: Index) -> str:
        """Emit the load of the scale of a word, as f32."""
        scales = self.node.inputs[2]
        assert scales is not None
        at = column * self.blocks + place * self.per_word // self.node.attrs["block_size"]
        return self.builder.storage(scales).load(self.builder.element(scales), at)

    def zero(self, column: Index, place: Index) -> str:
        """Emit the zero point of a word of unsigned codes, as f32."""
        return f"{_ZERO}({column}, {place * self.per_word // self.node.attrs['block_size']})"

    def add_zero(self) -> None:
        """Add the function that returns the zero point of a block of a column."""
        zeros, body = self.node.inputs[3], Body(self.builder)
        shift = 128 if self.is_signed else 0
        if zeros is None:
            body.line(f"return f32({i32(self.node.attrs['zero_point'] + shift)});")
        elif self.bits == 8:
            place = symbol("column") * self.blocks + symbol("block")
            body.line(f"return f32(i32({body.load(zeros, place)}) + {i32(shift)});")
        else:
            in_row = zeros.shape[1]
            place = symbol("column") * in_row + symbol("block") // 2
            both = body.load(zeros, place)
            body.line(f"return f32(({both} >> ({symbol('block') % 2 * 4})) & 15u);")
        self.builder.function("packed_zero", "column: u32, block: u32", "f32", body)

    def fours(self, word: str, zero: str) -> list[str]:
        """Emit the codes of a word without the zero point, four to a vec4<f32>.

        Args:
            word: The word's name.
            zero: The zero point's name, plus 2^23.
        """
        mask = u32((1 << self.bits) - 1)
        codes = [
            f"bitcast<f32>(0x4b000000u | (({word} >> {u32(i * self.bits)}) & {mask}))"
            for i in range(self.per_word)
        ]
        return [
            f"(vec4<f32>({', '.join(codes[i : i + 4])}) - {zero})" for i in range(0, len(codes), 4)
        ]

    def pairs(self, word: str, zero: str) -> list[str]:
        """Emit the codes of a word without the zero point, two to a vec2<f16>.

        The two of a pair are half a word apart.

        Args:
            word: The word's name.
            zero: The zero point's name, plus 1024, as vec2<f16>.
        """
        mask = "0x000f000fu" if self.bits == 4 else "0x00ff00ffu"
        return [
            f"(bitcast<vec2<f16>>((({word} >> {u32(i * self.bits)}) & {mask}) | 0x64006400u)"
            f" - {zero})"
            for i in range(self.per_word // 2)
        ]


def _casts_halves(builder: KernelBuilder, node: Node) -> bool:
    """Whether codes become float16 by a cast of their bits, which not all compilers have."""
    (x, *_) = node.operands
    return builder.features.f16_matrix is not None and product_type(builder, node, x) == "f16"


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Return the kernel of a product of few rows, if a workgroup fits the device; else None."""
    (x, *_) = node.operands
    is_tiled = builder.tile and not computes_row(builder, x)
    if is_tiled or sampled(node.output.size // node.output.shape[-1]) > MAX_FUSED_ROWS:
        return None
    kernel = _RowsKernel(builder, node)
    return kernel.kernel() if kernel.fits else None


class _RowsKernel:
    """Emitter of a product of few rows.

    Attributes:
        fits: Whether a workgroup fits the device's limits.
    """

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        self._builder, self._node = builder, node
        self._weights = _Weights(builder, node)
        (self._x, *_) = node.operands
        self._columns = node.output.shape[-1]
        self._rows = node.output.size // self._columns
        self._halves = _casts_halves(builder, node)
        self._kind = "f16" if self._halves else "f32"
        has_row = computes_row(builder, self._x)
        self._prologue = RowPrologue(builder, self._x) if has_row else None
        self._quads = self._weights.per_word // 4
        self._words = self._x.shape[-1] // self._weights.per_word
        self._at_once = self._chunk()
        self.fits = bool(self._at_once) and builder.features.invocations >= INVOCATIONS
        steps = (count for count in (4, 2) if self._at_once % (LANES * count) == 0)
        self._unrolled = min(next(steps, 1), MAX_WORDS_AT_ONCE)

    def _chunk(self) -> int:
        """Return the words of a row that shared memory holds at once; 0 if it holds none."""
        each = self._rows * self._weights.per_word * (2 if self._halves else 4)
        free = self._builder.features.workgroup_bytes - self._rows * INVOCATIONS * 4
        most = min(MAX_X_BYTES, free) // each
        parts = (n for n in range(1, self._words + 1) if self._words % n == 0)
        return next((self._words // n for n in parts if self._words // n <= most), 0)

    def kernel(self) -> Kernel:
        """Return the kernel."""
        builder = self._builder
        emit_epilogue(builder, self._node)
        self._weights.add_zero()
        if self._prologue is None:
            self._add_loader()
        limits = gemm_limits(builder)
        grid = fold_grid(-(-self._columns // COLUMNS), 1, 1, limits)
        lid = symbol("lid", INVOCATIONS)
        column = symbol("gemm_col") * COLUMNS + lid // LANES
        body = [
            *grid.prologue,
            f"let lane = {lid % LANES};",
            f"let own = {column};",
            f"let column = min(own, {u32(self._columns - 1)});",
            *(f"var sum{row} = 0.0;" for row in range(self._rows)),
            *(self._prologue.lines(INVOCATIONS) if self._prologue else ()),
            *self._loop(),
            *self._reduce(),
        ]
        entry = entry_point(INVOCATIONS, body, (), self._arrays())
        return builder.finish(self._node.op, entry, grid.workgroups)

    def _arrays(self) -> Sequence[WorkgroupArray]:
        quads = self._rows * self._quads * self._at_once
        return (
            WorkgroupArray("packed_x", f"vec4<{self._kind}>", (quads,)),
            WorkgroupArray("packed_partial", "f32", (self._rows, INVOCATIONS)),
            *(self._prologue.arrays(INVOCATIONS) if self._prologue else ()),
        )

    def _add_loader(self) -> None:
        """Add the function that returns four elements of x from an index on."""
        builder, body, i = self._builder, Body(self._builder), symbol("i")
        at = builder.vector(self._x)
        if at is None:
            elements = ", ".join(body.load(self._x, i + n) for n in range(4))
            loaded = f"vec4<f32>({elements})"
        else:
            loaded = at(f"{builder.places.at(self._x, i).enclosed} >> 2u")
        body.line(f"return vec4<{self._kind}>({loaded});")
        builder.function("packed_load", "i: u32", f"vec4<{self._kind}>", body)

    def _fill(self) -> list[str]:
        """Emit the copy of a part of x to shared memory."""
        count = self._rows * self._at_once
        place = symbol("i", count)
        row, word = place // self._at_once, place % self._at_once
        depth, per_word = self._x.shape[-1], self._weights.per_word
        start = row * depth + (symbol("first") + word) * per_word
        to = row * (self._quads * self._at_once) + word
        head = f"for (var i = lid; i < {u32(count)}; i += {u32(INVOCATIONS)})"
        lines = [loop(head, -(-count // INVOCATIONS))]
        quads = [f"q{n}" for n in range(self._quads)]
        for n, quad in enumerate(quads):
            at = start + 4 * n
            if self._prologue is None:
                four = f"{declared('packed_load')}({at})"
            else:
                four = f"vec4<{self._kind}>({self._prologue.four(at)})"
            lines.append(f"let {quad} = {four};")
        if self._halves:
            lanes = ("xz", "yw") if len(quads) == 1 else None
            quads = (
                ["q0.xzyw"]
                if lanes
                else ["vec4<f16>(q0.x, q1.x, q0.y, q1.y)", "vec4<f16>(q0.z, q1.z, q0.w, q1.w)"]
            )
        lines += [f"{_X}[{to + n * self._at_once}] = {quad};" for n, quad in enumerate(quads)]
        return [*lines, END_LOOP]

    def _loop(self) -> list[str]:
        """Emit the sums of this invocation."""
        if self._at_once == self._words:
            return ["const first = 0u;", *self._fill(), "workgroupBarrier();", *self._sums()]
        head = f"for (var first = 0u; first < {u32(self._words)}; first += {u32(self._at_once)})"
        return [
            loop(head, self._words // self._at_once),
            *self._fill(),
            "workgroupBarrier();",
            *self._sums(),
            "workgroupBarrier();",
            END_LOOP,
        ]

    def _sums(self) -> list[str]:
        weights, step = self._weights, LANES * self._unrolled
        column = symbol("column", self._columns)
        head = f"for (var b = lane; b < {u32(self._at_once)}; b += {u32(step)})"
        lines = [loop(head, -(-self._at_once // step))]
        for u in range(self._unrolled):
            place = symbol("first") + symbol("b") + u * LANES
            lines += [
                f"let word{u} = {weights.word(column, place)};",
                f"let scale{u} = {weights.scale(column, place)};",
                f"let zero{u} = {weights.zero(column, place)};",
            ]
        for u in range(self._unrolled):
            lines += self._add_word(str(u), symbol("b", self._at_once) + u * LANES)
        return [*lines, END_LOOP]

    def _add_word(self, u: str, place: Index) -> list[str]:
        """Emit the additions of a word's products to the sum of each row."""
        if self._halves:
            codes = self._weights.pairs(f"word{u}", f"offset{u}")
            lines = [f"let offset{u} = vec2<f16>(f16(zero{u} + 1024.0));"]
        else:
            codes = self._weights.fours(f"word{u}", f"offset{u}")
            lines = [f"let offset{u} = zero{u} + 8388608.0;"]
        lines += [f"let codes{u}_{n} = {code};" for n, code in enumerate(codes)]
        for row in range(self._rows):
            first = row * self._quads * self._at_once
            quads = [f"{_X}[{place + (first + n * self._at_once)}]" for n in range(self._quads)]
            if self._halves:
                terms = (
                    f"codes{u}_{2 * n + half} * x{u}_{row}_{n}.{'xy' if not half else 'zw'}"
                    for n in range(self._quads)
                    for half in range(2)
                )
                lines += [f"let x{u}_{row}_{n} = {quad};" for n, quad in enumerate(quads)]
                lines += [
                    f"let both{u}_{row} = vec2<f32>({' + '.join(terms)});",
                    f"sum{row} += scale{u} * (both{u}_{row}.x + both{u}_{row}.y);",
                ]
            else:
                dots = (f"dot(codes{u}_{n}, {quad})" for n, quad in enumerate(quads))
                lines.append(f"sum{row} += scale{u} * ({' + '.join(dots)});")
        return lines

    def _reduce(self) -> list[str]:
        """Emit the sums over the lanes of a column, and the stores."""
        rows = range(self._rows)
        lines = [f"{_PARTIAL}[{row}][lid] = sum{row};" for row in rows]
        lines.append("workgroupBarrier();")
        half = LANES // 2
        while half:
            lines.append(f"if (lane < {u32(half)}) {{")
            lines += [
                f"{_PARTIAL}[{row}][lid] += {_PARTIAL}[{row}][lid + {half}u];" for row in rows
            ]
            lines += ["}", "workgroupBarrier();"]
            half //= 2
        stores = [
            f"{PUT}({symbol('own') + row * self._columns}, {_PARTIAL}[{row}][lid]);" for row in rows
        ]
        return [*lines, f"if (lane == 0u && own < {u32(self._columns)}) {{", *stores, "}"]


def product(builder: KernelBuilder, node: Node) -> Product:
    """Return a product by packed weights as a GEMM, whose loads unpack them."""
    (x, *_) = node.operands
    columns, depth = node.output.shape[-1], x.shape[-1]
    rows = node.output.size // columns
    compute = product_type(builder, node, x)
    batch = x.shape[:-2]
    left = Operand(builder, x, "load_x", batch, compute)
    if batch and left.merge_rows():
        batch = ()
    elif batch:
        rows = x.shape[-2]
    _add_unpacking(builder, node, compute)
    fours, eights = left.vectors(4), left.vectors(8) if compute == "f16" else None
    builder.vector_out = builder.writes_vectors(columns)

    def place(batch: Index, row: Index, column: Index) -> Index:
        return (batch * rows + row) * columns + column

    def weights(width: int) -> str:
        return declared(f"packed_weights{width}")

    problem = GemmProblem(
        m=rows,
        n=columns,
        k=depth,
        batch=math.prod(batch),
        compute=compute,
        a=left.load,
        a4=fours[0] if fours else None,
        a8=eights[0] if eights else None,
        b=lambda batch, k, col: f"{weights(1)}({col}, {k})",
        b4=lambda batch, k, col: f"{weights(4)}({col}, {k})",
        b8=(lambda batch, k, col: f"{weights(8)}({col}, {k})") if compute == "f16" else None,
        a_major="m" if fours and fours[1] == "row" else "k",
        b_major="k",
        store=lambda batch, row, col, value: f"{PUT}({place(batch, row, col)}, {value});",
        store4=(lambda batch, row, col, value: f"{PUT4}({place(batch, row, col)}, {value});")
        if builder.vector_out
        else None,
    )
    return Product(
        problem,
        place,
        lambda function, at, value: f"{declared(function)}({at}, {value});",
        lambda: emit_epilogue(builder, node),
    )


def _add_unpacking(builder: KernelBuilder, node: Node, compute: str) -> None:
    """Add functions that return 1, 4 and 8 weights of a column from a place along k on."""
    weights = _Weights(builder, node)
    weights.add_zero()
    per_word = weights.per_word
    column, k = symbol("column", node.output.shape[-1]), symbol("k")
    head = [
        f"  let place = {k // per_word};",
        f"  let word = {weights.word(column, symbol('place'))};",
        f"  let scale = {weights.scale(column, symbol('place'))};",
        f"  let zero = {weights.zero(column, symbol('place'))};",
    ]

    def add(width: int, type_: str, *lines: str) -> None:
        text = "\n".join(["", *head, *lines, ""])
        name = f"packed_weights{width}"
        builder.functions.append(Function.of(name, "column: u32, k: u32", type_, text))

    code = f"(word >> ({k % per_word * weights.bits})) & {u32((1 << weights.bits) - 1)}"
    add(1, compute, f"  return {compute}((f32({code}) - zero) * scale);")
    fours = weights.fours("word", "offset")
    offset = "  let offset = zero + 8388608.0;"
    chosen = fours[0]
    lines = [offset]
    if len(fours) == 2:
        lines.append(f"  word = word >> (({k // 4 % 2}) * 16u);")
        head[1] = head[1].replace("let", "var")
    add(4, f"vec4<{compute}>", *lines, f"  return vec4<{compute}>({chosen} * scale);")
    if compute != "f16":
        return
    if len(fours) == 1:  # the next word is of the same block, as blocks are of eights
        next_word = weights.word(column, symbol("place") + 1)
        lines = [offset, f"  let low = {fours[0]} * scale;", f"  let next = {next_word};"]
        lines.append(f"  let high = {fours[0].replace('word', 'next')} * scale;")
    else:
        lines = [offset, f"  let low = {fours[0]} * scale;", f"  let high = {fours[1]} * scale;"]
    words = (f"pack2x16float({part}.{lanes})" for part in ("low", "high") for lanes in ("xy", "zw"))
    add(8, F16X8, *lines, f"  return {F16X8}({', '.join(words)});")
