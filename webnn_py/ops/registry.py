"""The registry of operators: one `Operator` for each declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any

from webnn_py.core.shapes import MAX_RANK
from webnn_py.ir import Descriptor, Node, Value

TypesByOperand = Mapping[str, tuple[str, ...]]
"""Data types by the name of an operand, or by "output"."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Allowed data types and ranks of an operand.

    Attributes:
        types: Allowed data types, or the name of the operand whose type it must share.
        rank_range: Lowest and highest allowed rank, both inclusive. The argument `rank` may be one
            number, which stands for both.
    """

    types: tuple[str, ...] | str
    rank: InitVar[tuple[int, int] | int] = (0, MAX_RANK)
    rank_range: tuple[int, int] = field(init=False)

    def __post_init__(self, rank: tuple[int, int] | int) -> None:
        object.__setattr__(self, "rank_range", rank_range(rank))


def rank_range(rank: tuple[int, int] | int) -> tuple[int, int]:
    """Return the lowest and highest rank; one number stands for both."""
    return (rank, rank) if isinstance(rank, int) else rank


@dataclass(frozen=True, slots=True)
class Inferred:
    """The result of an operator's inference.

    Attributes:
        outputs: The outputs' data types and shapes.
        attrs: Inferred options, as in `Node.inferred`.
        is_assumed: As in `Node.is_assumed`.
    """

    outputs: tuple[Descriptor, ...]
    attrs: Mapping[str, Any]
    is_assumed: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """WGSL expressions of a reduction.

    Attributes:
        map: Expression applied to each element `{x}`.
        combine: Expression that combines two partial results `{a}` and `{b}`.
        init: The identity element: "0", "1", or the data type's "min" or "max".
        finish: Expression applied to the combined result `{x}` of `{n}` elements.
    """

    map: str
    combine: str
    init: str
    finish: str


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """The declaration of one operator.

    Attributes:
        name: Python name.
        idl: Name in the specification's IDL.
        section: Anchor of its section in the specification.
        family: Name of the module that declares it, such as "pooling".
        signature: Signature of its builder method.
        limits: Data types and ranks of each operand, in declaration order.
        output_types: Allowed data types of the outputs, or the operand whose type they share.
        output_ranks: Lowest and highest rank of each output, by its name in the specification. One
            entry stands for every member of a list.
        converters: Function that converts and checks an option's value, by option.
        sizes: Names of the options that accept open dimensions.
        variadic: The first operand is a list of any length.
        multiple: The method returns a list.
        infer: The declaration's body, which returns the outputs' descriptors.
        doc: The declaration's docstring.
        numpy: NumPy function that defines an elementwise operator.
        wgsl: WGSL expression of an elementwise operator. Operands and options stand in braces;
            `{T}` is the WGSL type of the output.
        reduce: WGSL expressions of a reduction.
        reduce_numpy: NumPy function of a reduction, called with `axis` and `keepdims`.
        extension: The specification lacks the operator.
        types_of_outputs: Data types by output, where outputs differ in them.
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
    types_of_outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def elementwise(self) -> bool:
        """Whether each output element depends only on the operands' elements at its position."""
        return self.numpy is not None

    def operand_types(self, operand: str) -> tuple[str, ...]:
        """Return the allowed data types of an operand or of the "output"."""
        types = self.output_types if operand == "output" else self.limits[operand].types
        return self.operand_types(types) if isinstance(types, str) else types

    def operands(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """Return a node's operands by name, each replaced by its entry in `of` if there is one."""

        def look(value: Value | None) -> Any:
            return value if of is None or value is None else of[value]

        return self.named([look(value) for value in node.inputs])

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Map the operands' names to `operands`, which are in declaration order.

        Raises:
            ValueError: The number of operands is wrong.
        """
        if self.variadic:
            (name,) = self.limits
            return {name: list(operands)}
        return dict(zip(self.limits, operands, strict=True))

    def arguments(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """Return a node's operands and all attributes by name.

        Kernels and decompositions take these; builder methods take `given_arguments`.
        """
        return self.operands(node, of) | dict(node.attrs)

    def given_arguments(self, node: Node, of: Mapping[Value, Any] | None = None) -> dict[str, Any]:
        """Return a node's operands and its caller's options by name, without inferred ones."""
        return self.operands(node, of) | dict(node.given)


_REGISTRY: dict[str, Operator] = {}
REGISTRY: Mapping[str, Operator] = MappingProxyType(_REGISTRY)


def register(op: Operator) -> None:
    """Add an operator to the registry."""
    assert op.name not in _REGISTRY, f"operator {op.name} is declared twice"
    _REGISTRY[op.name] = op


def idl_name(python_name: str) -> str:
    """Return a Python name as the IDL spells it: gather_nd -> gatherND, is_nan -> isNaN."""
    head, *tail = python_name.split("_")
    special = {"nd": "ND", "nan": "NaN"}
    return head + "".join(special.get(part, part.capitalize()) for part in tail)
