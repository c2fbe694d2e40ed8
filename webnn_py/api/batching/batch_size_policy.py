"""Policy for the sizes of batched runs: few sizes to compile, and the choice of the fastest.

If one run took all rows, the event loop would wait for it, and the next run for the loop. So short
runs take half of the rows each, on one thread: two compute at once, and one computes while the loop
processes the results of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

RUNS_OF_A_TRIAL = 2
"""Measured full runs of each size before the choice."""
RUNS_UNTIL_A_TRIAL = 256
"""Full runs after which all sizes are measured again."""
MAX_ROW_TIME_FACTOR = 1.25
"""Factor by which a larger size may exceed the best time per row. Fewer runs leave more of the GIL
to the event loop, and two measured runs are not exact."""
MIN_TRIED_ROWS = 8
"""Smallest size to measure, in rows, if larger runs can be filled."""

PARTS = 2
"""Number of parts that short runs divide the rows into; one thread computes each."""
MIN_PART_ROWS = 8
"""Minimum rows of a part, as beginning a run and waking a loop cost as much as some rows."""


def run_sizes(low: int, high: int) -> list[int]:
    """Return the sizes of batched runs: the powers of two between the bounds, and the bounds."""
    powers = (1 << k for k in range(high.bit_length()))
    return sorted({low, high, *(size for size in powers if low < size < high)})


class BatchSizePolicy:
    """Policy for the size of full runs: the largest, unless smaller ones are faster per row.

    Args:
        sizes: Possible sizes of runs, in ascending order.

    Attributes:
        sizes: The possible sizes, without the dropped ones.
        best: The best size, or one to be measured next.
        is_short: Whether the last run was short.
        row: Seconds per row in the last run.
        has_alone: Whether there is a single-threaded executable.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self._seconds: dict[int, list[float]] = {}  # per row, of each measured run, by size
        self._runs = 0
        self.is_short = self.has_alone = False
        self.row = math.inf
        self._there = 0  # decaying maximum of rows
        self.best = self._find_best()

    def sees(self, rows: int) -> None:
        """Note the current load: rows that wait, are in flight, or were just returned."""
        self._there = max(rows, self._there - self._there // 16)

    @property
    def crowded(self) -> bool:
        """Whether runs are short and there are enough rows to divide."""
        return self.is_short and self._there > PARTS * MIN_PART_ROWS

    @property
    def most(self) -> int:
        """Return the maximum rows of a run: the best size, or a part of the current rows."""
        divided = self.crowded and self.has_alone
        return min(self.best, -(-self._there // PARTS)) if divided else self.best

    def ran(self, size: int, seconds: float) -> None:
        """Note the duration of a full run."""
        self._runs += 1
        if self._runs % RUNS_UNTIL_A_TRIAL == 0:
            self._seconds.clear()
        kept = self._seconds.setdefault(size, [])
        if len(kept) < RUNS_OF_A_TRIAL:
            kept.append(seconds / size)
            self.best = self._find_best()

    def drop(self, size: int) -> None:
        """Remove a size whose compilation failed."""
        if size in self.sizes:
            self.sizes.remove(size)
            self.best = self._find_best()

    def _find_best(self) -> int:
        """Return the best size, or one to be measured next."""
        largest = self.sizes[-1]
        tried = [size for size in self.sizes if size >= min(MIN_TRIED_ROWS, largest)]
        for size in reversed(tried):
            if len(self._seconds.get(size, ())) < RUNS_OF_A_TRIAL:
                return size
        seconds = {size: min(self._seconds[size]) for size in tried}
        enough = MAX_ROW_TIME_FACTOR * min(seconds.values())
        return max(size for size in tried if seconds[size] <= enough)
