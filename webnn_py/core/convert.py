"""Conversion of option values by their annotation, following Web IDL.

Integers follow [EnforceRange] unsigned long: a fraction is cut off; values that are not finite or
not in 0..2**32-1 are refused. Nothing else is converted silently.
"""

from __future__ import annotations

import itertools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Annotated, Any, cast

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.dimensions import MLDimension, is_dimension
from webnn_py.core.errors import MLError, ValidationError
from webnn_py.core.messages import describe_error, did_you_mean, shown, type_name
from webnn_py.core.shape_tracing import Traced

MAX_UNSIGNED = 2**32 - 1
MAX_ITEMS = 2**16
"""Longest accepted list; endless iterators are refused too."""

OPEN_SIZE_TYPES = (MLDimension, Traced)
"""Open dimensions, and the traced numbers that stand for them while a graph is compiled."""

MLNumber = int | float
"""A number for a tensor of any data type; integers keep all 64 bits."""


Signed = Annotated[int, "signed long"]
"""Annotation of an option that is a signed long."""
Size = Annotated[int, "size"]
"""Annotation of an option that is a size or an index; an open dimension is allowed."""
SignedSize = Annotated[int, "signed size"]
"""Annotation of an option that is a signed offset; an open dimension is allowed."""


def unsigned(value: object, what: str) -> int:
    """Convert to an [EnforceRange] unsigned long."""
    if type(value) is int and 0 <= value <= MAX_UNSIGNED:
        return value
    number = _truncated(_number(value, what))
    if number is None or not 0 <= number <= MAX_UNSIGNED:
        raise ValidationError(
            f"{what}: got {shown(value)}, expected an integer in 0..{MAX_UNSIGNED}"
        )
    return number


def signed(value: object, what: str) -> int:
    """Convert to an [EnforceRange] long."""
    number = _truncated(_number(value, what))
    if number is None or not -(2**31) <= number < 2**31:
        raise ValidationError(f"{what}: got {shown(value)}, expected an integer of 32 bits")
    return number


def size(value: object, what: str) -> int:
    """Convert to an unsigned long; return an open dimension as it is."""
    return cast(int, value) if isinstance(value, OPEN_SIZE_TYPES) else unsigned(value, what)


def signed_size(value: object, what: str) -> int:
    """Convert to a long; return an open dimension as it is."""
    return cast(int, value) if isinstance(value, OPEN_SIZE_TYPES) else signed(value, what)


def size_list(value: object, what: str) -> tuple[int, ...]:
    """Convert a sequence of unsigned longs and open dimensions."""
    return tuple(
        cast(int, item) if isinstance(item, OPEN_SIZE_TYPES) else unsigned(item, what)
        for item in items(value, what)
    )


def double(value: object, what: str) -> float:
    """Convert to a finite double."""
    number = _as_float(_number(value, what))
    if not math.isfinite(number):
        raise ValidationError(f"{what}: got {shown(value)}, expected a finite number")
    return number


def number(value: object, what: str) -> int | float:
    """Convert to an MLNumber: an integer of any size, or a float that may be infinite or NaN."""
    return _number(value, what)


def boolean(value: object, what: str) -> bool:
    """Convert a Python or NumPy bool; refuse other values, also 0 and 1."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValidationError(f"{what}: got {shown(value)}, expected True or False")


def unsigned_list(value: object, what: str) -> tuple[int, ...]:
    """Convert a sequence of unsigned longs."""
    return tuple(unsigned(item, what) for item in items(value, what))


def double_list(value: object, what: str) -> tuple[float, ...]:
    """Convert a sequence of finite doubles."""
    return tuple(double(item, what) for item in items(value, what))


def string(value: object, what: str) -> str:
    """Convert to a plain `str`, also from a subclass."""
    if not isinstance(value, str):
        raise ValidationError(f"{what}: got {shown(value)}, expected a string")
    return str.__str__(value)


def label(value: object, what: str = "option 'label'") -> str:
    """Convert to a string that any encoding can hold; lone surrogates are escaped."""
    text = string(value, what)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def mapping(value: object, what: str, error: type[MLError] = ValidationError) -> Mapping[Any, Any]:
    """Convert to a dictionary.

    Raises:
        ValidationError: It is no mapping, or cannot be read (or `error`).
    """
    if type(value) is dict:
        return value
    if not isinstance(value, Mapping):
        raise error(f"{what}: got {type_name(value)}, expected a mapping by name")
    try:
        return dict(value)
    except Exception as cause:  # its own methods may raise anything
        raise error(f"{what}: the mapping cannot be read: {describe_error(cause)}") from cause


def string_list(value: object, what: str) -> tuple[str, ...]:
    """Convert a sequence of strings."""
    return tuple(string(item, what) for item in items(value, what))


def _number(value: object, what: str) -> int | float:
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, numbers.Real):
        if is_dimension(value):
            raise ValidationError(
                f"{what}: got {shown(value)}, an open dimension; expected a number that is known"
                " when the graph is built"
            )
        raise ValidationError(f"{what}: got {shown(value)}, expected a number")
    try:
        return int(value) if isinstance(value, numbers.Integral) else _as_float(value)
    except Exception as error:  # its own methods may raise anything
        raise ValidationError(
            f"{what}: got {shown(value)}, expected a number: {describe_error(error)}"
        ) from error


def _as_float(value: Any) -> float:
    """Return the nearest float; infinity for an integer larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _truncated(number: int | float) -> int | None:
    """Cut off the fraction; return None for infinity and NaN."""
    return None if isinstance(number, float) and not math.isfinite(number) else math.trunc(number)


