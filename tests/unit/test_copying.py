"""Copies of arrays: whole, whatever their layout, and by several threads where they are large."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from webnn_py.core.parallel_map import MIN_PARALLEL_BYTES
from webnn_py.memory.allocation import copy_array


@pytest.fixture
def copiers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that copied."""
    found: set[int] = set()
    copyto = np.copyto

    def copying(*args: Any) -> None:
        found.add(threading.get_ident())
        copyto(*args)

    monkeypatch.setattr(np, "copyto", copying)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    return found


@pytest.mark.parametrize("more", [0, 1, 5])
def test_large_ones_are_copied_by_several_threads(copiers: set[int], more: int) -> None:
    source = np.arange(MIN_PARALLEL_BYTES // 2 + more, dtype=np.uint16).reshape(1, -1)
    target = np.zeros_like(source)
    copy_array(target, source)
    assert threading.get_ident() not in copiers
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("side", [2, 2048])
@pytest.mark.parametrize("kind", ["row by row", "transposed", "small"])
def test_others_are_copied_here(copiers: set[int], side: int, kind: str) -> None:
    whole = np.arange(2 * side * side, dtype=np.float32).reshape(side, 2 * side)
    given = {"row by row": whole[:, ::2], "transposed": whole[:, :side].T, "small": whole[:2]}[kind]
    target = np.zeros(given.shape, np.float32)
    copy_array(target, given)
    assert copiers == {threading.get_ident()}
    np.testing.assert_array_equal(target, given)
