"""Memory that is given back: what lies in mapped files is found, and read anew where it is used."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from webnn_py.memory import memory_trim
from webnn_py.memory.mapped_file import mapping_of


def test_mapped_weights_are_found_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_trim, "MIN_TRIMMED_BYTES", 1)
    path = tmp_path / "weights"
    path.write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped = np.frombuffer(memoryview(mapping)[4096:], np.float32).reshape(3, 1024)
    own = np.ones(3, np.float32)
    assert mapping_of(mapped) is mapping
    assert mapping_of(own) is None
    memory_trim.trim_memory([mapped, own])
    assert mapped.tolist() == np.arange(1024, 4096).reshape(3, 1024).tolist()
    assert own.tolist() == [1, 1, 1]
