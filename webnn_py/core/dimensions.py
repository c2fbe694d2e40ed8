"""MLDimension: a symbolic size that is bound when a graph runs, with arithmetic and bounds."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from webnn_py.core import polynomials
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Deferred, shown
from webnn_py.core.polynomials import Polynomial, Range, Symbol
from webnn_py.core.undecided_dims import (
    MAX_NAMED_SIZES,
    are_assumed,
    deciding_bounds,
    describe_bounds,
    is_granted,
    note,
    suggest_bounds,
)

EXPONENTS = range(31)  # 2**30 is about the largest dimension


class MLDimension:
    """An open dimension of a shape: an expression of sizes that are bound when the graph runs.

    It calculates as an integer does (`+ - * ** // % divmod`) with integers and others of its graph;
    a result that is one number for all sizes is an int. `<`, `<=`, `>`, `>=`, `min` and `max` are
    decided by the bounds of the sizes. `==` compares expressions: it is true if both have the same
    value for all sizes, so lists and dictionaries can hold dimensions.

    Examples:
        ```python
        from webnn_py import MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx, dimensions={"length": (1, 512)})
        n = b.input("x", "float32", ["length", 8]).shape[0]
        twice = 2 * n
        print(twice.names, twice.bounds)  # ('length',) (2, 1024)
        print(twice.evaluate({"length": 7}))  # 14
        print(n - n, (n * 8) // n)  # 0 8
        ```

    Source: spec/execution.md, "Open dimensions".
    """

    __slots__ = ("_bounds", "_polynomial")
    __array_ufunc__ = None  # makes NumPy's scalars defer to this class

    def __init__(self, polynomial: Polynomial) -> None:
        self._polynomial = polynomial
        self._bounds: Range | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its sizes, in alphabetical order."""
        return tuple(sorted(self._polynomial.symbols))

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest value that its bounds allow."""
        if self._bounds is None:
            self._bounds = polynomials.bounds(self._polynomial)
        return self._bounds

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value for given sizes.

        Args:
            sizes: A number for each of `names`.

        Raises:
            ValidationError: A name is missing, or its value is no number.

        Source: spec/execution.md, "Open dimensions".
        """
        try:
            return self._polynomial.evaluate(sizes)
        except KeyError as error:
            raise ValidationError(
                f"dimension {self}: the size of {error.args[0]} is not given, got {shown(sizes)}"
            ) from None
        except TypeError:
            raise ValidationError(
                f"dimension {self}: got {shown(sizes)}, expected a number by each name"
            ) from None

    def __repr__(self) -> str:
        return str(self._polynomial)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MLDimension):
            return self._polynomial == other._polynomial
        return False if isinstance(other, numbers.Number) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._polynomial)

    def __add__(self, other: Any) -> Any:
        if type(other) is int and other == 0:  # what `sum` begins with
            return self
        return self._combine(other, _sum)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        if type(other) is int and other == 1:  # what `math.prod` begins with
            return self
        return self._combine(other, _product)

    __rmul__ = __mul__

    def __pow__(self, exponent: Any) -> Any:
        if not isinstance(exponent, numbers.Integral) or int(exponent) not in EXPONENTS:
            return NotImplemented
        return math.prod([self] * int(exponent))

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, _difference)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, _difference_from)

    def __neg__(self) -> MLDimension:
        return MLDimension(self._polynomial.scaled(-1))

    def __pos__(self) -> MLDimension:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: int = 0) -> MLDimension:
        return self

    def __abs__(self) -> MLDimension:
        return self if self >= 0 else -self

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __floordiv__(self, other: Any) -> Any:
        return self._combine(other, _floor_divided)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._combine(other, _quotient_of)

    def __mod__(self, other: Any) -> Any:
        return self._combine(other, _remainder)

    def __rmod__(self, other: Any) -> Any:
        return self._combine(other, _remainder_of)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __truediv__(self, other: object) -> Any:
        raise ValidationError(
            f"{_term(self)} / {shown(other)}: dimensions are whole numbers; divide them with //"
            f"{_or_size(self)}"
        )

    def __rtruediv__(self, other: object) -> Any:
        raise ValidationError(
            f"{shown(other)} / {_term(self)}: dimensions are whole numbers; divide them with //"
            f"{_or_size(self)}"
        )

    def __ge__(self, other: Any) -> bool:
        return self._decide(other, ">=", lambda a, b: a - b)

    def __gt__(self, other: Any) -> bool:
        return self._decide(other, ">", lambda a, b: a - b - 1)

    def __le__(self, other: Any) -> bool:
        return self._decide(other, "<=", lambda a, b: b - a)

    def __lt__(self, other: Any) -> bool:
        return self._decide(other, "<", lambda a, b: b - a - 1)

    def __bool__(self) -> bool:
        low, high = self.bounds
        if low > 0 or high < 0:
            return True
        return self > 0 if -low <= high else self < 0  # raises: the comparison is undecided

    def __index__(self) -> int:
        raise ValidationError(
            f"dimension {self} is open: it has no number before the graph runs; take the"
            f" dimension itself where a size is expected{_or_size(self)}"
        )

    __int__ = __index__

    def __reduce__(self) -> tuple[type[MLDimension], tuple[Polynomial]]:
        return MLDimension, (self._polynomial,)

    @property
    def _symbols(self) -> Mapping[str, Symbol]:
        return self._polynomial.symbols

    def _combine(self, other: Any, make: Callable[[Polynomial, Polynomial], Polynomial]) -> Any:
        operand = polynomial_of(other)
        if operand is None:
            return NotImplemented
        _check_together(self, other)
        return _collapsed(make(self._polynomial, operand))

    def _decide(self, other: Any, relation: str, excess: Callable[[Any, Any], Any]) -> bool:
        """Decide a comparison that holds where `excess` is at least 0, for all sizes."""
        if type(other) is int:  # mostly decided without a new polynomial
            ends = [excess(end, other) for end in self.bounds]
            if min(ends) >= 0 or max(ends) < 0:
                return bool(min(ends) >= 0)
        if polynomial_of(other) is None:
            return NotImplemented  # type: ignore[no-any-return]
        over = excess(self, other)
        low, high = span(over)
        if low >= 0 or high < 0:
            return low >= 0
        polynomial = over._polynomial
        if is_granted(">=", polynomial):
            return True
        note(">=", polynomial)
        if are_assumed():
            return True
        raise ValidationError(
            Deferred(_undecided, f"{self} {relation} {other}", polynomial, polynomial)
        )


