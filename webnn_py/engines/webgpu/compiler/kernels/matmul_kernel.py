"""Matrix products as GEMM problems, and the loads of their operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from webnn_py.core import shapes
from webnn_py.core.shape_tracing import is_traced
from webnn_py.core.traced_queries import divides, sampled
from webnn_py.engines.webgpu.compiler.code.affine import Affine, broadcast_map
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.fusing.inline_dequant import add_vec4_loader, dequantize_node
from webnn_py.engines.webgpu.compiler.inplace_concat import is_row_major
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.epilogue import (
    PUT,
    PUT4,
    RESULT4,
    WRITE4,
    emit_epilogue,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import LoadHook, Product
from webnn_py.engines.webgpu.compiler.kernels.matmul import GemmProblem, Limits
from webnn_py.engines.webgpu.compiler.kernels.row_prologue import StagedRow, computes_row
from webnn_py.engines.webgpu.compiler.legalize.integer_products import CODES_PRODUCT, SIGN
from webnn_py.engines.webgpu.compiler.legalize.split_products import SPLIT_PRODUCT
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS
from webnn_py.engines.webgpu.program.pieces import declared, u32
from webnn_py.ir import Node, Value


@dataclass(frozen=True, slots=True)
class Strided:
    """A value as strided elements of a stored value.

    Attributes:
        stored: The value whose buffer holds the elements.
        strides: Stride of each dimension, in elements of the buffer.
        offset: Index of the first element.
    """

    stored: Value
    strides: tuple[int, ...]
    offset: int = 0

    def is_row_major(self, value: Value) -> bool:
        """Whether the elements are contiguous, as if `value` itself were stored."""
        return is_row_major(Affine(value.shape, self.strides))


def strided_view(
    builder: KernelBuilder, value: Value, source: Value | None = None
) -> Strided | None:
    """Return the strided memory of a value; None where it is computed or no single stride fits.

    Args:
        builder: The kernel's builder.
        value: The value.
        source: A computed value to treat as stored.
    """
    if value is source:
        return Strided(value, shapes.strides(value.shape))
    if builder.scalar(value) is not None:
        return None
    if not builder.computes(value):
        place = builder.places.view(value)
        return Strided(builder.places.buffer_of(value), place.strides, place.offset)
    node = builder.producers[value]
    if node.op not in VIEWS:
        return None
    operand = next(node.operands)
    inner = strided_view(builder, operand, source)
    if inner is not None and node.op == "transpose":
        steps = tuple(inner.strides[axis] for axis in node.attrs["permutation"])
        return Strided(inner.stored, steps, inner.offset)
    if inner is None:
        return None
    if node.op == "reshape":
        if inner.is_row_major(operand):
            return Strided(inner.stored, shapes.strides(value.shape), inner.offset)
        # Code for traced sizes would hold for few others.
        is_traced_here = any(map(is_traced, (*operand.shape, *value.shape)))
        ends = operand.shape, inner.strides, value.shape
        found = None if is_traced_here else reshaped_strides(*ends)
        return None if found is None else Strided(inner.stored, found, inner.offset)
    if not inner.is_row_major(operand):
        return None
    view = VIEWS[node.op](node, node.outputs.index(value))
    # A tile has more than one stride a dimension; a reverse has negative ones.
    if view.sizes != value.shape or any(step < 0 for step in view.strides):
        return None
    return Strided(inner.stored, view.strides, inner.offset + view.offset)


def reshaped_strides(
    shape: Sequence[int], strides: Sequence[int], reshaped: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the strides of a reshape of strided memory; None if no single stride fits.

    Both shapes consist of runs of dimensions with equal products. A run keeps its place in memory
    if its dimensions are equally spaced, as if they were one.
    """
    outer = [(size, step) for size, step in zip(shape, strides, strict=True) if size != 1]
    found: list[int] = []
    left, step = 1, 1
    for size in reversed(reshaped):
        if left == 1 and size != 1:
            left, step = outer.pop()
        while left % size:
            more, stride = outer.pop() if outer else (0, 0)
            if stride != step * left:
                return None
            left *= more
        found.append(step)
        left, step = left // size, step * size
    return tuple(reversed(found))


def reshaped_view(builder: KernelBuilder, value: Value) -> tuple[Value, Strided] | None:
    """Return the operand of a reshape and its strided memory; None without such memory."""
    node = builder.producers[value] if builder.computes(value) else None
    if node is None or node.op != "reshape":
        return None
    operand = next(node.operands)
    inner = strided_view(builder, operand)
    return None if inner is None else (operand, inner)


