"""Scans along one axis, element by element: arg_max, arg_min and running sums."""

from __future__ import annotations

import math

from webnn_py.engines.webgpu.compiler.code import prelude
from webnn_py.engines.webgpu.compiler.code.expressions import express
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.engines.webgpu.program.storage import storage_of
from webnn_py.ir import Node, Value

BETTER = {"arg_max": "wn_above({a}, {b})", "arg_min": "wn_below({a}, {b})"}
"""The test whether element a replaces the best element b so far."""


def line_of(body: Body, operand: Value, axis: int, number: Index) -> tuple[Index, int]:
    """Return the start of line `number` along the axis, and the stride of its elements."""
    size, inner = operand.shape[axis], math.prod(operand.shape[axis + 1 :])
    number = number.below(operand.size // size)
    return body.let(number // inner * (size * inner) + number % inner, "base"), inner


def is_better(body: Body, node: Node, a: str, b: str) -> str:
    """Emit the test whether element a replaces b."""
    return express(BETTER[node.op], body.builder.storage(next(node.operands)), a=a, b=b)


def as_position(body: Body, node: Node, place: str) -> str:
    """Convert a u32 to the data type of the node's output."""
    features = body.builder.features
    target = body.builder.storage(node.output)
    return prelude.cast(storage_of("uint32", features), target).format(input=place)


def _position(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the first position whose element is better than all before it."""
    operand = next(node.operands)
    axis = node.attrs["axis"]
    base, step = line_of(body, operand, axis, index)
    best = body.var(body.builder.storage(operand).compute, body.load(operand, base), "best")
    place = body.var("u32", "0u", "place")
    with body.loop(operand.shape[axis]) as r:
        element = body.load(operand, base + r * step)
        with body.block(f"if ({is_better(body, node, element, best)})"):
            body.line(f"{best} = {element};")
            body.line(f"{place} = {r};")
    return as_position(body, node, place)


for _name in BETTER:
    lowering(_name, loops=True)(_position)


@lowering("cumulative_sum", loops=True)
def cumulative_sum(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the sum of the elements from the start of the line to this one."""
    operand = next(node.operands)
    axis, backward = node.attrs["axis"], node.attrs["reversed"]
    size, inner = operand.shape[axis], math.prod(operand.shape[axis + 1 :])
    storage = body.builder.storage(node.output)
    total = body.var(storage.compute, storage.literal(0))
    place = body.let(index // inner % size, "c")
    before = size - 1 - place if backward else place
    count = body.let(before if node.attrs["exclusive"] else before + 1, "count")
    first = body.let(index + before * inner if backward else index - before * inner, "first")
    with body.loop(size, end=count) as r:
        element = body.load(operand, first - r * inner if backward else first + r * inner)
        body.line(f"{total} = {express('{a} + {b}', storage, a=total, b=element)};")
    return total
