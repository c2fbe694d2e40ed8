"""Open dimensions in an ONNX model: their names, and tensors of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from webnn_py.core.dimensions import MLDimension, is_dimension, multiple_of
from webnn_py.core.dtypes import DTYPES
from webnn_py.ir import Array, Value

Emit = Callable[..., Any]
"""Function that writes an int64 node; it takes the operator, and tensors or integers."""


class Source(NamedTuple):
    """The input dimension from which a model reads an open size.

    Attributes:
        name: Name of the input.
        axis: Axis of the dimension.
        factor: The dimension as a multiple of the size.
    """

    name: str
    axis: int
    factor: int


def sources(inputs: Iterable[tuple[str, Value]]) -> dict[str, Source]:
    """Return the input dimension of each open size, by the size's name."""
    found: dict[str, Source] = {}
    for name, value in inputs:
        for axis, size in enumerate(value.shape):
            multiple = multiple_of(size)
            if multiple is not None:
                found.setdefault(multiple[0].name, Source(name, axis, multiple[1]))
    return found


def named(shape: Sequence[int]) -> list[int | str]:
    """Return a shape with open dimensions as the text of their expressions."""
    return [str(size).replace("?", "unknown_") if is_dimension(size) else size for size in shape]


def flat(values: Any) -> list[Any]:
    """Return the elements of nested lists."""
    if isinstance(values, (list, tuple, range)):
        return [element for value in values for element in flat(value)]
    return [values] if not hasattr(values, "flat") else list(values.flat)


class Given(NamedTuple):
    """An input of a model whose contents depend on open sizes.

    Attributes:
        values: Numbers or open dimensions, in nested lists.
        data_type: Data type of the input.
    """

    values: Any
    data_type: str

    def array(self, sizes: Mapping[str, int]) -> Array:
        """Return the input's array for these sizes."""
        numbers = [x.evaluate(sizes) if is_dimension(x) else x for x in flat(self.values)]
        return np.array(numbers, DTYPES[self.data_type].numpy).reshape(np.shape(self.values))


class Measured:
    """A size as a tensor of the model, whose arithmetic writes nodes.

    Args:
        emit: Function that writes a node.
        tensor: Tensor of one int64 element.
    """

    def __init__(self, emit: Emit, tensor: Any) -> None:
        self._emit, self.tensor = emit, tensor

    def _apply(self, kind: str, other: Any) -> Measured:
        operand = other.tensor if isinstance(other, Measured) else other
        return Measured(self._emit, self._emit(kind, self.tensor, operand))

    def __add__(self, other: Any) -> Measured:
        return self if type(other) is int and not other else self._apply("Add", other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Measured:
        return self if type(other) is int and other == 1 else self._apply("Mul", other)

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Measured:
        return self if power == 1 else self * self ** (power - 1)

    def __floordiv__(self, other: Any) -> Measured:
        # ONNX rounds towards zero: subtract the remainder first, so that the division is exact.
        rest = self._apply("Mod", other)
        return self._apply("Sub", rest)._apply("Div", other)

    def __rfloordiv__(self, other: int) -> Measured:
        return Measured(self._emit, self._emit("Div", other, self.tensor))


def measured(size: MLDimension, values: Mapping[str, Measured]) -> Any:
    """Return the tensor of a dimension, computed from the tensors of its sizes."""
    made: Any = size.evaluate(values)  # type: ignore[arg-type]
    return made.tensor
