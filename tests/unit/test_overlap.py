"""Which arrays share memory, told alike for few arrays and for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from webnn_py import DataError
from webnn_py.memory.overlap import check_disjoint, may_overlap, overlap_each_other

MEMORY = np.zeros(400, np.float32)
Array = np.ndarray[Any, Any]


def drawn(rng: np.random.Generator, count: int) -> list[Array]:
    """Pieces of one array, some of them with steps or backwards."""
    found = []
    for _ in range(count):
        begin = int(rng.integers(0, 380))
        piece = MEMORY[begin : begin + int(rng.integers(1, 20))]
        found.append(piece[:: int(rng.choice([1, 1, 2, -1]))])
    return found


@pytest.mark.parametrize("counts", [(1, 3), (4, 4), (3, 40), (30, 30), (0, 5), (5, 0)])
def test_ranges_are_compared_as_numpy_does(counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        targets, others = (drawn(rng, count) for count in counts)
        expected = [any(np.may_share_memory(a, b) for b in others) for a in targets]
        assert may_overlap(targets, others) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 12])
def test_overlaps_among_arrays_are_those_of_numpy(count: int) -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        arrays = drawn(rng, count)
        expected = [
            any(np.may_share_memory(one, other) for j, other in enumerate(arrays) if j != i)
            for i, one in enumerate(arrays)
        ]
        assert overlap_each_other(arrays) == expected


def test_any_two_of_many_that_share_memory_are_named_in_their_order() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        pieces = {f"y{number}": piece for number, piece in enumerate(drawn(rng, 6))}
        names = list(pieces)
        pairs = {
            f"outputs {one!r} and {other!r} share"
            for number, one in enumerate(names)
            for other in names[number + 1 :]
            if np.shares_memory(pieces[one], pieces[other])
        }
        if not pairs:
            check_disjoint(pieces)
            continue
        with pytest.raises(DataError) as caught:
            check_disjoint(pieces)
        assert str(caught.value).partition(" memory")[0] in pairs
