"""Tensors and calls for property tests, and how their parts are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from tests.public import WHOLE_BYTES, limits_of
from webnn_py import MLGraphBuilder, MLOperand

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Draw = Callable[..., Any]
RANGES_4BIT = {"int4": (-8, 7), "uint4": (0, 15)}

MAX_ELEMENTS = 512


class Operator(Protocol):
    """What calls are drawn from: an operator's name, and what its operands may be.

    Attributes:
        name: The builder's method.
        limits: By operand: its data types, or the operand that it has them from, and its ranks.
    """

    name: str
    limits: Mapping[str, Any]

    def operand_types(self, name: str) -> tuple[str, ...]:
        """The data types of an operand, or of "output"."""
        ...


def packed(codes: Array) -> bytes:
    """Codes of 4 bits two to a byte, the low half first."""
    halves = np.append(codes.ravel(), 0)[: codes.size + codes.size % 2].astype(np.uint8) & 15
    return (halves[::2] | halves[1::2] << 4).tobytes()


def held_as(data_type: str) -> Any:
    """The data type of NumPy's that holds one; those of 4 bits take a byte."""
    return np.dtype(data_type.replace("int4", "int8"))


@dataclass(frozen=True)
class Tensor:
    """An operand of a call: its data type, its contents, and whether it is a constant."""

    data_type: str
    array: Array
    constant: bool

    @property
    def shape(self) -> Shape:
        return tuple(self.array.shape)

    def put(self, builder: MLGraphBuilder, name: str) -> MLOperand:
        """Add it to a builder, as an input of this name or as a constant."""
        if not self.constant:
            return builder.input(name, self.data_type, self.shape)
        if self.data_type not in WHOLE_BYTES:
            return builder.constant(packed(self.array), self.data_type, self.shape)
        return builder.constant(self.array, self.data_type)

    def __repr__(self) -> str:
        kind = "constant " if self.constant else ""
        return f"{kind}{self.data_type}{list(self.shape)}"


@dataclass(frozen=True)
class Call:
    """An operator with operands and options; called with a builder, it is applied there."""

    op: Operator
    operands: Mapping[str, Tensor | list[Tensor]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def named(self) -> dict[str, Tensor]:
        """The operands by the names of their graph inputs."""
        names = {}
        for name, given in self.operands.items():
            members = given if isinstance(given, list) else [given]
            names.update({f"{name}{i}": member for i, member in enumerate(members)})
        return names

    @property
    def inputs(self) -> dict[str, Array]:
        """The contents of the graph's inputs."""
        return {name: t.array for name, t in self.named().items() if not t.constant}

    def arguments(self, builder: MLGraphBuilder) -> dict[str, Any]:
        """Operands made in a builder, and the options, by name."""
        made: dict[str, Any] = {}
        for name, given in self.operands.items():
            if isinstance(given, list):
                made[name] = [t.put(builder, f"{name}{i}") for i, t in enumerate(given)]
            else:
                made[name] = given.put(builder, f"{name}0")
        return made | dict(self.options)

    def __call__(self, builder: MLGraphBuilder) -> list[MLOperand]:
        """Add the operands and the operator to a builder; its outputs."""
        made = getattr(builder, self.op.name)(**self.arguments(builder))
        return made if isinstance(made, list) else [made]


def sizes(most: int = 4) -> st.SearchStrategy[int]:
    return st.integers(1, most)


@st.composite
def shapes(draw: Draw, low: int = 0, high: int = 8, most: int = 4) -> Shape:
    """A small shape of a rank between the bounds."""
    shape: list[int] = []
    for _ in range(draw(st.integers(low, high))):
        room = MAX_ELEMENTS // math.prod(shape)
        shape.append(draw(sizes(max(1, min(most, room)))))
    return tuple(shape)


@st.composite
def broadcasting(draw: Draw, shape: Shape, low: int = 0) -> Shape:
    """A shape that broadcasts to `shape`."""
    tail = shape[draw(st.integers(0, len(shape) - low)) :]
    return tuple(draw(st.sampled_from([1, size])) for size in tail)


@st.composite
def divisors(draw: Draw, shape: Shape) -> Shape:
    """A shape whose dimensions divide those of `shape`."""
    return tuple(draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0])) for n in shape)


@st.composite
def tensors(
    draw: Draw, data_type: str, shape: Shape, low: int = -6, high: int = 6, constant: bool = False
) -> Tensor:
    """Contents between the bounds, cut to the type's range; a constant at times."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values: Array
    if held_as(data_type).kind == "f":
        # On a grid, so that sums are exact, ties happen, and differences are 0 or not tiny.
        values = rng.integers(low * 16, high * 16, shape, endpoint=True) / 16
    else:
        least, most = RANGES_4BIT.get(data_type) or limits_of(data_type)
        bounds = max(low, int(least)), min(high, int(most))
        values = rng.integers(*bounds, shape, endpoint=True)
    # int4 and uint4 exist as constants alone.
    fixed = constant or data_type not in WHOLE_BYTES or draw(st.booleans())
    return Tensor(data_type, np.asarray(values).astype(held_as(data_type)), fixed)


def data_types(op: Operator, operand: str) -> st.SearchStrategy[str]:
    return st.sampled_from(op.operand_types(operand))


@st.composite
def operands(
    draw: Draw, op: Operator, wanted: Mapping[str, Shape], reach: int = 6
) -> dict[str, Tensor]:
    """Tensors of these shapes, with data types that the declaration allows together."""
    chosen: dict[str, str] = {}
    for name in wanted:
        types = op.limits[name].types
        chosen[name] = chosen[types] if isinstance(types, str) else draw(data_types(op, name))
    return {
        name: draw(tensors(chosen[name], shape, -reach, reach)) for name, shape in wanted.items()
    }


@st.composite
def present(draw: Draw, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Some of the optional operands."""
    return {name: shape for name, shape in shapes.items() if draw(st.booleans())}
