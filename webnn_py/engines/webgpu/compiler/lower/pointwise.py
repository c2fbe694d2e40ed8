"""Elementwise operators, from the expression in their declaration."""

from __future__ import annotations

from typing import Any

from webnn_py.core import dtypes
from webnn_py.engines.webgpu.compiler import floats, prelude
from webnn_py.engines.webgpu.compiler.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.expressions import adapted, express
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.storage import Features, Storage, storage_of
from webnn_py.ir import Node
from webnn_py.ops.declare import REGISTRY

_EXACT = {"cast", "identity", "where", "clamp"}
"""Operators that cannot leave the data type's range, so that nothing need be wrapped."""


def elementwise(body: Body, node: Node, output: int, index: str) -> str:
    """One element: the declaration's expression over the operands' elements."""
    op = REGISTRY[node.op]
    target = node.outputs[output]
    storage = body.emission.storage(target)
    names: dict[str, str] = {"T": storage.compute}
    first = next(node.operands)
    for operand, value in zip(op.limits, node.inputs, strict=True):
        assert value is not None
        at = broadcast_map(value.shape, target.shape).wgsl(index)
        names[operand] = body.load(value, at)
    source = body.emission.storage(first)
    if node.op == "cast":
        return prelude.cast(source, storage, body.emission.features.f16).format(
            input=names["input"]
        )
    names |= {name: _attribute(name, value, source) for name, value in node.attrs.items()}
    if node.op == "clamp":
        return _clamp(body, names, node.attrs, storage)
    template = _template(node, source)
    if source.compute == "f32":
        template = _without_folding(body, template, node)
    expression = adapted(template, source).format(**names)
    return expression if node.op in _EXACT else storage.wrap(expression)


def rounds(node: Node, features: Features) -> int:
    """Rounds of the loops that an operator's expression makes for one element: powers do so."""
    op = REGISTRY.get(node.op)  # the steps of a sequence are of the backend's own
    if op is None or op.wgsl is None or node.op in ("cast", "clamp"):
        return 0
    storage = storage_of(next(node.operands).data_type, features)
    expression = adapted(_template(node, storage), storage)
    return prelude.rounds(expression.replace("{T}", storage.compute))


def _template(node: Node, source: Storage) -> str:
    """The declaration's expression for operands of this data type."""
    wgsl = REGISTRY[node.op].wgsl
    assert wgsl is not None
    kind = dtypes.DTYPES[source.data_type].kind
    return wgsl if isinstance(wgsl, str) else wgsl[kind]


def _attribute(name: str, value: Any, storage: Storage) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return storage.literal(value)
    return str(value)


def _without_folding(body: Body, template: str, node: Node) -> str:
    """The expression for operands of which a driver would conclude too much."""
    a, *rest = node.operands
    if rest == [a]:
        return floats.TWICE.get(template, template)
    for number, operand in enumerate(node.operands):
        known = body.emission.scalar(operand)
        if known is not None:
            template = floats.KNOWN.get((template, number, abs(known)), template)
    return template


def _clamp(body: Body, names: dict[str, str], attrs: Any, storage: Storage) -> str:
    """The greater of the input and the lower bound, the less of that and the upper one."""
    value = names["input"]
    for bound, which in (("min_value", "max"), ("max_value", "min")):
        if attrs[bound] is not None:
            held = f"{which}({{a}}, {{b}})"
            value = body.let(express(held, storage, a=value, b=names[bound]))
    return value
