"""The sizes of joined runs: few, so that few are compiled; and which of them is the quickest."""

from __future__ import annotations

from collections.abc import Sequence

LOOK_AGAIN = 256
"""Full runs after which it is measured anew which size is the quickest."""
LEAST_TRIED = 8
"""Smaller runs than this are not tried where larger ones can be filled."""


def run_sizes(low: int, high: int) -> list[int]:
    """The sizes that joined runs have: powers of two, and both ends."""
    powers = (1 << k for k in range(high.bit_length()))
    return sorted({low, high, *(size for size in powers if low < size < high)})


class Pace:
    """Which size of full runs is the quickest, a row: the largest one mostly is, but not always.

    Args:
        sizes: Those that runs may have, in ascending order.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self._seconds: dict[int, float] = {}  # by size, a row
        self._runs = 0

    @property
    def best(self) -> int:
        """The largest size, or the smaller one that runs have been quicker with; or may be."""
        best = self.sizes[-1]
        for size in reversed(self.sizes):
            if size < min(LEAST_TRIED, best):
                break
            seconds = self._seconds.get(size)
            if seconds is None:
                return size
            if seconds > self._seconds[best]:
                break
            best = size
        return best

    def ran(self, size: int, seconds: float) -> None:
        """A full run took so long."""
        self._runs += 1
        if self._runs % LOOK_AGAIN == 0:
            self._seconds.clear()
        before = self._seconds.get(size)
        now = seconds / size
        self._seconds[size] = now if before is None else 0.7 * before + 0.3 * now

    def drop(self, size: int) -> None:
        """Runs cannot have this size."""
        if size in self.sizes:
            self.sizes.remove(size)
