"""Numbers that follow from sizes: compiling calculates with them, and serves other sizes, too.

A traced number remembers how it was calculated from the sizes of one run. What is decided by it, a
comparison, a divisor that leaves no rest, becomes a condition. For sizes that meet all conditions,
compiling would do the same again, but for its numbers; those are calculated in their place. What is
only estimated by sizes, such as which tiles are fast, is as right for others, if not as good.

In code a traced number stands as a mark, which is replaced by what an invocation reads.
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

ANY_MARK = "«[0-9]+»"
"""Stands in code for a traced number, by that of its calculation."""

MARK = re.compile("«([0-9]+)»")

_FUNCTIONS = ("ceil", "floor", "inf", "nan")
"""Of `math`, in calculations."""

MAX_FUNCTION_LINES = 100
"""Of a generated function: Python compiles it in one go, for which an event loop may wait."""

_MARKS = itertools.count()
_active = threading.local()

NEAR = 2
"""Sizes larger or smaller by up to this factor have the same estimates."""

FAR = 64
"""Sizes larger by up to this factor may do with them, and all smaller ones: they take no longer."""

T = TypeVar("T")
Numbers = Mapping[int, Any]
"""The traced numbers for some sizes, by mark."""
Calculation = Callable[[Mapping[str, int]], tuple[Numbers, int] | None]
"""Of numbers for other sizes, and how many estimates are not of these."""


class Trace:
    """Calculations from sizes, and the conditions under which they are all that there are.

    Args:
        sizes: By name.
        for_any: What is right for any sizes is taken for these, too, where there is something
            better for some.

    Attributes:
        sizes: The same, traced.
        for_any: As given.
        known: What was calculated and compared.
    """

    def __init__(self, sizes: Mapping[str, int], for_any: bool = False) -> None:
        self.for_any = for_any
        self._lines: list[tuple[int, str]] = []
        self._made: dict[str, Traced] = {}
        self._by_mark: dict[int, Traced] = {}
        self._asked: set[tuple[str, bool]] = set()
        self.known: dict[Hashable, Any] = {}
        self._closed = False
        self.sizes = {
            name: self.make(f"sizes[{name!r}]", number, [name]) for name, number in sizes.items()
        }

    def __enter__(self) -> Trace:
        """The trace that marks in code are of, on this thread."""
        _active.trace = self
        return self

    def __exit__(self, *exception: object) -> None:
        _active.trace = None
        self._closed = True
        self._made, self._by_mark, self.known = {}, {}, {}
        self._asked = set()

    def make(self, calculation: str, number: Any, names: Iterable[str], divisor: int = 1) -> Traced:
        """The number that a calculation gives; the same object each time.

        Args:
            calculation: Its text.
            number: What it gives for the sizes that are traced.
            names: Of the sizes that it follows from.
            divisor: That it has for all sizes.
        """
        made = self._made.get(calculation)
        if made is None:
            made = Traced(self, next(_MARKS), number, frozenset(names), divisor)
            self._made[calculation] = made
            self._by_mark[made.mark] = made
            self._lines.append((made.mark, f"n[{made.mark}] = {calculation}"))
        return made

    def ask(self, condition: str, needed: bool = True) -> None:
        """Other sizes have to meet a condition, which these do; else only estimates are theirs."""
        if (condition, needed) not in self._asked:
            assert not self._closed, "a traced number is asked for behind its trace"
            self._asked.add((condition, needed))
            otherwise = "return None" if needed else "far += 1"
            self._lines.append((-1, f"if not ({condition}): {otherwise}"))

    def at(self, mark: str) -> Traced:
        """The number of a mark."""
        return self._by_mark[int(mark)]

    def calculate(self, marks: Iterable[int]) -> Calculation:
        """What calculates numbers for other sizes; None for those that do not meet all conditions.

        Called once, behind the trace, which forgets them.

        Args:
            marks: Of the numbers.
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
                except ZeroDivisionError:  # which compiling for these sizes does not come to
                    return None
                if found is None:
                    return None
                far += found
            return numbers, far

        return calculated


def _function(lines: Sequence[str]) -> Callable[[Mapping[str, int], dict[int, Any]], int | None]:
    """What makes some calculations, and says how many of the conditions between them are not met.

    None where one of those is not that has to be.
    """
    source = ["def calculate(sizes, n):", "far = 0", *lines, "return far"]
    scope: dict[str, Any] = {name: getattr(math, name) for name in _FUNCTIONS}
    exec("\n    ".join(source), scope)  # of numbers and operators alone
    made: Callable[[Mapping[str, int], dict[int, Any]], int | None] = scope["calculate"]
    return made


def _text(number: Any) -> str:
    if isinstance(number, Traced):
        return f"n[{number.mark}]"
    return repr(int(number) if isinstance(number, int) else float(number))  # NumPy's, too


def is_traced(number: object) -> TypeGuard[Traced]:
    """Whether a number follows from sizes that are traced."""
    return isinstance(number, Traced)


def with_sampled_marks(text: str) -> str:
    """A text with the numbers of its marks as `sampled` gives them."""
    return MARK.sub(lambda mark: str(_active.trace.at(mark[1]).sampled()), text)


