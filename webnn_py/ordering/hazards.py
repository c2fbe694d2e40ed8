"""Which work must keep its order, as it shares memory that one of the two writes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from webnn_py.memory.overlap import EVERYTHING, Region
from webnn_py.ordering.operation import ParkedOperation

Overtakes = Callable[[ParkedOperation], bool]
"""Whether new work comes before work that is held."""


@dataclass(slots=True, eq=False)
class _Turn:
    """Work that uses a region in turn: one that writes, or any number that only read.

    Attributes:
        works: The work.
        writes: Whether it writes.
    """

    works: dict[ParkedOperation, None]
    writes: bool


@dataclass(slots=True, eq=False)
class _Gap:
    """Where new work comes among the turns of a region.

    Attributes:
        place: The turn of those that only read which it comes into, or else the first after it.
        readers: The turn at this place, if it is one of those that only read.
        after: What of these it comes before.
    """

    place: int
    readers: _Turn | None = None
    after: dict[ParkedOperation, None] = field(default_factory=dict)


class _Users:
    """The held work that uses just one region, in turns; each comes after the one before it.

    So what comes after new work as well stands at the end, and is found by bisection. Those that
    read in one turn have no order, and are asked one by one.

    Args:
        region: The region.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.turns: list[_Turn] = []

    def gap(self, writes: bool, overtakes: Overtakes | None) -> _Gap:
        """Where new work comes that writes the region, or reads it."""
        turns = self.turns
        if not writes and len(turns) == 1 and not turns[0].writes:
            return _Gap(0, turns[0])
        first = len(turns) if overtakes is None else self._first_after(overtakes)
        for place in (first - 1, first):
            if 0 <= place < len(turns) and not turns[place].writes:
                after = {}
                if writes and overtakes is not None:
                    after = {held: None for held in turns[place].works if overtakes(held)}
                return _Gap(place, turns[place], after)
        return _Gap(first)

    def _first_after(self, overtakes: Overtakes) -> int:
        """The first turn whose first work comes after new work; mostly there is none."""

        def comes_after(turn: _Turn) -> bool:
            return overtakes(next(iter(turn.works)))

        turns = self.turns
        end, place, step = len(turns), len(turns) - 1, 1
        while place >= 0 and comes_after(turns[place]):
            end, place, step = place, place - step, step * 2
        return bisect.bisect_left(turns, True, max(0, place + 1), end, key=comes_after)

    def neighbours(
        self, gap: _Gap, writes: bool
    ) -> tuple[list[ParkedOperation], list[ParkedOperation]]:
        """What must be done before new work, and what it must be done before."""
        turns, place = self.turns, gap.place
        following = place if gap.readers is None else place + 1
        before = [*turns[place - 1].works] if place else []
        after = [*turns[following].works] if following < len(turns) else []
        if writes and gap.readers is not None:
            after += gap.after
            before += [held for held in gap.readers.works if held not in gap.after]
        return before, after

    def insert(self, held: ParkedOperation, gap: _Gap, writes: bool) -> None:
        """Add new work."""
        made = _Turn({held: None}, writes)
        if gap.readers is None:
            self.turns.insert(gap.place, made)
        elif not writes:
            gap.readers.works[held] = None
        else:
            for other in gap.after:
                del gap.readers.works[other]
            behind = _Turn(gap.after, writes=False)
            parted = [turn for turn in (gap.readers, made, behind) if turn.works]
            self.turns[gap.place : gap.place + 1] = parted

    def remove(self, held: ParkedOperation) -> None:
        """It is done, so that it stands in the first turn."""
        for place, turn in enumerate(self.turns):
            if held in turn.works:
                del turn.works[held]
                if not turn.works:
                    del self.turns[place]
                return


