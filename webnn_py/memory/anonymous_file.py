"""Files without names, which end with the arrays that are mapped from them."""

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
"""Bytes of one call. The system takes as large blocks of memory as that, and large ones may have to
be made free first; in a virtual machine they may have been given back to its host, which takes ten
times of the time. Beside other threads an array is written by one call: each lets go of the
interpreter, and a thread that computes keeps it for milliseconds."""


class AnonymousFile(mmap.mmap):
    """A file and the memory that it is mapped to, for reading.

    It is written by calls: those take memory for many pages at once, and tell of a full disk.
    """

    _descriptor: int

    @classmethod
    def of_size(cls, size: int) -> AnonymousFile:
        """A new one, which takes as much of the disk as is written to it.

        Raises:
            OSError: There can be none.
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
        """Where it is mapped to."""
        return np.frombuffer(self, np.uint8).ctypes.data

    def put(self, array: Array, first: int) -> Array:
        """Write an array into the file, from a byte on, and return it as it is mapped there.

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
            OSError: It cannot have one there.
        """
        # With a descriptor of a folder, even if unused, the link to the file is followed.
        where = self._descriptor
        os.link(f"/proc/self/fd/{where}", path, src_dir_fd=where)


def _open() -> int:
    try:
        return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):  # neither all systems have these, nor all kinds of disks
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
