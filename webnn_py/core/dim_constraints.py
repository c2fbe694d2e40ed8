"""Constraints on open sizes that decide an undecided question about them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from webnn_py.core.dimensions import MLDimension, named, polynomial_of
from webnn_py.core.polynomials import Polynomial, Quotient, Symbol, single
from webnn_py.core.undecided_dims import MAX_NAMED_SIZES, Question, deciding_bounds

MAX_SIZE_FACTOR = 1 << 12
"""Largest factor tried for "this size is a multiple of"."""
_SAMPLE_SIZE = 1009
"""Value of the other sizes in a trial; large, so that common divisors do not give 0."""


def find_bounds(question: Question) -> tuple[str, int, int] | None:
    """Return one size of a question and bounds of it that make the answer yes, or None."""
    relation, of = question
    if len(of.symbols) == 1:
        return deciding_bounds(question)
    if len(of.symbols) > MAX_NAMED_SIZES:
        return None
    for name, symbol in of.symbols.items():
        others = {s.name: _within(s) for s in of.symbols.values() if s != symbol}
        rest = polynomial_of(_substitute(of, others))
        found = deciding_bounds((relation, rest)) if rest and rest.symbols else None
        if found is not None:
            size: Any = named(*found) if found[1] < found[2] else found[1]
            if _holds(relation, _substitute(of, {name: size})):
                return found
    return None


def find_equal_pairs(question: Question) -> list[tuple[str, str]]:
    """Return the pairs of sizes whose equality makes the answer yes."""
    relation, of = question
    if len(of.symbols) > MAX_NAMED_SIZES:
        return []
    return [
        (one.name, other.name)
        for one, other in itertools.combinations(sorted(of.symbols.values(), key=str), 2)
        if _holds(relation, _substitute(of, {other.name: MLDimension(single(one))}))
    ]


def find_required_pair(question: Question) -> tuple[str, str] | None:
    """Return the two sizes whose equality is the question itself, or None."""
    relation, of = question
    sizes = {((symbol, 1),) for symbol in of.symbols.values()}
    if relation != "==" or len(sizes) != 2 or sizes != of.terms.keys():
        return None
    return next(iter(find_equal_pairs(question)), None)


def find_sum(question: Question) -> tuple[str, str] | None:
    """Return a size and the sum that it must equal, or None: `total` of `past + new == total`."""
    relation, of = question
    if relation != "==" or any(len(m) > 1 or m[0][1] > 1 for m in of.terms if m):
        return None
    for name, symbol in of.symbols.items():
        share = of.terms.get(((symbol, 1),), 0)
        others = [count for monomial, count in of.terms.items() if monomial != ((symbol, 1),)]
        if abs(share) == 1 and len(of.symbols) > 2 and all(n * share < 0 for n in others):
            whole: Any = MLDimension(single(symbol))
            rest = whole - share * _substitute(of, {})
            return name, str(rest)
    return None


def find_multiple(question: Question) -> tuple[str, int] | None:
    """Return one size and a factor such that the answer is yes for all multiples of it, or None.

    An example is a size that is halved, rounded up, and doubled again.
    """
    relation, of = question
    if relation != "==" or len(of.symbols) > MAX_NAMED_SIZES:
        return None
    whole = math.lcm(*_divisors(of))
    factors = [n for n in range(2, min(whole, MAX_SIZE_FACTOR) + 1) if whole % n == 0]
    for name, symbol in of.symbols.items():
        for factor in factors:
            low, high = -(-symbol.low // factor), symbol.high // factor
            times = {name: factor * named(name, low, high)} if low < high else {}
            if times and _holds(relation, _substitute(of, times)):
                return name, factor
    return None


def _within(symbol: Symbol) -> int:
    return max(symbol.low, min(symbol.high, _SAMPLE_SIZE))


def _substitute(of: Polynomial, sizes: Mapping[str, int | MLDimension]) -> int:
    """Evaluate with other sizes substituted by name, such as narrower ones of the same name."""
    own = {name: MLDimension(single(symbol)) for name, symbol in of.symbols.items()}
    return of.evaluate({**own, **sizes})  # type: ignore[dict-item]


def _holds(relation: str, over: int | MLDimension) -> bool:
    if isinstance(over, MLDimension):
        return relation == ">=" and over.bounds[0] >= 0
    return over == 0 if relation == "==" else over >= 0


def _divisors(polynomial: Polynomial) -> Iterator[int]:
    """Yield the numbers that the polynomial divides by."""
    for monomial in polynomial.terms:
        for atom, _ in monomial:
            if isinstance(atom, Quotient):
                yield atom.divisor.constant or 1
                yield from _divisors(atom.numerator)
