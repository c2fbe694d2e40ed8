"""Weights in memory-mapped files without names, so that the system can reclaim their memory."""

from __future__ import annotations

from webnn_py.ir import Array
from webnn_py.memory.allocation import ALIGNMENT
from webnn_py.memory.host_arrays import plain_copy
from webnn_py.memory.mapped_file import AnonymousFile, mapping_of

MIN_SPILLED_BYTES = 1 << 16
"""Smallest constant that is spilled to a file."""
MAX_PLAIN_BYTES = 1 << 22
"""Bytes of such constants that stay on the heap: naming a file, for an engine to map it, takes
longer than copying that much.
"""
MIN_FILE_BYTES = 1 << 26
"""Smallest size of a file; it takes only as much disk space as is written to it."""


class WeightSpill:
    """Copies of constants, most of them in files without names.

    Each file is at least as large as all earlier ones together, so that there are few.
    """

    def __init__(self) -> None:
        self._plain = 0
        self._file: AnonymousFile | None = None
        self._used = 0
        self._total = 0

    def copy(self, array: Array) -> Array:
        """Return a copy that nobody changes; on the heap if it is small or no file can be made."""
        if self._stays(array):
            return plain_copy(array)
        try:
            file, first = self._room(array.nbytes)
            return file.put(array, first)
        except (AttributeError, OSError):  # AttributeError: the system has no pwrite
            return plain_copy(array)

    def keep(self, array: Array) -> Array:
        """Return a constant in spilled memory; the array itself where it need not move."""
        if mapping_of(array) is not None or self._stays(array):
            return array
        return self.copy(array)

    def _stays(self, array: Array) -> bool:
        """Whether an array stays on the heap."""
        if array.nbytes < MIN_SPILLED_BYTES:
            return True
        self._plain += array.nbytes
        return self._plain <= MAX_PLAIN_BYTES

    def _room(self, size: int) -> tuple[AnonymousFile, int]:
        first = -(-self._used // ALIGNMENT) * ALIGNMENT
        if self._file is None or first + size > len(self._file):
            self._file = AnonymousFile.of_size(max(size, self._total, MIN_FILE_BYTES))
            first = 0
        self._used = first + size
        self._total += size
        return self._file, first
