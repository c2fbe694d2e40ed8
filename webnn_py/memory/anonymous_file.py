"""Memory-mapped files without a name, which the system deletes once no array maps them."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path

import numpy as np

from webnn_py.ir import Array

WRITE_BYTES = 1 << 14
"""Bytes of one write. The system allocates blocks of memory of that size for it; larger blocks may
have to be freed first, and in a virtual machine fetched from its host, which takes ten times as
long. Beside other threads an array is written by one call: each call releases the GIL, and a
computing thread then keeps it for milliseconds.
"""


class AnonymousFile(mmap.mmap):
    """A file without a name and its read-only mapping.

    It is written by system calls, which allocate many pages at once and report a full disk.
    """

    _descriptor: int

    @classmethod
    def of_size(cls, size: int) -> AnonymousFile:
        """Create a file; it takes only as much disk space as is written to it.

        Raises:
            OSError: It cannot be created.
        """
        descriptor = _open()
        try:
            os.ftruncate(descriptor, size)
            made = cls(descriptor, size, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(descriptor)
            raise
        made._descriptor = descriptor
        weakref.finalize(made, os.close, descriptor).atexit = False
        return made

    @property
    def address(self) -> int:
        """The address of the mapping."""
        return np.frombuffer(self, np.uint8).ctypes.data

    def put(self, array: Array, first: int) -> Array:
        """Write an array at an offset and return the mapped array.

        Raises:
            OSError: The disk is full.
        """
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        piece = WRITE_BYTES if threading.active_count() == 1 else len(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done : done + piece], first + done)
        return np.frombuffer(self, array.dtype, array.size, first).reshape(array.shape)

    def link(self, path: Path) -> None:
        """Give the file a name.

        Raises:
            OSError: The file system refuses.
        """
        # Any src_dir_fd makes os.link follow the symbolic link in /proc.
        descriptor = self._descriptor
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def _open() -> int:
    try:
        return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):  # some systems and file systems lack O_TMPFILE
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
