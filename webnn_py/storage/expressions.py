"""Open dimensions as JSON: sums of products, each a number and what it is multiplied with.

`n*64 + (m // 2) - 1` is `[[64, "n"], [1, {"numerator": [[1, "m"]], "divisor": [[2]]}], [-1]]`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from typing import Any, cast

from webnn_py.core import polynomials
from webnn_py.core.dimensions import MLDimension, polynomial_of
from webnn_py.core.errors import NotSupportedError
from webnn_py.core.polynomials import Atom, Polynomial, Quotient, Symbol, single
from webnn_py.storage.document import Field

MOST_PRODUCTS = 1024
"""Products at most, if each size were a sum of two: what bounds take to be worked out."""
MOST_FACTORS = 12
"""Members of a product; more than two to the power of them is too long in any case."""
MOST_DEPTH = 8
"""Quotients in quotients."""
_LOW, _HIGH = -(2**63), 2**63 - 1


def expression_to_json(dimension: MLDimension) -> list[Any]:
    """An open dimension as JSON.

    Raises:
        NotSupportedError: It is too long for a file.
    """
    polynomial = cast(Polynomial, polynomial_of(dimension))
    if _is_too_long(polynomial):
        raise NotSupportedError(
            f"dimension {dimension} is too long an expression for a file; name the sizes that it"
            " is made of, as dimensions of inputs"
        )
    return _sum(polynomial)


def _sum(polynomial: Polynomial) -> list[Any]:
    return [
        [factor, *(_factor(atom) for atom, power in monomial for _ in range(power))]
        for monomial, factor in polynomial.ordered()
    ]


def _factor(atom: Atom) -> str | dict[str, Any]:
    if isinstance(atom, Symbol):
        return atom.name
    return {"numerator": _sum(atom.numerator), "divisor": _sum(atom.divisor)}


def expression_from_json(field: Field, sizes: Mapping[str, Symbol]) -> MLDimension:
    """An open dimension from JSON.

    Args:
        field: What `expression_to_json` made.
        sizes: The open sizes, by name.

    Raises:
        DataError: It is no such thing: another form than that which calculating gives it.
    """
    polynomial = _read_sum(field, sizes, MOST_DEPTH)
    if polynomial.constant is not None:
        raise field.unlike("an open dimension, not a number")
    return MLDimension(polynomial)


def _read_sum(field: Field, sizes: Mapping[str, Symbol], depth: int) -> Polynomial:
    terms: dict[polynomials.Monomial, int] = {}
    for term in field.items(MOST_PRODUCTS):
        number, *factors = term.items(MOST_FACTORS) or [term]
        atoms = [single(_read_factor(factor, sizes, depth)) for factor in factors]
        (monomial,) = functools.reduce(operator.mul, atoms, polynomials.number(1)).terms
        if monomial in terms or number.integer(_LOW, _HIGH) == 0:
            raise term.unlike("another product than those before, and not 0")
        terms[monomial] = number.value
    polynomial = Polynomial(terms)
    if _is_too_long(polynomial):
        raise field.error(f"an expression of more than {MOST_PRODUCTS} products")
    return polynomial


def _read_factor(field: Field, sizes: Mapping[str, Symbol], depth: int) -> Atom:
    if isinstance(field.value, str):
        if field.value not in sizes:
            raise field.unlike(f"the name of an open size, of which there are {list(sizes)}")
        return sizes[field.value]
    if not depth:
        raise field.error("quotients are nested too deeply")
    parts = field.members("numerator", "divisor")
    numerator, divisor = (_read_sum(parts[n], sizes, depth - 1) for n in ("numerator", "divisor"))
    quotient = Quotient(numerator, divisor)
    low, _ = polynomials.bounds(divisor)
    if low < 1 or polynomials.floor_divided(numerator, divisor) != single(quotient):
        raise field.error(f"{quotient} is not how a quotient by a positive divisor is written")
    return quotient


def _is_too_long(polynomial: Polynomial) -> bool:
    factors = polynomial.terms.values()
    inside = all(_LOW <= factor <= _HIGH for factor in factors)
    return not inside or _products(polynomial) > MOST_PRODUCTS


def _products(polynomial: Polynomial) -> int:
    """How many products there are if each size is written as its lowest value and a distance."""
    return sum(
        math.prod(min(_products_of(atom), MOST_PRODUCTS) ** min(power, 16) for atom, power in m)
        for m in polynomial.terms
    )


def _products_of(atom: Atom) -> int:
    if isinstance(atom, Symbol):
        return 2
    return 1 + _products(atom.numerator) + _products(atom.divisor)
