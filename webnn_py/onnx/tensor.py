"""What stands for a tensor of an ONNX model during import: known contents, or an operand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx

from webnn_py.core.dim_constraints import (
    find_bounds,
    find_equal_pairs,
    find_multiple,
    find_required_pair,
    find_sum,
)
from webnn_py.core.dimensions import MLDimension, is_dimension, symbols_of
from webnn_py.core.errors import MLError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.undecided_dims import record_questions
from webnn_py.ops.operand import MLOperand

Array = np.ndarray[Any, Any]

_TYPE = onnx.TensorProto
WEBNN_TYPES: dict[int, str] = {
    _TYPE.FLOAT: "float32",
    _TYPE.FLOAT16: "float16",
    _TYPE.INT8: "int8",
    _TYPE.UINT8: "uint8",
    _TYPE.INT32: "int32",
    _TYPE.UINT32: "uint32",
    _TYPE.INT64: "int64",
    _TYPE.UINT64: "uint64",
    _TYPE.BOOL: "uint8",
}
"""ONNX's element types that WebNN has; a bool is a uint8 that is 0 or 1."""
ELEMENT_TYPES: dict[str, int] = {
    name: number for number, name in WEBNN_TYPES.items() if number != _TYPE.BOOL
}


class UnmappableError(Exception):
    """A node that WebNN cannot express; the text is the reason."""


class UnknownValueError(UnmappableError):
    """A node needs contents at import that are known only when the graph runs.

    Attributes:
        inputs: The model's inputs that the contents depend on.
    """

    def __init__(self, what: str, inputs: frozenset[str], open_sizes: Iterable[str] = ()) -> None:
        if inputs:
            why = (
                f", and depends on the contents of input {', '.join(sorted(inputs))}; give"
                " load(constants=...) or add_to(inputs=...) an array for it"
            )
        elif open_sizes:
            why = _open(open_sizes)
        else:
            why = ", and follows from constants; have the exporter fold them"
        super().__init__(f"{what} must be known at import{why}")
        self.inputs = inputs


class OpenValueError(UnmappableError):
    """A node needs numbers at import that follow from open dimensions."""

    def __init__(self, what: str, sizes: Array) -> None:
        names = symbols_of(sizes.reshape(-1))
        super().__init__(f"{what} must be known at import{_open(names)}")


def _open(names: Iterable[str]) -> str:
    """Explain which open dimensions to fix, as the end of a message."""
    told = ", ".join(f"{name!r}: ..." for name in sorted(names))
    return f", and follows from open dimensions; give dimensions={{{told}}}"


