"""Which values may share a buffer, by when they are needed; the same for every engine.

Buffers are whole: two values that live at the same time never share one, so a step never reads and
writes the same buffer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """A buffer for each value.

    Attributes:
        slots: The number of the buffer that holds a value.
        sizes: Bytes of each buffer.
        last_use: The last step that touches a value.
    """

    slots: Mapping[T, int]
    sizes: tuple[int, ...]
    last_use: Mapping[T, int]

    @property
    def total(self) -> int:
        """Bytes of all buffers."""
        return sum(self.sizes)


def last_uses(steps: Sequence[tuple[Sequence[T], Sequence[T]]]) -> dict[T, int]:
    """The last step that reads or writes each value."""
    last: dict[T, int] = {}
    for number, (reads, writes) in enumerate(steps):
        for value in (*reads, *writes):
            last[value] = number
    return last


def plan_buffers(
    steps: Sequence[tuple[Sequence[T], Sequence[T]]], sizes: Mapping[T, int]
) -> Plan[T]:
    """Assign buffers, first fit by best size.

    Args:
        steps: What each step reads and writes, in order.
        sizes: Bytes of the values to place; values not in it (inputs, constants, outputs that the
            caller owns) are left out.

    Returns:
        The plan. A freed buffer is taken again by the value that wastes least of it, and grown if
        none is large enough.
    """
    last = last_uses(steps)
    slots: dict[T, int] = {}
    capacity: list[int] = []
    free: list[int] = []
    for number, (reads, writes) in enumerate(steps):
        for value in writes:
            if value in sizes and value not in slots:
                slots[value] = _take(free, capacity, sizes[value])
        for value in dict.fromkeys((*reads, *writes)):
            if value in slots and last[value] == number:
                free.append(slots[value])
    return Plan(slots, tuple(capacity), last)


def _take(free: list[int], capacity: list[int], size: int) -> int:
    """The free buffer that fits best, or the largest one grown, or a new one."""
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
