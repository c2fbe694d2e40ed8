"""Indices: u32 expressions in WGSL that are simplified while they are built.

An expression is a sum of names, quotients and remainders, each times a number, plus a number. It is
computed modulo 2^32 as in WGSL: partial sums may be negative, and a negative sum is a huge index.
Divisions are simplified by the bounds of the dividend, and not at all if it may wrap around.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from webnn_py.core.shape_tracing import is_traced
from webnn_py.engines.webgpu.program import pieces
from webnn_py.engines.webgpu.program.pieces import u32

LIMIT = 1 << 32


class Index:
    """An immutable u32 expression; `+ - * // %` with numbers or other indices make new ones.

    Divisors are positive numbers. `str` gives WGSL for any context that does not bind more tightly
    than `+`.

    Attributes:
        terms: Atoms and their factors, none of them 0.
        offset: The number added to them.
        low: Lower bound of the sum as an integer, without wrapping around.
        high: Upper bound of it.
    """

    __slots__ = ("_text", "high", "low", "offset", "terms")

    def __init__(self, terms: tuple[tuple[_Atom, int], ...], offset: int, low: int, high: int):
        if low == high:
            terms, offset = (), low
        self.terms, self.offset, self.low, self.high = terms, offset, low, high
        self._text = ""

    @property
    def is_atom(self) -> bool:
        """Whether it is one name, call, quotient, remainder or number."""
        return not self.terms or (len(self.terms) == 1 and not self.offset and self._factor == 1)

    @property
    def is_name(self) -> bool:
        """Whether it is one name or number."""
        return not self.terms or (self.is_atom and self._atom.operator == "")

    @property
    def is_call(self) -> bool:
        """Whether it is one call."""
        return bool(self.terms) and self.is_atom and self._atom.operator == "()"

    @property
    def is_product(self) -> bool:
        """Whether it is a number or one term, which is as cheap to repeat as to name."""
        return not self.terms or (len(self.terms) == 1 and not self.offset)

    @property
    def divisions(self) -> int:
        """Number of divisions in it."""
        return sum(atom.divisions for atom, _ in self.terms)

    @property
    def enclosed(self) -> str:
        """The WGSL for any context, in parentheses if needed."""
        return str(self) if self.is_name or self.is_call else f"({self})"

    def named(self, text: str) -> Index:
        """Return a variable that holds it, with the same bounds."""
        low, high = (self.low, self.high) if self._fits else (0, LIMIT - 1)
        return _single(_Atom(text, low, high))

    def below(self, size: int) -> Index:
        """Return the same expression with bounds within 0 to `size` - 1.

        If its bounds allow none of these, the code is never reached and any number in range will
        do: compilers reject some constants out of range.
        """
        low, high = max(self.low, 0), min(self.high, size - 1)
        if low > high:
            return constant(0)
        if low == self.low and high == self.high:
            return self
        if self.terms and self.is_atom:
            return _single(dataclasses.replace(self._atom, low=low, high=high))
        return Index(self.terms, self.offset, low, high)

    def min(self, most: int) -> Index:
        """Return the lesser of the expression and a number."""
        if self._fits and self.high <= most:
            return self
        low, high = (self.low, self.high) if self._fits else (0, LIMIT - 1)
        text = f"min({self}, {u32(most)})"
        low, high = min(low, most), min(high, most)
        return _single(_Atom(text, low, high, "()", divisions=self.divisions))

    def clamp(self, low: int, high: int) -> Index:
        """Return the expression clamped to these bounds."""
        if self._fits and self.low >= low:
            return self.min(high)
        text = f"clamp({self}, {u32(low)}, {u32(high)})"
        return _single(_Atom(text, low, high, "()", divisions=self.divisions))

    def __add__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, self.offset + other, self.low + other, self.high + other)
        if not other.terms:
            return self + other.offset
        if not self.terms:
            return other + self.offset
        low, high = self.low + other.low, self.high + other.high
        return _sum((*self.terms, *other.terms), self.offset + other.offset, low, high)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        terms = tuple((atom, own * factor) for atom, own in self.terms)
        low, high = sorted((self.low * factor, self.high * factor))
        return Index(terms, self.offset * factor, low, high)

    __rmul__ = __mul__

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __rsub__(self, other: int) -> Index:
        return self * -1 + other

    def __floordiv__(self, divisor: int) -> Index:
        if divisor == 1:
            return self
        if not self.terms:
            return constant(self.offset % LIMIT // divisor)
        if not self._fits:
            return self._divided("/", divisor, 0, (LIMIT - 1) // divisor)
        low, high = self.low // divisor, self.high // divisor
        if low == high:
            return constant(low)
        if self.is_atom:
            atom = self._atom
            if atom.operator == "/":
                return atom.inner // (atom.divisor * divisor)
            if atom.operator == "%" and atom.divisor % divisor == 0:
                return atom.inner // divisor % (atom.divisor // divisor)
            return self._divided("/", divisor, low, high)
        multiple, rest = self._split(divisor)
        if multiple.terms or multiple.offset:
            made = multiple + rest // divisor
            return Index(made.terms, made.offset, max(made.low, low), min(made.high, high))
        common, multiple, _ = self._common(divisor)
        if common > 1:
            return multiple // (divisor // common)
        return self._divided("/", divisor, low, high)

    def __mod__(self, divisor: int) -> Index:
        if divisor == 1:
            return constant(0)
        if not self.terms:
            return constant(self.offset % LIMIT % divisor)
        if not self._fits:
            return self._divided("%", divisor, 0, divisor - 1)
        if self.high < divisor:
            return self
        if self.is_atom:
            atom = self._atom
            if atom.operator == "%" and atom.divisor % divisor == 0:
                return atom.inner % divisor
            return self._divided("%", divisor, 0, divisor - 1)
        multiple, rest = self._split(divisor)
        if multiple.terms or multiple.offset:
            return rest % divisor
        common, multiple, rest = self._common(divisor)
        if common > 1:
            return multiple % (divisor // common) * common + rest
        return self._divided("%", divisor, 0, divisor - 1)

    def __str__(self) -> str:
        if not self._text:
            self._text = self._printed()
        return self._text

    def __repr__(self) -> str:
        return f"<{self}, {self.low} to {self.high}>"

    @property
    def _atom(self) -> _Atom:
        return self.terms[0][0]

    @property
    def _factor(self) -> int:
        return self.terms[0][1]

    @property
    def _fits(self) -> bool:
        """Whether its bounds exclude wrapping around."""
        return self.low >= 0 and self.high < LIMIT

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """Return a quotient and a non-negative rest, so that it is quotient * divisor + rest."""
        multiples = tuple((a, f // divisor) for a, f in self.terms if f % divisor == 0)
        others = [(a, f) for a, f in self.terms if f % divisor]
        rest = _sum(others, self.offset)
        count = rest.low // divisor
        return _sum(multiples, count), rest - count * divisor

    def _common(self, divisor: int) -> tuple[int, Index, Index]:
        """Return a factor of the divisor, with the quotient and a rest below the factor; else 1."""
        factors = {_gcd(divisor, factor) for _, factor in self.terms} - {1}
        for common in sorted(factors, reverse=True):
            multiple, rest = self._split(common)
            if rest.high < common:
                return common, multiple, rest
        return 1, self, self

    def _divided(self, operator: str, divisor: int, low: int, high: int) -> Index:
        text = f"{self if self._is_operand else f'({self})'} {operator} {pieces.divisor(divisor)}"
        divisions = self.divisions + 1
        return _single(_Atom(text, low, high, operator, self, divisor, divisions))

    @property
    def _is_operand(self) -> bool:
        """Whether it can stand before `*`, `/` or `%` without parentheses."""
        return self.is_atom or (len(self.terms) == 1 and not self.offset and self._factor > 0)

    def _printed(self) -> str:
        if not self.terms:
            return f"{u32(self.offset % LIMIT)}"
        if self.is_atom:
            return self._atom.text
        groups: dict[int, list[str]] = {}
        for atom, factor in self.terms:
            groups.setdefault(factor, []).append(atom.text)
        added = [_product(names, factor) for factor, names in groups.items() if factor > 0]
        offset = self.offset if abs(self.offset) < LIMIT else self.offset % LIMIT
        if not added:
            added, offset = [f"{u32(max(offset, 0))}"], min(offset, 0)
        if offset > 0:
            added.append(f"{u32(offset)}")
        text = " + ".join(added)
        for factor, names in groups.items():
            if factor < 0:
                for taken in names if factor == -1 else [_product(names, -factor)]:
                    text += f" - {taken}"
        return f"{text} - {u32(-offset)}" if offset < 0 else text


@dataclass(frozen=True, slots=True, eq=False)
class _Atom:
    """An operand of a sum; atoms with equal texts are equal.

    Attributes:
        text: WGSL of a name, a call, a quotient or a remainder.
        low: Lower bound.
        high: Upper bound.
        operator: "/", "%", "()" for a call, or "" for a name.
        inner: The dividend of "/" and "%".
        divisor: The divisor of "/" and "%".
        divisions: Number of divisions in it.
    """

    text: str
    low: int
    high: int
    operator: str = ""
    inner: Index = None  # type: ignore[assignment]  # there is one where there is a divisor
    divisor: int = 0
    divisions: int = 0


def symbol(text: str, size: int = LIMIT) -> Index:
    """Return a variable that is less than `size`."""
    return _single(_Atom(text, 0, size - 1))


def call(text: str, size: int) -> Index:
    """Return a call of a pure function whose result is less than `size`."""
    return _single(_Atom(text, 0, size - 1, "()"))


def constant(value: int) -> Index:
    """Return a number."""
    return Index((), value, value, value)


def total(indices: Iterable[Index]) -> Index:
    """Return the sum of indices."""
    terms: list[tuple[_Atom, int]] = []
    offset = low = high = 0
    for index in indices:
        terms += index.terms
        offset, low, high = offset + index.offset, low + index.low, high + index.high
    return _sum(terms, offset, low, high)


def _single(atom: _Atom) -> Index:
    return Index(((atom, 1),), 0, atom.low, atom.high)


def _sum(
    terms: Iterable[tuple[_Atom, int]],
    offset: int,
    low: int | None = None,
    high: int | None = None,
) -> Index:
    """Return the sum with like terms combined; `low` and `high` are additional bounds of it."""
    merged: dict[str, tuple[_Atom, int]] = {}
    for atom, factor in terms:
        before = merged.get(atom.text)
        merged[atom.text] = (atom, factor if before is None else factor + before[1])
    like = tuple(term for term in merged.values() if term[1])
    least = most = offset
    for atom, factor in like:
        least += (atom.low if factor > 0 else atom.high) * factor
        most += (atom.high if factor > 0 else atom.low) * factor
    if low is not None and low > least:
        least = low
    if high is not None and high < most:
        most = high
    return _rejoined(like, offset, least, most) or Index(like, offset, least, most)


def _rejoined(
    terms: tuple[tuple[_Atom, int], ...], offset: int, low: int, high: int
) -> Index | None:
    """Return a sum whose quotient and remainder of one dividend became the dividend, or None."""
    for part, factor in terms if len(terms) > 1 else ():
        if part.operator != "%" or not part.inner._fits:
            continue
        quotient = str(part.inner // part.divisor)
        for other, times in terms:
            if times != factor * part.divisor:
                continue
            if other.text == quotient:
                whole = part.inner
            elif other.operator == "%" and str(other.inner) == quotient:
                whole = part.inner % (part.divisor * other.divisor)
            else:
                continue
            rest = tuple(term for term in terms if term[0] is not part and term[0] is not other)
            made = (whole * factor).terms
            return _sum((*rest, *made), offset + whole.offset * factor, low, high)
    return None


def _gcd(one: int, other: int) -> int:
    """Return the greatest common divisor; 1 for traced numbers, as it differs between sizes."""
    return 1 if is_traced(one) or is_traced(other) else math.gcd(one, other)


def _product(names: list[str], factor: int) -> str:
    joined = " + ".join(names)
    if factor == 1:
        return joined
    return f"{f'({joined})' if len(names) > 1 else joined} * {u32(factor % LIMIT)}"