class NarrowerError(Exception):
    """A node is right only for fewer sizes.

    Attributes:
        bounds: Name of an open size, its lowest and its highest value; or else
        same: Names of two that must be equal; or else
        multiple: Name of one, and what it must be a multiple of; or else
        likely: Pairs of names, of which one pair must be equal: those of one axis; or else
        follows: Name of one, and of which others it must be the sum.
    """

    def __init__(
        self,
        bounds: tuple[str, int, int] | None = None,
        same: tuple[str, str] | None = None,
        multiple: tuple[str, int] | None = None,
        likely: Sequence[tuple[str, str]] = (),
        follows: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(bounds or same or multiple or tuple(likely) or follows)
        self.bounds, self.same, self.multiple, self.likely = bounds, same, multiple, likely
        self.follows = follows


@contextmanager
def narrowing() -> Iterator[None]:
    """What is not known for all sizes is a NarrowerError, where it would be known for fewer."""
    with record_questions() as asked:
        try:
            yield
        except ValidationError as error:
            if not asked:
                raise
            same, multiple = find_required_pair(asked[0]), find_multiple(asked[0])
            bounds = None if same or multiple else find_bounds(asked[0])
            likely = () if bounds or same or multiple else find_equal_pairs(asked[0])
            rest = not (bounds or same or multiple or likely)
            follows = find_sum(asked[0]) if rest else None
            if rest and not follows:
                raise
            raise NarrowerError(bounds, same, multiple, likely, follows) from error


class BrokenModelError(MLError, ValueError):
    """A model that contradicts itself; becomes a DataError that names the node."""


def element_name(elem: int) -> str:
    """ONNX's name of an element type, in lower case, as messages give it."""
    try:
        return str(_TYPE.DataType.Name(elem)).lower()
    except ValueError:
        return f"element type {elem}"


class Share(NamedTuple):
    """A fraction of a dimension, which is no integer for some sizes."""

    numerator: MLDimension
    denominator: int


@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor of the model.

    Attributes:
        elem: ONNX's element type, which tells bool from uint8.
        shape: Its dimensions.
        array: Its contents, where they are known at import.
        sizes: Its contents, where they follow from open dimensions: integers and MLDimensions, and
            fractions of them where it is of floats.
        operand: The operand, where one has been made.
        inputs: Names of the model's inputs that the contents depend on.
        name: What the constant is called, where `array` is a weight.
        is_input: Whether it stands for an input itself.
        open_sizes: Names of the open dimensions that the contents depend on, where an operand
            computes them.
    """

    elem: int
    shape: tuple[int, ...]
    array: Array | None = None
    operand: MLOperand | None = None
    inputs: frozenset[str] = frozenset()
    name: str = ""
    is_input: bool = False
    sizes: Array | None = None
    open_sizes: frozenset[str] = frozenset()

    @property
    def is_leaf(self) -> bool:
        """Whether it cannot be a graph's output as it is."""
        return self.is_input or self.array is not None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def axis(self, axis: int) -> int:
        """An axis of it, counted from the first one.

        Raises:
            BrokenModelError: It has no such axis.
        """
        return axis_in(axis, self.rank)

    def axes(self, axes: Sequence[int]) -> list[int]:
        """Axes of it, counted from the first one, each once.

        Raises:
            BrokenModelError: It has no such axis, or one is there twice.
        """
        used = [self.axis(axis) for axis in axes]
        if len(set(used)) < len(used):
            raise BrokenModelError(f"its axes {shown(list(axes))} have one twice")
        return used

    @property
    def data_type(self) -> str:
        """WebNN's data type.

        Raises:
            UnmappableError: WebNN has none for it.
        """
        return webnn_type(self.elem)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats that WebNN has."""
        return self.elem in (_TYPE.FLOAT, _TYPE.FLOAT16)

    def known(self, what: str) -> Array:
        """The contents.

        Args:
            what: What they are for, for the message.

        Raises:
            UnknownValueError: They are known only when the graph runs.
        """
        if self.sizes is not None:
            raise OpenValueError(what, self.sizes)
        if self.array is None:
            raise UnknownValueError(what, self.inputs, self.open_sizes)
        return self.array

    def integers(self, what: str) -> list[int]:
        """The contents as a list of integers.

        Raises:
            UnknownValueError: They are known only when the graph runs.
            BrokenModelError: They are other than integers.
        """
        array = self.known(what)
        if array.dtype.kind not in "biu" and (
            array.dtype.kind != "f" or not np.equal(np.floor(array), array).all()
        ):
            raise BrokenModelError(f"{what} is {element_name(self.elem)}, expected integers")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BrokenModelError(f"{what} is infinite, expected integers")
        return [int(value) for value in array.reshape(-1)]

    def number(self, what: str) -> Any:
        """The contents as one number.

        Raises:
            UnknownValueError: It is known only when the graph runs.
            BrokenModelError: They are fewer or more than one element.
        """
        array = self.known(what)
        if array.size != 1:
            raise BrokenModelError(f"{what} has shape {list(self.shape)}, expected one element")
        return array.item()

    def integer(self, what: str) -> int:
        """The contents as one integer.

        Raises:
            UnknownValueError: It is known only when the graph runs.
            BrokenModelError: They are something else.
        """
        self.number(what)
        return self.integers(what)[0]

    def dimension(self, what: str) -> Any:
        """The contents as one size or place, which may be open.

        Raises:
            UnknownValueError: It is known only when the graph runs.
            BrokenModelError: They are something else.
        """
        found = self.dimensions(what)
        if len(found) != 1:
            raise BrokenModelError(f"{what} has shape {list(self.shape)}, expected one element")
        return found[0]

    def dimensions(self, what: str) -> list[int]:
        """The contents as a list of sizes or places, which may be open."""
        if self.sizes is None:
            return self.integers(what)
        if any(type(size) is not int and not is_dimension(size) for size in self.sizes.flat):
            raise OpenValueError(what, self.sizes)
        return list(self.sizes.flat)


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """A sequence of tensors, as nodes hand it to each other; no input or output of a model is one.

    Attributes:
        members: The tensors, in order.
    """

    members: tuple[Tensor, ...]


class Lacking(NamedTuple):
    """An output that cannot be mapped, which is told if something reads it.

    Attributes:
        operator: What makes it.
        label: The node's label.
        reason: Why it cannot be.
    """

    operator: str
    label: str
    reason: str


def axis_in(axis: int, rank: int) -> int:
    """An axis that may count from the last one, counted from the first.

    Raises:
        BrokenModelError: There is none in this rank.
    """
    if not -rank <= axis < rank:
        raise BrokenModelError(f"its axis {axis} is not one of rank {rank}")
    return axis % rank


def webnn_type(elem: int) -> str:
    """WebNN's data type for an element type of ONNX.

    Raises:
        UnmappableError: WebNN has none for it.
    """
    if elem not in WEBNN_TYPES:
        raise UnmappableError(f"WebNN has no data type {element_name(elem)}")
    return WEBNN_TYPES[elem]


def of_array(array: Any, name: str = "") -> Tensor:
    """A tensor whose contents are known."""
    array = np.asarray(array)
    elem = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    return Tensor(elem, array.shape, array, name=name)


def of_sizes(sizes: Array, elem: int) -> Tensor:
    """A tensor whose contents are numbers or follow from open dimensions."""
    if any(symbols_of([size]) or isinstance(size, Share) for size in sizes.flat):
        return Tensor(elem, sizes.shape, sizes=sizes)
    return of_array(sizes.astype(onnx.helper.tensor_dtype_to_np_dtype(elem)))


def without_elements(elem: int, shape: Sequence[Any]) -> Tensor:
    """A tensor of a shape that has a 0, such as an empty cache.

    Raises:
        UnmappableError: Another dimension is a name that nothing else has made a size of.
    """
    if any(isinstance(size, str) for size in shape):
        refuse("WebNN has no tensors without elements")
    if any(is_dimension(size) for size in shape):
        return Tensor(elem, tuple(shape))
    if math.prod(max(size, 1) for size in shape) > MAX_DIMENSION:
        refuse(f"a shape of {list(shape)}, over {MAX_DIMENSION} elements")
    return of_array(np.empty(shape, onnx.helper.tensor_dtype_to_np_dtype(elem)))


def choice(what: str, given: str, *choices: str) -> str:
    """An attribute that has one of several values.

    Raises:
        BrokenModelError: It has another.
    """
    if given not in choices:
        raise BrokenModelError(f"its {what} is {given!r}, expected {', '.join(map(repr, choices))}")
    return given


def listed(
    what: str, given: Sequence[Any], count: int | None = None, least: float = -math.inf
) -> list[Any]:
    """A list, from an attribute or an operand, of so many numbers that are not too small.

    Raises:
        BrokenModelError: There are fewer, more, or smaller ones.
    """
    few = count is not None and len(given) != count
    if few or any(not is_dimension(one) and one < least for one in given):
        number = "numbers" if count is None else f"{count} number{'s' * (count != 1)}"
        floor = "" if least == -math.inf else f" from {least} on"
        raise BrokenModelError(f"its {what} is {shown(list(given))}, expected {number}{floor}")
    return list(given)


def at_least(what: str, given: Any, least: float) -> Any:
    """A number that is not too small.

    Raises:
        BrokenModelError: It is.
    """
    if not is_dimension(given) and not given >= least:
        raise BrokenModelError(f"its {what} is {given}, expected {least} or more")
    return given


def check_rank(low: int, high: int | None = None, /, **given: Tensor | None) -> None:
    """Inputs, by their names, have a rank, where they are given.

    Raises:
        BrokenModelError: One has another.
    """
    for name, x in given.items():
        if x is not None and not low <= x.rank <= (low if high is None else high):
            expected = low if high in (None, low) else f"{low} to {high}"
            raise BrokenModelError(f"{name} has rank {x.rank}, expected {expected}")


def refuse(reason: str) -> NoReturn:
    """Raise an UnmappableError."""
    raise UnmappableError(reason)
