"""Validation of nodes against the definitions of operators, from onnx or from handlers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from webnn_py.onnx.registry import NEEDED, Handler
from webnn_py.onnx.tensor import BrokenModelError, Tensor, Tensors, element_name

ATTRIBUTES = onnx.AttributeProto.AttributeType
MAX_OPERANDS = (1 << 31) - 1
"""Largest number of inputs or outputs of a variadic operator."""
_FIELDS = {ATTRIBUTES.TENSOR: "t", ATTRIBUTES.GRAPH: "g", ATTRIBUTES.SPARSE_TENSOR: "sparse_tensor"}
"""Protobuf field of attribute types whose value is a message, which may be missing."""
_OF_ANNOTATIONS = {
    "int": {ATTRIBUTES.INT},
    "float": {ATTRIBUTES.FLOAT, ATTRIBUTES.INT},
    "str": {ATTRIBUTES.STRING},
    "list[int]": {ATTRIBUTES.INTS},
    "Old": {ATTRIBUTES.INTS},
    "list[float]": {ATTRIBUTES.FLOATS},
    "list[str]": {ATTRIBUTES.STRINGS},
}
"""Attribute types by the annotation of a handler's parameter."""
_SEQUENCE = frozenset({"seq(tensor)"})
"""Input types of sequences; the element type is not checked."""
_FLAGS = frozenset({"tensor(bool)", "tensor(uint8)"})
"""Interchangeable element types, because WebNN's comparisons return uint8."""


@dataclass(frozen=True, slots=True)
class _Input:
    """Formal input of an operator.

    Attributes:
        name: The input's name.
        is_needed: Whether a node must have the input.
        types: The allowed types as onnx writes them, including later versions; empty means any.
        kind: The type variable, such as "T", which inputs of equal type share; "" means none.
    """

    name: str
    is_needed: bool
    types: frozenset[str] = frozenset()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """Signature of an operator.

    Attributes:
        inputs: Its formal inputs; the last one repeats if the operator is variadic.
        fewest: The smallest number of inputs.
        most: The largest number of inputs.
        outputs: The smallest and largest number of outputs.
        attributes: Allowed types by attribute name; attributes of unknown type are missing.
        required: Names of the attributes that a node must have.
    """

    inputs: Sequence[_Input]
    fewest: int
    most: int
    outputs: tuple[int, int]
    attributes: Mapping[str, set[int]]
    required: frozenset[str]


def domain_of(node: Any) -> str:
    """Return a node's domain; '' is the default domain."""
    return "" if node.domain == "ai.onnx" else str(node.domain)


def schema_of(node: Any, opsets: Mapping[str, int]) -> Any:
    """Return the onnx.defs.OpSchema of a node's operator, or None; the first call takes 10 ms."""
    domain = domain_of(node)
    return _schema(node.op_type, opsets.get(domain, 1), domain)


