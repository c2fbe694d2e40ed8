"""Memory regions that operations use, and tests whether they overlap."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from webnn_py.core.errors import DataError, MLError
from webnn_py.ir import Array

MAX_SEARCH_STEPS: Any = 10_000
"""Steps of NumPy's search for an element that two strided arrays share."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a buffer or texture.

    Attributes:
        owner: The buffer or texture.
        begin: Its first byte.
        end: The byte after its last.
        box: Half-open index range in each dimension, for parts of a texture, which byte ranges do
            not separate.
    """

    owner: object
    begin: int = 0
    end: int = 1
    box: tuple[tuple[int, int], ...] = ()


MAX_PAIRS_COMPARED = 16
"""Pairs of arrays that are compared one by one, which is faster for few."""
MemoryLocation = Array | Span
"""Memory that an operation reads or writes."""


def check_disjoint(
    targets: Mapping[str, MemoryLocation],
    error: type[MLError] = DataError,
    kind: str = "output",
) -> None:
    """Raise a DataError (or `error`) if two outputs share memory, naming both.

    Args:
        targets: Written memory by output name.
        error: The exception class.
        kind: What messages call one of them.
    """
    if len(targets) < 2:
        return
    for one, other in _neighbours(targets):
        if _overlap(targets[one], targets[other]):
            raise error(f"{kind}s {one!r} and {other!r} share memory; give each one of its own")


def _neighbours(targets: Mapping[str, MemoryLocation]) -> Iterator[tuple[str, str]]:
    """Yield the pairs whose ranges of addresses overlap, or all pairs of few, in their order."""
    if len(targets) ** 2 <= MAX_PAIRS_COMPARED:
        yield from itertools.combinations(targets, 2)
        return
    numbers = {name: number for number, name in enumerate(targets)}
    regions = [(region_of(target), name) for name, target in targets.items()]
    regions.sort(key=lambda pair: pair[0][:2])
    reaching: list[tuple[Region, str]] = []
    for region, name in regions:
        reaching = [(r, n) for r, n in reaching if r.owner == region.owner and r.end > region.begin]
        for _, other in reaching:
            one, following = sorted((other, name), key=numbers.__getitem__)
            yield one, following
        reaching.append((region, name))


def may_overlap(targets: Sequence[Array], others: Sequence[Array]) -> list[bool]:
    """Return for each array whether its range of addresses overlaps that of any of the others."""
    if len(targets) * len(others) <= MAX_PAIRS_COMPARED:
        return [any(np.may_share_memory(target, other) for other in others) for target in targets]
    ranges = sorted(region_of(other)[1:3] for other in others)
    begins = [begin for begin, _ in ranges]
    ends = list(itertools.accumulate((end for _, end in ranges), max))
    found: list[bool] = []
    for target in targets:
        _, begin, end, _ = region_of(target)
        before = bisect.bisect_left(begins, end)  # the number of others that begin before its end
        found.append(before > 0 and ends[before - 1] > begin)
    return found


def overlap_each_other(arrays: Sequence[Array]) -> list[bool]:
    """Return for each array whether its range of addresses overlaps that of another of them."""
    ranges = [region_of(array)[1:3] for array in arrays]
    found = [False] * len(arrays)
    farthest, reach = -1, -1  # the earlier array that ends last, and its end
    for number in sorted(range(len(arrays)), key=ranges.__getitem__):
        begin, end = ranges[number]
        if begin < reach:  # what else overlaps this one overlaps the farthest, too
            found[number] = found[farthest] = True
        if end > reach:
            farthest, reach = number, end
    return found


def same_place(a: Array, b: Array) -> bool:
    """Whether two contiguous arrays of the same size have the same memory."""
    first, second = (array.__array_interface__["data"][0] for array in (a, b))
    return bool(first == second and a.nbytes == b.nbytes)


def overlaps_itself(array: Array) -> bool:
    """Whether elements of an array may share memory, as with a stride of 0."""
    if array.flags.c_contiguous:
        return False
    steps = zip(map(abs, array.strides), array.shape, strict=True)
    reach = array.itemsize
    for step, size in sorted((step, size) for step, size in steps if size > 1):
        if step < reach:
            return True
        reach += step * (size - 1)
    return False


def _overlap(a: MemoryLocation, b: MemoryLocation) -> bool:
    if isinstance(a, Span):
        if not isinstance(b, Span) or a.owner != b.owner:
            return False
        in_boxes = all(i < n and m < j for (i, j), (m, n) in zip(a.box, b.box, strict=False))
        return a.begin < b.end and b.begin < a.end and in_boxes
    if isinstance(b, Span) or not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=MAX_SEARCH_STEPS)
    except np.exceptions.TooHardError:  # undecided within the step limit: assume overlap
        return True


class Region(NamedTuple):
    """Memory region by numbers, so that it keeps no object alive.

    Attributes:
        owner: Identity of the buffer or texture; HOST for all host memory.
        begin: Its first byte.
        end: The byte after its last.
        array: The array, if it is strided.
    """

    owner: int
    begin: int
    end: int
    array: Array | None = None

    @property
    def region(self) -> Region:
        """This region: the protocol of objects with a region."""
        return self

    def overlaps(self, other: Region) -> bool:
        """Whether two regions share memory."""
        if self is EVERYTHING or other is EVERYTHING:
            return True
        if self.owner != other.owner or self.begin >= other.end or other.begin >= self.end:
            return False
        if self.array is None and other.array is None:
            return True
        return _overlap(self._as_array(), other._as_array())

    def _as_array(self) -> Array:
        """Return the array, or one over the addresses, whose memory may be gone."""
        return np.asarray(_Bytes(self.begin, self.end)) if self.array is None else self.array


class _Bytes:
    """Address range in NumPy's array interface."""

    def __init__(self, begin: int, end: int) -> None:
        self.__array_interface__ = {
            "data": (begin, True),
            "shape": (end - begin,),
            "typestr": "|u1",
            "version": 3,
        }


HOST = 0
EVERYTHING = Region(-1, 0, 1)
"""Region of operations whose memory is unknown; it overlaps every other."""


def region_of(target: MemoryLocation) -> Region:
    """Return the region of an array, or of a part of a buffer or texture."""
    if isinstance(target, Span):
        return Region(id(target.owner), target.begin, target.end)
    if target.flags.c_contiguous:
        begin = target.__array_interface__["data"][0]
        return Region(HOST, begin, begin + target.nbytes)
    steps = [(size - 1) * stride for size, stride in zip(target.shape, target.strides, strict=True)]
    first = target.__array_interface__["data"][0]
    begin = first + sum(step for step in steps if step < 0)
    end = first + sum(step for step in steps if step > 0) + target.itemsize
    return Region(HOST, begin, end, target)