def number_in(text: str) -> int:
    """A number that stands in code, or that of a mark."""
    found = MARK.fullmatch(text)
    return int(text) if found is None else _active.trace.at(found[1])


def _key(sign: str, one: Traced, other: Any) -> Hashable:
    """What is calculated or compared, told apart by type: 2 is equal to 2.0."""
    kind = type(other)
    return sign, one.mark, kind, other.mark if kind is Traced else other


Divisors = Callable[[Any, Any], int]


def _calculation(
    sign: str, function: Callable[[Any, Any], Any], divisor: Divisors = lambda one, other: 1
) -> tuple[Any, Any]:
    """A method that calculates, and the one for a number that stands behind the other.

    Args:
        sign: Of the operator.
        function: The same.
        divisor: Of results by those of operands, whole numbers all.
    """
    ways = (_operator(sign, function, divisor, turned) for turned in (False, True))
    return next(ways), next(ways)


def _operator(
    sign: str, function: Callable[[Any, Any], Any], divisor: Divisors, turned: bool
) -> Any:
    name = f"{sign} turned" if turned else sign

    def calculated(self: Traced, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        key, known = _key(name, self, other), self.trace.known
        if key not in known:
            one, two = (other, self) if turned else (self, other)
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
    """A number, or what a traced one is for the sizes that are traced: for what is right anyhow."""
    return value.number if isinstance(value, Traced) else value


def _divisor(value: Any) -> int:
    return value.divisor if isinstance(value, Traced) else abs(int(value))


class Traced:
    """A number of a trace. Where only a number as such will do, it is a condition that it is that.

    Attributes:
        trace: Whose.
        mark: Which one.
        number: What it is for the sizes that are traced.
        names: Of the sizes that it follows from.
        divisor: That it has for all sizes.
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
    _plus, _plus_turned = _calculation("+", operator.add, math.gcd)
    _times, _times_turned = _calculation("*", operator.mul, operator.mul)
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
        return self if _is_number(other, 0) else self._plus_turned(other)

    def __mul__(self, other: Any) -> Any:
        if _is_number(other, 0):
            return 0
        return self if _is_number(other, 1) else self._times(other)

    def __rmul__(self, other: Any) -> Any:
        if _is_number(other, 0):
            return 0
        return self if _is_number(other, 1) else self._times_turned(other)

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
        """The number, which it has to be for other sizes, too."""
        self.trace.ask(f"n[{self.mark}] == {self.number!r}")
        return self.number

    def highest(self) -> int:
        """The next power of two, which other sizes do not exceed."""
        most: int = 1 << max(0, math.ceil(self.number) - 1).bit_length()
        self.trace.ask(f"n[{self.mark}] <= {most}")
        return most

    def sampled(self) -> Any:
        """The number, for other sizes if they are near and it is not far off; others may do."""
        key, known = ("sampled", self.mark), self.trace.known
        if key not in known:
            known[key] = self.number
            for name in self.names:
                size = self.trace.sizes[name]
                self.trace.ask(f"n[{size.mark}] <= {FAR * size.number}")
                size.estimate(NEAR)
            self.estimate(NEAR * NEAR)
        return known[key]

    def estimate(self, factor: int) -> None:
        """Have it stand for what is larger or smaller by a factor at most."""
        ends = self.number // factor, self.number * factor
        self.trace.ask(f"{min(ends)} <= n[{self.mark}] <= {max(factor, *ends)}", needed=False)

    def may_leave_remainder(self, divisor: int) -> bool:
        """Whether it does for some sizes."""
        return bool(self.divisor % divisor)

    __index__ = exactly

    def __int__(self) -> int:
        return int(self.exactly())

    def __float__(self) -> float:
        return float(self.exactly())

    def __format__(self, form: str) -> str:
        return format(self.exactly(), form) if form else str(self)

    def __str__(self) -> str:
        return f"«{self.mark}»"

    __repr__ = __str__


_NUMBERS = (Traced, int, float)


def _is_number(value: Any, number: int) -> bool:
    return type(value) is int and value == number


def marks_in(values: Sequence[Any]) -> Iterable[int]:
    """The marks of traced numbers among values, lists of values, and so on."""
    for value in values:
        if isinstance(value, Traced):
            yield value.mark
        elif isinstance(value, tuple):
            yield from marks_in(value)


def calculated(value: Any, numbers: Numbers) -> Any:
    """A value, or a list of values, its traced numbers being those for some sizes."""
    if isinstance(value, Traced):
        return numbers[value.mark]
    return tuple(calculated(item, numbers) for item in value) if type(value) is tuple else value


def calculation(values: Sequence[Any]) -> Callable[[Numbers], list[Any]]:
    """What gives `calculated` of each value, for one set of sizes after the other."""
    traced = [(place, value.mark) for place, value in enumerate(values) if is_traced(value)]

    def calculate(numbers: Numbers) -> list[Any]:
        made = list(values)
        for place, mark in traced:
            made[place] = numbers[mark]
        return made

    return calculate
