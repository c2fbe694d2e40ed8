"""Arrays joined along an axis, with copies of the last row up to a shape, and parted again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from webnn_py.memory.batch_rows import MAX_JOINED_BYTES, join_rows, split_rows

WIDE = MAX_JOINED_BYTES // 64


@pytest.mark.parametrize(
    ("shapes", "axis", "row", "shape"),
    [
        ([(1, 3), (2, 3)], 0, 1, (3, 3)),
        ([(1, 3), (2, 3)], 0, 1, (8, 3)),
        ([(2, 3), (4, 3)], 0, 2, (8, 3)),
        ([(4,), (4,)], 0, 4, (8,)),
        ([(3, 1, 2), (3, 2, 2)], 1, 1, (3, 4, 2)),
        ([(1, WIDE), (2, WIDE)], 0, 1, (64, WIDE)),
    ],
)
def test_parts_lie_one_behind_the_other(
    shapes: Sequence[tuple[int, ...]], axis: int, row: int, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.random(each, np.float32) for each in shapes]
    whole = np.concatenate(parts, axis)
    missing = (shape[axis] - whole.shape[axis]) // row
    last = np.take(parts[-1], range(parts[-1].shape[axis] - row, parts[-1].shape[axis]), axis)
    expected = np.concatenate([whole, *[last] * missing], axis)
    size, counts = shape[axis] // row, [part.shape[axis] // row for part in parts]
    made = join_rows(parts, axis, shape, size, counts)
    assert made.dtype == np.float32
    assert made.flags.c_contiguous
    np.testing.assert_array_equal(made, expected)
    for again, part in zip(split_rows(made, axis, size, counts), parts, strict=True):
        np.testing.assert_array_equal(again, part)


def test_a_whole_part_is_taken_as_it_is() -> None:
    part = np.ones((4, 2), np.float32)
    assert join_rows([part], 0, (4, 2), 4, [4]) is part
