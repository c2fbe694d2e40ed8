"""MLOperand, and the interface through which operators are emitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.errors import ValidationError
from webnn_py.ir import Descriptor, Value


class MLOperand:
    """A tensor of a graph under construction.

    Source: WebNN 2026, "MLOperand interface".
    """

    __slots__ = ("_emitter", "_value")

    def __init__(self, emitter: Emitter, value: Value) -> None:
        self._emitter = emitter
        self._value = value

    @property
    def data_type(self) -> str:
        """The data type's name."""
        return self._value.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, a tuple; empty for a scalar."""
        return self._value.shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self._value.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._value.size

    @property
    def value(self) -> Value:
        """The value in the graph's intermediate representation."""
        return self._value

    def __repr__(self) -> str:
        name = f" {self._value.name!r}" if self._value.name else ""
        return f"<MLOperand{name} {Descriptor.__str__(self._value)}>"


class Emitter(ABC):
    """Something that operator methods write into: a builder, or a pass that rewrites a graph."""

    @abstractmethod
    def emit(
        self,
        op: str,
        operands: Sequence[MLOperand | None],
        attrs: Mapping[str, Any],
        outputs: Sequence[Descriptor],
        label: str,
    ) -> list[MLOperand]:
        """Add a node and return its outputs."""

    @abstractmethod
    def constant_of(self, value: object, like: MLOperand) -> MLOperand:
        """A scalar constant of the data type of `like`."""

    def check_open(self) -> None:
        """Raise if nothing can be added any more."""
        return None

    def check_supported(
        self, op: Any, operands: Mapping[str, Any], outputs: Sequence[Descriptor]
    ) -> None:
        """Raise if the target cannot run this operator on these data types."""
        return None

    def check_operand(self, value: object, name: str) -> MLOperand:
        """Return `value` if it is an operand made by this emitter, else raise."""
        if not isinstance(value, MLOperand):
            raise ValidationError(f"operand {name!r}: got {value!r}, expected an MLOperand")
        if value._emitter is not self:
            raise ValidationError(f"operand {name!r}: {value!r} belongs to another builder")
        return value
