"""Integer polynomials over symbolic sizes: normal form, floor division and bounds.

An atom is a size (`Symbol`), or a floored quotient of two polynomials (`Quotient`) that no rule
simplifies. Sums and products that are equal for all sizes have the same normal form; quotients by
numbers do where shapes need it.

The cost is exponential in the degree and in the nesting of quotients. So `MAX_PRODUCTS`,
`MAX_DEPTH` and `MAX_COEFFICIENT` limit each polynomial.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from webnn_py.core.errors import ValidationError

MAX_DIMENSION = 2**31 - 1
"""Highest value of a size."""
MAX_PRODUCTS = 1024
"""Most products, with each size written as a sum of two: the cost of finding bounds."""
MAX_DEPTH = 8
"""Deepest nesting of quotients."""
MAX_COEFFICIENT = 2**63 - 1
"""Largest coefficient, as integers in files have 64 bits."""
_MAX_SHOWN_NAMES = 8
Range = tuple[int, int]
"""Lowest and highest value, both inclusive."""


class TooLargeError(ValidationError):
    """An expression is too large to calculate with."""


def _too_large(has: str, names: Iterable[str]) -> TooLargeError:
    """Return the error for an expression that exceeds a limit; `has` says which."""
    told = ", ".join(f"{name!r}: …" for name in sorted(names)[:_MAX_SHOWN_NAMES])
    return TooLargeError(
        f"the dimension is too large an expression: it {has}; give dimensions={{{told}}} with"
        " sizes, or make it a dimension of an input, with a name of its own"
    )


@dataclass(frozen=True, slots=True)
class Symbol:
    """An open size.

    Attributes:
        name: The user's name; "?" and a number for a size without a name.
        low: Lowest value.
        high: Highest value.
        scope: Distinguishes unnamed sizes of different graphs.
    """

    name: str
    low: int
    high: int
    scope: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """The floor of numerator / divisor; the divisor is positive."""

    numerator: Polynomial
    divisor: Polynomial

    def __str__(self) -> str:
        number = self.divisor.constant
        below = str(self.divisor if number is None else number)
        is_single = not {" ", "*"} & set(below)
        return f"{_grouped(self.numerator)} // {below if is_single else f'({below})'}"


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Remainder of a quotient by a number: from 0 to below the divisor."""

    quotient: Quotient


