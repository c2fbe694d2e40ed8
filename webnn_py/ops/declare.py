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
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, cast

from webnn_py.core import convert
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.ir import Descriptor
from webnn_py.ops.apply import apply
from webnn_py.ops.operand import Inferred, MLOperand
from webnn_py.ops.registry import (
    REGISTRY,
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
    """What a body returns: the outputs, and the options that it worked out."""
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
    """Declare an operator with one output. Keywords are the operands' limits, in order.

    Args:
        output: Data types of the output, or the operand whose type it shares.
        output_rank: Lowest and highest rank of the output, if not those of the first operand.
        numpy: Elementwise operators: what defines them, called with operands and attributes.
        wgsl: Elementwise operators: the WGSL expression, operands and attributes in braces.
        section: End of the section's anchor in the specification, if not the name in small letters.
        extension: Not in the specification.
        **limits: Data types and ranks of each operand.
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
    **limits: Limits,
) -> Callable[[Callable[P, Inferred]], Callable[P, list[MLOperand]]]:
    """Declare an operator that returns a list of operands.

    Args:
        outputs: Names and ranks of the outputs, which have the data type of the operand `input`.
        **limits: Data types and ranks of each operand.
    """
    ranks = {name: rank_range(rank) for name, rank in outputs.items()}

    def decorate(body: Callable[P, Inferred]) -> Callable[P, list[MLOperand]]:
        return cast(
            Callable[P, list[MLOperand]],
            declare(body, limits, "input", True, output_ranks=ranks),
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
    """Register an operator and make its builder method."""
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
    public = _public(signature, hints | {"return": returned})
    body.__signature__ = public  # type: ignore[attr-defined]  # of the method, too: see wraps

    @functools.wraps(body)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(op, self._node_builder, args, kwargs)

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
    """A type as one writes it, aliases that are not public resolved."""
    if hint == MLOperandDataType:
        return "MLOperandDataType"
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
