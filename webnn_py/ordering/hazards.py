"""Which work must keep its order, as it shares memory that one of the two writes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from webnn_py.memory.overlap import EVERYTHING, Region
from webnn_py.ordering.operation import Held

Overtakes = Callable[[Held], bool]
"""Whether new work comes before work that is held."""


@dataclass(slots=True, eq=False)
class _Users:
    """The held work that uses just one region, what comes first at the front.

    Attributes:
        region: The region.
        works: Each, and whether it writes.
    """

    region: Region
    works: list[tuple[Held, bool]] = field(default_factory=list)


class Hazards:
    """The held work of a context, by the memory that it uses.

    What is found to come before new work, and after it, is as little as will do: the rest comes
    before that, or after it.
    """

    def __init__(self) -> None:
        self._owners: dict[int, list[_Users]] = {}  # each sorted by where the regions begin
        self._longest: dict[int, int] = {}  # bytes of a region of each owner
        self._everything = _Users(EVERYTHING)  # who uses what is not known
        self._all: dict[Held, None] = {}  # who uses any

    def place(self, held: Held, overtakes: Overtakes | None) -> tuple[list[Held], list[Held]]:
        """Add new work.

        Args:
            held: The work.
            overtakes: Says of work that shares memory with it whether the new work comes before it
                nevertheless; None if it does not.

        Returns:
            What must be done before it, and what it must be done before.
        """
        before: dict[Held, None] = {}
        after: dict[Held, None] = {}
        accesses = _accesses(held)
        for region, writes in accesses:
            for works in self._sharing(region):
                next_ones: list[Held] = []
                for user, user_writes in works:
                    if not (writes or user_writes):
                        continue
                    if overtakes is not None and overtakes(user):
                        if user_writes:  # the rest comes after that
                            next_ones.clear()
                        next_ones.append(user)
                        continue
                    before[user] = None
                    if user_writes:  # the rest comes before that
                        break
                after.update(dict.fromkeys(next_ones))
        for region, writes in accesses:
            _insert(self._users(region), held, writes, after)
            self._all[held] = None
        return list(before), list(after)

    def _sharing(self, region: Region) -> Iterator[Iterable[tuple[Held, bool]]]:
        """Who shares a region, the last one first, and whether it writes there."""
        if region is EVERYTHING:
            for user in reversed(self._all):
                yield ((user, True),)
            return
        for users in (*self._overlapping(region), self._everything):
            yield reversed(users.works)

    def remove(self, held: Held) -> None:
        """It is done."""
        for region, _ in _accesses(held):
            users = self._users(region)
            users.works = [entry for entry in users.works if entry[0] is not held]
            if not users.works and users is not self._everything:
                self._drop(users)
        self._all.pop(held, None)

    def _users(self, region: Region) -> _Users:
        """Those of just this region."""
        if region is EVERYTHING:
            return self._everything
        several = self._owners.setdefault(region.owner, [])
        place = bisect.bisect_left(several, region.begin, key=_begin)
        for users in several[place:]:
            if users.region.begin != region.begin:
                break
            if users.region.end == region.end and users.region.array is region.array:
                return users
        made = _Users(region)
        several.insert(place, made)
        length = region.end - region.begin
        self._longest[region.owner] = max(length, self._longest.get(region.owner, 0))
        return made

    def _drop(self, users: _Users) -> None:
        owner = users.region.owner
        self._owners[owner].remove(users)
        if not self._owners[owner]:
            del self._owners[owner], self._longest[owner]

    def _overlapping(self, region: Region) -> list[_Users]:
        several = self._owners.get(region.owner)
        if several is None:
            return []
        first = region.begin - self._longest[region.owner]
        begin = bisect.bisect_right(several, first, key=_begin)
        end = bisect.bisect_left(several, region.end, key=_begin)
        return [users for users in several[begin:end] if users.region.overlaps(region)]


def _accesses(held: Held) -> list[tuple[Region, bool]]:
    """What work uses, and whether it writes there; what it also writes is not named as read."""
    found: dict[tuple[int, int, int, int], tuple[Region, bool]] = {}
    for memories, writes in ((held.operation.reads, False), (held.operation.writes, True)):
        for memory in memories:
            region = memory.region
            key = (region.owner, region.begin, region.end, id(region.array))
            found[key] = (region, writes)
    return list(found.values())


def _insert(users: _Users, held: Held, writes: bool, after: dict[Held, None]) -> None:
    """Add work at the end, but before what comes after it, and what comes after that."""
    if not after:
        users.works.append((held, writes))
        return
    sooner: list[tuple[Held, bool]] = []
    later: list[tuple[Held, bool]] = []
    writes_later = False
    for entry in users.works:
        user, user_writes = entry
        if user in after or writes_later or (later and user_writes):
            later.append(entry)
            writes_later |= user_writes
        else:
            sooner.append(entry)
    users.works = [*sooner, (held, writes), *later]


def _begin(users: _Users) -> int:
    return users.region.begin
