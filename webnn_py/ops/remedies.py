"""Advice at the end of error messages about refused calls.

Each function answers a common mistake, such as habits from NumPy and ONNX or names of the IDL.
It returns "" if it has no advice.
"""

from __future__ import annotations

import inspect
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core.convert import MAX_UNSIGNED
from webnn_py.core.dimensions import MLDimension, is_dimension, is_open, span
from webnn_py.core.messages import shown, suggestion

AXES = ("axis", "axes", "permutation")
SPATIAL = {
    "padding": 4,
    **dict.fromkeys(("strides", "dilations", "window_dimensions"), 2),
    **dict.fromkeys(("output_padding", "output_sizes", "scales", "sizes"), 2),
}
"""Number of members of options that have one for each spatial dimension, or for each end of it."""
EACH_DIMENSION = ("expand", "pad", "slice", "tile")
"""Operators whose lists have one member for each dimension."""


def call(name: str, signature: inspect.Signature, options: Mapping[str, Any]) -> str:
    """Show an operator's signature, and suggest a name for an unknown option."""
    known = [parameter for parameter in signature.parameters if parameter != "self"]
    unknown = [option for option in options if option not in known]
    meant = suggestion(unknown[0], known) if unknown else ""
    plain = [signature.parameters[k].replace(annotation=inspect.Parameter.empty) for k in known]
    return f"{meant}; the signature is {name}{inspect.Signature(plain)}"


def operand(value: object, is_operand: Callable[[object], bool], others: Iterable[Any] = ()) -> str:
    """Advise how to make an operand of a value that is none.

    Args:
        value: The argument.
        is_operand: Whether a value is an operand.
        others: The call's other arguments; a number probably has their data type.
    """
    if isinstance(value, (list, tuple)) and value and all(map(is_operand, value)):
        return f"; it is a list of {len(value)}, as split makes them: take one of it by its index"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        types = [other.data_type for other in others if is_operand(other)] or ["float32"]
        return f"; make it one with constant({shown(value)}, {types[0]!r})"
    if isinstance(value, np.ndarray):
        return "; make it one with constant(array)"
    return ""


def option(op: str, name: str, value: object, shape: Sequence[int] | None) -> str:
    """Advise how to write NumPy's and ONNX's negative axes, single numbers and None.

    Args:
        op: Name of the operator.
        name: Name of the option.
        value: The option's value.
        shape: Shape of the first operand.
    """
    if name == "new_shape" and isinstance(value, (list, tuple)) and any(n is None for n in value):
        return "; give each size, such as x.shape[0] of an operand x"
    if (repeated := _repeated(op, name, value, shape)) is not None:
        return f"; give {shown(repeated)}"
    given: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    # NumPy counts timedelta64 as an integer, but it cannot be compared with numbers.
    whole = all(
        isinstance(n, (numbers.Integral, MLDimension)) and not isinstance(n, np.timedelta64)
        for n in given
    )
    if shape is None or not whole or not any(n < 0 for n in given if not is_dimension(n)):
        return ""
    if name in AXES and not is_open(given) and all(-len(shape) <= n < len(shape) for n in given):
        counted = [int(n) % len(shape) for n in given]
        return (
            f"; axes count from 0, and the last one is rank - 1: give"
            f" {counted if isinstance(value, (list, tuple)) else counted[0]}"
        )
    if name == "new_shape" and given.count(-1) == 1:
        rest = math.prod(n for n in given if n != -1)
        size, left = divmod(math.prod(shape), rest) if span(rest)[0] > 0 else (0, 1)
        if left == 0:
            told = [
                n if is_dimension(n) else int(n) for n in (size if n == -1 else n for n in given)
            ]
            return f"; sizes are not inferred: give {told}"
    return ""


def _repeated(
    op: str, name: str, value: object, shape: Sequence[int] | None
) -> list[object] | None:
    """Return the list that NumPy or ONNX reads a single number as; None if that is uncertain."""
    number: Any = value.item() if isinstance(value, (np.integer, np.floating)) else value
    if type(number) is not int and not (type(number) is float and name == "scales"):
        return None
    rank = 0 if shape is None else len(shape)
    if name == "axes" and op != "resample2d":
        return [int(number) % rank] if -rank <= number < rank else None
    if not 0 <= number <= MAX_UNSIGNED:
        return None
    if name in SPATIAL and op not in EACH_DIMENSION:
        return [number] * SPATIAL[name]
    if name == "new_shape" or (op in EACH_DIMENSION and rank == 1):
        return [number]
    return None


def flat(name: str, shape: Sequence[int], rank: int) -> str:
    """Advise `reshape` for an operand that must be 1-D and has one dimension above 1."""
    size = math.prod(shape)
    if rank != 1 or len(shape) == 1 or is_open(shape) or size != max(shape, default=0):
        return ""
    return f"; make it 1-D with reshape({name}, [{size}])"


def layouts(fits: Callable[..., bool], **choices: tuple[str, ...]) -> str:
    """Name the layouts with which the operands would fit.

    Args:
        fits: Whether the operands fit with one layout for each option.
        **choices: Possible layouts of each option; the caller's is the first.
    """

    def changes(chosen: tuple[str, ...]) -> dict[str, str]:
        return {
            name: layout
            for (name, given), layout in zip(choices.items(), chosen, strict=True)
            if layout != given[0]
        }

    every = [changes(chosen) for chosen in itertools.product(*choices.values())]
    given = {name: layouts[0] for name, layouts in choices.items()}
    for changed in sorted(every, key=len):
        if changed and fits(**given | changed):
            named = ", ".join(f"{name}={layout!r}" for name, layout in changed.items())
            return f"; they would with {named}"
    return ""


def given_first(given: str, layouts: Sequence[str]) -> tuple[str, ...]:
    """Return all layouts with the caller's first, as `layouts` expects them."""
    return (given, *(layout for layout in layouts if layout != given))
