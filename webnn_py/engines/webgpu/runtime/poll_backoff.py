"""Polling with back-off: when to ask a device whether its work is done.

Polls follow each other without pauses around the expected end, and with growing pauses elsewhere.
Behind the expected end, pauses grow with the delay: work of 50 ms is rarely late by 2 ms.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable

SPIN_SECONDS = 1e-4
"""Poll without pauses for this long at first: the shortest sleep takes as long."""
NEAR_SECONDS = 2e-4
"""Seconds before and after the expected end in which polling makes no pauses.

Waking another thread takes about as long.
"""
MIN_LATENCY_SECONDS = 1e-5
"""Lower bound of an estimate, as 0 stands for no estimate."""
MAX_PAUSE_SECONDS = 2e-3
"""Longest pause between two polls; a small part of the time waited."""
yield_core: Callable[[], None] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
"""Give up this core between two polls: a software driver may need it for the work itself."""


def pause(waited: float, expected: float = 0.0) -> float:
    """Pause until the next poll is due.

    Args:
        waited: Seconds since the wait began.
        expected: Expected seconds of the whole wait; 0 if unknown.

    Returns:
        For how many seconds polls may follow with no more than `yield_core` between them.
    """
    left = expected - waited
    if abs(left) < NEAR_SECONDS:
        yield_core()
        return left + NEAR_SECONDS
    if waited < SPIN_SECONDS:
        yield_core()
        return SPIN_SECONDS - waited
    seconds = min(waited / 16, MAX_PAUSE_SECONDS)
    if expected:
        seconds = min(seconds, left - NEAR_SECONDS if left > 0 else -left / 2)
    time.sleep(seconds)
    return 0.0


class LatencyEstimate:
    """An estimate of how long waits of one kind take, learned from earlier ones.

    Args:
        max_sample: Upper bound of a sample in seconds, so that interruptions distort little.

    Attributes:
        seconds: The estimate; 0 before the first sample.
    """

    __slots__ = ("_max_sample", "seconds")

    def __init__(self, max_sample: float = math.inf) -> None:
        self.seconds = 0.0
        self._max_sample = max_sample

    def learn(self, seconds: float) -> None:
        """Add a sample. A shorter one replaces the estimate; a longer one counts for an eighth."""
        known, seconds = self.seconds, min(max(seconds, MIN_LATENCY_SECONDS), self._max_sample)
        self.seconds = seconds if seconds < known or not known else known + (seconds - known) / 8
