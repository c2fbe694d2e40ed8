"""Questions about open sizes that their bounds do not decide: recorded, explained, answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from webnn_py.core import polynomials
from webnn_py.core.polynomials import MAX_DIMENSION, Polynomial, Symbol

MAX_SUGGESTED_LOW = 1 << 20
"""Greatest lower bound that is suggested; a higher one would exclude practical sizes."""

MAX_NAMED_SIZES = 8
"""Maximum number of open sizes in a condition whose bounds are searched, and in a message."""

Question = tuple[str, Polynomial]
"""Relation (">=" or "==" to 0) and polynomial: whether it holds for all sizes."""
_asked: ContextVar[list[Question] | None] = ContextVar("asked", default=None)
_assumed: ContextVar[bool] = ContextVar("assumed", default=False)
_granted: ContextVar[frozenset[Question]] = ContextVar("granted", default=frozenset())


@contextmanager
def record_questions() -> Iterator[list[Question]]:
    """Record the undecided questions of rules, for a caller that can choose the bounds."""
    found: list[Question] = []
    token = _asked.set(found)
    try:
        yield found
    finally:
        _asked.reset(token)


def are_recorded() -> bool:
    """Whether a caller records undecided questions, to choose bounds by them."""
    return _asked.get() is not None


@contextmanager
def assume_valid() -> Iterator[None]:
    """Take undecided comparisons for true, as rules ask whether something is valid."""
    token = _assumed.set(True)
    try:
        yield
    finally:
        _assumed.reset(token)


def are_assumed() -> bool:
    """Whether undecided comparisons are taken for true."""
    return _assumed.get()


@contextmanager
def grant(questions: Iterable[Question]) -> Iterator[None]:
    """Take the answer to these questions for yes, so that the next ones are asked."""
    token = _granted.set(frozenset(questions))
    try:
        yield
    finally:
        _granted.reset(token)


def is_granted(relation: str, of: Polynomial) -> bool:
    """Whether the answer to a question is taken for yes."""
    return (relation, of) in _granted.get()


def note(relation: str, of: Polynomial) -> None:
    """Record an undecided question, if a caller records them."""
    asked = _asked.get()
    if asked is not None:
        asked.append((relation, of))


def deciding_bounds(question: Question) -> tuple[str, int, int] | None:
    """Return the one size of a question and the bounds within which the answer is yes.

    None if it depends on several sizes, or if the answer is never yes.
    """
    relation, of = question
    if len(of.symbols) != 1:
        return None
    (symbol,) = of.symbols.values()
    name, low, high = symbol.name, symbol.low, symbol.high
    max_low = max(low, MAX_SUGGESTED_LOW)
    rises = of.evaluate({name: high}) > of.evaluate({name: low})

    def crossing(least: int) -> int:
        """Return the first size at which the value crosses `least`, rising or falling."""
        return _first(low, high + 1, lambda n: (of.evaluate({name: n}) >= least) == rises)

    if relation == "==":
        low, high = sorted((crossing(0), crossing(1)))
        return (name, low, high - 1) if low < high and low <= max_low else None
    low, high = (crossing(0), high) if rises else (low, crossing(0) - 1)
    return (name, low, high) if low <= min(high, max_low) else None


def describe_bounds(of: Polynomial) -> str:
    """Describe the bounds of the sizes in a polynomial, for a message."""
    texts = [f"{s.name} in {s.low}..{s.high}" for s in _sorted(of)[:MAX_NAMED_SIZES]]
    texts += ["…"] * (len(of.symbols) > MAX_NAMED_SIZES)
    return f" for {', '.join(texts)}"


def suggest_bounds(of: Polynomial) -> str:
    """Suggest bounds of one size for which a polynomial is never negative, for a message."""
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
    """Return the first number from which on `holds`, by bisection; it must hold for `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
