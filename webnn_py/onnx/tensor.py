"""Tensors of an ONNX model during import, with constant contents or an operand, and checks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from webnn_py.core.undecided_dims import Question, record_questions
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
"""WebNN data types by ONNX element type; a bool becomes a uint8 of 0 or 1."""
ELEMENT_TYPES: dict[str, int] = {
    name: number for number, name in WEBNN_TYPES.items() if number != _TYPE.BOOL
}


class UnmappableError(Exception):
    """A node that WebNN cannot express; the message is the reason."""


class UnknownValueError(UnmappableError):
    """A node that needs contents at import which only a run of the graph computes.

    Attributes:
        inputs: Names of the model's inputs that the contents depend on.
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
    """A node that needs numbers at import which depend on open dimensions."""

    def __init__(self, what: str, sizes: Array) -> None:
        names = symbols_of(sizes.reshape(-1))
        super().__init__(f"{what} must be known at import{_open(names)}")


def _open(names: Iterable[str]) -> str:
    """Return the end of a message that names the open dimensions to fix."""
    told = ", ".join(f"{name!r}: ..." for name in sorted(names))
    return f", and follows from open dimensions; give dimensions={{{told}}}"


class NarrowerError(Exception):
    """A node that is valid only under a constraint on open sizes; one attribute is set.

    Attributes:
        bounds: Name of a size, and its lowest and highest value.
        same: Names of two sizes that must be equal.
        multiple: Name of a size, and the number of which it must be a multiple.
        likely: Pairs of names, one of which must be equal; sizes at the same axis are likely.
        follows: Name of a size, and the sum of other sizes that it must equal.
        question: The question that the constraint decides.
        also: Other constraints that the node needs.
    """

    def __init__(
        self,
        bounds: tuple[str, int, int] | None = None,
        same: tuple[str, str] | None = None,
        multiple: tuple[str, int] | None = None,
        likely: Sequence[tuple[str, str]] = (),
        follows: tuple[str, str] | None = None,
        question: Question | None = None,
    ) -> None:
        super().__init__(bounds or same or multiple or tuple(likely) or follows)
        self.bounds, self.same, self.multiple, self.likely = bounds, same, multiple, likely
        self.follows = follows
        self.question = question
        self.also: list[NarrowerError] = []

    @property
    def names(self) -> Collection[str]:
        """Names of all sizes in the question."""
        return () if self.question is None else self.question[1].symbols.keys()

    def depends_on(self, other: NarrowerError) -> bool:
        """Whether another constraint may answer the question, too."""
        if self.bounds is not None and self.question is not None and self.question[0] == "==":
            return True  # a size of 1 broadcasts, instead of being equal to the other one
        both_unite = self.same is not None and other.same is not None
        return not both_unite and not set(self.names).isdisjoint(other.names)


@contextmanager
def narrowing() -> Iterator[None]:
    """Convert a ValidationError in the `with` block to a NarrowerError where a constraint helps.

    This applies if a comparison of open sizes was undecided, and a constraint would decide it.

    Raises:
        NarrowerError: A constraint on open sizes would decide the first such comparison.
    """
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
            raise NarrowerError(bounds, same, multiple, likely, follows, asked[0]) from error


class BrokenModelError(MLError, ValueError):
    """A model that contradicts itself; the importer converts it to a DataError with the node."""


def element_name(elem: int) -> str:
    """Return ONNX's name of an element type in lower case, for messages."""
    try:
        return str(_TYPE.DataType.Name(elem)).lower()
    except ValueError:
        return f"element type {elem}"


class Share(NamedTuple):
    """Fraction of a dimension that is no integer for some sizes."""

    numerator: MLDimension
    denominator: int


