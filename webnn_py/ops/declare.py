"""How an operator is declared: a method whose signature, decorator, docstring and body say all.

The signature gives operands (typed `MLOperand`) and options (keyword-only), the decorator the data
types and ranks of each operand, the docstring the documentation, and the body validates what the
limits cannot say and returns the output's descriptor. From this the decorator makes the public
builder method, and the registry answers every question about operators; there is no second list.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ParamSpec, cast

from webnn_py.core import convert
from webnn_py.core.errors import MLError, ValidationError
from webnn_py.core.shapes import MAX_RANK, check_dimensions
from webnn_py.ir import Descriptor, Node, Value, titled
from webnn_py.ops import remedies
from webnn_py.ops.operand import MLOperand, NodeBuilder

P = ParamSpec("P")
Wgsl = str | Mapping[str, str]
TypesByOperand = Mapping[str, tuple[str, ...]]
"""Data types by operand, and of the "output"."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operand may be.

    Attributes:
        types: Allowed data types, or the name of the operand whose type it must share.
        rank: Allowed ranks, lowest and highest inclusive, or one number for both.
    """

    types: tuple[str, ...] | str
    rank: tuple[int, int] | int = (0, MAX_RANK)

    @property
    def rank_range(self) -> tuple[int, int]:
        """Lowest and highest rank."""
        return _rank_range(self.rank)


def _rank_range(rank: tuple[int, int] | int) -> tuple[int, int]:
    return (rank, rank) if isinstance(rank, int) else rank


@dataclass(frozen=True, slots=True)
class Inferred:
    """What a body returns: the outputs' descriptors, and attributes that it normalised."""

    outputs: tuple[Descriptor, ...]
    attrs: Mapping[str, Any]


