"""An order that things are put into anywhere, and that one comparison of numbers tells.

Source: Bender, Cole, Demaine, Farach-Colton and Zito, Two Simplified Algorithms for Maintaining
Order in a List (2002). Where numbers run out, those nearby are spread: O(log n) of them on average.
"""

from __future__ import annotations

import weakref

GAP = 1 << 32
"""Between the numbers of things that are put at the end."""
FEW = 64
"""Positions that are kept without asking whether anybody has them still."""


class Position:
    """A place in the order; what shares it has no order of its own.

    Attributes:
        label: Higher for what comes later; it changes when others are put nearby.
        owners: What has this place.
    """

    __slots__ = ("after", "before", "label", "owners")

    def __init__(self, label: int) -> None:
        self.label = label
        self.owners: list[weakref.ref[object]] = []
        self.before = self.after = self

    @property
    def shared(self) -> bool:
        """Whether several things have it."""
        return len(self.owners) > 1


class Positions:
    """The positions in their order. What goes without a word is found out some time later."""

    def __init__(self) -> None:
        self._ring = Position(0)  # before the first and after the last
        self._count = self._kept = 0

    def __len__(self) -> int:
        return self._count

    def end(self) -> Position:
        """A new one after all others."""
        if self._count > 2 * self._kept + FEW:
            self._sweep()
        return self.after(self._ring.before)

    def before(self, position: Position) -> Position:
        """A new one directly before another."""
        return self.after(position.before)

    def after(self, position: Position) -> Position:
        """A new one directly after another."""
        following = position.after
        if following is self._ring:
            label = position.label + GAP
        elif position is self._ring:
            label = following.label - GAP
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
        """Note that something has a position."""
        position.owners.append(weakref.ref(owner))
        return position

    def disown(self, owner: object, position: Position) -> None:
        """It has it no more; a position that nobody has is gone."""
        position.owners = [ref for ref in position.owners if ref() is not owner]
        if not position.owners:
            self._remove(position)

    def _remove(self, position: Position) -> None:
        position.before.after, position.after.before = position.after, position.before
        self._count -= 1

    def _sweep(self) -> None:
        """Remove what nobody has any more."""
        position = self._ring.after
        while position is not self._ring:
            if all(owner() is None for owner in position.owners):
                self._remove(position)
            position = position.after
        self._kept = self._count

    def _spread(self, position: Position) -> None:
        """Part the labels around one, over the smallest range of them that has room."""
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
