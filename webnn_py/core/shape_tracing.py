"""Tracing of numbers that follow from sizes, so that one compilation serves many sizes.

A traced number records how it was calculated from the sizes of one run. A decision that depends on
it, such as a comparison, becomes a condition. For other sizes that meet all conditions, compiling
would take the same decisions; only the numbers differ, and these are recalculated. Estimates, such
as which tiles are fast, stay valid for other sizes, if less accurate.

In code a traced number is a mark, which is replaced by an expression that the invocation reads.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from webnn_py.core.gil_yield import checkpoints

MARK = re.compile("«([0-9]+)»")
"""Pattern of a mark: the number of a calculation in guillemets."""

_FUNCTIONS = ("ceil", "floor", "inf", "nan")
"""Names of `math` that calculations use."""

MAX_FUNCTION_LINES = 100
"""Longest generated function: compiling it holds the GIL, for which an event loop may wait."""

_MARKS = itertools.count()
_active = threading.local()

NEAR_FACTOR = 2
"""Sizes up to this factor larger or smaller share estimates."""

FAR_FACTOR = 64
"""Largest factor by which a size may exceed the traced one and still reuse the code and its
estimates; smaller sizes always may.
"""

T = TypeVar("T")
Numbers = Mapping[int, Any]
"""Traced numbers for one set of sizes, by mark."""
Calculation = Callable[[Mapping[str, int]], tuple[Numbers, int] | None]
"""Calculates numbers for sizes and counts the estimates that do not fit them; None if unfit."""


class Trace:
    """Calculations from sizes, with the conditions under which they hold for other sizes.

    Args:
        sizes: Sizes by name.
        for_any: Take the general code even where better code exists for these sizes.

    Attributes:
        sizes: The sizes as traced numbers.
        for_any: As the argument.
        known: Results of calculations and comparisons.
    """

    def __init__(self, sizes: Mapping[str, int], for_any: bool = False) -> None:
        self.for_any = for_any
        self._lines: list[tuple[int, str]] = []
        self._traced: dict[str, Traced] = {}
        self._by_mark: dict[int, Traced] = {}
        self._asked: set[tuple[str, bool]] = set()
        self.known: dict[Hashable, Any] = {}
        self._closed = False
        self.sizes = {
            name: self.make(f"sizes[{name!r}]", number, [name]) for name, number in sizes.items()
        }

    def __enter__(self) -> Trace:
        """Make this the trace whose marks code on this thread refers to."""
        _active.trace = self
        return self

    def __exit__(self, *exception: object) -> None:
        _active.trace = None
        self._closed = True
        self._traced, self._by_mark, self.known = {}, {}, {}
        self._asked = set()

    def make(self, calculation: str, number: Any, names: Iterable[str], divisor: int = 1) -> Traced:
        """Return the traced number of a calculation; the same object each time.

        Args:
            calculation: Its Python expression.
            number: Its value for the traced sizes.
            names: Names of the sizes that it depends on.
            divisor: A divisor that it has for all sizes.
        """
        traced = self._traced.get(calculation)
        if traced is None:
            traced = Traced(self, next(_MARKS), number, frozenset(names), divisor)
            self._traced[calculation] = traced
            self._by_mark[traced.mark] = traced
            self._lines.append((traced.mark, f"n[{traced.mark}] = {calculation}"))
        return traced

    def ask(self, condition: str, needed: bool = True) -> None:
        """Add a condition for other sizes: needed for the decisions, or for the estimates only."""
        if (condition, needed) not in self._asked:
            assert not self._closed, "a traced number is used after its trace ended"
            self._asked.add((condition, needed))
            otherwise = "return None" if needed else "far += 1"
            self._lines.append((-1, f"if not ({condition}): {otherwise}"))

    def at(self, mark: int) -> Traced:
        """Return the traced number of a mark."""
        return self._by_mark[mark]

    def calculate(self, marks: Iterable[int]) -> Calculation:
        """Return the function that calculates numbers for other sizes, or None for unfit sizes.

        Call it once, after the trace has ended; it consumes the recorded calculations.

        Args:
            marks: Marks of the numbers.
        """
        needed, lines = set(marks), []
        while self._lines:
            mark, line = self._lines.pop()
            if mark < 0 or mark in needed:
                lines.append(line)
                needed.update(map(int, re.findall(r"\bn\[(\d+)\]", line)))
        lines.reverse()
        starts = range(0, len(lines), MAX_FUNCTION_LINES)
        parts = [
            _function(lines[start : start + MAX_FUNCTION_LINES]) for start in checkpoints(starts)
        ]

        def calculated(sizes: Mapping[str, int]) -> tuple[Numbers, int] | None:
            numbers: dict[int, Any] = {}
            far = 0
            for part in parts:
                try:
                    found = part(sizes, numbers)
                except ZeroDivisionError:  # a calculation that other decisions would skip
                    return None
                if found is None:
                    return None
                far += found
            return numbers, far

        return calculated


def _function(lines: Sequence[str]) -> Callable[[Mapping[str, int], dict[int, Any]], int | None]:
    """Compile calculations into a function that counts unmet estimate conditions.

    It returns None where a needed condition is not met.
    """
    source = ["def calculate(sizes, n):", "far = 0", *lines, "return far"]
    scope: dict[str, Any] = {name: getattr(math, name) for name in _FUNCTIONS}
    exec("\n    ".join(source), scope)  # the source holds only numbers and operators
    made: Callable[[Mapping[str, int], dict[int, Any]], int | None] = scope["calculate"]
    return made


def _text(number: Any) -> str:
    if isinstance(number, Traced):
        return f"n[{number.mark}]"
    return repr(int(number) if isinstance(number, int) else float(number))  # also for NumPy


def is_traced(number: object) -> TypeGuard[Traced]:
    """Whether a number is traced."""
    return isinstance(number, Traced)


def with_sampled_marks(text: str) -> str:
    """Replace each mark in a text by its number as `sampled` returns it."""
    return MARK.sub(lambda mark: str(_active.trace.at(int(mark[1])).sampled()), text)


def has_mark(text: str) -> bool:
    """Whether a text contains a mark."""
    return MARK.search(text) is not None


def mark_in(text: str) -> int | None:
    """Return the mark that a text is, or None."""
    found = MARK.fullmatch(text)
    return None if found is None else int(found[1])


def number_in(text: str) -> int:
    """Return the number or the traced number that a text stands for."""
    mark = mark_in(text)
    return int(text) if mark is None else _active.trace.at(mark)


def _key(sign: str, one: Traced, other: Any) -> Hashable:
    """Return the cache key of a calculation or comparison; it contains the type, as 2 == 2.0."""
    kind = type(other)
    return sign, one.mark, kind, other.mark if kind is Traced else other


Divisors = Callable[[Any, Any], int]


def _calculation(
    sign: str, function: Callable[[Any, Any], Any], divisor: Divisors = lambda one, other: 1
) -> tuple[Any, Any]:
    """Return the methods for an operator and for its reflected form.

    Args:
        sign: The operator's text.
        function: The operator's function.
        divisor: Returns a divisor of the result from those of the operands.
    """
    ways = (_operator(sign, function, divisor, reflected) for reflected in (False, True))
    return next(ways), next(ways)


def _operator(
    sign: str, function: Callable[[Any, Any], Any], divisor: Divisors, reflected: bool
) -> Any:
    name = f"{sign} reflected" if reflected else sign

    def calculated(self: Traced, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        key, known = _key(name, self, other), self.trace.known
        if key not in known:
            one, two = (other, self) if reflected else (self, other)
            text = f"{_text(one)} {sign} {_text(two)}"
            made = function(traced_value(one), traced_value(two))
            names = self.names | other.names if isinstance(other, Traced) else self.names
            always = divisor(_divisor(one), _divisor(two)) if isinstance(made, int) else 1
            known[key] = self.trace.make(text, made, names, always)
        return known[key]

    return calculated


def _comparison(sign: str, function: Callable[[Any, Any], bool]) -> Any:
    def compared(self: Traced, other: Any) -> Any:
        if self is other:
            return function(0, 0)
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        key, known = _key(sign, self, other), self.trace.known
        if key not in known:
            holds = function(self.number, traced_value(other))
            self.trace.ask(f"({_text(self)} {sign} {_text(other)}) is {holds}")
            known[key] = holds
        return known[key]

    return compared


def traced_value(value: Any) -> Any:
    """Return a number as it is for the traced sizes, for uses that are right for any value."""
    return value.number if isinstance(value, Traced) else value


def _divisor(value: Any) -> int:
    return value.divisor if isinstance(value, Traced) else abs(int(value))


class Traced:
    """Number of a trace.

    Converting it to a plain number adds the condition that other sizes give the same number.

    Attributes:
        trace: The trace.
        mark: The number of its calculation.
        number: Its value for the traced sizes.
        names: Names of the sizes that it depends on.
        divisor: A divisor that it has for all sizes.
    """

    __slots__ = ("divisor", "mark", "names", "number", "trace")

    def __init__(
        self, trace: Trace, mark: int, number: Any, names: frozenset[str], divisor: int
    ) -> None:
        self.trace, self.mark, self.number = trace, mark, number
        self.names, self.divisor = names, divisor

    __sub__, __rsub__ = _calculation("-", operator.sub, math.gcd)
    __floordiv__, __rfloordiv__ = _calculation("//", operator.floordiv)
    _remainder, __rmod__ = _calculation("%", operator.mod, math.gcd)
    __truediv__, __rtruediv__ = _calculation("/", operator.truediv)
    _plus, _plus_reflected = _calculation("+", operator.add, math.gcd)
    _times, _times_reflected = _calculation("*", operator.mul, operator.mul)
    __lt__ = _comparison("<", operator.lt)
    __le__ = _comparison("<=", operator.le)
    __gt__ = _comparison(">", operator.gt)
    __ge__ = _comparison(">=", operator.ge)
    __eq__ = _comparison("==", operator.eq)
    __ne__ = _comparison("!=", operator.ne)

    def __hash__(self) -> int:
        return hash((Traced, self.mark))

    def __add__(self, other: Any) -> Any:
        return self if _is_number(other, 0) else self._plus(other)

    def __radd__(self, other: Any) -> Any:
        return self if _is_number(other, 0) else self._plus_reflected(other)

    def __mul__(self, other: Any) -> Any:
        if _is_number(other, 0):
            return 0
        return self if _is_number(other, 1) else self._times(other)

    def __rmul__(self, other: Any) -> Any:
        if _is_number(other, 0):
            return 0
        return self if _is_number(other, 1) else self._times_reflected(other)

    def __mod__(self, other: Any) -> Any:
        if type(other) is int and other and self.divisor % other == 0:
            return 0
        return self._remainder(other)

    def __pow__(self, exponent: int) -> Any:
        return math.prod([self] * exponent)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __neg__(self) -> Any:
        return self._one(operator.neg, "-n[{}]", self.divisor)

    def __abs__(self) -> Any:
        return self._one(abs, "abs(n[{}])", self.divisor)

    def __ceil__(self) -> Any:
        return self._one(math.ceil, "ceil(n[{}])")

    def __floor__(self) -> Any:
        return self._one(math.floor, "floor(n[{}])")

    def _one(self, function: Callable[[Any], Any], text: str, divisor: int = 1) -> Any:
        return self.trace.make(text.format(self.mark), function(self.number), self.names, divisor)

    def __bool__(self) -> bool:
        self.trace.ask(f"bool(n[{self.mark}]) is {bool(self.number)}")
        return bool(self.number)

    def exactly(self) -> Any:
        """Return the number and require it to be the same for other sizes."""
        self.trace.ask(f"n[{self.mark}] == {self.number!r}")
        return self.number

    def highest(self) -> int:
        """Return the next power of two and require other sizes not to exceed it."""
        limit: int = 1 << max(0, math.ceil(self.number) - 1).bit_length()
        self.trace.ask(f"n[{self.mark}] <= {limit}")
        return limit

    def sampled(self) -> Any:
        """Return the number for an estimate, which nearby sizes share."""
        key, known = ("sampled", self.mark), self.trace.known
        if key not in known:
            known[key] = self.number
            for name in self.names:
                size = self.trace.sizes[name]
                self.trace.ask(f"n[{size.mark}] <= {FAR_FACTOR * size.number}")
                size.estimate(NEAR_FACTOR)
            self.estimate(NEAR_FACTOR**2)
        return known[key]

    def estimate(self, factor: int) -> None:
        """Let the number stand for values up to a factor larger or smaller, in an estimate."""
        ends = self.number // factor, self.number * factor
        self.trace.ask(f"{min(ends)} <= n[{self.mark}] <= {max(factor, *ends)}", needed=False)

    def may_leave_remainder(self, divisor: int) -> bool:
        """Whether division by `divisor` leaves a remainder for some sizes."""
        return bool(self.divisor % divisor)

    __index__ = exactly

    def __int__(self) -> int:
        return int(self.exactly())

    def __float__(self) -> float:
        return float(self.exactly())

    def __format__(self, form: str) -> str:
        return format(self.exactly(), form)

    def __str__(self) -> str:
        return f"«{self.mark}»"

    __repr__ = __str__


_NUMBERS = (Traced, int, float)


def _is_number(value: Any, number: int) -> bool:
    return type(value) is int and value == number


def marks_in(values: Sequence[Any]) -> Iterable[int]:
    """Yield the marks of traced numbers in values and nested tuples."""
    for value in values:
        if isinstance(value, Traced):
            yield value.mark
        elif isinstance(value, tuple):
            yield from marks_in(value)


def calculated(value: Any, numbers: Numbers) -> Any:
    """Return a value or tuple with each traced number replaced by its number for some sizes."""
    if isinstance(value, Traced):
        return numbers[value.mark]
    return tuple(calculated(item, numbers) for item in value) if type(value) is tuple else value


def calculation(values: Sequence[Any]) -> Callable[[Numbers], list[Any]]:
    """Return a function that does as `calculated` for a list of values, for many size sets."""
    traced = [(place, value.mark) for place, value in enumerate(values) if is_traced(value)]

    def calculate(numbers: Numbers) -> list[Any]:
        made = list(values)
        for place, mark in traced:
            made[place] = numbers[mark]
        return made

    return calculate
