"""Buffer planning by liveness: which values share a buffer. The same for every engine.

Buffers are shared whole. Values that live at the same time never share one, so a step never reads
and writes the same buffer.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
Steps = Sequence[tuple[Sequence[T], Sequence[T]]]
"""Values that each step reads and writes, in order."""

MAX_VALUES_PLACED_BY_SIZE = 2000
"""Most values for which placement by size is tried too; it takes longer than placement in order."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """A buffer for each value.

    Attributes:
        slots: Buffer number of each value.
        sizes: Bytes of each buffer.
        bound: Peak bytes of live values, which no plan can go below.
    """

    slots: Mapping[T, int]
    sizes: tuple[int, ...]
    bound: int

    @property
    def total(self) -> int:
        """Bytes of all buffers."""
        return sum(self.sizes)


def last_uses(steps: Steps[T]) -> dict[T, int]:
    """Return the last step that reads or writes each value."""
    last: dict[T, int] = {}
    for number, (reads, writes) in enumerate(steps):
        for value in (*reads, *writes):
            last[value] = number
    return last


def lifetimes(steps: Steps[T], sizes: Mapping[T, int]) -> dict[T, tuple[int, int]]:
    """Return the first and last step of each value to place; arguments as of `plan_buffers`."""
    last = last_uses(steps)
    lives: dict[T, tuple[int, int]] = {}
    for number, (_, writes) in enumerate(steps):
        for value in writes:
            if value in sizes:
                lives.setdefault(value, (number, last[value]))
    return lives


def peak_bytes(lives: Mapping[T, tuple[int, int]], sizes: Mapping[T, int]) -> int:
    """Return the peak bytes of values that live at the same time."""
    changes: Counter[int] = Counter()
    for value, (first, last) in lives.items():
        changes[first] += sizes[value]
        changes[last + 1] -= sizes[value]
    return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)


def plan_buffers(steps: Steps[T], sizes: Mapping[T, int]) -> Plan[T]:
    """Assign buffers by two heuristics and return the smaller plan.

    Args:
        steps: Values that each step reads and writes.
        sizes: Bytes of the values to place; values not in it (inputs, constants, outputs that the
            caller owns) are left out.
    """
    lives = lifetimes(steps, sizes)
    bound = peak_bytes(lives, sizes)
    slots, capacity = _in_order(lives, sizes)
    if bound < sum(capacity) and len(slots) <= MAX_VALUES_PLACED_BY_SIZE:
        other_slots, other_capacity = _by_size(lives, sizes)
        if sum(other_capacity) < sum(capacity):
            slots, capacity = other_slots, other_capacity
    return Plan(slots, tuple(capacity), bound)


def _in_order(
    lives: Mapping[T, tuple[int, int]], sizes: Mapping[T, int]
) -> tuple[dict[T, int], list[int]]:
    """Place values in order of birth, each into a free buffer; results as of `_by_size`."""
    slots: dict[T, int] = {}
    capacity: list[int] = []
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # heap of last steps and buffers
    for value, (first, last) in lives.items():
        while taken and taken[0][0] < first:
            free.append(heapq.heappop(taken)[1])
        slots[value] = _take(free, capacity, sizes[value])
        heapq.heappush(taken, (last, slots[value]))
    return slots, capacity


def _by_size(
    lives: Mapping[T, tuple[int, int]], sizes: Mapping[T, int]
) -> tuple[dict[T, int], list[int]]:
    """Place values by falling size, each into the smallest buffer that is free all its life.

    Args:
        lives: The first and the last step of each value, in order of birth.
        sizes: Bytes of each.

    Returns:
        The number of each value's buffer, and the bytes of each buffer.
    """
    slots: dict[T, int] = {}
    capacity: list[int] = []
    taken: list[list[tuple[int, ...]]] = []  # lifetimes in each buffer, sorted
    for value in sorted(lives, key=lambda value: (-sizes[value], lives[value])):
        first, last = lives[value]
        for slot in reversed(range(len(taken))):  # from the smallest
            place = bisect.bisect(taken[slot], (last + 1,))
            if place == 0 or taken[slot][place - 1][1] < first:
                break
        else:
            slot, place = len(taken), 0
            taken.append([])
            capacity.append(sizes[value])
        taken[slot].insert(place, lives[value])
        slots[value] = slot
    return slots, capacity


def _take(free: list[int], capacity: list[int], size: int) -> int:
    """Return the best fitting free buffer, else the largest one grown, else a new one."""
    if not free:
        capacity.append(size)
        return len(capacity) - 1
    fitting = [slot for slot in free if capacity[slot] >= size]
    slot = (
        min(fitting, key=capacity.__getitem__) if fitting else max(free, key=capacity.__getitem__)
    )
    free.remove(slot)
    capacity[slot] = max(capacity[slot], size)
    return slot
