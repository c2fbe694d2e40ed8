"""Elementwise operators, from the WGSL expression in their declaration."""

from __future__ import annotations

import functools
import math

from webnn_py.engines.webgpu.compiler.code import prelude
from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.code.expressions import Scope, template
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.code.integers import is_minus_one
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS
from webnn_py.engines.webgpu.program.storage import Features, Storage, storage_of
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY

EXACT = "exact"
"""Attribute of a node whose quotient must be correctly rounded; see `ExactQuotients`."""

ROUNDED = {"gelu": "wn_gelu_half({input})", "sigmoid": "wn_sigmoid_half({input})"}
"""Expressions that are precise enough for results that are rounded to float16."""

EXACTLY = {"div": "wn_quotient({a}, {b})", "reciprocal": "wn_quotient(1.0, {input})"}
"""Expressions of correctly rounded quotients."""


def elementwise(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the declaration's expression over the operands' elements."""
    op = REGISTRY[node.op]
    assert op.wgsl is not None
    target = node.outputs[output]
    names: dict[str, str] = {}
    for operand, value in zip(op.limits, node.inputs, strict=True):
        assert value is not None
        at = body.through(broadcast_map(value.shape, target.shape), index)
        names[operand] = body.load(value, at)
    source = body.builder.storage(next(node.operands))
    for option, number in node.attrs.items():
        if isinstance(number, (int, float)) and option != EXACT:
            names[option] = source.literal(number)
    scope = _scope(node, body.builder)
    is_exact = EXACT in node.attrs and not scope.known and not scope.same
    wgsl = EXACTLY[node.op] if is_exact else op.wgsl
    if target.data_type == "float16":
        wgsl = ROUNDED.get(node.op, wgsl)
    return template(wgsl, scope).format(**names)


def iterations(node: Node, features: Features) -> int:
    """Return the loop iterations per element of an operator's expression; powers have some."""
    op = REGISTRY[node.op]
    assert op.wgsl is not None
    types = tuple(value.data_type for value in (*node.operands, node.output))
    return _loop_iterations(op.wgsl, tuple(op.limits), types, features)


@functools.cache
def _loop_iterations(
    wgsl: str, names: tuple[str, ...], types: tuple[str, ...], features: Features
) -> int:
    *kinds, result = (storage_of(data_type, features) for data_type in types)
    others = tuple(zip(names, kinds, strict=True))
    return prelude.rounds(template(wgsl, Scope(kinds[0], result, others)))


def _number(value: Value, builder: KernelBuilder) -> float | int | None:
    """Return the number of a one-element constant, also through views."""
    while builder.computes(value) and builder.producers[value].op in VIEWS:
        value = next(builder.producers[value].operands)
    return builder.scalar(value)


def _scope(node: Node, builder: KernelBuilder) -> Scope:
    """Return the types and facts that select an expression's variant."""
    names: dict[Value, str] = {}
    others: list[tuple[str, Storage]] = []
    known: list[tuple[str, float]] = []
    same: list[tuple[str, str]] = []
    for name, value in zip(REGISTRY[node.op].limits, node.operands, strict=True):
        others.append((name, builder.storage(value)))
        if names.setdefault(value, name) != name:
            same.append((name, names[value]))
        number = _number(value, builder)
        if number is not None and (abs(number) in (0, math.inf) or is_minus_one(number)):
            known.append((name, number))  # no variant depends on other numbers
    return Scope(
        others[0][1],
        builder.storage(node.output),
        tuple(others),
        tuple(known),
        tuple(same),
        tuple(option for option, value in node.attrs.items() if value is None),
    )
