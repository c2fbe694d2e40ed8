"""What code asks of numbers, be they traced or not, that does the same for many sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from webnn_py.core.shape_tracing import is_traced

T = TypeVar("T")


def sampled(number: T) -> T:
    """The number for the sizes that were traced: for estimates, as good for those that are near."""
    return number.sampled() if is_traced(number) else number


def may_leave_remainder(number: int, divisor: int) -> bool:
    """Whether a division may leave a remainder, be it for other sizes than those traced."""
    return number.may_leave_remainder(divisor) if is_traced(number) else bool(number % divisor)


def is_zero(number: int) -> bool:
    """Whether a number is 0. If not, sizes for which it is may do with what is right for any."""
    if is_traced(number) and (number.number or number.trace.for_any):
        number.trace.ask(f"n[{number.mark}]", needed=False)
        return False
    return bool(number == 0)


def divides(divisor: int, number: int) -> bool:
    """Whether no remainder is left, as `is_zero`."""
    return is_zero(number % divisor)


def can_defer(*numbers: int) -> bool:
    """Whether what is best for them may follow what is compiled sooner, as somebody waits."""
    for number in numbers:
        if is_traced(number) and number.trace.for_any:
            number.trace.ask("False", needed=False)
            return True
    return False


def require_below(number: int, most: int) -> None:
    """Have a number stay below another for other sizes, too, if it does for those traced."""
    if is_traced(number) and number.number < most:
        bool(number < most)


def with_sampled(made: T, *names: str) -> T:
    """An instance of a dataclass with these fields as `sampled` gives them."""
    fields = {name: getattr(made, name) for name in names}
    if not any(map(is_traced, fields.values())):
        return made
    return replace(made, **{name: sampled(value) for name, value in fields.items()})  # type: ignore[type-var]


def highest(number: int) -> int:
    """The highest that a number may be for all sizes: itself, or the next power of two."""
    return number.highest() if is_traced(number) else number
