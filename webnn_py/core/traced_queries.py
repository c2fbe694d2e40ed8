"""Questions about numbers, traced or not, whose answers hold for many sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from webnn_py.core.shape_tracing import is_traced

T = TypeVar("T")


def sampled(number: T) -> T:
    """Return the number for the traced sizes; for estimates, which may be off for other sizes."""
    return number.sampled() if is_traced(number) else number


def may_leave_remainder(number: int, divisor: int) -> bool:
    """Whether a division may leave a remainder, also for sizes other than those traced."""
    return number.may_leave_remainder(divisor) if is_traced(number) else bool(number % divisor)


def is_zero(number: int) -> bool:
    """Whether a number is 0.

    If it is not, sizes for which it is may use the general code too.
    """
    if is_traced(number) and (number.number or number.trace.for_any):
        number.trace.ask(f"n[{number.mark}]", needed=False)
        return False
    return bool(number == 0)


def divides(divisor: int, number: int) -> bool:
    """Whether a division leaves no remainder; as `is_zero` for other sizes."""
    return is_zero(number % divisor)


def can_defer(*numbers: int) -> bool:
    """Whether general code may run first while better code for these numbers compiles."""
    for number in numbers:
        if is_traced(number) and number.trace.for_any:
            number.trace.ask("False", needed=False)
            return True
    return False


def require_below(number: int, most: int) -> None:
    """Add the condition that a number stays below a limit, if it does for the traced sizes."""
    if is_traced(number) and number.number < most:
        bool(number < most)


def with_sampled(instance: T, *names: str) -> T:
    """Return a copy of a dataclass whose named fields are replaced by `sampled`."""
    fields = {name: getattr(instance, name) for name in names}
    if not any(map(is_traced, fields.values())):
        return instance
    return replace(instance, **{name: sampled(value) for name, value in fields.items()})  # type: ignore[type-var]


def highest(number: int) -> int:
    """Return an upper bound for all sizes: the number itself, or the next power of two."""
    return number.highest() if is_traced(number) else number
