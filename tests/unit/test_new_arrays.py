"""Arrays that are made for results."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from webnn_py import OperationError
from webnn_py.memory import allocation
from webnn_py.memory.allocation import (
    ALIGNMENT,
    MIN_ALIGNED_BYTES,
    MIN_FAULTED_BYTES,
    aligned_array,
    fault_in,
    new_array,
)


@pytest.mark.parametrize(
    "size", [0, 1, MIN_ALIGNED_BYTES // 4 - 1, MIN_ALIGNED_BYTES // 4, MIN_ALIGNED_BYTES]
)
def test_large_ones_begin_where_a_line_of_the_cache_does(size: int) -> None:
    for _ in range(5):
        made = new_array((size, 1), np.dtype(np.float32))
        assert (made.shape, made.dtype, made.flags.c_contiguous) == ((size, 1), np.float32, True)
        if made.nbytes >= MIN_ALIGNED_BYTES:
            assert made.ctypes.data % ALIGNMENT == 0


def test_zeros() -> None:
    made = aligned_array(np.zeros, (3,), np.dtype(np.float16))
    assert made.tolist() == [0, 0, 0]
    assert made.ctypes.data % ALIGNMENT == 0


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*_: object) -> None:
        raise MemoryError("all is taken")

    monkeypatch.setattr(allocation.np, "empty", empty)
    for size in (1, MIN_ALIGNED_BYTES):
        with pytest.raises(OperationError, match=r"allocating \w+\[\d+\]: all is taken"):
            new_array((size,), np.dtype(np.float32))


def test_pages_are_made_before_contents_come() -> None:
    array = np.empty(MIN_FAULTED_BYTES, np.uint8)
    faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for fill in (fault_in, lambda made: made.fill(1)):
        fill(array)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    first, second = np.diff(faults)
    assert second < first / 2