@dataclass(slots=True, eq=False)
class Tensor:
    """Tensor of the model during import.

    Attributes:
        elem: ONNX's element type, which distinguishes bool from uint8.
        shape: Its sizes and open dimensions.
        contents: Its contents, if they are constant; handlers read them as `array`.
        sizes: Its contents, if they depend on open dimensions: an object array of numbers,
            MLDimensions, and fractions of them in float tensors.
        operand: Its operand in the builder, or None before the first use.
        inputs: Names of the model's inputs that the contents depend on.
        name: The name of the constant, if `array` is an initializer.
        is_input: Whether the operand is an input of the model.
        open_sizes: Names of the open dimensions from which an operand computes the contents.
        is_read: Whether `array` was asked for.
    """

    elem: int
    shape: tuple[int, ...]
    contents: Array | None = None
    operand: MLOperand | None = None
    inputs: frozenset[str] = frozenset()
    name: str = ""
    is_input: bool = False
    sizes: Array | None = None
    open_sizes: frozenset[str] = frozenset()
    is_read: bool = False

    @property
    def array(self) -> Array | None:
        """Return the contents, if they are constant; what is made of the tensor depends on them."""
        self.is_read = True
        return self.contents

    @property
    def is_leaf(self) -> bool:
        """Whether it is an input or a constant, which cannot be a graph's output directly."""
        return self.is_input or self.contents is not None

    @property
    def is_known(self) -> bool:
        """Whether its contents are constant or follow from open dimensions alone."""
        return self.contents is not None or self.sizes is not None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def axis(self, axis: int) -> int:
        """Return an axis, which may be negative, as an index from 0.

        Raises:
            BrokenModelError: The tensor has no such axis.
        """
        return axis_in(axis, self.rank)

    def axes(self, axes: Sequence[int]) -> list[int]:
        """Return distinct axes, which may be negative, as indices from 0.

        Raises:
            BrokenModelError: The tensor lacks an axis, or an axis occurs twice.
        """
        used = [self.axis(axis) for axis in axes]
        if len(set(used)) < len(used):
            raise BrokenModelError(f"its axes {shown(list(axes))} have one twice")
        return used

    @property
    def data_type(self) -> str:
        """The WebNN data type of its elements.

        Raises:
            UnmappableError: WebNN has no such data type.
        """
        return webnn_type(self.elem)

    @property
    def is_float(self) -> bool:
        """Whether the elements are float32 or float16."""
        return self.elem in (_TYPE.FLOAT, _TYPE.FLOAT16)

    def known(self, what: str) -> Array:
        """Return the constant contents.

        Args:
            what: The subject of the error message, such as "its axes".

        Raises:
            UnknownValueError: Only a run of the graph computes the contents.
            OpenValueError: The contents depend on open dimensions.
        """
        if self.sizes is not None:
            raise OpenValueError(what, self.sizes)
        array = self.array
        if array is None:
            raise UnknownValueError(what, self.inputs, self.open_sizes)
        return array

    def integers(self, what: str) -> list[int]:
        """Return the constant contents as a list of integers.

        Raises:
            UnknownValueError: Only a run of the graph computes the contents.
            OpenValueError: The contents depend on open dimensions.
            BrokenModelError: An element is no integer.
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
        """Return the constant contents as one number.

        Raises:
            UnknownValueError: Only a run of the graph computes the number.
            OpenValueError: The number depends on open dimensions.
            BrokenModelError: The tensor has fewer or more than one element.
        """
        array = self.known(what)
        if array.size != 1:
            raise BrokenModelError(f"{what} has shape {list(self.shape)}, expected one element")
        return array.item()

    def integer(self, what: str) -> int:
        """Return the constant contents as one integer.

        Raises:
            UnknownValueError: Only a run of the graph computes the integer.
            OpenValueError: The integer depends on open dimensions.
            BrokenModelError: The tensor has not one element, or it is no integer.
        """
        self.number(what)
        return self.integers(what)[0]

    def dimension(self, what: str) -> Any:
        """Return the contents as one size or index, which may contain open dimensions.

        Raises:
            UnknownValueError: Only a run of the graph computes the size.
            OpenValueError: The size is a fraction of an open dimension.
            BrokenModelError: The tensor has not one element, or it is no integer.
        """
        found = self.dimensions(what)
        if len(found) != 1:
            raise BrokenModelError(f"{what} has shape {list(self.shape)}, expected one element")
        return found[0]

    def dimensions(self, what: str) -> list[int]:
        """Return the contents as a list of sizes or indices, which may contain open dimensions."""
        if self.sizes is None:
            return self.integers(what)
        if any(type(size) is not int and not is_dimension(size) for size in self.sizes.flat):
            raise OpenValueError(what, self.sizes)
        return list(self.sizes.flat)


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Sequence of tensors, passed between nodes; a model has none as an input or output.

    Attributes:
        members: The tensors, in order.
    """

    members: tuple[Tensor, ...]