def _term(dimension: MLDimension) -> str:
    text = str(dimension)
    return f"({text})" if " " in text else text


def _or_size(dimension: MLDimension) -> str:
    """Return the hint to bind the size, for places that need a number."""
    return f", or give the size with dimensions={{{dimension.names[0]!r}: …}}"


def _collapsed(polynomial: Polynomial) -> int | MLDimension:
    constant = polynomial.constant
    return MLDimension(polynomial) if constant is None else constant


def polynomial_of(value: object) -> Polynomial | None:
    """Return an integer or open dimension as a polynomial; None for any other object."""
    if isinstance(value, MLDimension):
        return value._polynomial
    return polynomials.number(int(value)) if isinstance(value, numbers.Integral) else None


def _check_together(a: MLDimension, b: object) -> None:
    if isinstance(b, MLDimension):
        for name, symbol in a._symbols.items():
            other = b._symbols.get(name, symbol)
            if other != symbol:
                raise ValidationError(
                    f"{a} and {b} are dimensions of different builders, each of which has its own"
                    f" {name}: in {symbol.low}..{symbol.high}, and in {other.low}..{other.high}"
                )


# An import calculates the same few sizes for each of its nodes, so results are cached.
_CACHED = functools.lru_cache(maxsize=4096)


@_CACHED
def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return a + b


@_CACHED
def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    return a * b


@_CACHED
def _difference(a: Polynomial, b: Polynomial) -> Polynomial:
    return a + b.scaled(-1)


def _undecided(relation: str, of: Polynomial, excess: Polynomial) -> str:
    return f"whether `{relation}` is not known{describe_bounds(of)}{suggest_bounds(excess)}"


def _difference_from(a: Polynomial, b: Polynomial) -> Polynomial:
    return _difference(b, a)


def _quotient_of(a: Polynomial, b: Polynomial) -> Polynomial:
    return _floor_divided(b, a)


def _remainder_of(a: Polynomial, b: Polynomial) -> Polynomial:
    return _remainder(b, a)


@_CACHED
def _floor_divided(a: Polynomial, b: Polynomial) -> Polynomial:
    if not b.terms:
        raise ZeroDivisionError("integer division or modulo by zero")
    low, high = polynomials.bounds(b)
    if low <= 0 <= high:
        over = b + polynomials.number(-1)
        raise ValidationError(
            Deferred(
                "{}; by it something is divided".format, Deferred(_undecided, f"{b} >= 1", b, over)
            )
        )
    if high < 0:
        return polynomials.floor_divided(a.scaled(-1), b.scaled(-1))
    return polynomials.floor_divided(a, b)


@_CACHED
def _remainder(a: Polynomial, b: Polynomial) -> Polynomial:
    return a + (_floor_divided(a, b) * b).scaled(-1)


def named(name: str, low: int, high: int, scope: int = 0) -> MLDimension:
    """Return an open dimension that is one size."""
    return MLDimension(polynomials.single(Symbol(name, low, high, scope)))


