"""`MLOperand`, and how operators are applied to operands.

Builder methods call `apply`: it binds and checks the arguments, infers the outputs and adds the
node to a `NodeBuilder`. The graph verifier compares nodes with what `infer` returns.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from webnn_py.core import convert
from webnn_py.core.dimensions import is_open
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import MLError, ValidationError
from webnn_py.core.messages import Deferred, Suggesting, shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.core.shapes import check_dimensions
from webnn_py.core.undecided_dims import are_recorded, assume_valid
from webnn_py.ir import Array, Descriptor, Node, Value, titled
from webnn_py.ops import remedies
from webnn_py.ops.registry import REGISTRY, Inferred, Limits, Operator


class MLOperand(Unpicklable, Suggesting):
    """A tensor of a graph under construction.

    Examples:
        ```python
        from webnn_py import MLGraphBuilder, ml

        b = MLGraphBuilder(ml.create_context_sync(device_type="cpu"))
        x = b.input("x", "float32", [2, 3])
        y = b.transpose(x)
        print(y.data_type, y.shape, y.rank, y.size)  # float32 (3, 2) 2 6
        ```

    Source: WebNN 2026, "MLOperand interface".
    """

    __slots__ = ("_builder", "_value")

    def __init__(self, builder: NodeBuilder, value: Value) -> None:
        self._builder = builder
        self._value = value

    @property
    def data_type(self) -> MLOperandDataType:
        """The data type's name."""
        return self._value.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions as a tuple of int, or MLDimension where open; empty for a scalar."""
        return self._value.shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self._value.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._value.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raise an error, because an operand has no contents until its graph runs.

        Raises:
            ValidationError: Always.
        """
        raise ValidationError(
            "an MLOperand has no contents: build its graph and compute, and use the builder's"
            " methods instead of NumPy's functions and operators"
        )

    def __repr__(self) -> str:
        name = f" {shown(self._value.name)}" if self._value.name else ""
        return f"<MLOperand{name} {Descriptor.__str__(self._value)}>"


def value_of(operand: MLOperand) -> Value:
    """Return an operand's value in the intermediate representation."""
    return operand._value


class NodeBuilder(ABC):
    """The interface through which builder methods add nodes to a graph.

    Attributes:
        outer_label: Label of operators that have none. A pass sets it to the replaced node's label.
    """

    outer_label = ""

    @abstractmethod
    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node and return its outputs as operands."""

    @abstractmethod
    def add_constant(self, array: Array, data_type: MLOperandDataType, name: str = "") -> MLOperand:
        """Add a constant that shares `array`, make the array read-only, and return its operand."""

    @abstractmethod
    def constant_of(self, value: object, like: MLOperand) -> MLOperand:
        """Add a scalar constant with the data type of `like`."""

    def check_open(self) -> None:
        """Raise if the builder accepts no more nodes."""
        return None

    def check_dimensions(self, options: Iterable[object]) -> None:
        """Raise if options contain open dimensions that no input of this builder has."""
        return None

    def check_supported(
        self, op: Any, operands: Mapping[str, Any], outputs: Sequence[Descriptor]
    ) -> None:
        """Raise if the target does not support the operator for these data types."""
        return None

    def check_operand(self, value: object, name: str, others: Iterable[Any] = ()) -> MLOperand:
        """Return `value` if it is an operand of this builder, else raise.

        Args:
            value: The argument.
            name: The operand's name, for messages.
            others: The call's other arguments, for messages.
        """
        if not isinstance(value, MLOperand):
            remedy = remedies.operand(value, lambda one: isinstance(one, MLOperand), others)
            raise ValidationError(
                f"operand {shown(name)}: got {shown(value)}, expected an MLOperand{remedy}"
            )
        if value._builder is not self:
            raise ValidationError(
                f"operand {shown(name)}: {shown(value)} belongs to another builder"
            )
        return value


def apply(op: Operator, builder: NodeBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Bind and check the arguments, infer the outputs and add the node to `builder`."""
    label = kwargs.get("label")
    label = "" if label is None else convert.label(label, f"{op.name}: option 'label'")
    label = label or builder.outer_label
    try:
        builder.check_open()
        operands, given = _bind(op, builder, args, kwargs)
        if op.sizes and is_open(sizes := [given[name] for name in op.sizes]):
            builder.check_dimensions(sizes)
        inferred = infer(op, operands, given)
        builder.check_supported(op, operands, inferred.outputs)
    except MLError as error:
        text = error.args[0] if error.args else ""
        raise type(error)(Deferred("{}: {}".format, titled(op.name, label), text)) from None
    inputs = tuple(None if o is None else value_of(o) for o in _flatten(op, operands))
    values = tuple(Value(d.data_type, d.shape) for d in inferred.outputs)
    node = Node(op.name, inputs, given, values, label, inferred.attrs, inferred.is_assumed)
    outputs = builder.emit(node)
    return outputs if op.multiple else outputs[0]


