"""Weights kept in a file without a name: mapped, so that the system can take their memory back."""

from __future__ import annotations

from webnn_py.ir import Array
from webnn_py.memory.allocation import ALIGNMENT
from webnn_py.memory.anonymous_file import AnonymousFile
from webnn_py.memory.host_arrays import plain_copy
from webnn_py.memory.mmap_lookup import mapping_of

MIN_SPILLED_BYTES = 1 << 20
"""Bytes of a constant from which on it is kept so."""
MAX_PLAIN_BYTES = 1 << 22
"""Bytes of these that stay in plain memory: to give a file a name, for an engine to read it, takes
longer than to copy so much."""
MIN_FILE_BYTES = 1 << 26
"""Bytes that a file has room for; it takes as much of the disk as is in it."""


class WeightSpill:
    """Copies of constants, most of them in files that end with them.

    Each file has room for at least as much as all before it, so that there are few.
    """

    def __init__(self) -> None:
        self._plain = 0
        self._file: AnonymousFile | None = None
        self._used = 0
        self._total = 0

    def copy(self, array: Array) -> Array:
        """A copy that nobody changes; in plain memory if there is little, or no file can be had."""
        if self._stays(array):
            return plain_copy(array)
        try:
            file, first = self._room(array.nbytes)
            return file.put(array, first)
        except (AttributeError, OSError):  # the former where the system has no such call
            return plain_copy(array)

    def keep(self, array: Array) -> Array:
        """The same of an array that nobody changes, which is it where it need not be moved."""
        if mapping_of(array) is not None or self._stays(array):
            return array
        return self.copy(array)

    def _stays(self, array: Array) -> bool:
        """Whether an array lies in plain memory."""
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
