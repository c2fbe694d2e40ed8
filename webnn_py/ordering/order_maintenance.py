"""Order maintenance: a list with insertion anywhere, whose order is compared by integer labels.

Source: Bender, Cole, Demaine, Farach-Colton and Zito, Two Simplified Algorithms for Maintaining
Order in a List (2002). Where labels run out, nearby ones are respread: O(log n) of them on average.
"""

from __future__ import annotations

import weakref

LABEL_GAP = 1 << 32
"""Distance of the labels of positions that are appended."""
MIN_SWEPT = 64
"""Positions that may exist before unowned ones are looked for."""


class Position:
    """A place in the order; its owners have no order among themselves.

    Attributes:
        label: Higher for later positions; it changes when others are inserted nearby.
        owners: Weak references to the objects at this place.
    """

    __slots__ = ("after", "before", "label", "owners")

    def __init__(self, label: int) -> None:
        self.label = label
        self.owners: list[weakref.ref[object]] = []
        self.before = self.after = self

    @property
    def shared(self) -> bool:
        """Whether it has several owners."""
        return len(self.owners) > 1


class Positions:
    """The ordered list of positions; a sweep removes positions whose owners were freed."""

    def __init__(self) -> None:
        self._ring = Position(0)  # before the first and after the last
        self._count = self._kept = 0

    def __len__(self) -> int:
        return self._count

    def end(self) -> Position:
        """Append a position."""
        if self._count > 2 * self._kept + MIN_SWEPT:
            self._sweep()
        return self.after(self._ring.before)

    def before(self, position: Position) -> Position:
        """Insert a position directly before another."""
        return self.after(position.before)

    def after(self, position: Position) -> Position:
        """Insert a position directly after another."""
        following = position.after
        if following is self._ring:
            label = position.label + LABEL_GAP
        elif position is self._ring:
            label = following.label - LABEL_GAP
        else:
            if following.label - position.label < 2:
                self._spread(position)
            label = (position.label + following.label) // 2
        made = Position(label)
        made.before, made.after = position, following
        position.after = following.before = made
        self._count += 1
        return made

    def own(self, owner: object, position: Position) -> Position:
        """Add an owner to a position; return the position."""
        position.owners.append(weakref.ref(owner))
        return position

    def disown(self, owner: object, position: Position) -> None:
        """Remove an owner; a position without owners is removed."""
        position.owners = [ref for ref in position.owners if ref() is not owner]
        if not position.owners:
            self._remove(position)

    def _remove(self, position: Position) -> None:
        position.before.after, position.after.before = position.after, position.before
        self._count -= 1

    def _sweep(self) -> None:
        """Remove positions whose owners were all freed."""
        position = self._ring.after
        while position is not self._ring:
            if all(owner() is None for owner in position.owners):
                self._remove(position)
            position = position.after
        self._kept = self._count

    def _spread(self, position: Position) -> None:
        """Respread the labels around a position over the smallest range that has room."""
        ring, bits, count = self._ring, 1, 1
        first = last = position
        while True:
            low = position.label >> bits << bits
            high = low + (1 << bits)
            while first.before is not ring and first.before.label >= low:
                first, count = first.before, count + 1
            while last.after is not ring and last.after.label < high:
                last, count = last.after, count + 1
            if bits > 3 and count <= 1 << bits // 2:
                break
            bits += 1
        step = (1 << bits) // count
        for place in range(count):
            first.label, first = low + place * step, first.after