def multiple_of(value: object) -> tuple[Symbol, int] | None:
    """Return the size and the factor if a dimension is a multiple of one size, else None."""
    terms = value._polynomial.terms if isinstance(value, MLDimension) else {}
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    (atom, power), *others = monomial
    is_multiple = isinstance(atom, Symbol) and power == 1 and not others and factor > 0
    return (atom, factor) if is_multiple else None  # type: ignore[return-value]


def symbol_of(value: object) -> Symbol | None:
    """Return the size if a dimension is exactly one size, else None."""
    found = multiple_of(value)
    return found[0] if found is not None and found[1] == 1 else None


def symbols_of(values: Iterable[object]) -> dict[str, Symbol]:
    """Return the sizes in dimensions by name; nested tuples are searched."""
    found: dict[str, Symbol] = {}
    for value in values:
        if isinstance(value, MLDimension):
            found |= value._symbols
        elif isinstance(value, tuple):
            found |= symbols_of(value)
    return found


def is_open(shape: Iterable[object]) -> bool:
    """Whether any dimension of a shape, or of a tuple of shapes, is open."""
    for size in shape:  # a plain loop: every operator call runs this
        if isinstance(size, MLDimension) or (type(size) is tuple and is_open(size)):
            return True
    return False


def is_dimension(value: object) -> TypeGuard[MLDimension]:
    """Whether it is an open dimension."""
    return isinstance(value, MLDimension)


def span(value: int | MLDimension) -> Range:
    """Return the lowest and highest value of an integer or dimension."""
    return value.bounds if isinstance(value, MLDimension) else (value, value)


def least(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the shape with each dimension at its lowest value."""
    return tuple(span(size)[0] for size in shape)


def fixed(value: int, what: str) -> int:
    """Return a number that must not depend on open sizes.

    Raises:
        ValidationError: It is open.
    """
    if isinstance(value, MLDimension):
        raise ValidationError(
            f"{what}: `{value}` is open, expected a number that is known when the graph is built;"
            f" give dimensions={{{value.names[0]!r}: …}} with its size"
        )
    return value


def check_divides(divisor: int, size: int, what: str) -> None:
    """Check that a size is a multiple of a divisor, for all sizes.

    Args:
        divisor: At least 1.
        size: The size.
        what: The error message where a fixed size is no multiple.

    Raises:
        ValidationError: It is no multiple, or this is undecided.
    """
    rest: int | MLDimension = size % divisor
    if span(rest)[0] > 0:
        raise ValidationError(what)
    if isinstance(rest, MLDimension):
        raise ValidationError(
            f"whether `{size} % {divisor} == 0` is not known{describe_bounds(rest._polynomial)};"
            f" make the dimension a multiple (of one of the size n: n * {divisor}), or give its"
            " size in dimensions="
        )


def differ(a: Sequence[object], b: Sequence[object]) -> bool:
    """Whether two shapes differ where their equality is not granted; see `undecided_dims.grant`."""
    if a == b or len(a) != len(b):
        return a != b
    overs: Iterable[Any] = (x - y for x, y in zip(a, b, strict=True) if x != y)  # type: ignore[operator]
    return not all(is_dimension(over) and is_granted("==", over._polynomial) for over in overs)


def undecided(got: object, expected: object) -> str:
    """Explain why two sizes or shapes are not known to be equal, as the end of a message.

    Empty where they differ for all sizes. Otherwise it names the undecided sizes and a remedy.
    """
    pairs = [(got, expected)]
    if isinstance(got, (tuple, list)) and isinstance(expected, (tuple, list)):
        if len(got) != len(expected):
            return ""
        pairs = list(zip(got, expected, strict=True))
    found = ""
    for a, b in pairs:
        if a == b:
            continue
        over: Any = a - b  # type: ignore[operator]
        if _is_never_zero(over):
            return ""
        if not found and differ((a,), (b,)):
            note("==", over._polynomial)
            sizes = describe_bounds(over._polynomial)
            found = f"; whether `{a} == {b}` is not known{sizes}{_equating(a, b, over)}"
    return found


def _is_never_zero(value: int | MLDimension) -> bool:
    low, high = span(value)
    if low > 0 or high < 0 or not isinstance(value, MLDimension):
        return True
    polynomial = value._polynomial
    return polynomial.terms.get((), 0) % polynomial.common != 0


def _equating(a: object, b: object, over: MLDimension) -> str:
    """Return what would make two sizes equal, `over` being their difference, for a message."""
    if symbol_of(a) is not None and symbol_of(b) is not None:
        return "; give both one name"
    found = deciding_bounds(("==", over._polynomial))
    if found is not None:
        name, low, high = found
        return f"; give dimensions={{{name!r}: {low if low == high else (low, high)}}}"
    names = ", ".join(f"{name!r}: …" for name in over.names[:MAX_NAMED_SIZES])
    return f"; give dimensions={{{names}}} with sizes for which it is so, or make one of the other"
