"""Comparison with a tolerance, as the web-platform-tests do it.

ULP counts representable numbers between two values; ATOL is the absolute difference. Elements that
are equal, and pairs of NaN, are at distance 0 in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """The first element that is too far off, and how many there are."""

    index: tuple[int, ...]
    actual: Any
    expected: Any
    distance: float
    count: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.size} elements differ, first at {list(self.index)}:"
            f" got {self.actual!r}, expected {self.expected!r} (distance {self.distance:g})"
        )


def ordered_bits(values: Array) -> Array:
    """Integers whose difference is the ULP distance."""
    if values.dtype == np.float32:
        magnitude = np.abs(values).view(np.uint32).astype(np.int64)
        return np.where(values < 0, -magnitude, magnitude)
    if values.dtype == np.float16:
        # WPT subtracts the raw bits, so that opposite signs are far apart however small the values.
        return np.where(values == 0, np.float16(0), values).view(np.uint16).astype(np.int64)
    # Differences of 64-bit integers can take 65 bits.
    return values.astype(object)


def distances(actual: Array, expected: Array, metric: str) -> Array:
    """How far each element is off."""
    if metric == "ULP":
        distance = np.abs(ordered_bits(actual) - ordered_bits(expected)).astype(np.float64)
    elif metric == "ATOL":
        with np.errstate(invalid="ignore"):
            distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    else:
        raise ValueError(f"unknown metric {metric!r}")
    # A NaN on one side only is never near.
    one_sided: Array = np.isnan(actual) != np.isnan(expected)
    return np.where(one_sided, np.inf, distance)


def first_difference(
    actual: Array, expected: Array, metric: str, tolerance: float
) -> Difference | None:
    """The first element that is further off than the tolerance allows."""
    unequal = actual != expected
    if expected.dtype.kind == "f":
        unequal &= ~(np.isnan(actual) & np.isnan(expected))
    positions = np.flatnonzero(unequal)
    if not positions.size:
        return None
    distance = distances(actual.flat[positions], expected.flat[positions], metric)
    wrong = np.flatnonzero(~(distance <= tolerance))
    if not wrong.size:
        return None
    position = int(positions[wrong[0]])
    index = tuple(int(i) for i in np.unravel_index(position, expected.shape))
    return Difference(
        index,
        actual.flat[position].item(),
        expected.flat[position].item(),
        float(distance[wrong[0]]),
        wrong.size,
        expected.size,
    )
