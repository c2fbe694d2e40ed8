"""Open dimensions by name: those of a builder, their bounds, and their sizes in a run."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from webnn_py.core import convert
from webnn_py.core.dimensions import (
    MLDimension,
    is_dimension,
    is_open,
    multiple_of,
    named,
    symbols_of,
)
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.messages import shown, suggestion
from webnn_py.core.polynomials import MAX_DIMENSION, Range, Symbol
from webnn_py.core.shapes import Shape

ANY_SIZE: Range = (1, MAX_DIMENSION)
TYPICAL_BATCH_SIZE = 4
"""Batch size to prepare for when the first run has batch size 1."""
_ANONYMOUS = "?"
_SCOPES = itertools.count(1)


def shape(value: object, what: str) -> Shape:
    """Convert a shape that may hold names of open dimensions, -1, and open dimensions.

    A name has no bounds until a builder binds it; -1 is an open dimension without a name.
    """
    return convert.size_list([_dimension(item, what) for item in convert.items(value, what)], what)


def _dimension(item: object, what: str) -> object:
    """Return the open dimension that a name or -1 stands for, any other item as it is."""
    if isinstance(item, str):
        return named(_name(item, what), *ANY_SIZE)
    if isinstance(item, numbers.Integral) and item == -1:
        return named(_ANONYMOUS, *ANY_SIZE)
    if item is None:
        raise ValidationError(
            f"{what}: got None, expected a size; one that is open has a name, such as 'batch', or"
            " is -1"
        )
    return item


def _name(value: object, what: str) -> str:
    name = convert.string(value, what)
    if not name.isidentifier():
        raise ValidationError(
            f"{what}: got {shown(name)}, expected the name of an open size: letters, digits and _,"
            " such as 'batch'"
        )
    return name


class OpenSizes:
    """Open sizes of one builder.

    Args:
        bounds: By name, the lowest and the highest size (None: no limit), or a fixed size.

    Attributes:
        symbols: The open sizes in the shapes of the builder's inputs, by name.
    """

    def __init__(self, bounds: object = None) -> None:
        by_name = {} if bounds is None else convert.mapping(bounds, "dimensions")
        self._bounds = {_name(n, "dimensions"): _range(n, size) for n, size in by_name.items()}
        self._scope = next(_SCOPES)
        self._used: set[str] = set()
        self._anonymous = 0
        self.symbols: dict[str, Symbol] = {}

    def bind(self, shape: Shape) -> Shape:
        """Return the shape of an input with its names bound to this builder's sizes.

        Raises:
            ValidationError: It has a dimension of another builder.
        """
        if not is_open(shape):
            return shape
        return tuple(self._bound(size) for size in shape)

    def declare(self, name: str, low: int, high: int) -> MLDimension:
        """Declare an open size of later inputs by the name that listings show.

        Raises:
            ValidationError: The name or the bounds are invalid.
        """
        number = name.removeprefix(_ANONYMOUS)
        if number != name and number.isdecimal() and (low, high) == ANY_SIZE:
            made = named(name, *ANY_SIZE, self._scope)
            self._anonymous += 1
        else:
            made = named(_name(name, "dimensions"), *_range(name, (low, high)))
        self.symbols |= symbols_of([made])
        return made

    def check_used(self) -> None:
        """Check that each name with bounds occurs in the shape of an input.

        Raises:
            ValidationError: One does not; the message lists the names that do.
        """
        for name in self._bounds:
            if name not in self._used:
                used = sorted(self._used)
                raise ValidationError(
                    f"dimensions: {shown(name)} stands in the shape of no input, and"
                    f" {', '.join(used) or 'no name'} does{suggestion(name, used)}"
                )

    def check(self, options: Iterable[object]) -> None:
        """Check that open dimensions in options depend only on sizes of this builder.

        Raises:
            ValidationError: One does not.
        """
        for name, symbol in symbols_of(options).items():
            known = self.symbols.get(name)
            if known != symbol:
                has = "has none of this name" if known is None else f"has it in {_shown(known)}"
                raise ValidationError(
                    f"dimension {name} in {_shown(symbol)} is of another builder; this one {has}"
                )

    def _bound(self, size: int) -> int:
        found = multiple_of(size)
        if found is None or found[0].scope or (found[0].low, found[0].high) != ANY_SIZE:
            self.check([size])
            return size
        symbol, factor = found
        if symbol.name == _ANONYMOUS:
            name = f"{_ANONYMOUS}{self._anonymous}"
            made = named(name, *ANY_SIZE, self._scope)
            self._anonymous += 1
        else:
            low, high = self._bounds.get(symbol.name, ANY_SIZE)
            self._used.add(symbol.name)
            if low == high:
                return low * factor
            name, made = symbol.name, named(symbol.name, low, high)
        self.symbols |= symbols_of([made])
        return cast(int, made * factor)


def _shown(symbol: Symbol) -> str:
    return f"{symbol.low}..{symbol.high}"


def _range(name: str, given: object) -> Range:
    what = f"dimensions: {name}"
    if isinstance(given, numbers.Real):
        low = high = convert.unsigned(given, what)
    else:
        ends = convert.items(given, what)
        if len(ends) != 2:
            raise ValidationError(f"{what}: got {shown(given)}, expected (lowest, highest)")
        low = convert.unsigned(ends[0], what)
        high = MAX_DIMENSION if ends[1] is None else convert.unsigned(ends[1], what)
    if not 1 <= low <= high <= MAX_DIMENSION:
        raise ValidationError(
            f"{what}: got {shown(given)}, expected sizes in 1..{MAX_DIMENSION}, the lower one first"
        )
    return low, high


def plain_names(shape: Sequence[object]) -> set[str]:
    """Return the names of sizes of which a dimension in the shape is a multiple."""
    return {found[0].name for size in shape if (found := multiple_of(size)) is not None}


def evaluated(value: Any, sizes: Mapping[str, int]) -> Any:
    """Return an option or shape with its open dimensions evaluated for `sizes`."""
    if isinstance(value, MLDimension):
        return value.evaluate(sizes)
    if not isinstance(value, tuple) or not is_open(value):
        return value
    return tuple(evaluated(item, sizes) for item in value)


def typical_sizes(symbols: Mapping[str, Symbol]) -> dict[str, int]:
    """Return small sizes within the bounds, different from each other and from 1 where possible.

    A size of 1 broadcasts, so it does not represent others.
    """
    return {
        name: max(symbol.low, min(symbol.high, number))
        for number, (name, symbol) in enumerate(symbols.items(), 2)
    }


def likely_sizes(symbols: Mapping[str, Symbol], first: Mapping[str, int]) -> list[dict[str, int]]:
    """Return sizes that later runs probably have, from those of the first run.

    A program for size 1 broadcasts and serves no other size, so a typical batch size is added.
    """
    batched = {
        name: min(TYPICAL_BATCH_SIZE, symbols[name].high) if size == 1 else size
        for name, size in first.items()
    }
    sizes = [dict(first)] if set(first.values()) != {1} else []
    return sizes if batched == first else [*sizes, batched]


def check_name(names: Collection[str], name: object, what: str) -> None:
    """Check that a graph has an open dimension of this name.

    Args:
        names: Names of the graph's open dimensions.
        name: The name from the user.
        what: The title of the option in messages.

    Raises:
        ValidationError: It has none; the message lists those that it has.
    """
    if name not in names:
        text = name if isinstance(name, str) else shown(name)
        raise ValidationError(
            f"{what}: {shown(name)} is no open dimension of the graph, which has"
            f" {', '.join(names) or 'none'}{suggestion(text, names)}"
        )


def check_sizes(symbols: Mapping[str, Symbol], sizes: object) -> dict[str, int]:
    """Return a size for each open dimension, checked against its bounds.

    Args:
        symbols: The open sizes, by name.
        sizes: The mapping from the user.

    Raises:
        ValidationError: One is missing, unknown or out of bounds.
    """
    given = convert.mapping(sizes, "sizes")
    for name in given:
        check_name(symbols, name, "sizes")
    missing = [name for name in symbols if name not in given]
    if missing:
        raise ValidationError(f"sizes: the size of {', '.join(missing)} is not given")
    result = {name: convert.unsigned(given[name], f"sizes: {name}") for name in symbols}
    for name, symbol in symbols.items():
        if not symbol.low <= result[name] <= symbol.high:
            raise ValidationError(f"sizes: {name}: got {result[name]}, expected {_shown(symbol)}")
    return result


def solve(
    inputs: Mapping[str, Sequence[int]],
    given: Mapping[str, Sequence[int]],
    sources: Mapping[str, str] | None = None,
    remedy: Callable[[str], str] = lambda name: "",
) -> dict[str, int]:
    """Return the open sizes that the shapes of a run's inputs imply.

    Args:
        inputs: Declared shape of each input, with open dimensions, by name.
        given: Shape of each array, by name.
        sources: Titles of inputs in messages, where not their names.
        remedy: Returns a hint how to reshape an input, as the end of a message.

    Raises:
        DataError: A shape does not fit: in rank, in a fixed size, outside the bounds, or against
            another input.
    """
    titles = {name: (sources or {}).get(name, f"input {shown(name)}") for name in inputs}
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    pairs: list[tuple[str, str, int, int, int]] = []
    for name, wanted in inputs.items():
        got = given[name]
        title = f"{titles[name]} of shape {list(got)}"
        if len(got) != len(wanted):
            raise DataError(
                f"{title}: expected rank {len(wanted)}, of {list(wanted)}{remedy(name)}"
            )
        for place, (size, number) in enumerate(zip(wanted, got, strict=True)):
            pairs.append((name, title, place, size, number))
            found = multiple_of(size)
            if found is None or found[0].name in sizes:
                continue
            symbol, factor = found
            within = symbol.low <= number // factor <= symbol.high
            if number % factor or not within:
                expected = f"{symbol.low * factor}..{symbol.high * factor}" if not within else ""
                kind = f"a multiple of {factor}" if factor > 1 else ""
                raise DataError(
                    f"{title}: dimension {size} is {number}, expected"
                    f" {' in '.join(filter(None, (kind, expected)))}{remedy(name)}"
                )
            sizes[symbol.name], first[symbol.name] = number // factor, title
    for name, title, place, size, number in pairs:
        expected = evaluated(size, sizes)
        if number != expected:
            called = size if is_dimension(size) else place
            why = " and ".join(
                f"{each} is {sizes[each]} by {first[each]}" for each in sorted(symbols_of([size]))
            )
            raise DataError(
                f"{title}: dimension {called} is {number}, expected {expected}"
                f"{f', as {why}' if why else ''}{remedy(name)}"
            )
    return sizes
