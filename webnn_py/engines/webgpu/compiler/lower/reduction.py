"""Reductions and the matrix product, element by element: one loop per output element.

The tiled kernels of matrix products are in `kernels`.
"""

from __future__ import annotations

import math

from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map, coordinate, subset_map
from webnn_py.engines.webgpu.compiler.code.expressions import Scope, express, template
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.engines.webgpu.program.storage import Storage
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY, Reduce


def rule_of(node: Node) -> Reduce:
    """Return the reduction's expressions."""
    rule = REGISTRY[node.op].reduce
    assert rule is not None
    return rule


def initial(rule: Reduce, storage: Storage) -> str:
    """Return the literal of the neutral element."""
    if rule.init in ("min", "max"):
        return storage.extreme(rule.init)
    return storage.literal(int(rule.init))


def axes_of(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the kept and the reduced dimensions, each in order."""
    operand = next(node.operands)
    reduced = tuple(sorted(node.attrs["axes"]))
    kept = tuple(axis for axis in range(operand.rank) if axis not in reduced)
    return kept, reduced


def count_of(node: Node) -> int:
    """Return the number of elements that one result reduces."""
    operand: Value = next(node.operands)
    return math.prod(operand.shape[axis] for axis in node.attrs["axes"])


def combine(rule: Reduce, storage: Storage, a: str, b: str) -> str:
    """Combine two accumulators."""
    return express(rule.combine, storage, a=a, b=b)


def step(rule: Reduce, storage: Storage, total: str, element: str) -> str:
    """Accumulate one more element."""
    mapped = rule.combine.replace("{b}", f"({rule.map})")
    return express(mapped, storage, a=total, x=element)


def finish(rule: Reduce, storage: Storage, total: str, count: int) -> str:
    """Return the result from the final accumulator."""
    scope = Scope(storage, known=(("n", count),))
    return template(rule.finish, scope).format(x=total, n=storage.literal(count))


def reduce(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit a loop over the reduced dimensions."""
    operand = next(node.operands)
    rule = rule_of(node)
    storage = body.builder.storage(node.output)
    kept, reduced = axes_of(node)
    base = body.let(subset_map(operand.shape, kept).at(index), "base")
    total = body.var(storage.compute, initial(rule, storage))
    with body.loop(count_of(node)) as r:
        element = body.load(operand, base + subset_map(operand.shape, reduced).at(r))
        body.line(f"{total} = {step(rule, storage, total, element)};")
    return finish(rule, storage, total, count_of(node))


@lowering("matmul", loops=True)
def matmul(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit a loop over k."""
    a, b = node.operands
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    shape = node.output.shape
    batch = body.let(index // (m * n))
    row = body.let(coordinate(shape, len(shape) - 2, index), "row")
    column = body.let(coordinate(shape, len(shape) - 1, index), "col")
    left = body.let((broadcast_map(a.shape[:-2], shape[:-2]).at(batch) * m + row) * k)
    right = body.let(broadcast_map(b.shape[:-2], shape[:-2]).at(batch) * (k * n) + column)
    total = body.var("f32", "0.0")
    with body.loop(k, "k") as step:
        x = body.load(a, left + step)
        y = body.load(b, right + step * n)
        body.line(f"{total} = fma({x}, {y}, {total});")
    return total