Atom = Symbol | Quotient
Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their powers, sorted by text; empty for the number 1."""
Ranges = Mapping[Symbol, Range]


class Polynomial:
    """Immutable sum of monomials with integer coefficients other than 0.

    Attributes:
        terms: Coefficient by monomial.
        symbols: The sizes in it, by name.
        products: Number of products, with each size written as a sum of two.
        depth: Nesting of quotients.

    Raises:
        ValidationError: It exceeds a limit.
    """

    __slots__ = ("_hash", "_text", "depth", "products", "symbols", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {monomial: factor for monomial, factor in terms.items() if factor}
        self.symbols = {
            symbol.name: symbol
            for monomial in self.terms
            for atom, _ in monomial
            for symbol in _symbols(atom)
        }
        self._hash = hash(frozenset(self.terms.items()))
        self.products = sum(map(_products, self.terms))
        self.depth = max(
            (_depth(atom) for monomial in self.terms for atom, _ in monomial), default=0
        )
        self._text: str | None = None
        if self.products > MAX_PRODUCTS:
            raise _too_large(
                f"has over {MAX_PRODUCTS} products of sizes, each size counted as two", self.symbols
            )
        if self.depth > MAX_DEPTH:
            raise _too_large(f"has over {MAX_DEPTH} quotients in each other", self.symbols)
        if self.symbols and max(map(abs, self.terms.values())) > MAX_COEFFICIENT:
            raise _too_large(f"has a number over {MAX_COEFFICIENT}", self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Polynomial], tuple[dict[Monomial, int]]]:
        return Polynomial, (self.terms,)

    @property
    def constant(self) -> int | None:
        """The number if the polynomial is constant, else None."""
        return self.terms.get((), 0) if not any(self.terms) else None

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial(terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        if len(self.terms) * len(other.terms) > 4 * MAX_PRODUCTS:  # before they are computed
            raise _too_large(
                f"is a product of {len(self.terms)} terms and {len(other.terms)}",
                self.symbols | other.symbols,
            )
        terms: dict[Monomial, int] = {}
        for (a, x), (b, y) in itertools.product(self.terms.items(), other.terms.items()):
            monomial = _times(a, b)
            terms[monomial] = terms.get(monomial, 0) + x * y
        return Polynomial(terms)

    @property
    def common(self) -> int:
        """The greatest common divisor of the coefficients except the constant; 0 if there are none.

        The remainder of a division by it is the same for all sizes.
        """
        return math.gcd(*(factor for monomial, factor in self.terms.items() if monomial))

    def scaled(self, factor: int) -> Polynomial:
        """Return the product with a number."""
        return Polynomial({monomial: n * factor for monomial, n in self.terms.items()})

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value for sizes by name."""
        return sum(
            factor * math.prod(_evaluated(atom, sizes) ** power for atom, power in monomial)
            for monomial, factor in self.terms.items()
        )

    def ordered(self) -> list[tuple[Monomial, int]]:
        """Return the terms, by falling degree, quotients last among equals."""

        def place(term: tuple[Monomial, int]) -> tuple[int, bool, str]:
            monomial, _ = term
            divided = any(isinstance(atom, Quotient) for atom, _ in monomial)
            return -sum(power for _, power in monomial), divided, _text(monomial)

        return sorted(self.terms.items(), key=place)

    def __str__(self) -> str:
        if self._text is None:  # cached: atoms are sorted by it
            self._text = self._written()
        return self._text

    def _written(self) -> str:
        text = ""
        # Positive terms first, so that the text does not begin with a minus sign.
        for monomial, factor in sorted(self.ordered(), key=lambda term: term[1] < 0):
            is_single = len(monomial) == 1 and abs(factor) == 1 and monomial[0][1] == 1
            body = str(monomial[0][0]) if is_single and factor == 1 else _text(monomial)
            shown = f"{abs(factor)}*{body}" if monomial and abs(factor) != 1 else body
            shown = str(abs(factor)) if not monomial else shown
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            text += sign + shown
        return text or "0"


@functools.lru_cache(maxsize=1024)
def number(value: int) -> Polynomial:
    """Return a constant polynomial."""
    return Polynomial({(): value})


def single(atom: Atom) -> Polynomial:
    """Return the polynomial that is one atom."""
    return Polynomial({((atom, 1),): 1})


def _products(monomial: Monomial) -> int:
    return math.prod(
        (2 if isinstance(atom, Symbol) else 1 + atom.numerator.products + atom.divisor.products)
        ** min(power, MAX_PRODUCTS)
        for atom, power in monomial
    )


def _depth(atom: Atom) -> int:
    return 0 if isinstance(atom, Symbol) else 1 + max(atom.numerator.depth, atom.divisor.depth)


def _symbols(atom: Atom) -> Iterator[Symbol]:
    if isinstance(atom, Symbol):
        yield atom
    else:
        yield from atom.numerator.symbols.values()
        yield from atom.divisor.symbols.values()


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


def _grouped(polynomial: Polynomial) -> str:
    """Return the text of a polynomial, in parentheses where it is a part of a product."""
    text = str(polynomial)
    return f"({text})" if len(polynomial.terms) > 1 or text.startswith("-") else text


def _text(monomial: Monomial) -> str:
    factors = [
        f"({atom})" if isinstance(atom, Quotient) else str(atom)
        for atom, power in monomial
        for _ in range(power)
    ]
    return "*".join(factors)


