"""Hazards: which parked operations must keep their order, as they share memory that one writes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from webnn_py.memory.overlap import EVERYTHING, Region
from webnn_py.ordering.operation import ParkedOperation

Overtakes = Callable[[ParkedOperation], bool]
"""Whether a new operation comes before a parked one."""


@dataclass(slots=True, eq=False)
class _Turn:
    """Operations that use a region at the same time: one writer, or any number of readers.

    Attributes:
        works: The operations.
        writes: Whether it is a writer's turn.
    """

    works: dict[ParkedOperation, None]
    writes: bool


@dataclass(slots=True, eq=False)
class _Gap:
    """Place of a new operation among the turns of a region.

    Attributes:
        place: Index of the readers' turn that it joins or splits, else of the first turn after it.
        readers: The readers' turn at this index, if there is one.
        after: The readers in it that must come after the new operation.
    """

    place: int
    readers: _Turn | None = None
    after: dict[ParkedOperation, None] = field(default_factory=dict)


class _RegionUsers:
    """The parked operations that use exactly one region, in turns that follow each other.

    Operations that come after a new one form the end of the list, so bisection finds the first.
    Readers of one turn have no order and are tested one by one.

    Args:
        region: The region.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.turns: list[_Turn] = []

    def gap(self, writes: bool, overtakes: Overtakes | None) -> _Gap:
        """Return the place of a new operation that writes or reads the region."""
        turns = self.turns
        if not writes and len(turns) == 1 and not turns[0].writes:
            return _Gap(0, turns[0])
        first = len(turns) if overtakes is None else self._first_after(overtakes)
        for place in (first - 1, first):
            if 0 <= place < len(turns) and not turns[place].writes:
                after = {}
                if writes and overtakes is not None:
                    after = {parked: None for parked in turns[place].works if overtakes(parked)}
                return _Gap(place, turns[place], after)
        return _Gap(first)

    def _first_after(self, overtakes: Overtakes) -> int:
        """Return the first turn that comes after the new operation; mostly there is none."""

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
        """Return the operations directly before and directly after the new one."""
        turns, place = self.turns, gap.place
        following = place if gap.readers is None else place + 1
        before = [*turns[place - 1].works] if place else []
        after = [*turns[following].works] if following < len(turns) else []
        if writes and gap.readers is not None:
            after += gap.after
            before += [parked for parked in gap.readers.works if parked not in gap.after]
        return before, after

    def insert(self, parked: ParkedOperation, gap: _Gap, writes: bool) -> None:
        """Add the new operation at its place."""
        turn = _Turn({parked: None}, writes)
        if gap.readers is None:
            self.turns.insert(gap.place, turn)
        elif not writes:
            gap.readers.works[parked] = None
        else:
            for other in gap.after:
                del gap.readers.works[other]
            rest = _Turn(gap.after, writes=False)
            split = [turn for turn in (gap.readers, turn, rest) if turn.works]
            self.turns[gap.place : gap.place + 1] = split

    def remove(self, parked: ParkedOperation) -> None:
        """Remove an operation that is done; it is in the first turn."""
        for place, turn in enumerate(self.turns):
            if parked in turn.works:
                del turn.works[parked]
                if not turn.works:
                    del self.turns[place]
                return


class Hazards:
    """The parked operations of a context by the memory that they use.

    It finds only direct neighbours of a new operation; other operations are before or after those.
    """

    def __init__(self) -> None:
        self._owners: dict[int, list[_RegionUsers]] = {}  # regions of each owner, sorted by begin
        self._longest: dict[int, int] = {}  # longest region of each owner, in bytes

    def place(
        self, parked: ParkedOperation, overtakes: Overtakes | None
    ) -> tuple[list[ParkedOperation], list[ParkedOperation]]:
        """Add a new operation.

        Args:
            parked: The operation.
            overtakes: Whether the new operation comes before a parked one that shares memory; None
                if it never does.

        Returns:
            The operations directly before it, and those directly after it.
        """
        before: dict[ParkedOperation, None] = {}
        after: dict[ParkedOperation, None] = {}
        gaps: list[tuple[_RegionUsers, _Gap, bool]] = []
        for region, writes in _accesses(parked):
            own = self._users(region)
            for users in self._overlapping(own):
                gap = users.gap(writes, overtakes)
                sooner, later = users.neighbours(gap, writes)
                before.update(dict.fromkeys(sooner))
                after.update(dict.fromkeys(later))
                if users is own:
                    gaps.append((users, gap, writes))
        for users, gap, writes in gaps:
            users.insert(parked, gap, writes)
        return list(before), list(after)

    def remove(self, parked: ParkedOperation) -> None:
        """Remove an operation that is done."""
        for region, _ in _accesses(parked):
            users = self._users(region)
            users.remove(parked)
            if not users.turns:
                self._drop(users)

    def _users(self, region: Region) -> _RegionUsers:
        """Return the users of exactly this region; add the region if it is new."""
        several = self._owners.setdefault(region.owner, [])
        index = self._index(several, region)
        users = several[index] if index < len(several) else None
        if users is not None and _is_same(users.region, region):
            return users
        users = _RegionUsers(region)
        several.insert(index, users)
        length = region.end - region.begin
        self._longest[region.owner] = max(length, self._longest.get(region.owner, 0))
        return users

    def _index(self, several: list[_RegionUsers], region: Region) -> int:
        """Return the index of a region's users, or where they would be inserted."""
        place = bisect.bisect_left(several, region.begin, key=_begin)
        for index in range(place, len(several)):
            if several[index].region.begin != region.begin:
                break
            if _is_same(several[index].region, region):
                return index
        return place

    def _drop(self, users: _RegionUsers) -> None:
        owner = users.region.owner
        several = self._owners[owner]
        del several[self._index(several, users.region)]
        if not several:
            del self._owners[owner], self._longest[owner]

    def _overlapping(self, own: _RegionUsers) -> list[_RegionUsers]:
        """Return the users of a region and those of overlapping regions."""
        region = own.region
        several = self._owners[region.owner]
        first = region.begin - self._longest[region.owner]
        begin = bisect.bisect_right(several, first, key=_begin)
        end = bisect.bisect_left(several, region.end, key=_begin)
        return [
            users for users in several[begin:end] if users is own or users.region.overlaps(region)
        ]


def _accesses(parked: ParkedOperation) -> Iterable[tuple[Region, bool]]:
    """Return the regions that an operation uses, and whether it writes each of them.

    Every operation also uses EVERYTHING: as a reader, unless its own memory is unknown.
    """
    accesses: dict[tuple[int, int, int, int], tuple[Region, bool]] = {}
    for memories, writes in ((parked.operation.reads, False), (parked.operation.writes, True)):
        for memory in memories:
            region = memory.region
            key = (region.owner, region.begin, region.end, id(region.array))
            if region.begin < region.end:
                accesses[key] = (region, writes or region is EVERYTHING)
    if accesses:
        everything = (EVERYTHING.owner, EVERYTHING.begin, EVERYTHING.end, id(EVERYTHING.array))
        accesses.setdefault(everything, (EVERYTHING, False))
    return accesses.values()


def _is_same(one: Region, other: Region) -> bool:
    return one[:3] == other[:3] and one.array is other.array


def _begin(users: _RegionUsers) -> int:
    return users.region.begin