def add_loader(builder: KernelBuilder, function: str, value: Value) -> None:
    """Add a function that returns a value's element at flat index `i`, computed if need be."""
    body = Body(builder)
    result = body.load(value, symbol("i"))
    body.line(f"return {result};")
    builder.function(function, "i: u32", builder.storage(value).compute, body)


def gemm_limits(builder: KernelBuilder) -> Limits:
    """Return the device's limits for the GEMM templates."""
    features = builder.features
    return Limits(
        features.workgroup_bytes,
        features.invocations,
        features.grid,
        builder.beside,
        features.f16_matrix,
        features.i8_matrix,
    )


def product_type(builder: KernelBuilder, node: Node, *operands: Value) -> Literal["f32", "f16"]:
    """Return the type of the multiplication: GPUs multiply f16 at twice the rate."""
    values = (node.output, *operands)
    is_f16 = all(builder.storage(value).element == "f16" for value in values)
    return "f16" if is_f16 and builder.features.kind != "cpu" else "f32"


MIN_MATRIX_EXTENT = 16
"""Rows, columns and depth from which subgroup matrices are not mostly empty."""


def halves_of(
    builder: KernelBuilder, extents: Sequence[int], *operands: Value
) -> tuple[Value, ...] | None:
    """Return the float16 values that a product of float32 may read, as its operands are casts.

    None unless all operands are such casts, fused into the kernel, and the device multiplies
    float16 by matrices with sums of float32: the results are the same.

    Args:
        builder: The kernel's builder.
        extents: Rows, columns and depth of the product.
        operands: Its operands.
    """
    is_float32 = builder.storage(builder.root).compute == "f32"
    is_small = min(map(sampled, extents)) < MIN_MATRIX_EXTENT
    if builder.features.f16_matrix is None or not is_float32 or is_small:
        return None
    nodes = [builder.producers[value] for value in operands if builder.computes(value)]
    halves = tuple(next(node.operands) for node in nodes if node.op == "cast")
    are_halves = all(builder.storage(half).element == "f16" for half in halves)
    return halves if len(halves) == len(operands) and are_halves else None


