"""Work by several threads: results in order, errors, and small work where it is."""

from __future__ import annotations

import functools
import threading

import pytest

from webnn_py.core.parallel_map import MIN_PARALLEL_BYTES, parallel_map


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)


def test_several_work_at_once() -> None:
    """Each waits for the others, and results are in the order of the functions."""
    barrier = threading.Barrier(3, timeout=30)

    def work(number: int) -> int:
        barrier.wait()
        return number

    works = [functools.partial(work, number) for number in range(3)]
    assert parallel_map(works, MIN_PARALLEL_BYTES) == [0, 1, 2]


@pytest.mark.parametrize(
    ("size", "threads"), [(MIN_PARALLEL_BYTES - 1, 4), (MIN_PARALLEL_BYTES, 1)]
)
def test_little_work_stays_on_its_thread(size: int, threads: int) -> None:
    found = parallel_map([threading.get_ident] * 3, size, threads)
    assert found == [threading.get_ident()] * 3


def test_an_error_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        parallel_map([lambda: None, fail], MIN_PARALLEL_BYTES)
