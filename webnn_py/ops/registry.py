"""What is known of each operator: one entry, and no second list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from webnn_py.core.shapes import MAX_RANK
from webnn_py.ir import Node, Value
from webnn_py.ops.operand import Inferred

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
        return rank_range(self.rank)


def rank_range(rank: tuple[int, int] | int) -> tuple[int, int]:
    """Lowest and highest rank of one number or both."""
    return (rank, rank) if isinstance(rank, int) else rank


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
        section: Anchor of the section of the specification.
        limits: Data types and ranks of each operand, in declaration order.
        output_types: Allowed data types of the output where an option chooses it, or the operand
            whose type it shares.
        output_ranks: Lowest and highest rank of each output, under its name in the specification;
            one entry stands for all members of a list of any length.
        sizes: The options that are sizes: an open dimension may stand in them.
        variadic: The first operand is a list of any length.
        multiple: The method returns a list.
        infer: The body.
        numpy: Elementwise only: the NumPy function that defines it.
        wgsl: Elementwise only: the WGSL expression, operands and options in braces, `{T}` for the
            type of the output. It is written as for numbers of a type that WGSL has.
        reduce: Reductions only: their WGSL expressions.
        reduce_numpy: Reductions only: NumPy's function, called with `axis` and `keepdims`.
        extension: Not in the specification.
    """

    name: str
    idl: str
    section: str
    family: str
    signature: inspect.Signature
    limits: Mapping[str, Limits]
    output_types: tuple[str, ...] | str
    output_ranks: Mapping[str, tuple[int, int]]
    converters: Mapping[str, Callable[[object], Any]]
    sizes: tuple[str, ...]
    variadic: bool
    multiple: bool
    infer: Callable[..., Inferred]
    doc: str
    numpy: Callable[..., Any] | None = None
    wgsl: str | None = None
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

    def operands(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """A node's operands by name, mapped through `of` where given."""

        def look(value: Value | None) -> Any:
            return value if of is None or value is None else of[value]

        return self.named([look(value) for value in node.inputs])

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Operands by name, given in the order in which nodes have them.

        Raises:
            ValueError: There are more or fewer.
        """
        if self.variadic:
            (name,) = self.limits
            return {name: list(operands)}
        return dict(zip(self.limits, operands, strict=True))

    def arguments(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """A node's operands and attributes by name: what computes or decomposes it is called with.

        A builder method is called with `given_arguments`.
        """
        return self.operands(node, of) | dict(node.attrs)

    def given_arguments(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """A node's operands and given options by name: what a builder method is called with."""
        return self.operands(node, of) | dict(node.given)


_REGISTRY: dict[str, Operator] = {}
REGISTRY: Mapping[str, Operator] = MappingProxyType(_REGISTRY)


def register(op: Operator) -> None:
    """Enter an operator into the registry."""
    assert op.name not in _REGISTRY, f"operator {op.name} is declared twice"
    _REGISTRY[op.name] = op


def idl_name(python_name: str) -> str:
    """conv_transpose2d -> convTranspose2d, gather_nd -> gatherND, is_nan -> isNaN."""
    head, *tail = python_name.split("_")
    special = {"nd": "ND", "nan": "NaN"}
    return head + "".join(special.get(part, part.capitalize()) for part in tail)