class Operand:
    """A matrix operand [..., rows, columns] and its load hooks.

    Args:
        builder: The kernel's builder.
        value: The operand.
        name: Name of the function that loads an operand which is no strided memory.
        batch: The product's batch dimensions.
        compute: Type of loaded elements, as of `GemmProblem`.
    """

    def __init__(
        self,
        builder: KernelBuilder,
        value: Value,
        name: str,
        batch: tuple[int, ...],
        compute: str = "f32",
    ) -> None:
        self._builder = builder
        self._value = value
        self._name = name
        self._is_halved = compute == "split" and value.data_type == "float16"
        self._batch = (2,) if self._is_halved else batch
        self._compute = compute
        if compute == "split":
            self._compute = "f16" if self._is_halved else "f32"
        self._strided = strided_view(builder, value)
        self._row_step: int | None = None
        self._dequantized: Node | None = None  # the node whose weights the loads dequantize
        if self._strided is None:
            weights = dequantize_node(value, builder.producers, builder.is_stored)
            if weights is not None:
                self._strided = strided_view(builder, value, weights.output)
            self._dequantized = weights if self._strided is not None else None
            add_loader(
                builder, name, value if self._dequantized is None else self._dequantized.output
            )

    @property
    def is_one_matrix(self) -> bool:
        """Whether all batches have the same matrix."""
        return self._is_halved or math.prod(self._value.shape[:-2]) == 1

    def merge_rows(self) -> bool:
        """Merge the batches into rows if all rows are equally spaced; return whether they are."""
        rows = self._value.shape[:-1]
        if rows[:-1] != self._batch or self._is_halved:
            return False
        strides = shapes.strides(rows) if self._strided is None else self._strided.strides[:-1]
        sized = [(size, step) for size, step in zip(rows, strides, strict=True) if size > 1]
        if any(step != size * inner for (_, step), (size, inner) in itertools.pairwise(sized)):
            return False
        self._row_step = sized[-1][1] if sized else 0
        return True

    def index(self, batch: Index, row: Index, column: Index) -> Index:
        """Return the index of an element, in the buffer or for the function that loads it."""
        if self._strided is None:
            rows, columns = self._value.shape[-2:]
            if self._row_step is not None:
                return row * columns + column
            base = broadcast_map(self._value.shape[:-2], self._batch).at(batch)
            return (base * rows + row) * columns + column
        step_row, step_column = self._strided.strides[-2:]
        if self._row_step is not None:
            return row * self._row_step + column * step_column + self._strided.offset
        base = self._base(self._strided).at(batch)
        return row * step_row + column * step_column + base

    def _base(self, strided: Strided) -> Affine:
        """Return the map from the batch index to the first element of a matrix."""
        dims = self._value.shape[:-2]
        lead = len(self._batch) - len(dims)
        steps = (0,) * lead + tuple(
            0 if size == 1 else step for size, step in zip(dims, strided.strides[:-2], strict=True)
        )
        return Affine(self._batch, steps, strided.offset)

    def load(self, batch: Index, row: Index, column: Index) -> str:
        """Emit the load of one element."""
        place = self.index(batch, row, column)
        if self._compute == "i8":
            return self._code(place)
        if self._strided is None or self._dequantized is not None:
            loaded = f"{declared(self._name)}({place})"
            return loaded if self._compute == "f32" else f"{self._compute}({loaded})"
        stored = self._strided.stored
        element = self._builder.element(stored)
        if self._compute == "f16":
            return element(str(place))
        return self._builder.storage(stored).load(element, place)

    def _code(self, place: Index) -> str:
        """Emit the load of one code, as a signed number."""
        if self._strided is None:
            loaded = f"{declared(self._name)}({place})"
        else:
            stored = self._strided.stored
            loaded = self._builder.storage(stored).load(self._builder.element(stored), place)
        return f"(i32({loaded}) - {SIGN})" if self._value.data_type == "uint8" else loaded

    def vectors(self, width: int) -> tuple[LoadHook, Literal["row", "column"]] | None:
        """Return a load of four elements, eight f16 or sixteen bytes, along contiguous memory.

        The dimension is returned, too. None where memory or sizes do not allow such loads. Of an
        operand in halves, it loads the high ones.
        """
        found = self._vectors(width)
        if found is None or not self._is_halved:
            return found
        load, along = found
        return lambda batch, row, column: load(constant(0), row, column), along

    @property
    def low_halves(self) -> LoadHook | None:
        """The load of eight low halves; None for an operand that has none."""
        found = self._vectors(8) if self._is_halved else None
        if found is None:
            return None
        load, _ = found
        return lambda batch, row, column: load(constant(1), row, column)

    def _vectors(self, width: int) -> tuple[LoadHook, Literal["row", "column"]] | None:
        strided = self._strided
        if strided is None:
            return self._reshaped_vectors(width)
        if min(strided.strides) < 0 or not divides(width, strided.offset):
            return None
        along: Literal["row", "column"] = "column" if strided.strides[-1] == 1 else "row"
        axis = -1 if along == "column" else -2
        others = [
            step for i, step in enumerate(strided.strides) if i - len(strided.strides) != axis
        ]
        if strided.strides[axis] != 1 or not divides(width, self._value.shape[axis]):
            return None
        if not all(divides(width, step) for step in others):
            return None
        load = self._vector_load(strided.stored, width, self.index)
        return None if load is None else (load, along)

    def _reshaped_vectors(self, width: int) -> tuple[LoadHook, Literal["column"]] | None:
        """Do the same for a reshape whose operand has contiguous runs of `width` elements."""
        view = reshaped_view(self._builder, self._value)
        if view is None or not view[0].shape:
            return None
        operand, inner = view
        *outer, step = inner.strides
        runs = (*outer, inner.offset, operand.shape[-1], self._value.shape[-1])
        if step != 1 or any(n % width for n in runs):
            return None
        place = Affine(operand.shape, inner.strides, inner.offset)
        load = self._vector_load(inner.stored, width, lambda *at: place.at(self.index(*at)))
        return None if load is None else (load, "column")

    def _vector_load(
        self, stored: Value, width: int, place: Callable[[Index, Index, Index], Index]
    ) -> LoadHook | None:
        """Return a load of `width` elements from an index of a stored value on."""
        builder = self._builder
        if self._compute == "i8":
            words = words_of_codes(builder, stored, width)
            return None if words is None else lambda *at: words(place(*at))
        if self._dequantized is not None:
            name = f"{self._name}_fours"
            if width != 4 or not add_vec4_loader(builder, name, self._dequantized):
                return None
            is_f16 = self._compute == "f16"
            function = declared(name)
            return lambda *at: (
                f"vec4<f16>({function}({place(*at)}))" if is_f16 else f"{function}({place(*at)})"
            )

        at = builder.vector(stored) if width == 4 else builder.eights(stored)
        if at is None:
            return None
        shift = width.bit_length() - 1
        wide = width == 8 or builder.storage(stored).element == self._compute

        def load(batch: Index, row: Index, column: Index) -> str:
            element = at(f"{place(batch, row, column).enclosed} >> {u32(shift)}")
            return element if wide else f"vec4<f32>({element})"

        return load


