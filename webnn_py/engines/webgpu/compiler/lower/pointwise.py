"""Elementwise operators, from the expression in their declaration."""

from __future__ import annotations

import math
from collections.abc import Callable

from webnn_py.engines.webgpu.compiler import prelude
from webnn_py.engines.webgpu.compiler.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.expressions import Scope, template
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.storage import Features, Storage, storage_of
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY


def elementwise(body: Body, node: Node, output: int, index: str) -> str:
    """One element: the declaration's expression over the operands' elements."""
    op = REGISTRY[node.op]
    assert op.wgsl is not None
    target = node.outputs[output]
    names: dict[str, str] = {}
    for operand, value in zip(op.limits, node.inputs, strict=True):
        assert value is not None
        at = broadcast_map(value.shape, target.shape).wgsl(index)
        names[operand] = body.load(value, at)
    source = body.emission.storage(next(node.operands))
    for option, number in node.attrs.items():
        if isinstance(number, (int, float)):
            names[option] = source.literal(number)
    scope = _scope(node, body.emission.storage, body.emission.scalar)
    return template(op.wgsl, scope).format(**names)


def rounds(node: Node, features: Features) -> int:
    """Rounds of the loops that an operator's expression makes for one element: powers do so."""
    wgsl = REGISTRY[node.op].wgsl
    if wgsl is None:
        return 0
    scope = _scope(node, lambda value: storage_of(value.data_type, features), lambda value: None)
    return prelude.rounds(template(wgsl, scope))


def _scope(
    node: Node,
    storage: Callable[[Value], Storage],
    scalar: Callable[[Value], float | int | None],
) -> Scope:
    """What the names in a node's expression stand for."""
    source, *_ = kinds = [storage(value) for value in node.operands]
    names = list(REGISTRY[node.op].limits)
    first: dict[Value, str] = {}
    same: list[tuple[str, str]] = []
    known: list[tuple[str, float]] = []
    for name, value in zip(names, node.operands, strict=True):
        if first.setdefault(value, name) != name:
            same.append((name, first[value]))
        number = scalar(value)
        if number is not None and abs(number) in (0, math.inf):  # of others nothing is concluded
            known.append((name, float(abs(number))))
    return Scope(
        source,
        storage(node.output),
        tuple((name, kind) for name, kind in zip(names, kinds, strict=True) if kind != source),
        tuple(known),
        tuple(same),
        tuple(name for name, value in node.attrs.items() if value is None),
    )
