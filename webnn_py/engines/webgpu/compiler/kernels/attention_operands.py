"""Operands of attention kernels: loads of queries, keys and values, and changes of the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import Operand
from webnn_py.engines.webgpu.compiler.legalize.attention import Attention
from webnn_py.engines.webgpu.program.pieces import u32
from webnn_py.engines.webgpu.program.storage import literal
from webnn_py.ir import Node, Value

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


def add_score(builder: KernelBuilder, node: Node) -> None:
    """Add the function `score`, which applies all changes to one score."""
    what: Attention = node.attrs["what"]
    _, keys, _, *others = node.operands
    *batch, rows, _ = node.output.shape
    shape = (*batch, rows, keys.shape[-1])
    body = Body(builder)
    row = symbol("batch", math.prod(batch)) * rows + symbol("row", rows)
    place = row * shape[-1] + symbol("column", shape[-1])
    score, operands = "total", iter(others)
    for change in what.changes:
        number = literal(change.number, "f32")
        if change.kind == "scale":
            score = body.let(f"{score} * {number}", "score")
            continue
        value = next(operands)
        operand = body.load(value, broadcast_map(value.shape, shape).at(place))
        if change.kind == "add":
            score = body.let(f"{score} + {operand}", "score")
            continue
        number = body.let(number, "c")
        false, true = (number, score) if change.kind == "keep" else (score, number)
        score = body.let(f"select({false}, {true}, {operand} != 0u)", "score")
    body.line(f"return {score};")
    builder.function("score", "batch: u32, row: u32, column: u32, total: f32", "f32", body)
