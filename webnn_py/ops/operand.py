"""`MLOperand`, and the interface through which builder methods add nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.ir import Array, Descriptor, Node, Value
from webnn_py.ops import remedies


class MLOperand(Unpicklable, Suggesting):
    """A tensor of a graph under construction.

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


@dataclass(frozen=True, slots=True)
class Inferred:
    """The result of an operator's inference.

    Attributes:
        outputs: The outputs' data types and shapes.
        attrs: Inferred options, as in `Node.inferred`.
    """

    outputs: tuple[Descriptor, ...]
    attrs: Mapping[str, Any]


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
