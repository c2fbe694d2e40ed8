"""Open dimensions in a model: their names, and their values as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from webnn_py.core.dimensions import MLDimension, is_dimension, multiple_of
from webnn_py.core.dtypes import DTYPES
from webnn_py.ir import Array, Value

Emit = Callable[..., Any]
"""Writes a node of int64: its operator, operands that are tensors or numbers, attributes."""


class Source(NamedTuple):
    """An input that has an open size.

    Attributes:
        name: Of the input.
        axis: Of the dimension.
        factor: How many times the size that is.
    """

    name: str
    axis: int
    factor: int


def sources(inputs: Iterable[tuple[str, Value]]) -> dict[str, Source]:
    """Where each open size is to be found."""
    found: dict[str, Source] = {}
    for name, value in inputs:
        for axis, size in enumerate(value.shape):
            multiple = multiple_of(size)
            if multiple is not None:
                found.setdefault(multiple[0].name, Source(name, axis, multiple[1]))
    return found


def named(shape: Sequence[int]) -> list[int | str]:
    """A shape as a model states it: an open dimension as the text of its expression."""
    return [str(size).replace("?", "unknown_") if is_dimension(size) else size for size in shape]


def flat(values: Any) -> list[Any]:
    """The elements of nested lists."""
    if isinstance(values, (list, tuple, range)):
        return [element for value in values for element in flat(value)]
    return [values] if not hasattr(values, "flat") else list(values.flat)


class Given(NamedTuple):
    """What follows from open sizes, as an input of a model.

    Attributes:
        values: A number, or nested lists of them; numbers or open dimensions.
        data_type: Of the input.
    """

    values: Any
    data_type: str

    def array(self, sizes: Mapping[str, int]) -> Array:
        """What it is for some sizes."""
        known = [x.evaluate(sizes) if is_dimension(x) else x for x in flat(self.values)]
        return np.array(known, DTYPES[self.data_type].numpy).reshape(np.shape(self.values))


class Measured:
    """A size in the model, which calculates as an MLDimension does; each step is a node.

    Args:
        emit: Writes them.
        tensor: A list of one int64.
    """

    def __init__(self, emit: Emit, tensor: Any) -> None:
        self._emit, self.tensor = emit, tensor

    def _made(self, kind: str, other: Any, turned: bool = False) -> Measured:
        operands = [self.tensor, other.tensor if isinstance(other, Measured) else other]
        return Measured(self._emit, self._emit(kind, *(operands[::-1] if turned else operands)))

    def __add__(self, other: Any) -> Measured:
        return self if type(other) is int and not other else self._made("Add", other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Measured:
        return self if type(other) is int and other == 1 else self._made("Mul", other)

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Measured:
        return self if power == 1 else self * self ** (power - 1)

    def __floordiv__(self, other: Any) -> Measured:
        # ONNX divides towards zero: without the remainder, nothing is left to round.
        rest = self._made("Mod", other)
        return Measured(self._emit, self._emit("Sub", self.tensor, rest.tensor))._made("Div", other)

    def __rfloordiv__(self, other: int) -> Measured:
        return Measured(self._emit, self._emit("Div", other, self.tensor))


def measured(size: MLDimension, values: Mapping[str, Measured]) -> Any:
    """The tensor of a dimension, from those of the sizes in it."""
    made: Any = size.evaluate(values)  # type: ignore[arg-type]
    return made.tensor
