"""Hints how to convert a user's value to the expected array, as the ends of messages.

A printed hint works on the value as it is, and preserves every number's meaning.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, is_open
from webnn_py.core.dtypes import DTYPES
from webnn_py.ir import Array, Shape

USUAL_ORDERS: dict[int, tuple[tuple[int, ...], ...]] = {
    3: ((2, 0, 1), (1, 2, 0), (0, 2, 1)),
    4: ((0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1, 3), (3, 2, 0, 1), (2, 3, 1, 0)),
    5: ((0, 4, 1, 2, 3), (0, 2, 3, 4, 1)),
}
"""Permutations between common layouts by rank, preferred where several would fit."""


def for_untaken(value: Any, data_type: str) -> str:
    """Return how to make an array of a value whose memory cannot be used."""
    if isinstance(value, np.ndarray):  # a masked one
        return ""
    name = DTYPES[data_type].numpy.name
    if isinstance(value, (list, tuple)):
        return f"; {_if_held(_dtype_of(value), data_type)}make one with np.array(…, np.{name})"
    if isinstance(value, numbers.Real):
        return f"; make one with np.{name}(…)"
    steps, condition = _taken(value), ""
    if _is_torch(value) and str(value.dtype) != f"torch.{name}":
        if "complex" in str(value.dtype):
            return ""
        steps += f".to(torch.{name})"
        condition = "" if DTYPES[data_type].kind == "f" else f"if {name} holds its numbers, "
    elif not steps and _has(value, "astype"):
        steps = f".astype(np.{name})"
    elif not steps and _has(value, "to_numpy"):
        return f"; make one with .to_numpy(np.{name})"
    if steps:
        return f"; {condition}convert it with {steps}"
    return "; copy it to the CPU first" if _has(value, "__dlpack_device__") else ""


def for_data_type(value: Any, array: Array, data_type: str, shape: Shape | None = None) -> str:
    """Return how to convert a value to a data type, and to a shape where that is certain.

    Args:
        value: The user's value.
        array: The array over its memory.
        data_type: The expected data type.
        shape: The expected shape.
    """
    if not _is_numeric(array.dtype):
        return ""
    moved = "" if shape is None else relaid(array.shape, shape, _permute(value)) or ""
    condition = _if_held(array.dtype, data_type)
    return f"; {condition}{_worded(value, DTYPES[data_type].numpy.name, moved)}"


def for_shape(value: Any, got: Sequence[int], wanted: Shape) -> str:
    """Return how to bring a value into a shape; empty where that could change its meaning."""
    moved = relaid(got, wanted, _permute(value))
    if not moved:
        return ""
    permuted = _permute(value) in moved
    if not (_is_torch(value) or _has(value, "astype")):
        return f"; make an array with {_array_of(value)}{moved}"
    if permuted:
        return f"; its dimensions are in another order: change it with {moved}"
    return f"; change it with {moved}"


def relaid(got: Sequence[int], wanted: Shape, permute: str = "transpose") -> str | None:
    """Return the expression that permutes an array's dimensions into an expected shape.

    Elements move by a permutation, never by a reshape, which would scramble them. A reshape only
    adds and drops dimensions of size 1.

    Args:
        got: The array's shape.
        wanted: The operand's shape; an open dimension matches any size.
        permute: Name of the method that permutes dimensions.

    Returns:
        The end of an expression, such as ".transpose(2, 0, 1)[None]"; None if there is none.
    """
    core, aim = (
        [size for size in shape if is_dimension(size) or size != 1] for shape in (got, wanted)
    )
    fixed = not is_open(wanted)
    reshaped = f".reshape({', '.join(map(str, wanted)) or '()'})"
    if fixed and core == aim:
        return reshaped if tuple(got) != tuple(wanted) else ""
    more = len(wanted) - len(got)
    lead, tail = "[0]" * -more, "[None]" * more
    if all(size == 1 for size in got[: max(-more, 0)]) and all(
        is_dimension(size) or size == 1 for size in wanted[: max(more, 0)]
    ):
        order = _order(got[max(-more, 0) :], wanted[max(more, 0) :])
        if order is not None:
            return f"{lead}{_permuted(order, permute)}{tail}"
    order = _order(core, aim) if fixed else None
    return None if order is None else f".squeeze(){_permuted(order, permute)}{reshaped}"


def _order(got: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Return a permutation from one shape to another, or None; a usual one if several fit."""
    if len(got) != len(wanted):
        return None
    orders = [tuple(range(len(got))), *USUAL_ORDERS.get(len(got), ())]
    if not is_open(wanted):
        axes: list[int] = []
        for size in wanted:
            free = (axis for axis, n in enumerate(got) if n == size and axis not in axes)
            axes.append(next(free, -1))
        if -1 not in axes:
            orders.append(tuple(axes))
    return next((order for order in orders if _fits(got, wanted, order)), None)


def _fits(got: Sequence[int], wanted: Sequence[int], order: Sequence[int]) -> bool:
    return all(
        is_dimension(size) or got[axis] == size for axis, size in zip(order, wanted, strict=True)
    )


def _permuted(order: Sequence[int], permute: str) -> str:
    return f".{permute}({', '.join(map(str, order))})" if list(order) != sorted(order) else ""


def _worded(value: Any, name: str, moved: str) -> str:
    if _is_torch(value):
        return f"convert it with .to(torch.{name}){moved}"
    if _has(value, "astype"):
        return f"convert it with .astype(np.{name}){moved}"
    if _has(value, "getbands"):
        return f"make an array with np.asarray(image, np.{name}){moved}, whose numbers are 0 to 255"
    return f"make an array with {_array_of(value)}.astype(np.{name}){moved}"


def _array_of(value: object) -> str:
    """Return the call that makes a NumPy array of another object."""
    if _has(value, "getbands"):
        return "np.asarray(image)"
    return "np.from_dlpack(…)" if _has(value, "__dlpack__") else "np.asarray(…)"


def _taken(value: Any) -> str:
    """Return the method calls that bring a tensor into shareable CPU memory."""
    steps = ""
    try:
        if _has(value, "detach") and value.requires_grad:
            steps += ".detach()"
        if int(value.__dlpack_device__()[0]) != 1:
            steps += next((f".{name}()" for name in ("cpu", "get") if _has(value, name)), "")
    except Exception:  # methods are missing, or raise any error
        return steps
    return steps


def _if_held(given: np.dtype[Any] | None, data_type: str) -> str:
    """Return the condition of a conversion to integers that may change numbers."""
    wanted = DTYPES[data_type]
    if given is None or wanted.kind == "f" or np.can_cast(given, wanted.numpy, "safe"):
        return ""
    return f"if {wanted.numpy.name} holds its numbers, "


def _dtype_of(value: Sequence[Any]) -> np.dtype[Any] | None:
    """Return NumPy's dtype for a list of floats; None for other lists."""
    try:
        found = np.asarray(value).dtype
    except Exception:  # a ragged list, or an error of its members
        return None
    return found if found.kind == "f" else None


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy converts from the dtype: its own types and those of packages (bfloat16)."""
    return dtype.kind in "fiub" or (dtype.kind == "V" and dtype.type is not np.void)


def _permute(value: object) -> str:
    return "permute" if _is_torch(value) else "transpose"


def _is_torch(value: object) -> bool:
    """Whether the object has the methods of PyTorch tensors."""
    return _has(value, "to") and _has(value, "permute") and not _has(value, "astype")


def _has(value: object, name: str) -> bool:
    try:
        return callable(getattr(value, name, None))
    except Exception:  # its own methods may raise anything
        return False