class Hazards:
    """The held work of a context, by the memory that it uses.

    What is found to come before new work, and after it, is as little as will do: the rest comes
    before that, or after it.
    """

    def __init__(self) -> None:
        self._owners: dict[int, list[_Users]] = {}  # each sorted by where the regions begin
        self._longest: dict[int, int] = {}  # bytes of a region of each owner
        self._everything = _Users(EVERYTHING)

    def place(
        self, held: ParkedOperation, overtakes: Overtakes | None
    ) -> tuple[list[ParkedOperation], list[ParkedOperation]]:
        """Add new work.

        Args:
            held: The work.
            overtakes: Says of work that shares memory with it whether the new work comes before it
                nevertheless; None if it does not.

        Returns:
            What must be done before it, and what it must be done before.
        """
        before: dict[ParkedOperation, None] = {}
        after: dict[ParkedOperation, None] = {}
        gaps: list[tuple[_Users, _Gap, bool]] = []
        for region, writes in _accesses(held):
            own = self._users(region)
            for users in self._overlapping(own):
                gap = users.gap(writes, overtakes)
                sooner, later = users.neighbours(gap, writes)
                before.update(dict.fromkeys(sooner))
                after.update(dict.fromkeys(later))
                if users is own:
                    gaps.append((users, gap, writes))
        for users, gap, writes in gaps:
            users.insert(held, gap, writes)
        return list(before), list(after)

    def remove(self, held: ParkedOperation) -> None:
        """It is done."""
        for region, _ in _accesses(held):
            users = self._users(region)
            users.remove(held)
            if not users.turns and users is not self._everything:
                self._drop(users)

    def _users(self, region: Region) -> _Users:
        """Those of just this region."""
        if region is EVERYTHING:
            return self._everything
        several = self._owners.setdefault(region.owner, [])
        place = self._place(several, region)
        found = several[place] if place < len(several) else None
        if found is not None and _is_same(found.region, region):
            return found
        made = _Users(region)
        several.insert(place, made)
        length = region.end - region.begin
        self._longest[region.owner] = max(length, self._longest.get(region.owner, 0))
        return made

    def _place(self, several: list[_Users], region: Region) -> int:
        """Where the users of just this region are, or would be."""
        place = bisect.bisect_left(several, region.begin, key=_begin)
        for index in range(place, len(several)):
            if several[index].region.begin != region.begin:
                break
            if _is_same(several[index].region, region):
                return index
        return place

    def _drop(self, users: _Users) -> None:
        owner = users.region.owner
        several = self._owners[owner]
        del several[self._place(several, users.region)]
        if not several:
            del self._owners[owner], self._longest[owner]

    def _overlapping(self, own: _Users) -> list[_Users]:
        """Those of a region, and of others that share memory with it."""
        region = own.region
        if region is EVERYTHING:
            return [own]
        several = self._owners[region.owner]
        first = region.begin - self._longest[region.owner]
        begin = bisect.bisect_right(several, first, key=_begin)
        end = bisect.bisect_left(several, region.end, key=_begin)
        return [
            users for users in several[begin:end] if users is own or users.region.overlaps(region)
        ]


def _accesses(held: ParkedOperation) -> Iterable[tuple[Region, bool]]:
    """What work uses, and whether it writes there; what it also writes is not named as read.

    Whatever uses memory uses everything, too: as reading it, if it is known what it uses.
    """
    found: dict[tuple[int, int, int, int], tuple[Region, bool]] = {}
    for memories, writes in ((held.operation.reads, False), (held.operation.writes, True)):
        for memory in memories:
            region = memory.region
            key = (region.owner, region.begin, region.end, id(region.array))
            if region is EVERYTHING or region.begin < region.end:
                found[key] = (region, writes or region is EVERYTHING)
    if found:
        everything = (EVERYTHING.owner, EVERYTHING.begin, EVERYTHING.end, id(EVERYTHING.array))
        found.setdefault(everything, (EVERYTHING, False))
    return found.values()


def _is_same(one: Region, other: Region) -> bool:
    return one[:3] == other[:3] and one.array is other.array


def _begin(users: _Users) -> int:
    return users.region.begin
