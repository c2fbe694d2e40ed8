"""Runs of many dispatches in pieces, so that the device runs one while the next is recorded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

FIRST_PIECE = 8
"""Dispatches of the first piece, which are recorded in the time that a submission takes."""
STEP = 8
"""Dispatches that are recorded between two looks whether the run before is done."""
LARGE_PIECE = 64
"""Dispatches from which a submission matters little."""


class Encodable(Protocol):
    """What is recorded into a compute pass."""

    def encode(self, compute: Any) -> None:
        """Record into an open compute pass."""
        ...


def largest_piece(dispatches: int) -> int:
    """How many of so many dispatches are submitted at once at most."""
    return max(LARGE_PIECE, math.isqrt(dispatches * FIRST_PIECE))


def piece_sizes(dispatches: int) -> list[int]:
    """In what pieces so many dispatches are submitted.

    The first one is small, so that the device begins at once. Each is twice the one before: devices
    take longer over a dispatch than its recording does.
    """
    sizes = []
    size, left = FIRST_PIECE, dispatches
    while left >= 2 * size:
        sizes.append(size)
        left -= size
        size = min(2 * size, largest_piece(dispatches))
    return [*sizes, left]


def in_pieces(dispatches: Sequence[T]) -> list[list[Sequence[T]]]:
    """Dispatches in pieces, each in steps."""
    ends = [0, *itertools.accumulate(piece_sizes(len(dispatches)))]
    return [
        [dispatches[step : min(step + STEP, end)] for step in range(begin, end, STEP)]
        for begin, end in itertools.pairwise(ends)
    ]
