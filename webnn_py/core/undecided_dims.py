"""What is not known of open sizes for all their values: asked, put into words, and answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from webnn_py.core import polynomials
from webnn_py.core.polynomials import MAX_DIMENSION, Polynomial, Symbol

MAX_SUGGESTED_LOW = 1 << 20
"""No size is asked to be greater: what holds only for such ones is taken to hold for none."""

MAX_NAMED_SIZES = 8
"""Of more sizes no bounds are looked for that would decide something, nor are all of them named."""

Question = tuple[str, Polynomial]
"""Whether something is ">=" or "==" 0 for all sizes."""
_asked: ContextVar[list[Question] | None] = ContextVar("asked", default=None)


@contextmanager
def record_questions() -> Iterator[list[Question]]:
    """What rules ask of open dimensions and is not known, for one who can choose the bounds."""
    found: list[Question] = []
    token = _asked.set(found)
    try:
        yield found
    finally:
        _asked.reset(token)


def note(relation: str, of: Polynomial) -> None:
    """Tell whom `record_questions` has told that this is not known."""
    asked = _asked.get()
    if asked is not None:
        asked.append((relation, of))


def deciding_bounds(question: Question) -> tuple[str, int, int] | None:
    """The one size that a question is about, and the bounds within which its answer is yes.

    None where it is about several, or the answer is never yes.
    """
    relation, of = question
    if len(of.symbols) != 1:
        return None
    (symbol,) = of.symbols.values()
    name, low, high = symbol.name, symbol.low, symbol.high
    most = max(low, MAX_SUGGESTED_LOW)
    rises = of.evaluate({name: high}) > of.evaluate({name: low})

    def turn(least: int) -> int:
        """The first size that is on the other side of a number than the lowest one is."""
        return _first(low, high + 1, lambda n: (of.evaluate({name: n}) >= least) == rises)

    if relation == "==":
        low, high = sorted((turn(0), turn(1)))
        return (name, low, high - 1) if low < high and low <= most else None
    low, high = (turn(0), high) if rises else (low, turn(0) - 1)
    return (name, low, high) if low <= min(high, most) else None


def describe_bounds(of: Polynomial) -> str:
    """The bounds of the sizes that something follows from, in a message."""
    told = [f"{s.name} in {s.low}..{s.high}" for s in _sorted(of)[:MAX_NAMED_SIZES]]
    told += ["…"] * (len(of.symbols) > MAX_NAMED_SIZES)
    return f" for {', '.join(told)}"


def suggest_bounds(of: Polynomial) -> str:
    """Bounds of one size for which something is never negative, as the end of a message."""
    for symbol in _sorted(of) if len(of.symbols) <= MAX_NAMED_SIZES else ():

        def holds(low: int, high: int, symbol: Symbol = symbol) -> bool:
            return polynomials.bounds(of, {symbol: (low, high)})[0] >= 0

        if holds(symbol.high, symbol.high):
            low = _first(symbol.low, symbol.high, lambda n: holds(n, symbol.high))  # noqa: B023
            if low <= max(symbol.low, MAX_SUGGESTED_LOW):
                high = symbol.high if symbol.high < MAX_DIMENSION else None
                return f"; give dimensions={{{symbol.name!r}: {(low, high)}}}"
        if holds(symbol.low, symbol.low):
            above = _first(symbol.low, symbol.high, lambda n: not holds(symbol.low, n))  # noqa: B023
            return f"; give dimensions={{{symbol.name!r}: {(symbol.low, above - 1)}}}"
    names = ", ".join(repr(symbol.name) for symbol in _sorted(of)[:MAX_NAMED_SIZES])
    return f"; give dimensions= with narrower bounds of {names}"


def _sorted(of: Polynomial) -> list[Symbol]:
    return [of.symbols[name] for name in sorted(of.symbols)]


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number of a range from which on something holds; it does for the last one."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