def infer(op: Operator, operands: Mapping[str, Any], given: Mapping[str, Any]) -> Inferred:
    """Infer an operator's outputs and inferred options.

    Args:
        op: The operator.
        operands: Operands by name, None where absent; they need a data type and a shape.
        given: The caller's options by name, as in `Node.given`.

    Raises:
        ValidationError: The operator does not accept this combination of arguments.
    """
    try:
        return _inferred(op, operands, given)
    except ValidationError:
        if are_recorded():
            raise
    with assume_valid():  # what sizes decide is checked when they are known, by `check_valid`
        return replace(_inferred(op, operands, given), is_assumed=True)


def _inferred(op: Operator, operands: Mapping[str, Any], given: Mapping[str, Any]) -> Inferred:
    _check_limits(op, operands)
    inferred = op.infer(None, **operands, **given)
    for descriptor in inferred.outputs:
        _check_output(op, descriptor)
    return inferred


def infer_node(node: Node) -> Inferred:
    """Infer a node's outputs and inferred options again from its operands and options."""
    op = REGISTRY[node.op]
    return infer(op, op.operands(node), node.given)


def _bind(
    op: Operator, builder: NodeBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    arguments = _arguments(op, args, kwargs)
    operands: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in op.limits:
            operands[name] = _operands(op, builder, name, value, arguments.values())
        elif name != "label":
            given[name] = _option(op, name, _present(op, name, value), operands)
    return operands, given


def _arguments(op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by name, as `op.signature.bind` does, in a tenth of its time."""
    positional, defaults = _parameters(op)
    placed = dict(zip(positional, args, strict=False))
    bound = {**defaults, **placed, **kwargs}
    if (
        len(placed) == len(args)
        and len(bound) == len(defaults)
        and placed.keys().isdisjoint(kwargs)
        and not any(value is inspect.Parameter.empty for value in bound.values())
    ):
        return bound
    try:
        slowly = op.signature.bind(None, *args, **kwargs)
    except TypeError as error:
        remedy = remedies.call(op.name, op.signature, kwargs)
        raise ValidationError(f"{error}{remedy}") from None
    slowly.apply_defaults()
    return dict(list(slowly.arguments.items())[1:])


@functools.cache
def _parameters(op: Operator) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the positional parameters' names, and all parameters' defaults, without `self`."""
    _, *parameters = op.signature.parameters.values()
    positional = (p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    return tuple(positional), {p.name: p.default for p in parameters}


def _present(op: Operator, name: str, value: object) -> object:
    """Return an option's value, or its default if the value is None."""
    default = op.signature.parameters[name].default
    return default if value is None and default is not inspect.Parameter.empty else value


def _option(op: Operator, name: str, value: object, operands: Mapping[str, Any]) -> Any:
    try:
        return op.converters[name](value)
    except ValidationError as error:
        first = next(iter(operands.values()))
        leading = first[0] if isinstance(first, list) else first
        remedy = remedies.option(op.name, name, value, leading.shape)
        raise ValidationError(f"{error}{remedy}") from None


def _operands(
    op: Operator, builder: NodeBuilder, name: str, value: object, others: Iterable[Any]
) -> Any:
    optional = op.signature.parameters[name].default is None
    if value is None and optional:
        return None
    if not op.variadic:
        return builder.check_operand(value, name, others)
    given = convert.items(value, f"operand {name!r}")
    members = [builder.check_operand(v, f"{name}[{i}]", given) for i, v in enumerate(given)]
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