def items(value: object, what: str) -> list[Any]:
    """Return the members of a list, tuple, array or other iterable; refuse strings and mappings."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        raise ValidationError(f"{what}: got {shown(value)}, expected a list")
    try:
        members = list(itertools.islice(value, MAX_ITEMS + 1))
    except Exception as error:  # an array of rank 0, or an error of its iterator
        raise ValidationError(
            f"{what}: got {shown(value)}, expected a list: {describe_error(error)}"
        ) from error
    if len(members) > MAX_ITEMS:
        raise ValidationError(f"{what}: got more than {MAX_ITEMS} members")
    return members


def one_of(value: object, choices: Sequence[str], what: str, others: Mapping[str, str] = {}) -> str:
    """Return a string among `choices`; `others` maps other libraries' names to them, for hints."""
    if isinstance(value, str) and (text := str.__str__(value)) in choices:
        return text
    expected = ", ".join(repr(choice) for choice in choices)
    meant = did_you_mean(value, choices, others)
    raise ValidationError(f"{what}: got {shown(value)}, expected one of {expected}{meant}")


def _one_of(choices: tuple[Any, ...]) -> Callable[[object, str], Any]:
    return lambda value, what: one_of(value, choices, what)


def _list_of(convert: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    return lambda value, what: tuple(convert(item, what) for item in items(value, what))


_BY_TYPE: dict[Any, Callable[[object, str], Any]] = {
    int: unsigned,
    Signed: signed,
    float: double,
    bool: boolean,
    str: string,
    MLNumber: number,
    Size: size,
    SignedSize: signed_size,
    Sequence[int]: unsigned_list,
    Sequence[Size]: size_list,
    Sequence[float]: double_list,
    Sequence[str]: string_list,
}


def takes_dimensions(annotation: Any) -> bool:
    """Whether an option of this annotation may hold open dimensions."""
    members = typing.get_args(annotation)
    return annotation in (Size, SignedSize) or any(map(takes_dimensions, members))


def converter(annotation: Any, what: str) -> Callable[[object], Any]:
    """Return the conversion function of an annotation.

    `X | None` lets None through; `int | Sequence[int]` takes a number or a list.
    """
    if typing.get_origin(annotation) in (types.UnionType, typing.Union) and annotation != MLNumber:
        members = typing.get_args(annotation)
        rest = [m for m in members if m is not type(None)]
        if set(rest) == {int, float}:
            inner = converter(MLNumber, what)
        elif len(rest) == 1:
            inner = converter(rest[0], what)
        else:
            (single,) = (m for m in rest if typing.get_origin(m) is None)
            (many,) = (m for m in rest if typing.get_origin(m) is not None)
            one, several = converter(single, what), converter(many, what)

            def inner(value: object) -> Any:
                is_single = isinstance(value, numbers.Real) or is_dimension(value)
                return one(value) if is_single else several(value)

        if len(rest) == len(members):
            return inner
        return lambda value: None if value is None else inner(value)
    if annotation == dtypes.MLOperandDataType:
        return dtypes.check
    if typing.get_origin(annotation) is typing.Literal:
        convert = _one_of(typing.get_args(annotation))
    elif typing.get_origin(next(iter(typing.get_args(annotation)), None)) is typing.Literal:
        convert = _list_of(_one_of(typing.get_args(typing.get_args(annotation)[0])))
    else:
        convert = _BY_TYPE[annotation]
    return lambda value: convert(value, what)