def words_of_codes(
    builder: KernelBuilder, value: Value, width: int
) -> Callable[[Index], str] | None:
    """Return a load of four signed codes of a stored value as u32, or of sixteen as vec4<u32>.

    It takes the index of the first one, a multiple of `width`. None where memory does not allow it.
    """
    at = builder.codes(value, width)
    if at is None:
        return None
    shift, flip = width.bit_length() - 1, "0x80808080u" if width == 4 else "vec4<u32>(0x80808080u)"

    def load(index: Index) -> str:
        words = at(f"{index.enclosed} >> {u32(shift)}")
        return f"({words} ^ {flip})" if value.data_type == "uint8" else words

    return load


def product(builder: KernelBuilder, node: Node) -> Product | None:
    """Return a matmul, of codes or halves too, as a product; None if two elements share a word."""
    if builder.storage(builder.root).per_word == 2:
        return None
    a_value, b_value, *tops = node.operands
    batch = node.output.shape[:-2]
    m, n = node.output.shape[-2:]
    k = a_value.shape[-1]
    compute: str = product_type(builder, node, a_value, b_value)
    halves = halves_of(builder, (m, n, k), a_value, b_value)
    if node.op == CODES_PRODUCT:
        compute = "i8"
    elif node.op == SPLIT_PRODUCT:
        compute = "split"
    elif halves is not None:
        (a_value, b_value), compute = halves, "f16"
    row = StagedRow(builder, a_value, compute) if computes_row(builder, a_value) else None
    a = Operand(builder, a_value, "load_a", batch, compute) if row is None else row
    b = Operand(builder, b_value, "load_b", batch, compute)
    rows, columns = [Operand(builder, top, "", batch) for top in tops] or (None, None)
    if math.prod(batch) > 1 and b.is_one_matrix and isinstance(a, Operand) and a.merge_rows():
        m, batch = m * math.prod(batch), ()
        is_merged = rows is None or rows.merge_rows()  # one number a row of A, stored as A's rows
        assert is_merged
    a_vectors, b_vectors = a.vectors(4), b.vectors(4)
    wide = {"f16": 8, "i8": 16, "split": 8}.get(compute)
    a_eights, b_eights = (a.vectors(wide), b.vectors(wide)) if wide else (None, None)
    builder.vector_out = builder.writes_vectors(n)

    def place(batch: Index, row: Index, column: Index) -> Index:
        return (batch * m + row) * n + column

    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=math.prod(batch),
        compute=compute,
        by_matrices=compute in ("i8", "split") or halves is not None,
        a=a.load,
        b=b.load,
        a4=a_vectors[0] if a_vectors else None,
        b4=b_vectors[0] if b_vectors else None,
        a8=a_eights[0] if a_eights else None,
        b8=b_eights[0] if b_eights else None,
        a_low8=a.low_halves if isinstance(a, Operand) else None,
        b_low8=b.low_halves,
        a_top=None if rows is None else lambda batch, row: rows.load(batch, row, constant(0)),
        b_top=None if columns is None else lambda batch, col: columns.load(batch, constant(0), col),
        a_major="m" if a_vectors and a_vectors[1] == "row" else "k",
        b_major="k" if b_vectors and b_vectors[1] == "row" else "n",
        prologue=row,
        store=lambda batch, row, col, value: f"{PUT}({place(batch, row, col)}, {value});",
        store4=(lambda batch, row, col, value: f"{PUT4}({place(batch, row, col)}, {value});")
        if builder.vector_out
        else None,
        result4=(lambda batch, row, col, value: f"{RESULT4}({place(batch, row, col)}, {value})")
        if builder.vector_out
        else None,
        write4=lambda batch, row, col, made: f"{WRITE4}({place(batch, row, col)}, {made});",
    )
    return Product(
        problem,
        place,
        lambda function, place, value: f"{declared(function)}({place}, {value});",
        lambda: emit_epilogue(builder, node),
    )
