"""When to look whether a device is done: often where that is expected, else now and then."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable

NO_PAUSE = 1e-4
"""Seconds of looking whether the device is done without a pause: the shortest one takes as long."""
NEAR = 2e-4
"""Seconds before and after the expected end within which it is looked without a pause: about what
waking another thread takes."""
SHORTEST = 1e-5
"""Seconds that a wait takes at least, as 0 stands for nothing known."""
LONGEST_PAUSE = 2e-3
"""Seconds between two looks later on; a small part of the time waited."""
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
"""Between two looks: a driver that computes on the CPU may be about to, on this very core."""


def pause(waited: float, expected: float = 0.0) -> None:
    """Let some time go by until the next look.

    Args:
        waited: Seconds since the wait began.
        expected: Seconds that it is likely to take in all; 0 if that is not known.
    """
    left = expected - waited
    if waited < NO_PAUSE or abs(left) < NEAR:
        _let_others_run()
    else:
        seconds = min(waited / 16, LONGEST_PAUSE)
        time.sleep(min(seconds, left - NEAR) if left > 0 else seconds)


class Pace:
    """What waits of one kind take, so that the end of the next one is seen in time.

    Args:
        most: Seconds that one counts as at most: how long other work interrupts it tells nothing.

    Attributes:
        seconds: What is expected; 0 if nothing is known yet.
    """

    __slots__ = ("_most", "seconds")

    def __init__(self, most: float = math.inf) -> None:
        self.seconds = 0.0
        self._most = most

    def learn(self, seconds: float) -> None:
        """A wait took so long: shorter ones count at once, longer ones may have been disturbed."""
        known, seconds = self.seconds, min(max(seconds, SHORTEST), self._most)
        self.seconds = seconds if seconds < known or not known else known + (seconds - known) / 8


class Wait:
    """One wait.

    Args:
        pace: That of such waits.
        begun: When it began, if that was not when this is made; seconds.
    """

    __slots__ = ("_begun", "_pace")

    def __init__(self, pace: Pace, begun: float = 0.0) -> None:
        self._pace = pace
        self._begun = begun or time.monotonic()

    @property
    def left(self) -> float:
        """How many seconds more it is likely to take; 0 or less if that is over or not known."""
        return self._begun + self._pace.seconds - time.monotonic()

    def pause(self) -> None:
        """Let some time go by until the next look."""
        pause(time.monotonic() - self._begun, self._pace.seconds)

    def end(self, late: bool = False) -> None:
        """It is over, and was so before anybody looked, if that was too `late`."""
        self._pace.learn(time.monotonic() - self._begun - (NEAR / 4 if late else 0))