@functools.lru_cache(4096)
def _schema(kind: str, version: int, domain: str) -> Any:
    try:
        return onnx.defs.get_schema(kind, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.lru_cache(4096)
def _by_onnx(kind: str, version: int, domain: str) -> Definition | None:
    schema = _schema(kind, version, domain)
    if schema is None:
        return None
    newest = _schema(kind, onnx.defs.onnx_opset_version(), domain) or schema
    wider = {(i, one.name): one.types for i, one in enumerate(newest.inputs)}
    options = onnx.defs.OpSchema.FormalParameterOption
    inputs = [
        _Input(
            one.name,
            one.option == options.Single or (one.option == options.Variadic and one.is_homogeneous),
            frozenset(one.types) | wider.get((i, one.name), frozenset()),
            one.type_str if one.is_homogeneous else "",
        )
        for i, one in enumerate(schema.inputs)
    ]
    attributes = {name: {int(one.type.value)} for name, one in schema.attributes.items()}
    required = frozenset(name for name, one in schema.attributes.items() if one.required)
    low, high = schema.min_input, schema.max_input
    outputs = schema.min_output, schema.max_output
    return Definition(inputs, low, high, outputs, attributes, required)


@functools.lru_cache(512)
def _by_handler(handler: Handler) -> Definition:
    inputs = [
        _Input(name, kind in NEEDED, _SEQUENCE if kind == "Tensors" else frozenset())
        for name, kind in handler.inputs.items()
    ]
    types = {
        name: _OF_ANNOTATIONS[kind]
        for name, text in handler.attributes.items()
        if (kind := text.removesuffix(" | None")) in _OF_ANNOTATIONS
    }
    most = len(inputs) if not handler.is_variadic else MAX_OPERANDS
    return Definition(inputs, handler.fewest, most, (1, MAX_OPERANDS), types, handler.required)


def check(
    node: Any, inputs: Sequence[Any], opsets: Mapping[str, int], handler: Handler | None
) -> None:
    """Check a node's inputs, outputs and attributes against the definition of its operator.

    Args:
        node: The onnx.NodeProto to check.
        inputs: The values of its inputs; None for omitted ones.
        opsets: Versions of the operator sets by domain.
        handler: The operator's handler, or None. Its parameters define operators that onnx does not
            define, and further restrict those that onnx does.

    Raises:
        BrokenModelError: The node does not match.
    """
    domain = domain_of(node)
    defined = _by_onnx(node.op_type, opsets.get(domain, 1), domain)
    of_handler = None if handler is None else _by_handler(handler)
    for each in (defined, of_handler):
        if each is not None:
            _check_inputs(inputs, each)
            low, high = each.outputs
            if not low <= len(node.output) <= high:
                raise _misfit(f"{len(node.output)} outputs, expected {_between(low, high)}")
    either = defined or of_handler
    _check_attributes(node, either.attributes if either else {})
    if defined is not None:
        for one in node.attribute:
            if one.name not in defined.attributes:
                known = ", ".join(sorted(defined.attributes)) or "none"
                raise _misfit(f"attribute {one.name!r} is not one of its attributes ({known})")
    for each in (defined, of_handler):
        missing = each.required - {one.name for one in node.attribute} if each else None
        if missing:
            raise BrokenModelError(f"it lacks its attribute {min(missing)!r}")


def _between(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} to {high}" if high < MAX_OPERANDS else f"{low} or more"


def _misfit(why: str) -> BrokenModelError:
    return BrokenModelError(f"it is not valid: {why}")


def _check_inputs(inputs: Sequence[Any], by: Definition) -> None:
    count, low, high = len(inputs), by.fewest, by.most
    if not low <= count <= high:
        names = ", ".join(one.name for one in by.inputs[:8])
        raise _misfit(f"{count} inputs, expected {_between(low, high)} ({names or 'none'})")
    kinds: dict[str, tuple[str, str]] = {}
    for place, one in enumerate(inputs):
        wanted = by.inputs[min(place, len(by.inputs) - 1)]
        if one is None:
            if wanted.is_needed:
                raise BrokenModelError(f"it lacks its input {wanted.name!r}")
        elif wanted.types:
            _check_type(one, wanted, kinds)


def _check_type(given: Any, wanted: _Input, kinds: dict[str, tuple[str, str]]) -> None:
    if isinstance(given, Tensors):
        if not any(kind.startswith(("seq(", "optional(seq")) for kind in wanted.types):
            raise _misfit(f"input {wanted.name!r} is a sequence, expected {_told(wanted.types)}")
        return
    if not isinstance(given, Tensor):
        return
    kind = f"tensor({element_name(given.elem)})"
    alike = _FLAGS if kind in _FLAGS else {kind}
    if not any(one in wanted.types or f"optional({one})" in wanted.types for one in alike):
        raise _misfit(f"input {wanted.name!r} is {kind}, expected {_told(wanted.types)}")
    other, before = (
        kinds.setdefault(wanted.kind, (kind, wanted.name)) if wanted.kind else (kind, "")
    )
    if other not in alike:
        raise _misfit(
            f"input {wanted.name!r} is {kind}, and input {before!r}, which it is to be like,"
            f" {other}"
        )


def _told(types: frozenset[str]) -> str:
    return ", ".join(sorted(types)) if len(types) <= 6 else f"one of {len(types)} types"


def _check_attributes(node: Any, known: Mapping[str, set[int]]) -> None:
    seen = set()
    for one in node.attribute:
        title = f"attribute {one.name!r}"
        if not isinstance(one.name, str):  # bytes that are no UTF-8
            raise _misfit(f"{title} has a name that is no text")
        if one.name in seen:
            raise _misfit(f"{title} is there twice")
        seen.add(one.name)
        if one.ref_attr_name:
            raise _misfit(
                f"{title} refers to {one.ref_attr_name!r} of a function that it is not in"
            )
        if one.type not in ATTRIBUTES.values() or not one.type:
            raise _misfit(f"{title} has no type")
        expected = known.get(one.name, {one.type})
        if one.type not in expected:
            names = " or ".join(ATTRIBUTES.Name(kind) for kind in sorted(expected))
            raise _misfit(f"{title} is {ATTRIBUTES.Name(one.type)}, expected {names}")
        field = _FIELDS.get(one.type)
        if field is not None and not one.HasField(field):
            raise _misfit(f"{title} has no value")
