"""Runs of many dispatches in pieces, so that the device runs one while the next is recorded."""

from __future__ import annotations

import math
from typing import Any, Protocol

DISPATCHES_A_SUBMISSION = 8
"""Dispatches that are recorded in the time that a submission takes."""


class Encodable(Protocol):
    """What is recorded into a compute pass."""

    def encode(self, compute: Any) -> None:
        """Record into an open compute pass."""
        ...


def pieces_of(dispatches: int) -> int:
    """In how many parts so many dispatches are submitted.

    Submitting costs about as much as recording eight dispatches, which take the device about as
    long as the recording: so few parts waste least.
    """
    return max(math.isqrt(dispatches // DISPATCHES_A_SUBMISSION), 1)