class Lacking(NamedTuple):
    """Output that WebNN cannot express; the importer reports it if something reads it.

    Attributes:
        operator: The operator of the node.
        label: The node's label.
        reason: The reason, for the error message.
    """

    operator: str
    label: str
    reason: str


def axis_in(axis: int, rank: int) -> int:
    """Return an axis, which may be negative, as an index from 0.

    Raises:
        BrokenModelError: A tensor of this rank has no such axis.
    """
    if not -rank <= axis < rank:
        raise BrokenModelError(f"its axis {axis} is not one of rank {rank}")
    return axis % rank


def webnn_type(elem: int) -> str:
    """Return the WebNN data type of an ONNX element type.

    Raises:
        UnmappableError: WebNN has no such data type.
    """
    if elem not in WEBNN_TYPES:
        raise UnmappableError(f"WebNN has no data type {element_name(elem)}")
    return WEBNN_TYPES[elem]


def of_array(array: Any, name: str = "") -> Tensor:
    """Return a tensor with the contents of an array."""
    array = np.asarray(array)
    elem = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    return Tensor(elem, array.shape, array, name=name)


def of_sizes(sizes: Array, elem: int) -> Tensor:
    """Return a tensor of sizes; without open dimensions among them it is a plain constant."""
    if any(symbols_of([size]) or isinstance(size, Share) for size in sizes.flat):
        return Tensor(elem, sizes.shape, sizes=sizes)
    return of_array(sizes.astype(onnx.helper.tensor_dtype_to_np_dtype(elem)))


def without_elements(elem: int, shape: Sequence[Any]) -> Tensor:
    """Return a tensor without elements, such as an empty cache.

    Args:
        elem: Its ONNX element type.
        shape: Its shape, which contains a 0.

    Raises:
        UnmappableError: Another dimension is still a name, or the other sizes are too large.
    """
    if any(isinstance(size, str) for size in shape):
        refuse("WebNN has no tensors without elements")
    if any(is_dimension(size) for size in shape):
        return Tensor(elem, tuple(shape))
    if math.prod(max(size, 1) for size in shape) > MAX_DIMENSION:
        refuse(f"a shape of {list(shape)}, over {MAX_DIMENSION} elements")
    return of_array(np.empty(shape, onnx.helper.tensor_dtype_to_np_dtype(elem)))


def choice(what: str, given: str, *choices: str) -> str:
    """Return an attribute's value after checking that it is one of `choices`.

    Raises:
        BrokenModelError: The value is another one.
    """
    if given not in choices:
        raise BrokenModelError(f"its {what} is {given!r}, expected {', '.join(map(repr, choices))}")
    return given


def listed(
    what: str, given: Sequence[Any], count: int | None = None, least: float = -math.inf
) -> list[Any]:
    """Return a list from an attribute or operand after checking its length and values.

    Args:
        what: The list's name, for the error message.
        given: The numbers.
        count: The expected length; None means any.
        least: The smallest allowed number.

    Raises:
        BrokenModelError: The length differs, or a number is below `least`.
    """
    few = count is not None and len(given) != count
    if few or any(not is_dimension(one) and one < least for one in given):
        number = "numbers" if count is None else f"{count} number{'s' * (count != 1)}"
        floor = "" if least == -math.inf else f" from {least} on"
        raise BrokenModelError(f"its {what} is {shown(list(given))}, expected {number}{floor}")
    return list(given)


def at_least(what: str, given: Any, least: float) -> Any:
    """Return a number after checking that it is at least `least`.

    Raises:
        BrokenModelError: The number is smaller, or NaN.
    """
    if not is_dimension(given) and not given >= least:
        raise BrokenModelError(f"its {what} is {given}, expected {least} or more")
    return given


def check_rank(low: int, high: int | None = None, /, **given: Tensor | None) -> None:
    """Check that the rank of each input is from `low` to `high`.

    Args:
        low: The smallest rank.
        high: The largest rank; by default `low`.
        **given: Inputs by name; None for omitted ones.

    Raises:
        BrokenModelError: An input has another rank.
    """
    for name, x in given.items():
        if x is not None and not low <= x.rank <= (low if high is None else high):
            expected = low if high in (None, low) else f"{low} to {high}"
            raise BrokenModelError(f"{name} has rank {x.rank}, expected {expected}")


def refuse(reason: str) -> NoReturn:
    """Raise an UnmappableError with a reason."""
    raise UnmappableError(reason)
