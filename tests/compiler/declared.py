"""All that the declarations of operators become in WGSL."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from webnn_py.engines.webgpu.compiler.code.expressions import Scope, adapted, template
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ops.declare import REGISTRY, Operator

DEVICES = {"with all features": Features(), "with none": Features(f16=False, int64=False)}


def written(name: str, features: Features) -> set[str]:
    """All that an operator's declaration becomes on a device."""
    op = REGISTRY[name]
    made: set[str] = set()
    if op.wgsl is not None:
        made |= {template(op.wgsl, scope) for scope in _scopes(op, features)}
    if op.reduce is not None:
        for data_type in op.operand_types("input"):
            storage = storage_of(data_type, features)
            made |= {adapted(op.reduce.map, storage), adapted(op.reduce.combine, storage)}
            made.add(template(op.reduce.finish, Scope(storage, known=(("n", 3),))))
    return made


def _scopes(op: Operator, features: Features) -> Iterator[Scope]:
    """For each choice of data types: any operands, one given again, known numbers, no options."""
    options = tuple(set(op.signature.parameters) - set(op.limits) - {"self", "label"})
    leading, *others = op.limits
    for types in _data_types(op):
        source, *rest, result = (storage_of(data_type, features) for data_type in types)
        scope = Scope(source, result, tuple(zip(others, rest, strict=True)))
        yield scope
        for name, kind in scope.others:
            if kind == source:
                yield dataclasses.replace(scope, same=((name, leading),))
        for name in op.limits:
            for number in (0.0, math.inf, -1):
                yield dataclasses.replace(scope, known=((name, number),))
        if any(op.signature.parameters[name].default is None for name in options):
            yield dataclasses.replace(scope, absent=options)


def _data_types(op: Operator) -> Iterator[tuple[str, ...]]:
    """The data types of the operands and of the output."""
    chosen: list[dict[str, str]] = [{}]
    for name in (*op.limits, "output"):
        types = op.output_types if name == "output" else op.limits[name].types
        if isinstance(types, str):
            chosen = [given | {name: given[types]} for given in chosen]
        else:
            chosen = [given | {name: data_type} for given in chosen for data_type in types]
    return (tuple(given.values()) for given in chosen)