def _evaluated(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return sizes[atom.name]
    return atom.numerator.evaluate(sizes) // atom.divisor.evaluate(sizes)


def floor_divided(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return the floor of a / b; b must be positive for all sizes."""
    divisor = b.constant
    if divisor is not None:
        return _divided_by_number(a, divisor)
    whole, rest = _long_division(a, b)
    for left, quotient in ((rest, whole), (rest + b, whole + number(-1))):
        if bounds(left)[0] >= 0 and bounds(b + left.scaled(-1))[0] > 0:
            return quotient
    return whole + single(Quotient(rest, b))


def _divided_by_number(a: Polynomial, divisor: int) -> Polynomial:
    """Return the floor of a polynomial divided by a number, in normal form.

    Multiples of the divisor are taken out of the quotient; what remains has the smallest
    coefficients and begins with a positive one.

    floor((k A + B) / k) = A + floor(B / k), and floor(-B / k) = -floor((B + k - 1) / k).
    """
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, factor in a.terms.items():
        # Round the constant down, other coefficients towards zero.
        times = factor // divisor if factor > 0 or not monomial else -(-factor // divisor)
        whole[monomial], rest[monomial] = times, factor - times * divisor
    left = Polynomial(rest)
    common = math.gcd(divisor, left.common)
    if left.constant is not None or common == divisor:
        return Polynomial(whole)
    left = Polynomial({monomial: factor // common for monomial, factor in left.terms.items()})
    divisor //= common
    if next(factor for monomial, factor in left.ordered()) < 0:
        negated = left.scaled(-1) + number(divisor - 1)
        return Polynomial(whole) + _floor_atom(negated, divisor).scaled(-1)
    return Polynomial(whole) + _floor_atom(left, divisor)


def _floor_atom(a: Polynomial, divisor: int) -> Polynomial:
    """Return floor(a / divisor) as a number if its bounds agree, else as one quotient.

    floor((floor(b / m) + n) / k) = floor((b + m n) / (m k)).
    """
    low, high = bounds(a)
    if low // divisor == high // divisor:
        return number(low // divisor)
    (monomial, factor), *others = a.ordered()
    (atom, power), *more = monomial
    if (
        isinstance(atom, Quotient)
        and (factor, power, more) == (1, 1, [])
        and not any(m for m, _ in others)
    ):
        inner = atom.divisor.constant
        if inner is not None:
            shifted = atom.numerator + number(inner * a.terms.get((), 0))
            return _divided_by_number(shifted, inner * divisor)
    return single(Quotient(a, number(divisor)))


def _long_division(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return quotient and remainder of a polynomial long division: a = quotient * b + rest."""
    monomials = [*a.terms, *b.terms]
    atoms = sorted({atom for monomial in monomials for atom, _ in monomial}, key=str)
    places = {atom: -place for place, atom in enumerate(atoms)}

    def order(monomial: Monomial) -> list[tuple[int, int]]:
        """Sort key: order of the monomial's full exponent vector, given without zeros."""
        return [(places[atom], power) for atom, power in monomial]

    lead = max(b.terms, key=order)
    left, whole, rest = dict(a.terms), {}, {}
    while left:
        if len(left) > MAX_PRODUCTS:
            raise _too_large("has a quotient that does not end", a.symbols | b.symbols)
        monomial = max(left, key=order)
        factor = left[monomial]
        over = dict(monomial)
        for atom, power in lead:
            over[atom] = over.get(atom, 0) - power
        if factor % b.terms[lead] or any(power < 0 for power in over.values()):
            rest[monomial] = left.pop(monomial)
            continue
        powers = tuple((atom, power) for atom, power in over.items() if power)
        ordered = tuple(sorted(powers, key=lambda item: str(item[0])))
        times = whole[ordered] = factor // b.terms[lead]
        for other, count in b.terms.items():
            product = _times(ordered, other)
            left[product] = left.get(product, 0) - times * count
            if not left[product]:
                del left[product]
    return Polynomial(whole), Polynomial(rest)


def bounds(a: Polynomial, ranges: Ranges | None = None) -> Range:
    """Return bounds of the value for all sizes within their bounds; they may be too wide.

    Args:
        a: The polynomial.
        ranges: Bounds of sizes that replace the sizes' own.
    """
    return _own_bounds(a) if ranges is None else _bounds(a, ranges)


@functools.lru_cache(maxsize=4096)
def _own_bounds(a: Polynomial) -> Range:
    return _bounds(a, {})


def _bounds(a: Polynomial, ranges: Ranges) -> Range:
    terms: _Terms = {**a.terms}
    within = functools.cache(functools.partial(_range, ranges=ranges))
    low, high = _box_bounds(terms, within)
    if any(isinstance(atom, Quotient) for monomial in terms for atom, _ in monomial):
        shares = _substituted(terms, _resolved)
        scale = math.lcm(*(share.denominator for share in shares.values()))
        # Whole numbers, as fractions take several times as long.
        scaled = {powers: int(share * scale) for powers, share in shares.items()}
        other_low, other_high = _box_bounds(scaled, within)
        low, high = max(low, -(-other_low // scale)), min(high, other_high // scale)
    return math.ceil(low), math.floor(high)


_Variable = Symbol | Quotient | _Remainder
_Powers = tuple[tuple[Any, int], ...]  # powers of variables
_Number = int | Fraction
_Terms = Mapping[_Powers, _Number]
MAX_CORNER_VARIABLES = 6
"""Most variables for which all combinations of lowest and highest value are evaluated."""


def _range(variable: _Variable, ranges: Ranges) -> Range:
    if isinstance(variable, Symbol):
        return ranges.get(variable, (variable.low, variable.high))
    if isinstance(variable, _Remainder):
        return 0, (variable.quotient.divisor.constant or 1) - 1
    above, below = (bounds(part, ranges or None) for part in (variable.numerator, variable.divisor))
    ends = [n // max(d, 1) for n in above for d in below]
    return min(ends), max(ends)


def _substituted(terms: _Terms, of: Callable[[_Variable], _Terms]) -> dict[_Powers, _Number]:
    """Substitute a sum for each variable."""
    result: dict[_Powers, _Number] = {}
    for powers, factor in terms.items():
        product: _Terms = {(): factor}
        for variable, power in powers:
            for _ in range(power):
                product = _product(product, of(variable))
        for monomial, coefficient in product.items():
            result[monomial] = result.get(monomial, 0) + coefficient
    return result


def _resolved(variable: _Variable) -> _Terms:
    """Write a quotient by a number k as (numerator - remainder) / k."""
    if not isinstance(variable, Quotient) or variable.divisor.constant is None:
        return {((variable, 1),): 1}
    share = Fraction(1, variable.divisor.constant)
    numerator: _Terms = {m: factor * share for m, factor in variable.numerator.terms.items()}
    return {**_substituted(numerator, _resolved), ((_Remainder(variable), 1),): -share}


def _product(a: _Terms, b: _Terms) -> _Terms:
    result: dict[_Powers, _Number] = {}
    for (x, m), (y, n) in itertools.product(a.items(), b.items()):
        powers = dict(x)
        for variable, power in y:
            powers[variable] = powers.get(variable, 0) + power
        key = tuple(sorted(powers.items(), key=lambda item: str(item[0])))
        result[key] = result.get(key, 0) + m * n
    return result


def _box_bounds(terms: _Terms, within: Callable[[_Variable], Range]) -> tuple[_Number, _Number]:
    """Return bounds of a sum of products, with each variable within its own bounds.

    A sum that is linear in each variable has its extremes in corners. Otherwise the sum is
    rewritten in the distances from the lowest (or highest) values, where only signs matter.
    """
    variables = sorted({variable for powers in terms for variable, _ in powers}, key=str)
    ranges = {variable: within(variable) for variable in variables}
    linear = all(power == 1 for powers in terms for _, power in powers)
    if linear and len(variables) <= MAX_CORNER_VARIABLES:
        corners = itertools.product(*(ranges[variable] for variable in variables))
        values = [_value(terms, dict(zip(variables, at, strict=True))) for at in corners]
        return min(values), max(values)
    reach = {variable: high - low for variable, (low, high) in ranges.items()}
    lows, highs = [], []
    for end, sign in ((0, 1), (1, -1)):
        shifted = _substituted(
            terms,
            lambda variable, end=end, sign=sign: {  # type: ignore[misc]
                (): ranges[variable][end],
                ((variable, 1),): sign,
            },
        )
        corner = shifted.pop((), 0)
        ends = [_value({key: factor}, reach) for key, factor in shifted.items()]
        lows.append(corner + sum(value for value in ends if value < 0))
        highs.append(corner + sum(value for value in ends if value > 0))
    return max(lows), min(highs)


def _value(terms: _Terms, values: Mapping[_Variable, int]) -> _Number:
    total: _Number = 0
    for powers, factor in terms.items():
        total += factor * math.prod(values[variable] ** power for variable, power in powers)
    return total
