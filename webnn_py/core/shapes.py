"""Shape arithmetic of the specification's algorithms, as pure functions.

Functions take and return integers and tuples. An `MLDimension` may stand for an integer: a rule
must then hold for all sizes, or it is an error. Violations raise a ValidationError, to which the
operator adds its name and label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webnn_py.core import dtypes
from webnn_py.core.dimensions import differ, is_dimension, least, span, undecided
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.polynomials import MAX_DIMENSION

Shape = tuple[int, ...]

MAX_RANK = 8
MAX_BYTE_LENGTH = 2**31 - 1


def check_dimensions(shape: Sequence[int], data_type: str) -> None:
    """Check each dimension, the rank and the byte length (the specification's "check dimensions").

    Limits that only some sizes exceed are checked when the sizes are bound.
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
    elements = math.prod(shape)
    if elements > MAX_DIMENSION:
        raise ValidationError(f"shape {shown(list(shape))} has over {MAX_DIMENSION} elements")
    if elements * dtypes.DTYPES[data_type].bits > 8 * MAX_BYTE_LENGTH:
        size = dtypes.byte_length(data_type, shape)
        raise ValidationError(
            f"shape {shown(list(shape))} takes {size} bytes, over {MAX_BYTE_LENGTH}"
        )


def _check_open_dimensions(shape: Sequence[int], data_type: str) -> None:
    for dimension in shape:
        if not dimension >= 1:
            raise ValidationError(
                f"shape {shown(list(shape))}: dimension {dimension} is not in 1..{MAX_DIMENSION}"
            )
    check_dimensions([max(1, size) for size in least(shape)], data_type)


def is_over(value: int, limit: int) -> bool:
    """Whether a number exceeds a limit for all sizes; doubtful cases are checked at run time."""
    return span(value)[0] > limit


def broadcast(a: Sequence[int], b: Sequence[int], names: tuple[str, str] = ("a", "b")) -> Shape:
    """Return the shape of two operands after bidirectional (NumPy) broadcasting."""
    rank = max(len(a), len(b))
    wide_a = (1,) * (rank - len(a)) + tuple(a)
    wide_b = (1,) * (rank - len(b)) + tuple(b)
    for x, y in zip(wide_a, wide_b, strict=True):
        if x != y and 1 not in (x, y) and differ((x,), (y,)):
            raise ValidationError(
                f"shapes of {names[0]} {list(a)} and {names[1]} {list(b)} do not broadcast"
                f"{undecided(x, y) or undecided(x, 1) or undecided(y, 1)}"
            )
    return tuple(y if x == 1 else x for x, y in zip(wide_a, wide_b, strict=True))


def _unstretched(shape: Sequence[int], target: Sequence[int]) -> str:
    """Explain why a dimension does not broadcast to the target; see `undecided`."""
    pairs = zip(shape, target, strict=False)
    unfit = ((x, y) for x, y in pairs if x not in (1, y))
    return next((undecided(x, y) or undecided(x, 1) for x, y in unfit), "")


def check_broadcast_to(shape: Sequence[int], target: Sequence[int], name: str) -> None:
    """Check unidirectional broadcasting: `shape` must stretch to `target`."""
    tail = tuple(target)[len(target) - len(shape) :]
    if len(shape) > len(target) or any(x not in (1, y) for x, y in zip(shape, tail, strict=True)):
        raise ValidationError(
            f"operand {name!r} of shape {list(shape)} does not broadcast to {shown(list(target))}"
            f"{_unstretched(shape, tail)}"
        )


def check_axes(axes: Sequence[int], rank: int, name: str = "axes") -> None:
    """Check that axes are below the rank and distinct."""
    for axis in axes:
        if not 0 <= axis < rank:
            raise ValidationError(
                f"{name} {shown(list(axes))}: axis {axis} is not below the rank {rank}"
            )
    if len(set(axes)) != len(axes):
        raise ValidationError(f"{name} {shown(list(axes))}: an axis stands twice")


def check_axis(axis: int, rank: int) -> None:
    """Check that one axis is below the rank."""
    if axis >= rank:
        raise ValidationError(f"axis: got {axis}, expected below the rank {rank}")


def reduced(shape: Sequence[int], axes: Sequence[int], keep_dimensions: bool) -> Shape:
    """Return the shape after a reduction over `axes`."""
    if keep_dimensions:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def strides(shape: Sequence[int]) -> Shape:
    """Return the row-major strides in elements."""
    result = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        result[i] = result[i + 1] * shape[i + 1]
    return tuple(result)


def conv_output(
    size: int, window: int, padding: tuple[int, int], stride: int, dilation: int
) -> tuple[int, int]:
    """Return the number of window positions along an axis, rounded down and rounded up."""
    free = size + padding[0] + padding[1] - (window - 1) * dilation - 1
    return free // stride + 1, (free + stride - 1) // stride + 1


def check_list(values: Sequence[int], length: int, name: str, minimum: int = 0) -> None:
    """Check the length of an option's list and the lowest value of its members."""
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
