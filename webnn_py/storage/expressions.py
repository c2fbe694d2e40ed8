"""Converts open dimensions to JSON and back: lists of products, each a number and its factors.

`n*64 + (m // 2) - 1` is `[[64, "n"], [1, {"numerator": [[1, "m"]], "divisor": [[2]]}], [-1]]`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, cast

from webnn_py.core import polynomials
from webnn_py.core.dimensions import MLDimension, polynomial_of
from webnn_py.core.polynomials import (
    MAX_COEFFICIENT,
    MAX_DEPTH,
    MAX_PRODUCTS,
    Atom,
    Polynomial,
    Quotient,
    Symbol,
    TooLargeError,
    single,
)
from webnn_py.storage.document import Field

MAX_FACTORS = MAX_PRODUCTS.bit_length() + 1
"""Most members of a product; more factors could exceed MAX_PRODUCTS when bounds multiply out."""


def expression_to_json(dimension: MLDimension) -> list[Any]:
    """Return an open dimension as JSON values."""
    return _sum(cast(Polynomial, polynomial_of(dimension)))


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
    """Read an open dimension from JSON.

    Args:
        field: The JSON value of `expression_to_json`.
        sizes: The open sizes by name.

    Raises:
        DataError: The value is not an expression in its canonical form.
    """
    try:
        polynomial = _read_sum(field, sizes, MAX_DEPTH)
    except TooLargeError:
        raise field.error("too large an expression to calculate with") from None
    if polynomial.constant is not None:
        raise field.unlike("an open dimension, not a number")
    return MLDimension(polynomial)


def _read_sum(field: Field, sizes: Mapping[str, Symbol], depth: int) -> Polynomial:
    terms: dict[polynomials.Monomial, int] = {}
    for term in field.items(MAX_PRODUCTS):
        number, *factors = term.items(MAX_FACTORS) or [term]
        atoms = [single(_read_factor(factor, sizes, depth)) for factor in factors]
        (monomial,) = functools.reduce(operator.mul, atoms, polynomials.number(1)).terms
        if monomial in terms or number.integer(-MAX_COEFFICIENT, MAX_COEFFICIENT) == 0:
            raise term.unlike("another product than those before, and not 0")
        terms[monomial] = number.value
    return Polynomial(terms)


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
