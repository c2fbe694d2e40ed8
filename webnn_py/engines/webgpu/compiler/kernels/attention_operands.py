"""Operands of attention kernels: loads of queries, keys and values, and changes of the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from webnn_py.core.traced_queries import may_leave_remainder
from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import Operand
from webnn_py.engines.webgpu.compiler.legalize.attention import Attention
from webnn_py.engines.webgpu.program.pieces import divisor, i32, u32
from webnn_py.engines.webgpu.program.storage import literal
from webnn_py.ir import Node, Value

NEVER = literal(-math.inf, "f32")
"""Score of a key that a query does not see."""

MAX_WINDOW = 1 << 30
"""Windows up to which sums of positions stay within i32; no tensor has more keys."""

LOWEST_F32 = "-3.4028234663852886e38"
"""The lowest finite f32: the initial maximum. Scores of -inf weigh nothing beside it."""


def add_vec4_load(
    builder: KernelBuilder,
    name: str,
    value: Value,
    batch: Sequence[int],
    compute: Literal["f32", "f16"],
    transposed: bool = False,
) -> None:
    """Add a function that loads four elements of a row; elements beyond its end are zeros.

    Its parameters are the batch, the row, and the index of the vec4 in the row.

    Args:
        builder: The kernel's builder.
        name: Name of the function.
        value: A matrix operand [..., rows, columns].
        batch: The product's batch dimensions.
        compute: The type of the elements.
        transposed: Whether the function loads from a column instead.
    """
    operand = Operand(builder, value, f"{name}_one", tuple(batch), compute)
    other, along = value.shape[-2:][:: -1 if transposed else 1]
    at_batch, at = symbol("batch", math.prod(batch)), symbol("at", other)
    four = symbol("four", -(-along // 4))

    def place(element: Index) -> tuple[Index, Index, Index]:
        return (at_batch, element, at) if transposed else (at_batch, at, element)

    vectors = operand.vectors(4)
    if vectors is not None and vectors[1] == ("row" if transposed else "column"):
        text = vectors[0](*place(four * 4))
    else:
        parts = []
        for n in range(4):
            element = four * 4 + n
            one = operand.load(*place(element.min(along - 1)))
            inside = element.high < along
            parts.append(
                one if inside else f"select({compute}(0.0), {one}, {element} < {u32(along)})"
            )
        text = f"vec4<{compute}>({', '.join(parts)})"
    function = Function.of(
        name, "batch: u32, at: u32, four: u32", f"vec4<{compute}>", f" return {text}; "
    )
    builder.functions.append(function)


Reduction = Literal["max", "+"]


class AttentionOperands:
    """Operands and sizes of a node of ATTENTION, for the kernels that compute it.

    Args:
        builder: The kernel's builder.
        node: The node.

    Attributes:
        what: The node's attributes.
        queries: [..., rows, depth].
        keys: [..., depth, columns].
        values: [..., columns, width].
        batch: Dimensions before the rows.
        batches: Their product.
    """

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        self._builder = builder
        self.what: Attention = node.attrs["what"]
        self.queries, self.keys, self.values, *others = node.operands
        self._lengths = others.pop() if self.what.has_lengths else None
        self._changing = others
        *self.batch, self.rows, self.width = node.output.shape
        self.depth, self.columns = self.keys.shape[-2:]
        self.batches = math.prod(self.batch)

    @property
    def key_batch(self) -> str:
        """The number of the keys' matrix for the queries' matrix `batch`."""
        group = self.what.group
        return "batch" if group == 1 else f"batch / {divisor(group)}"

    def may_end_early(self, keys: int) -> bool:
        """Whether a tile of so many keys may have some that a query does not see."""
        return self.what.is_bounded or may_leave_remainder(self.columns, keys)

    def add_loads(self, compute: Literal["f32", "f16"]) -> None:
        """Add the functions `query4`, `key4` and `value4`, of the types `add_vec4_load` says."""
        builder, batch = self._builder, self.batch
        add_vec4_load(builder, "query4", self.queries, batch, compute)
        shared = batch
        if self.what.group > 1:
            shared = [*batch[:-1], batch[-1] // self.what.group]
        add_vec4_load(builder, "key4", self.keys, shared, compute, transposed=True)
        add_vec4_load(builder, "value4", self.values, shared, compute)

    def add_score(self) -> None:
        """Add the function `score`, which applies all changes to one score."""
        body = Body(self._builder)
        score, operands = "total", iter(self._changing)
        for change in self.what.changes:
            number = literal(change.number, "f32")
            if change.kind == "scale":
                score = body.let(f"{score} * {number}", "score")
                continue
            if change.kind == "cap":
                score = body.let(f"wn_tanh({score} / {number}) * {number}", "score")
                continue
            value = next(operands)
            operand = body.load(value, self._place(value))
            if change.kind == "add":
                score = body.let(f"{score} + {operand}", "score")
                continue
            number = body.let(number, "c")
            false, true = (number, score) if change.kind == "keep" else (score, number)
            score = body.let(f"select({false}, {true}, {operand} != 0u)", "score")
        body.line(f"return {score};")
        parameters = "batch: u32, row: u32, column: u32, total: f32"
        self._builder.function("score", parameters, "f32", body)

    def _place(self, value: Value) -> Index:
        """Return the index of an element of a mask; that of a score may exceed 32 bits."""
        *batch, rows, columns = (1,) * (len(self.batch) + 2 - len(value.shape)) + value.shape
        place = broadcast_map((*batch, rows * columns), (*self.batch, 1)).at(
            symbol("batch", self.batches)
        )
        row = symbol("row", self.rows) * columns if rows > 1 else constant(0)
        return place + row + (symbol("column", self.columns) if columns > 1 else constant(0))

    def load_length(self, batch: str) -> list[str]:
        """Emit `length`, the number of keys that count in a batch, if some are ignored.

        Loops with barriers end by it, so it is computed in the entry point: what functions return
        is not uniform for every compiler.
        """
        if not self.what.is_bounded:
            return []
        if self._lengths is None:
            return [f"let length = {i32(self.columns)};"]
        body = Body(self._builder)
        at = symbol(batch, self.batches) // math.prod(self.batch[1:])
        loaded = body.load(self._lengths, at.min(self._lengths.size - 1))
        body.line(f"length = max({loaded}, {i32(0)});")
        return [f"var length = {i32(0)};", "{", *body.lines, "}"]

    def first_key(self, row: str) -> str:
        """Emit the first key that a query sees."""
        if self.what.window is None:
            return f"{u32(0)}"
        return self._position(f"{self._own(row)} - {i32(min(self.what.window, MAX_WINDOW) - 1)}")

    def end_key(self, row: str) -> str:
        """Emit the number behind the last key that a query sees."""
        if not self.what.is_bounded:
            return f"{u32(self.columns)}"
        causal = f"min(length, {self._own(row)} + {i32(1)})"
        return self._position(causal if self.what.causal else "length")

    def _own(self, row: str) -> str:
        """Emit the position of a query."""
        return f"length - {i32(self.rows)} + i32({row})"

    def _position(self, position: str) -> str:
        """Emit a position clamped to those of the keys."""
        return f"u32(clamp({position}, {i32(0)}, {i32(self.columns)}))"

    def sees(self, column: str, first: str, end: str) -> str:
        """Emit whether the key of a column is visible; arguments may be vectors.

        Args:
            column: Index of the key.
            first: First key that the query sees.
            end: End of the keys that it sees.
        """
        if self.what.window is None:
            return f"{column} < {end}"
        return f"({column} < {end}) & ({column} >= {first})"

    def quotient(self, value: str, total: str) -> str:
        """Emit the division of a sum of values by the sum of their weights."""
        made = f"{value} / {total}"
        return f"select({made}, {value}, {total} == 0.0)" if self.what.zeros else made


def tree(operator: Reduction, terms: list[str]) -> str:
    """Combine all terms as a balanced tree, which shortens the chain of dependent operations."""
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        odd = terms[-1:] if len(terms) % 2 else []
        joined = [f"max({a}, {b})" if operator == "max" else f"({a} + {b})" for a, b in pairs]
        terms = [*joined, *odd]
    return terms[0]
