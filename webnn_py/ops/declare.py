"""Decorators that declare an operator and make its public builder method.

The signature lists operands (typed `MLOperand`) and options (keyword-only). The decorator states
the data types and ranks of each operand. The body checks all other rules and returns the outputs'
descriptors. The registry holds the result: no other module lists operators.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, cast

from webnn_py.core import convert
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.ir import Descriptor
from webnn_py.ops.operand import MLOperand, apply
from webnn_py.ops.registry import (
    REGISTRY,
    Inferred,
    Limits,
    Operator,
    Reduce,
    idl_name,
    rank_range,
    register,
)

__all__ = [
    "REGISTRY",
    "Inferred",
    "Limits",
    "Operator",
    "Reduce",
    "declare",
    "multi_operator",
    "operator",
    "result",
]

P = ParamSpec("P")


def result(*outputs: Descriptor, **attrs: Any) -> Inferred:
    """Return the result of a declaration's body: outputs, and options inferred from the inputs."""
    return Inferred(outputs, attrs)


def operator(
    *,
    output: tuple[str, ...] | str = "input",
    output_rank: tuple[int, int] | None = None,
    numpy: Callable[..., Any] | None = None,
    wgsl: str | None = None,
    section: str = "",
    extension: bool = False,
    **limits: Limits,
) -> Callable[[Callable[P, Inferred]], Callable[P, MLOperand]]:
    """Declare an operator with one output.

    Args:
        output: Data types of the output, or the operand whose type it shares.
        output_rank: Lowest and highest rank of the output; default: those of the first operand.
        numpy: NumPy function that defines an elementwise operator; takes operands and attributes.
        wgsl: WGSL expression of an elementwise operator, with operands and attributes in braces.
        section: End of the section's anchor in the specification; default: the lower-case name.
        extension: The specification lacks the operator.
        **limits: Data types and ranks of each operand, in order.
    """
    more: dict[str, Any] = {
        "numpy": numpy,
        "wgsl": wgsl,
        "section": section,
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
    types: Mapping[str, str] | None = None,
    extension: bool = False,
    **limits: Limits,
) -> Callable[[Callable[P, Inferred]], Callable[P, list[MLOperand]]]:
    """Declare an operator that returns a list of operands.

    Args:
        outputs: Names and ranks of the outputs.
        types: Data type of each output; default: that of the operand `input`.
        extension: The specification lacks the operator.
        **limits: Data types and ranks of each operand.
    """
    more: dict[str, Any] = {
        "output_ranks": {name: rank_range(rank) for name, rank in outputs.items()},
        "extension": extension,
    }
    output_types: tuple[str, ...] | str = "input"
    if types is not None:
        more["types_of_outputs"] = MappingProxyType({n: (kind,) for n, kind in types.items()})
        output_types = tuple(dict.fromkeys(types.values()))

    def decorate(body: Callable[P, Inferred]) -> Callable[P, list[MLOperand]]:
        return cast(
            Callable[P, list[MLOperand]],
            declare(body, limits, output_types, True, **more),
        )

    return decorate


def declare(
    body: Callable[..., Inferred],
    limits: Mapping[str, Limits],
    output_types: tuple[str, ...] | str,
    multiple: bool,
    *,
    output_ranks: Mapping[str, tuple[int, int]] | None = None,
    section: str = "",
    **more: Any,
) -> Callable[..., Any]:
    """Register an operator and return its builder method."""
    signature = inspect.signature(body)
    hints = typing.get_type_hints(body, include_extras=True)
    options = [n for n in signature.parameters if n not in limits and n not in ("self", "label")]
    first = next(iter(limits))
    idl = idl_name(body.__name__)
    op = Operator(
        name=body.__name__,
        idl=idl,
        section=f"api-mlgraphbuilder-{section or idl.lower()}",
        family=body.__module__.rpartition(".")[2],
        signature=signature,
        limits=MappingProxyType(dict(limits)),
        output_types=output_types,
        output_ranks=MappingProxyType(dict(output_ranks or {"output": limits[first].rank_range})),
        converters={n: convert.converter(hints[n], f"option {n!r}") for n in options},
        sizes=tuple(n for n in options if convert.takes_dimensions(hints[n])),
        variadic=typing.get_origin(hints[first]) is not None
        and issubclass(typing.get_origin(hints[first]) or object, Sequence),
        multiple=multiple,
        infer=body,
        doc=inspect.getdoc(body) or "",
        **more,
    )
    register(op)

    body.__annotations__["return"] = returned = list[MLOperand] if multiple else MLOperand
    public = _public_signature(signature, hints | {"return": returned})
    body.__signature__ = public  # type: ignore[attr-defined]  # wraps() copies it to the method

    @functools.wraps(body)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(op, self._node_builder, args, kwargs)

    method.operator = op  # type: ignore[attr-defined]
    return method


def _public_signature(signature: inspect.Signature, hints: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature that `help` shows, with annotations as text."""
    parameters = [
        parameter.replace(annotation=_annotation(hints[name])) if name != "self" else parameter
        for name, parameter in signature.parameters.items()
    ]
    return signature.replace(parameters=parameters, return_annotation=_annotation(hints["return"]))


def _annotation(hint: Any) -> str:
    """Return a type's source text; resolve aliases that are not public."""
    if hint == MLOperandDataType:
        return "MLOperandDataType"
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(_annotation, members))
    if origin is typing.Annotated:
        return _annotation(members[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, members))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_annotation, members))}]"
    return "None" if hint is type(None) else str(hint.__name__)
