"""Split long runs into chunks, so that the device executes one while the next is recorded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

FIRST_CHUNK_DISPATCHES = 8
"""Dispatches of the first chunk. Recording them takes as long as one submission."""
STEP_DISPATCHES = 8
"""Dispatches recorded between two polls for the end of the previous run."""
LARGE_CHUNK_DISPATCHES = 64
"""Chunk size above which the cost of a submission hardly matters."""


class Encodable(Protocol):
    """Commands that can be recorded into a compute pass."""

    def encode(self, compute: Any) -> None:
        """Record the commands into an open compute pass."""
        ...


def max_chunk_dispatches(dispatches: int) -> int:
    """Return the largest number of dispatches to submit at once, for a run of `dispatches`."""
    return max(LARGE_CHUNK_DISPATCHES, math.isqrt(dispatches * FIRST_CHUNK_DISPATCHES))


def chunk_sizes(dispatches: int) -> list[int]:
    """Return the chunk sizes for a run of `dispatches`.

    The first chunk is small, so that the device starts at once. Each is twice the one before, as
    executing a dispatch takes longer than recording it.
    """
    sizes = []
    size, left = FIRST_CHUNK_DISPATCHES, dispatches
    while left >= 2 * size:
        sizes.append(size)
        left -= size
        size = min(2 * size, max_chunk_dispatches(dispatches))
    return [*sizes, left]


def split_into_chunks(dispatches: Sequence[T]) -> list[list[Sequence[T]]]:
    """Split dispatches into chunks, and each chunk into steps."""
    ends = [0, *itertools.accumulate(chunk_sizes(len(dispatches)))]
    return [
        [
            dispatches[step : min(step + STEP_DISPATCHES, end)]
            for step in range(begin, end, STEP_DISPATCHES)
        ]
        for begin, end in itertools.pairwise(ends)
    ]
