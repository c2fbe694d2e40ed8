"""The sizes of joined runs: few, so that few are compiled; and which of them pays most.

Where all that there is would be one run, an event loop would wait for it, and the next one for the
loop. So short runs are halves of that, each on one thread: both are computed at once, and one while
the loop takes the results of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TRIES = 2
"""Full runs of each size before one is chosen."""
LOOK_AGAIN = 256
"""Full runs after which all sizes are tried again."""
WORTH_IT = 1.25
"""How many times the quickest size's time a row a larger one may take: fewer runs leave more of the
interpreter to the event loop, and two measured runs are not exact."""
LEAST_TRIED = 8
"""Smaller runs than this are not tried where larger ones can be filled."""

PARTS = 2
"""Into which all that there is divides, where that is short: each is computed by one thread."""
LEAST_PART = 8
"""Rows of one at least; to begin a run and to wake a loop takes as long as to compute some."""


def run_sizes(low: int, high: int) -> list[int]:
    """The sizes that joined runs have: powers of two, and both ends."""
    powers = (1 << k for k in range(high.bit_length()))
    return sorted({low, high, *(size for size in powers if low < size < high)})


class Pace:
    """Which size full runs are to have: the largest, unless smaller ones are much quicker a row.

    Args:
        sizes: Those that runs may have, in ascending order.

    Attributes:
        sizes: As given, but for those that cannot be.
        best: The size that pays most, or one to be tried.
        is_short: Whether the last run was.
        row: Seconds of one row, in the last run.
        has_alone: Whether there is an executable for one thread.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self._seconds: dict[int, list[float]] = {}  # a row, of each run, by size
        self._runs = 0
        self.is_short = self.has_alone = False
        self.row = math.inf
        self._there = 0  # rows, lately
        self.best = self._find_best()

    def sees(self, rows: int) -> None:
        """So many rows wait, are computed, or were just handed out and may come again."""
        self._there = max(rows, self._there - self._there // 16)

    @property
    def crowded(self) -> bool:
        """Whether there are enough rows for parts, and runs are short."""
        return self.is_short and self._there > PARTS * LEAST_PART

    @property
    def most(self) -> int:
        """Rows of a run at most: the size that pays most, or a part of what is there."""
        divided = self.crowded and self.has_alone
        return min(self.best, -(-self._there // PARTS)) if divided else self.best

    def ran(self, size: int, seconds: float) -> None:
        """A full run took so long."""
        self._runs += 1
        if self._runs % LOOK_AGAIN == 0:
            self._seconds.clear()
        kept = self._seconds.setdefault(size, [])
        if len(kept) < TRIES:
            kept.append(seconds / size)
            self.best = self._find_best()

    def drop(self, size: int) -> None:
        """Runs cannot have this size."""
        if size in self.sizes:
            self.sizes.remove(size)
            self.best = self._find_best()

    def _find_best(self) -> int:
        """The size that pays most, or one to be tried."""
        largest = self.sizes[-1]
        tried = [size for size in self.sizes if size >= min(LEAST_TRIED, largest)]
        for size in reversed(tried):
            if len(self._seconds.get(size, ())) < TRIES:
                return size
        seconds = {size: min(self._seconds[size]) for size in tried}
        enough = WORTH_IT * min(seconds.values())
        return max(size for size in tried if seconds[size] <= enough)
