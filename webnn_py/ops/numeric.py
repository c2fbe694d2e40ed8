"""Elementwise functions that NumPy lacks, for the declarations of operators.

Each function takes and returns arrays of one data type. Floats are computed in float64 where
float32 would lose bits; integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from webnn_py.core.dtypes import DTYPES

Array = np.ndarray[Any, Any]

# Cody's rational functions (see `_erf`): numerator and denominator, highest power first.
ERF_TO_0_46875 = (
    (
        1.857777061846031526730e-1,
        3.161123743870565596947,
        1.138641541510501556495e2,
        3.774852376853020208137e2,
        3.209377589138469472562e3,
    ),
    (
        1.0,
        2.360129095234412093499e1,
        2.440246379344441733056e2,
        1.282616526077372275645e3,
        2.844236833439170622273e3,
    ),
)
ERFC_TO_4 = (
    (
        2.15311535474403846343e-8,
        5.64188496988670089180e-1,
        8.88314979438837594118,
        6.61191906371416294775e1,
        2.98635138197400131132e2,
        8.81952221241769090411e2,
        1.71204761263407058314e3,
        2.05107837782607146532e3,
        1.23033935479799725272e3,
    ),
    (
        1.0,
        1.57449261107098347253e1,
        1.17693950891312499305e2,
        5.37181101862009857509e2,
        1.62138957456669018874e3,
        3.29079923573345962678e3,
        4.36261909014324715820e3,
        3.43936767414372163696e3,
        1.23033935480374942043e3,
    ),
)
ERFC_FROM_4 = (
    (
        1.63153871373020978498e-2,
        3.05326634961232344035e-1,
        3.60344899949804439429e-1,
        1.25781726111229246204e-1,
        1.60837851487422766278e-2,
        6.58749161529837803157e-4,
    ),
    (
        1.0,
        2.56852019228982242072,
        1.87295284992346725209,
        5.27905102951428412248e-1,
        6.05183413124413191178e-2,
        2.33520497626869185443e-3,
    ),
)


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Make a float function compute in float64 and round once to the operands' type."""

    def call(*arrays: Array, **options: Any) -> Array:
        dtype = arrays[0].dtype
        if dtype.kind != "f":
            return np.asarray(function(*arrays, **options), dtype=dtype)
        result = function(*(array.astype(np.float64) for array in arrays), **options)
        return np.asarray(result).astype(dtype)

    return call


def flag(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a predicate so that it returns uint8."""
    return lambda *arrays: np.asarray(function(*arrays)).astype(np.uint8)


def divide(a: Array, b: Array) -> Array:
    """Divide; integers truncate towards zero, and x / 0 is x, as in WGSL."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = np.floor_divide(a, safe)
    if a.dtype.kind == "i":
        quotient = quotient + ((np.remainder(a, safe) != 0) & ((a < 0) != (safe < 0)))
    return quotient.astype(a.dtype)


def power(a: Array, b: Array) -> Array:
    """Raise to a power; integers wrap, and negative exponents truncate towards zero."""
    if a.dtype.kind == "f":
        return np.power(a, b)
    if a.dtype.kind == "u":
        return np.power(a, b)
    positive = np.power(a, np.maximum(b, 0))
    odd = (b & 1) == 1
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, inverse, positive).astype(a.dtype)


def prelu(input: Array, slope: Array) -> Array:
    """Return x where x >= 0, else slope * x."""
    return np.where(input < 0, slope * input, input)


def erf(x: Array) -> Array:
    """Compute the error function."""
    small, rest = _erf(x)
    result = np.where(np.abs(x) <= 0.46875, small, np.sign(x) * (1.0 - rest))
    return np.where(np.isnan(x), x, result)


def gelu(x: Array) -> Array:
    """Compute 0.5 * x * (1 + erf(x / sqrt(2))); use erfc where the sum would cancel."""
    scaled = x * np.sqrt(0.5)
    factor = np.where(scaled < -0.46875, _erf(scaled)[1], 1.0 + erf(scaled))
    return np.asarray(0.5 * x * factor)


def _erf(x: Array) -> tuple[Array, Array]:
    """Return erf(x), valid where |x| <= 0.46875, and erfc(|x|), valid elsewhere.

    Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of
    Computation 23 (1969). The relative error is below 1e-15.
    """
    y = np.abs(x)
    small = x * _ratio(np.minimum(y, 0.5) ** 2, ERF_TO_0_46875)
    middle_y = np.clip(y, 0.46875, 4.0)
    middle = np.exp(-middle_y * middle_y) * _ratio(middle_y, ERFC_TO_4)
    large_y = np.clip(y, 4.0, 30.0)
    inverse = 1.0 / (large_y * large_y)
    tail = inverse * _ratio(inverse, ERFC_FROM_4)
    large = np.exp(-large_y * large_y) / large_y * (1.0 / np.sqrt(np.pi) - tail)
    return small, np.where(y <= 4.0, middle, large)


def _ratio(x: Array, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    numerator, denominator = polynomials
    return np.polyval(numerator, x) / np.polyval(denominator, x)


def cast(input: Array, data_type: str) -> Array:
    """Convert to a data type; floats outside an integer's range saturate, NaN becomes 0."""
    info = DTYPES[data_type]
    if input.dtype.kind != "f" or info.kind == "f":
        with np.errstate(over="ignore"):
            return input.astype(info.numpy)
    exact = np.trunc(np.nan_to_num(input.astype(np.float64), posinf=np.inf, neginf=-np.inf))
    above, below = exact >= float(info.max), exact <= float(info.min)
    inside = np.where(above | below, 0.0, exact).astype(info.numpy)
    return np.where(
        above, info.numpy.type(info.max), np.where(below, info.numpy.type(info.min), inside)
    )
