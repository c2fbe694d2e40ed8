"""Pure shape arithmetic, as the specification's algorithms state it.

Every function takes and returns integers and tuples of them. An `MLDimension` may stand where an
integer does: then a rule holds for all sizes, or it is an error. What does not fit is a
ValidationError whose message the operator completes with its name and label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webnn_py.core import dtypes
from webnn_py.core.dimensions import is_dimension, least, span, undecided
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.polynomials import MAX_DIMENSION

Shape = tuple[int, ...]

MAX_RANK = 8
MAX_BYTE_LENGTH = 2**31 - 1


def check_dimensions(shape: Sequence[int], data_type: str) -> None:
    """The text's "check dimensions": each dimension, the rank and the size are in range.

    An open dimension is at least 1 for all sizes; what is too large for some of them only is found
    when these are known.
    """
    for dimension in shape:
        if type(dimension) is not int and is_dimension(dimension):
            return _check_open_dimensions(shape, data_type)
        if not 0 < dimension <= MAX_DIMENSION:
            raise ValidationError(
                f"shape {shown(list(shape))}: dimension {dimension} is not in 1..{MAX_DIMENSION}"
            )
    if len(shape) > MAX_RANK:
        raise ValidationError(f"shape {shown(list(shape))}: rank {len(shape)} is over {MAX_RANK}")
    if math.prod(shape) > MAX_DIMENSION:
        raise ValidationError(f"shape {shown(list(shape))} has over {MAX_DIMENSION} elements")
    size = dtypes.byte_length(data_type, shape)
    if size > MAX_BYTE_LENGTH:
        raise ValidationError(
            f"shape {shown(list(shape))} takes {size} bytes, over {MAX_BYTE_LENGTH}"
        )


def _check_open_dimensions(shape: Sequence[int], data_type: str) -> None:
    for dimension in shape:
        if not dimension >= 1:
            raise ValidationError(
                f"shape {shown(list(shape))}: dimension {dimension} is not in 1..{MAX_DIMENSION}"
            )
    check_dimensions(least(shape), data_type)


def is_over(value: int, limit: int) -> bool:
    """Whether a number is over a limit; not where it may be, which is found when it is known."""
    return span(value)[0] > limit


def broadcast(a: Sequence[int], b: Sequence[int], names: tuple[str, str] = ("a", "b")) -> Shape:
    """Bidirectional (NumPy) broadcasting of two shapes."""
    rank = max(len(a), len(b))
    wide_a = (1,) * (rank - len(a)) + tuple(a)
    wide_b = (1,) * (rank - len(b)) + tuple(b)
    for x, y in zip(wide_a, wide_b, strict=True):
        if x != y and 1 not in (x, y):
            raise ValidationError(
                f"shapes of {names[0]} {list(a)} and {names[1]} {list(b)} do not broadcast"
                f"{undecided(x, y) or undecided(x, 1) or undecided(y, 1)}"
            )
    return tuple(y if x == 1 else x for x, y in zip(wide_a, wide_b, strict=True))


def _unstretched(shape: Sequence[int], target: Sequence[int]) -> str:
    """Why the first dimension that does not stretch to the target's does not: see `undecided`."""
    pairs = zip(shape, target, strict=False)
    unfit = ((x, y) for x, y in pairs if x not in (1, y))
    return next((undecided(x, y) or undecided(x, 1) for x, y in unfit), "")


def check_broadcast_to(shape: Sequence[int], target: Sequence[int], name: str) -> None:
    """Unidirectional broadcasting: `shape` must stretch to `target`."""
    tail = tuple(target)[len(target) - len(shape) :]
    if len(shape) > len(target) or any(x not in (1, y) for x, y in zip(shape, tail, strict=True)):
        raise ValidationError(
            f"operand {name!r} of shape {list(shape)} does not broadcast to {shown(list(target))}"
            f"{_unstretched(shape, tail)}"
        )


def check_axes(axes: Sequence[int], rank: int, name: str = "axes") -> None:
    """Axes are below the rank and different from each other."""
    for axis in axes:
        if not 0 <= axis < rank:
            raise ValidationError(
                f"{name} {shown(list(axes))}: axis {axis} is not below the rank {rank}"
            )
    if len(set(axes)) != len(axes):
        raise ValidationError(f"{name} {shown(list(axes))}: an axis stands twice")


def check_axis(axis: int, rank: int) -> None:
    """One axis is below the rank."""
    if axis >= rank:
        raise ValidationError(f"axis: got {axis}, expected below the rank {rank}")


def reduced(shape: Sequence[int], axes: Sequence[int], keep_dimensions: bool) -> Shape:
    """Shape after a reduction over `axes`."""
    if keep_dimensions:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def strides(shape: Sequence[int]) -> Shape:
    """Row-major strides in elements."""
    result = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        result[i] = result[i + 1] * shape[i + 1]
    return tuple(result)


def conv_output(
    size: int, window: int, padding: tuple[int, int], stride: int, dilation: int
) -> tuple[int, int]:
    """Positions of a window along one axis, rounded down and up."""
    free = size + padding[0] + padding[1] - (window - 1) * dilation - 1
    return free // stride + 1, (free + stride - 1) // stride + 1


def check_list(values: Sequence[int], length: int, name: str, minimum: int = 0) -> None:
    """An option that is a list of fixed length whose members have a lowest value."""
    if len(values) != length:
        both = [value for value in values for _ in range(2)]  # ends of each axis
        remedy = f"; give {shown(both)}" if name == "padding" and len(both) == length else ""
        raise ValidationError(
            f"option {name!r}: got {shown(list(values))}, expected {length} numbers{remedy}"
        )
    if not all(value >= minimum for value in values):
        raise ValidationError(
            f"option {name!r}: got {shown(list(values))}, expected each >= {minimum}"
        )
