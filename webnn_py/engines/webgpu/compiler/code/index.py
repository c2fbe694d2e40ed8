"""Places in tensors: unsigned expressions in WGSL, simplified while they are built.

An expression is a sum of names, quotients and remainders, each times a number, plus a number. It
means what WGSL makes of it, modulo 2^32: a sum may pass below 0 on its way, and one that ends there
is huge. Divisions are simplified by what is known of the dividend's size, and not at all where it
might wrap around.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from webnn_py.core.shape_tracing import is_traced

LIMIT = 1 << 32


class Index:
    """A u32 expression, which does not change; `+ - * // %` and numbers make others of it.

    Divisions are by numbers above 0. As text it is WGSL, for any place where nothing binds tighter
    than `+`.

    Attributes:
        terms: Atoms and their factors, none of them 0.
        offset: The number added to them.
        low: The sum is not below this, as whole numbers go, without wrapping around.
        high: Nor is it above this.
    """

    __slots__ = ("_text", "high", "low", "offset", "terms")

    def __init__(self, terms: tuple[tuple[_Atom, int], ...], offset: int, low: int, high: int):
        if low == high:
            terms, offset = (), low
        self.terms, self.offset, self.low, self.high = terms, offset, low, high
        self._text = ""

    @property
    def is_atom(self) -> bool:
        """Whether it is a name, a call, a quotient, a remainder or a number alone."""
        return not self.terms or (len(self.terms) == 1 and not self.offset and self._factor == 1)

    @property
    def is_name(self) -> bool:
        """Whether it is a name or a number alone."""
        return not self.terms or (self.is_atom and self._atom.operator == "")

    @property
    def is_call(self) -> bool:
        """Whether it is a call alone."""
        return bool(self.terms) and self.is_atom and self._atom.operator == "()"

    @property
    def is_product(self) -> bool:
        """Whether it is a number or one term alone: as quick to compute again as to name."""
        return not self.terms or (len(self.terms) == 1 and not self.offset)

    @property
    def divisions(self) -> int:
        """Divisions that it takes."""
        text = str(self)
        return text.count("/") + text.count("%")

    @property
    def enclosed(self) -> str:
        """The text for any place: in parentheses, if need be."""
        return str(self) if self.is_name or self.is_call else f"({self})"

    def named(self, text: str) -> Index:
        """A name that stands for it."""
        low, high = (self.low, self.high) if self._fits else (0, LIMIT - 1)
        return _single(_Atom(text, low, high))

    def below(self, size: int) -> Index:
        """The same expression, of which it is known that it is from 0 to `size` - 1, unwrapped.

        What cannot be is never computed, so any number in range will do for it: compilers refuse
        some that are not.
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
        """The expression or the number, whichever is less."""
        if self._fits and self.high <= most:
            return self
        low, high = (self.low, self.high) if self._fits else (0, LIMIT - 1)
        return _single(_Atom(f"min({self}, {most}u)", min(low, most), min(high, most), "()"))

    def clamp(self, low: int, high: int) -> Index:
        """The number within these bounds that is next to the expression."""
        if self._fits and self.low >= low:
            return self.min(high)
        return _single(_Atom(f"clamp({self}, {low}u, {high}u)", low, high, "()"))

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
        """Whether it is known not to wrap around."""
        return self.low >= 0 and self.high < LIMIT

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """How many whole divisors it is for certain, and what is left, which is not below 0."""
        multiples = tuple((a, f // divisor) for a, f in self.terms if f % divisor == 0)
        others = [(a, f) for a, f in self.terms if f % divisor]
        rest = _sum(others, self.offset)
        count = rest.low // divisor
        return _sum(multiples, count), rest - count * divisor

    def _common(self, divisor: int) -> tuple[int, Index, Index]:
        """A divisor of that which parts the sum into a multiple and a rest below it; else 1."""
        factors = {_gcd(divisor, factor) for _, factor in self.terms} - {1}
        for common in sorted(factors, reverse=True):
            multiple, rest = self._split(common)
            if rest.high < common:
                return common, multiple, rest
        return 1, self, self

    def _divided(self, operator: str, divisor: int, low: int, high: int) -> Index:
        text = str(self) if self._is_operand else f"({self})"
        return _single(_Atom(f"{text} {operator} {divisor}u", low, high, operator, self, divisor))

    @property
    def _is_operand(self) -> bool:
        """Whether it can stand before `*`, `/` or `%` as it is."""
        return self.is_atom or (len(self.terms) == 1 and not self.offset and self._factor > 0)

    def _printed(self) -> str:
        if not self.terms:
            return f"{self.offset % LIMIT}u"
        if self.is_atom:
            return self._atom.text
        groups: dict[int, list[str]] = {}
        for atom, factor in self.terms:
            groups.setdefault(factor, []).append(atom.text)
        added = [_product(names, factor) for factor, names in groups.items() if factor > 0]
        offset = self.offset if abs(self.offset) < LIMIT else self.offset % LIMIT
        if not added:
            added, offset = [f"{max(offset, 0)}u"], min(offset, 0)
        if offset > 0:
            added.append(f"{offset}u")
        text = " + ".join(added)
        for factor, names in groups.items():
            if factor < 0:
                for taken in names if factor == -1 else [_product(names, -factor)]:
                    text += f" - {taken}"
        return f"{text} - {-offset}u" if offset < 0 else text


@dataclass(frozen=True, slots=True, eq=False)
class _Atom:
    """What is no sum; one text means one thing.

    Attributes:
        text: WGSL of a name, a call, a quotient or a remainder.
        low: It is not below this.
        high: It is not above this.
        operator: "/", "%", "()" for a call, or nothing for a name.
        inner: What is divided.
        divisor: By what.
    """

    text: str
    low: int
    high: int
    operator: str = ""
    inner: Index = None  # type: ignore[assignment]  # there is one where there is a divisor
    divisor: int = 0


def symbol(text: str, size: int = LIMIT) -> Index:
    """A name of what is less than `size`."""
    return _single(_Atom(text, 0, size - 1))


def call(text: str, size: int) -> Index:
    """A call of a function that gives what is less than `size`, the same for the same text."""
    return _single(_Atom(text, 0, size - 1, "()"))


def constant(value: int) -> Index:
    """A number."""
    return Index((), value, value, value)


def total(indices: Iterable[Index]) -> Index:
    """The sum of all."""
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
    """The sum, like terms added up; `low` and `high` are what is known of it besides."""
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
    """The sum with a quotient and a remainder of one dividend made what they are parts of."""
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
    """The greatest divisor of both; 1 where it follows from sizes that are traced."""
    return 1 if is_traced(one) or is_traced(other) else math.gcd(one, other)


def _product(names: list[str], factor: int) -> str:
    joined = " + ".join(names)
    if factor == 1:
        return joined
    return f"({joined}) * {factor % LIMIT}u" if len(names) > 1 else f"{joined} * {factor % LIMIT}u"
