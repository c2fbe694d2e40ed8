"""Memory-mapped files, of users and without a name; arrays keep them mapped."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any, Self

import numpy as np

from webnn_py.core.errors import DataError
from webnn_py.ir import Array

WRITE_BYTES = 1 << 14
"""Bytes of one write. The system allocates blocks of memory of that size for it; larger blocks may
have to be freed first, and in a virtual machine fetched from its host, which takes ten times as
long. Beside other threads an array is written by one call: each call releases the GIL, and a
computing thread then keeps it for milliseconds.
"""
SENDS_TO_FILES = sys.platform == "linux"
"""Whether `os.sendfile` copies between files, in a third of the time of writing mapped memory."""


def mapping_of(array: Array) -> mmap.mmap | None:
    """Return the mapping that an array's memory belongs to, or None."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


class MappedFile(mmap.mmap):
    """Read-only mapping of a file, with the file's descriptor."""

    _descriptor: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """Map a whole file; its descriptor is closed with the mapping.

        Raises:
            OSError: It cannot be mapped.
            ValueError: It is empty.
        """
        try:
            made = cls(descriptor, 0, access=mmap.ACCESS_READ)
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

    def send(self, array: Array, target: int, first: int) -> None:
        """Copy the bytes of an array in this mapping to another file, without mapping them.

        Args:
            array: The array, in C order.
            target: Descriptor of the other file.
            first: Offset there.

        Raises:
            OSError: The disk is full.
            DataError: The file has become shorter.
        """
        at = array.ctypes.data - self.address
        end = at + array.nbytes
        os.lseek(target, first, os.SEEK_SET)
        while at < end:
            count = os.sendfile(target, self._descriptor, at, end - at)
            if not count:
                raise DataError(
                    f"the file that an array of {array.nbytes} bytes is mapped from has become"
                    " shorter; write a new file instead, and rename it"
                )
            at += count


class AnonymousFile(MappedFile):
    """A file without a name, which the system deletes once no array maps it.

    It is written by system calls, which allocate many pages at once and report a full disk.
    """

    @classmethod
    def of_size(cls, size: int) -> AnonymousFile:
        """Create a file; it takes only as much disk space as is written to it.

        Raises:
            OSError: It cannot be created.
        """
        descriptor = _open()
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        return cls.of(descriptor)

    def put(self, array: Array, first: int) -> Array:
        """Write an array at an offset and return the mapped array.

        Raises:
            OSError: The disk is full.
        """
        source = mapping_of(array)
        if SENDS_TO_FILES and isinstance(source, MappedFile) and array.flags.c_contiguous:
            source.send(array, self._descriptor, first)
        else:
            self._write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, first)
        return np.frombuffer(self, array.dtype, array.size, first).reshape(array.shape)

    def _write(self, data: memoryview, first: int) -> None:
        piece = WRITE_BYTES if threading.active_count() == 1 else len(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done : done + piece], first + done)

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
