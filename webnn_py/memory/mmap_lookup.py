"""Lookup of the file and offset that a memory-mapped array lies at.

ONNX Runtime copies weights that it gets as arrays, but maps those that it finds in a named file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from webnn_py.ir import Array
from webnn_py.memory.mapped_file import AnonymousFile, mapping_of

PROCESS_MAPS_PATH = "/proc/self/maps"
"""Linux's list of this process's mappings."""


class FileRange(NamedTuple):
    """The bytes of an array in a file.

    Attributes:
        folder: The file's folder.
        file: Its name there.
        offset: Bytes.
        length: Bytes.
    """

    folder: str
    file: str
    offset: int
    length: int


class _Region(NamedTuple):
    """Address range that a file is mapped to, and its offset in the file."""

    first: int
    end: int
    offset: int
    path: str


def mappings_of(arrays: Iterable[Array]) -> list[mmap.mmap]:
    """Return the mappings that arrays belong to, each once."""
    found = (mapping_of(array) for array in arrays)
    return list({id(mapping): mapping for mapping in found if mapping is not None}.values())


@contextlib.contextmanager
def find_file_ranges(arrays: Mapping[str, Array]) -> Iterator[dict[str, FileRange]]:
    """Yield the file ranges of arrays by name, for files that can be opened until the context ends.

    Each `AnonymousFile` has a temporary name until then.
    """
    mappings = mappings_of(arrays.values())
    nameless = [mapping for mapping in mappings if isinstance(mapping, AnonymousFile)]
    with contextlib.ExitStack() as names:
        regions = list(_linked(nameless, names)) if nameless else []
        if len(nameless) < len(mappings):
            regions += _regions()
        yield dict(_found(arrays, regions))


def _found(
    arrays: Mapping[str, Array], regions: Iterable[_Region]
) -> Iterator[tuple[str, FileRange]]:
    for name, array in arrays.items():
        first = array.ctypes.data
        for region in regions:
            if region.first <= first and first + array.nbytes <= region.end:
                offset = first - region.first + region.offset
                yield name, FileRange(*os.path.split(region.path), offset, array.nbytes)


def _linked(files: Iterable[AnonymousFile], names: contextlib.ExitStack) -> Iterator[_Region]:
    """Yield the regions of anonymous files linked in a temporary folder; none where that fails."""
    try:
        folder = tempfile.mkdtemp(prefix="webnn-")
    except OSError:
        return
    names.callback(_remove, os.rmdir, folder)
    for number, file in enumerate(files):
        path = Path(folder, str(number))
        with contextlib.suppress(OSError):
            file.link(path)
            names.callback(_remove, os.unlink, path)
            yield _Region(file.address, file.address + len(file), 0, str(path))


def _remove(remove: Callable[[Any], None], path: object) -> None:
    """Remove a path without a file descriptor, as none may be left; it may be gone already."""
    with contextlib.suppress(OSError):
        remove(path)


def _regions() -> Iterator[_Region]:
    try:
        with open(PROCESS_MAPS_PATH, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        return
    known: dict[str, tuple[int, int] | None] = {}
    for line in lines:
        addresses, _, offset, device, inode, *rest = line.rstrip("\n").split(None, 5)
        path = rest[0] if rest else ""
        if not path.startswith("/"):
            continue
        if path not in known:
            known[path] = _identity(path)
        major, minor = (int(part, 16) for part in device.split(":"))
        if known[path] == (os.makedev(major, minor), int(inode)):
            first, end = (int(part, 16) for part in addresses.split("-"))
            yield _Region(first, end, int(offset, 16), path)


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a path, or None if it was deleted."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