def result(*outputs: Descriptor, **attrs: Any) -> Inferred:
    """The outputs of an operator, with the attributes that the body filled in."""
    return Inferred(outputs, attrs)


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction in WGSL expressions.

    Attributes:
        map: What is done to each element `{x}`.
        combine: Two partial results `{a}` and `{b}` made one.
        init: The neutral element: "0", "1", or the data type's "min" or "max".
        finish: What is done to the whole `{x}` of `{n}` elements.
    """

    map: str
    combine: str
    init: str
    finish: str


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """All that is known of one operator.

    Attributes:
        name: Python name.
        idl: Name in the specification's IDL.
        limits: Data types and ranks of each operand, in declaration order.
        output_types: Allowed data types of the output where an option chooses it, or the operand
            whose type it shares.
        output_ranks: Lowest and highest rank of each output, under its name in the specification;
            one entry stands for all members of a list of any length.
        variadic: The first operand is a list of any length.
        multiple: The method returns a list.
        infer: The body.
        decompose: The operator in terms of others, if it is a composite.
        numpy: Elementwise only: the NumPy function that defines it.
        wgsl: Elementwise only: the WGSL expression, with {a}, {b}, {c} for the operands.
        reduce: Reductions only: their WGSL expressions.
        reduce_numpy: Reductions only: NumPy's function, called with `axis` and `keepdims`.
        extension: Not in the specification.
    """

    name: str
    idl: str
    family: str
    signature: inspect.Signature
    limits: Mapping[str, Limits]
    output_types: tuple[str, ...] | str
    output_ranks: Mapping[str, tuple[int, int]]
    converters: Mapping[str, Callable[[object], Any]]
    variadic: bool
    multiple: bool
    infer: Callable[..., Inferred]
    doc: str
    decompose: Callable[..., Any] | None = None
    numpy: Callable[..., Any] | None = None
    wgsl: Wgsl | None = None
    reduce: Reduce | None = None
    reduce_numpy: Callable[..., Any] | None = None
    extension: bool = False

    @property
    def elementwise(self) -> bool:
        """Each output element depends on the operands' elements at its own place alone."""
        return self.numpy is not None

    def operand_types(self, operand: str) -> tuple[str, ...]:
        """The data types an operand may have, references followed."""
        types = self.output_types if operand == "output" else self.limits[operand].types
        return self.operand_types(types) if isinstance(types, str) else types

    def arguments(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """The node's operands by name (mapped through `of` where given), and its attributes."""

        def look(value: Value | None) -> Any:
            return value if of is None or value is None else of[value]

        if self.variadic:
            (name,) = self.limits
            operands: dict[str, Any] = {name: [look(v) for v in node.inputs]}
        else:
            operands = {n: look(v) for n, v in zip(self.limits, node.inputs, strict=True)}
        return operands | dict(node.attrs)

    def call(self, function: Callable[..., Any], node: Node, of: Mapping[Value, Any]) -> Any:
        """Call a function of this operator's signature with a node's operands and attributes."""
        return function(**self.arguments(node, of))


_REGISTRY: dict[str, Operator] = {}
REGISTRY: Mapping[str, Operator] = MappingProxyType(_REGISTRY)


def idl_name(python_name: str) -> str:
    """conv_transpose2d -> convTranspose2d, gather_nd -> gatherND, is_nan -> isNaN."""
    head, *tail = python_name.split("_")
    special = {"nd": "ND", "nan": "NaN"}
    return head + "".join(special.get(part, part.capitalize()) for part in tail)


def operator(
    *,
    output: tuple[str, ...] | str = "input",
    output_rank: tuple[int, int] | None = None,
    decompose: Callable[..., Any] | None = None,
    numpy: Callable[..., Any] | None = None,
    wgsl: Wgsl | None = None,
    extension: bool = False,
    **limits: Limits,
) -> Callable[[Callable[P, Inferred]], Callable[P, MLOperand]]:
    """Declare an operator with one output. Keywords are the operands' limits, in order.

    Args:
        output: Data types of the output, or the operand whose type it shares.
        output_rank: Lowest and highest rank of the output, if not those of the first operand.
        decompose: Called as a builder method, makes the result of other operators.
        numpy: Elementwise operators: what defines them, called with operands and attributes.
        wgsl: Elementwise operators: the WGSL expression, operands and attributes in braces; one for
            every kind of operand data type ("f", "i", "u") where they differ.
        extension: Not in the specification.
        **limits: Data types and ranks of each operand.
    """
    more: dict[str, Any] = {
        "decompose": decompose,
        "numpy": numpy,
        "wgsl": wgsl,
        "extension": extension,
    }
    if output_rank is not None:
        more["output_ranks"] = {"output": output_rank}

    def decorate(body: Callable[P, Inferred]) -> Callable[P, MLOperand]:
        return cast(
            Callable[P, MLOperand],
            declare(body, limits, output, False, **more),
        )

    return decorate


def multi_operator(
    *,
    outputs: Mapping[str, tuple[int, int] | int],
    output: tuple[str, ...] | str = "input",
    decompose: Callable[..., Any] | None = None,
    **limits: Limits,
) -> Callable[[Callable[P, Inferred]], Callable[P, list[MLOperand]]]:
    """Declare an operator that returns a list of operands.

    Args:
        outputs: Names and ranks of the outputs.
        output: Data types of the outputs, or the operand whose type they share.
        decompose: Called as a builder method, makes the results of other operators.
        **limits: Data types and ranks of each operand.
    """
    ranks = {name: _rank_range(rank) for name, rank in outputs.items()}

    def decorate(body: Callable[P, Inferred]) -> Callable[P, list[MLOperand]]:
        return cast(
            Callable[P, list[MLOperand]],
            declare(body, limits, output, True, decompose=decompose, output_ranks=ranks),
        )

    return decorate


def declare(
    body: Callable[..., Inferred],
    limits: Mapping[str, Limits],
    output_types: tuple[str, ...] | str,
    multiple: bool,
    *,
    output_ranks: Mapping[str, tuple[int, int]] | None = None,
    **more: Any,
) -> Callable[..., Any]:
    """Register an operator and make its builder method."""
    signature = inspect.signature(body)
    hints = typing.get_type_hints(body, include_extras=True)
    options = [n for n in signature.parameters if n not in limits and n not in ("self", "label")]
    first = next(iter(limits))
    op = Operator(
        name=body.__name__,
        idl=idl_name(body.__name__),
        family=body.__module__.rpartition(".")[2],
        signature=signature,
        limits=MappingProxyType(dict(limits)),
        output_types=output_types,
        output_ranks=MappingProxyType(dict(output_ranks or {"output": limits[first].rank_range})),
        converters={n: convert.converter(hints[n], f"option {n!r}") for n in options},
        variadic=typing.get_origin(hints[first]) is not None
        and issubclass(typing.get_origin(hints[first]) or object, Sequence),
        multiple=multiple,
        infer=body,
        doc=inspect.getdoc(body) or "",
        **more,
    )
    assert op.name not in _REGISTRY, f"operator {op.name} is declared twice"
    _REGISTRY[op.name] = op

    body.__annotations__["return"] = returned = list[MLOperand] if multiple else MLOperand
    public = _public(signature, hints | {"return": returned})
    body.__signature__ = public  # type: ignore[attr-defined]  # of the method, too: see wraps

    @functools.wraps(body)
    def method(self: NodeBuilder, *args: Any, **kwargs: Any) -> Any:
        return apply(op, self, args, kwargs)

    method.operator = op  # type: ignore[attr-defined]
    return method


def _public(signature: inspect.Signature, hints: Mapping[str, Any]) -> inspect.Signature:
    """What `help` shows: every annotation spelt out, and what the method returns."""
    parameters = [
        parameter.replace(annotation=_spelt(hints[name])) if name != "self" else parameter
        for name, parameter in signature.parameters.items()
    ]
    return signature.replace(parameters=parameters, return_annotation=_spelt(hints["return"]))


def _spelt(hint: Any) -> str:
    """A type as one writes it, aliases resolved."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(_spelt, members))
    if origin is typing.Annotated:
        return _spelt(members[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, members))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_spelt, members))}]"
    return "None" if hint is type(None) else str(hint.__name__)


def apply(op: Operator, emitter: NodeBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What every builder method does: bind, check, infer, emit."""
    label = kwargs.get("label")
    label = "" if label is None else convert.label(label, f"{op.name}: option 'label'")
    try:
        emitter.check_open()
        operands, attrs = _bind(op, emitter, args, kwargs)
        _check_limits(op, operands)
        inferred = op.infer(emitter, **operands, **attrs)
        for descriptor in inferred.outputs:
            _check_output(op, descriptor)
        emitter.check_supported(op, operands, inferred.outputs)
    except MLError as error:
        raise type(error)(f"{titled(op.name, label)}: {error}") from None
    values = _flatten(op, operands)
    outputs = emitter.emit(op.name, values, attrs | dict(inferred.attrs), inferred.outputs, label)
    return outputs if op.multiple else outputs[0]


def _bind(
    op: Operator, emitter: NodeBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        bound = op.signature.bind(emitter, *args, **kwargs)
    except TypeError as error:
        remedy = remedies.call(op.name, op.signature, kwargs)
        raise ValidationError(f"{error}{remedy}") from None
    bound.apply_defaults()
    operands: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        if name in op.limits:
            operands[name] = _operands(op, emitter, name, value, bound.arguments.values())
        elif name != "label":
            attrs[name] = _option(op, name, _present(op, name, value), operands)
    return operands, attrs


def _present(op: Operator, name: str, value: object) -> object:
    """An option, or its default where None stands for one that is absent."""
    default = op.signature.parameters[name].default
    return default if value is None and default is not inspect.Parameter.empty else value


def _option(op: Operator, name: str, value: object, operands: Mapping[str, Any]) -> Any:
    try:
        return op.converters[name](value)
    except ValidationError as error:
        first = next(iter(operands.values()))
        leading = first[0] if isinstance(first, list) else first
        raise ValidationError(f"{error}{remedies.option(name, value, leading.shape)}") from None


def _operands(
    op: Operator, emitter: NodeBuilder, name: str, value: object, others: Iterable[Any]
) -> Any:
    optional = op.signature.parameters[name].default is None
    if value is None and optional:
        return None
    if not op.variadic:
        return emitter.check_operand(value, name, others)
    given = convert.items(value, f"operand {name!r}")
    members = [emitter.check_operand(v, f"{name}[{i}]", given) for i, v in enumerate(given)]
    if not members:
        raise ValidationError(f"operand {name!r}: the list is empty")
    return members


def _flatten(op: Operator, operands: Mapping[str, Any]) -> tuple[MLOperand | None, ...]:
    if op.variadic:
        (members,) = operands.values()
        return tuple(members)
    return tuple(operands[name] for name in op.limits)


def _check_limits(op: Operator, operands: Mapping[str, Any]) -> None:
    for name, limits in op.limits.items():
        given = operands[name]
        members = given if isinstance(given, list) else [given]
        for operand in members:
            if operand is not None:
                _check_operand_limits(op, name, limits, operand, operands)


def _check_operand_limits(
    op: Operator, name: str, limits: Limits, operand: MLOperand, operands: Mapping[str, Any]
) -> None:
    got = operand.data_type
    if isinstance(limits.types, str):
        other = operands[limits.types]
        wanted = (other[0] if isinstance(other, list) else other).data_type
        if got != wanted:
            raise ValidationError(
                f"operand {name!r}: data type {got}, expected {wanted} as operand {limits.types!r}"
            )
    elif got not in limits.types:
        expected = ", ".join(limits.types)
        raise ValidationError(f"operand {name!r}: data type {got}, expected one of {expected}")
    low, high = limits.rank_range
    if not low <= operand.rank <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        raise ValidationError(
            f"operand {name!r}: rank {operand.rank} of shape {list(operand.shape)},"
            f" expected {expected}{remedies.flat(name, operand.shape, high)}"
        )


def _check_output(op: Operator, output: Descriptor) -> None:
    types = op.operand_types("output")
    if output.data_type not in types:
        raise ValidationError(
            f"output: data type {output.data_type}, expected one of {', '.join(types)}"
        )
    check_dimensions(output.shape, output.data_type)


def infer_node(node: Node) -> tuple[Descriptor, ...]:
    """The outputs that a node's declaration gives for its operands; for `verify`."""
    op = REGISTRY[node.op]
    return op.infer(None, **op.arguments(node)).outputs
