"""Weights kept in a file without a name: mapped, so that the system can take their memory back."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from webnn_py.ir import Array
from webnn_py.memory.arrays import ALIGNMENT
from webnn_py.memory.host import plain_copy

LARGE = 1 << 20
"""Bytes of a constant from which on it is kept so."""


class Aside:
    """Copies of constants in files that end with them.

    Each file is as large as all before it, so that there are few.
    """

    def __init__(self) -> None:
        self._mapping: mmap.mmap | None = None
        self._used = 0
        self._total = 0

    def copy(self, array: Array) -> Array:
        """A copy that nobody changes; in plain memory if it is small, or no file can be had."""
        if array.nbytes < LARGE:
            return plain_copy(array)
        try:
            mapping, first = self._room(array.nbytes)
        except (AttributeError, OSError):  # the former where the system has no such call
            return plain_copy(array)
        made = np.frombuffer(mapping, array.dtype, array.size, first).reshape(array.shape)
        np.copyto(made, array)
        made.flags.writeable = False
        return made

    def keep(self, array: Array) -> Array:
        """The same of an array that nobody changes, which is it where it is small."""
        return array if array.nbytes < LARGE else self.copy(array)

    def _room(self, size: int) -> tuple[mmap.mmap, int]:
        first = -(-self._used // ALIGNMENT) * ALIGNMENT
        if self._mapping is None or first + size > len(self._mapping):
            with tempfile.TemporaryFile() as file:
                # Taken from the disk now: writing to memory can tell of no disk that is full.
                os.posix_fallocate(file.fileno(), 0, max(size, self._total))
                self._mapping = mmap.mmap(file.fileno(), 0)
            first = 0
        self._used = first + size
        self._total += size
        return self._mapping, first
