"""Zip archives without compression, whose entries are memory-mapped.

The reader is stricter than zip. Each directory entry has one local header that repeats it, in the
same order, and no other bytes exist between or around them. So entries cannot overlap or hide data,
and every zip reader sees the same contents.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from webnn_py.core.errors import DataError, ValidationError, file_error
from webnn_py.core.files import open_regular
from webnn_py.core.messages import printable, shown

Parts = Sequence[bytes | memoryview]
"""The bytes of an entry as consecutive pieces."""

ALIGNMENT = 64
"""Alignment of each entry's first byte, in bytes."""
MAX_ENTRIES = 2**16 - 2

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<2H")
_ZIP64_EXTRA, _PADDING_EXTRA = 0x0001, 0xD935
_FULL = 2**32 - 1
"""A 32-bit size or offset that refers to the 64-bit one in the extra field."""
_FULL_COUNT = 2**16 - 1
_EPOCH = 0x21  # 1980-01-01: saving the same graph twice gives the same bytes
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


GRAPH, PROGRAM = "graph.json", "program.json"
KINDS = {
    GRAPH: "a saved graph, which MLContext.load_graph_sync and load_graph_async read",
    PROGRAM: "a saved program, which MLContext.load_program_sync and load_program_async read",
}
"""Description of each kind of file, by the entry that identifies it."""
ONNX = ".onnx"
_FIRST = b"PK\x03\x04"
"""The first bytes of an archive."""


def kind_of(head: bytes) -> str:
    """Return the kind of a file, a value of `KINDS`, from its first bytes; else ""."""
    first = head[_LOCAL.size :]
    found = (kind for name, kind in KINDS.items() if first.startswith(name.encode()))
    return next(found, "") if head.startswith(_FIRST) else ""


def damaged(where: str, what: str) -> DataError:
    """Return the error for a damaged file.

    Args:
        where: File, entry and position.
        what: The value found there and the expected one.
    """
    return DataError(
        f"{where}: {what}; the file is damaged, or another program changed it: save it again, or"
        " fetch it again from where it came"
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """First byte, end byte and CRC-32 of an entry."""

    start: int
    end: int
    crc: int


class Archive:
    """The entries of an archive in memory.

    Args:
        memory: The whole file.
        source: The file's name in messages.

    Raises:
        DataError: The file is not an archive as `write_archive` writes it.
    """

    def __init__(self, memory: bytes | mmap.mmap, source: str) -> None:
        self.source = source
        self._memory = memoryview(memory)
        self._entries = _Directory(self._memory, source).entries()

    @classmethod
    def open(cls, path: object) -> Archive:
        """Map a file into memory; it stays mapped while any view of it exists.

        Args:
            path: A str or Path.

        Raises:
            ValidationError: `path` is neither a str nor a Path.
            FileError: The file cannot be opened.
            DataError: The file is not an archive, or is an ONNX model.
        """
        name = _checked(path)
        try:
            return cls._open(name, printable(name))
        except OSError as error:
            raise file_error(error, path, f"{printable(name)} cannot be read") from error

    @classmethod
    def _open(cls, name: str, source: str) -> Archive:
        with open_regular(name) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _END.size:
                raise damaged(source, f"got {size} bytes, fewer than any saved file has")
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # An ONNX model begins with field 1 of its protobuf message, the format's version.
            if memory[:1] == b"\x08" or (name.endswith(ONNX) and memory[:4] != _FIRST):
                raise DataError(f"{source}: got an ONNX model, which webnn_py.onnx.load reads")
            return cls(memory, source)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries in file order."""
        return tuple(self._entries)

    def where(self, name: str) -> str:
        """Return an entry's name for messages."""
        return f"{self.source}: {name}"

    def check_names(self, expected: Sequence[str]) -> None:
        """Check that the archive has exactly the expected entries.

        Raises:
            DataError: An entry is missing or unexpected.
        """
        for name in expected:
            if name not in self._entries:
                other = next((kind for head, kind in KINDS.items() if head in self._entries), "")
                if name in KINDS and other:
                    raise DataError(f"{self.source}: got {other}")
                raise damaged(
                    self.source, f"entry {name} is missing, there are {shown(self.names)}"
                )
        for name in self._entries:
            if name not in expected:
                raise damaged(self.source, f"entry {name} is not expected in such a file")

    def view(self, name: str) -> memoryview:
        """Return a view of an entry's bytes without reading them or checking the checksum."""
        entry = self._entries[name]
        return self._memory[entry.start : entry.end]

    def read(self, name: str) -> bytes:
        """Return a copy of an entry's bytes.

        Raises:
            DataError: The checksum is wrong.
        """
        self.verify(name)
        return bytes(self.view(name))

    def verify(self, name: str) -> None:
        """Read an entry and compare its checksum.

        Raises:
            DataError: The checksum is wrong.
        """
        wanted, got = self._entries[name].crc, zlib.crc32(self.view(name))
        if got != wanted:
            raise damaged(self.where(name), f"its checksum is {got:08x}, expected {wanted:08x}")


class _Directory:
    """The parser of an archive's directory and local headers, which must agree.

    Args:
        memory: The whole file.
        source: The file's name in messages.
    """

    def __init__(self, memory: memoryview, source: str) -> None:
        self._memory = memory
        self._source = source

    def entries(self) -> dict[str, _Entry]:
        count, offset, end = self._ends()
        entries: dict[str, _Entry] = {}
        place, position = offset, 0
        for _ in range(count):
            name, place, size, crc, at = self._central(place, end)
            if name in entries:
                raise self._error(place, f"entry {name} occurs twice in the directory")
            if at != position:
                raise self._error(at, f"entry {name} begins at {at}, expected {position}")
            start = self._local(position, name, size, crc)
            position = start + size
            if position > offset:
                raise self._error(
                    start, f"entry {name} has {size} bytes, and {offset - start} are there"
                )
            entries[name] = _Entry(start, position, crc)
        if (place, position) != (end, offset):
            raise self._error(position, "bytes follow that belong to no entry")
        return entries

    def _error(self, offset: int, what: str) -> DataError:
        return damaged(f"{self._source}: byte {offset}", what)

    def _unpack(
        self, layout: struct.Struct, offset: int, sign: bytes, what: str
    ) -> tuple[int, ...]:
        if not 0 <= offset <= len(self._memory) - layout.size:
            raise self._error(offset, f"{what} is cut off: the file has {len(self._memory)} bytes")
        got, *fields = layout.unpack_from(self._memory, offset)
        if got != sign:
            raise self._error(offset, f"got {got!r}, expected {what}, {sign!r}")
        return tuple(fields)

    def _ends(self) -> tuple[int, int, int]:
        """Return the number of entries, and the directory's first and end byte."""
        at = len(self._memory) - _END.size
        disk, start_disk, here, count, size, offset, comment = self._unpack(
            _END, at, b"PK\x05\x06", "the end of a zip archive"
        )
        end = at
        if _FULL_COUNT in (here, count) or _FULL in (size, offset):
            _, end, _ = self._unpack(
                _LOCATOR_64, at - _LOCATOR_64.size, b"PK\x06\x07", "the place of a zip64 directory"
            )
            length, *_, disk, start_disk, here, count, size, offset = self._unpack(
                _END_64, end, b"PK\x06\x06", "the end of a zip64 directory"
            )
            if end + _END_64.size != at - _LOCATOR_64.size or length != _END_64.size - 12:
                raise self._error(end, "the end of the zip64 directory is not where it should be")
        if disk or start_disk or here != count or comment or count > MAX_ENTRIES:
            raise self._error(at, "the archive has several parts, a comment or too many entries")
        if offset + size != end:
            raise self._error(at, f"the directory ends at {offset + size}, expected {end}")
        return count, offset, end

    def _central(self, place: int, end: int) -> tuple[str, int, int, int, int]:
        """Parse a directory entry.

        Returns:
            Its name, the offset of the next directory entry, its size, CRC-32 and the offset of its
            local header.
        """
        fields = self._unpack(_CENTRAL, place, b"PK\x01\x02", "an entry of the directory")
        _, _, flags, method, _, _, crc, packed, size, named, extra, comment, disk, _, _, at = fields
        names = place + _CENTRAL.size
        after = names + named + extra + comment
        if after > end or comment or disk:
            raise self._error(place, "an entry has a comment, or more than the directory holds")
        raw = bytes(self._memory[names : names + named])
        name = raw.decode("ascii", "replace")
        if not _NAME.fullmatch(name):
            raise self._error(place, f"an entry is called {shown(raw)}, which no entry may be")
        more = self._zip64(names + named, extra)
        size, packed, at = (next(more, _FULL) if n == _FULL else n for n in (size, packed, at))
        self._check_plain(place, name, flags, method, size, packed)
        return name, after, size, crc, at

    def _local(self, place: int, name: str, size: int, crc: int) -> int:
        """Check a local header against the directory; return the offset of the entry's bytes."""
        fields = self._unpack(_LOCAL, place, _FIRST, f"the header of entry {name}")
        _, flags, method, _, _, own_crc, own_packed, own_size, named, extra = fields
        names = place + _LOCAL.size
        if names + named + extra > len(self._memory):
            raise self._error(place, f"the header of entry {name} is cut off")
        own_name = bytes(self._memory[names : names + named])
        more = self._zip64(names + named, extra)
        own_size, own_packed = (
            next(more, _FULL) if n == _FULL else n for n in (own_size, own_packed)
        )
        self._check_plain(place, name, flags, method, own_size, own_packed)
        if (own_name, own_size, own_crc) != (name.encode(), size, crc):
            raise self._error(
                place,
                f"the header says {shown(own_name)} of {own_size} bytes, the directory"
                f" {name!r} of {size}, or their checksums differ",
            )
        return names + named + extra

    def _check_plain(
        self, place: int, name: str, flags: int, method: int, size: int, packed: int
    ) -> None:
        if method or size != packed or flags & ~0x800:  # bit 11: the name is in UTF-8
            raise self._error(
                place, f"entry {name} is compressed, encrypted or streamed, expected stored bytes"
            )

    def _zip64(self, place: int, length: int) -> Iterator[int]:
        """Yield the 64-bit sizes and offsets of an extra field."""
        end = place + length
        found: list[int] = []
        while place + _EXTRA.size <= end:
            kind, size = _EXTRA.unpack_from(self._memory, place)
            place += _EXTRA.size
            if place + size > end:
                raise self._error(
                    place, f"an extra field has {size} bytes, {end - place} are there"
                )
            if kind == _ZIP64_EXTRA:
                numbers = range(place, place + size - 7, 8)
                found += [int.from_bytes(self._memory[at : at + 8], "little") for at in numbers]
            place += size
        return iter(found)


def write_archive(stream: BinaryIO, entries: Mapping[str, Parts]) -> None:
    """Write an archive; the stream need not be seekable.

    Args:
        stream: A binary stream at its beginning.
        entries: The bytes of each entry by its name, in file order.
    """
    directory = bytearray()
    position = 0
    for name, parts in entries.items():
        assert _NAME.fullmatch(name), name
        size, crc = sum(map(len, parts)), 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        wide = struct.pack("<2H2Q", _ZIP64_EXTRA, 16, size, size) if size >= _FULL else b""
        header = _LOCAL.size + len(name) + len(wide) + _EXTRA.size
        padding = -(position + header) % ALIGNMENT
        extra = wide + _EXTRA.pack(_PADDING_EXTRA, padding) + bytes(padding)
        short, version = min(size, _FULL), 45 if size >= _FULL or position >= _FULL else 10
        common = version, 0, 0, 0, _EPOCH, crc, short, short, len(name)
        stream.write(_LOCAL.pack(_FIRST, *common, len(extra)) + name.encode() + extra)
        for part in parts:
            stream.write(part)
        directory += _directory_entry(name, position, size, common)
        position += header + padding + size
    stream.write(directory + _end(len(entries), len(directory), position))


def _directory_entry(name: str, offset: int, size: int, common: tuple[int, ...]) -> bytes:
    far = [n for n in (size, size, offset) if n >= _FULL]
    extra = struct.pack(f"<2H{len(far)}Q", _ZIP64_EXTRA, 8 * len(far), *far) if far else b""
    head = _CENTRAL.pack(
        b"PK\x01\x02", common[0], *common, len(extra), 0, 0, 0, 0, min(offset, _FULL)
    )
    return head + name.encode() + extra


def _end(count: int, size: int, offset: int) -> bytes:
    """Return the records that follow the directory."""
    far = b""
    if offset >= _FULL:
        far = _END_64.pack(
            b"PK\x06\x06", _END_64.size - 12, 45, 45, 0, 0, count, count, size, offset
        ) + _LOCATOR_64.pack(b"PK\x06\x07", 0, offset + size, 1)
    return far + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, min(offset, _FULL), 0)


def _checked(path: object) -> str:
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValidationError(f"path: got {shown(path)}, expected a str or Path")
    return name


def check_ending(path: object) -> None:
    """Check that the path of a file to save does not end in ".onnx".

    Raises:
        ValidationError: It does, or `path` is not a path.
    """
    if _checked(path).lower().endswith(ONNX):
        raise ValidationError(
            f"path: got {shown(path)}, but what is saved is no ONNX model; name it .mlgraph or"
            " .mlprogram, or write an ONNX model with webnn_py.onnx.to_onnx(graph)"
        )


@contextlib.contextmanager
def replacing(path: object) -> Iterator[BinaryIO]:
    """Write a temporary file that atomically replaces `path` when the block ends without an error.

    A process that has the old file open or mapped keeps its contents.

    Args:
        path: A str or Path.

    Raises:
        ValidationError: `path` is neither a str nor a Path.
        FileError: The file cannot be written; the message names `path`, not the temporary file.
    """
    name = _checked(path)
    target, message = os.path.realpath(name), f"{printable(name)} cannot be written"
    if os.path.isdir(target):
        is_folder = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise file_error(is_folder, path, message)
    if os.path.exists(target) and not os.path.isfile(target):  # a device must not become a file
        is_device = OSError(errno.EINVAL, "Not a file, but a device or pipe")
        raise file_error(is_device, path, message)
    folder, name = os.path.split(target)
    # At most 48 characters of the name, so that the temporary name is not too long for the system.
    temporary = os.path.join(folder, f"{name[:48]}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as stream:
            if os.name == "posix" and os.path.exists(target):  # keep the file's permissions
                shutil.copymode(target, temporary)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename in (None, temporary) and error.errno:
            raise file_error(error, path, message) from error
        raise
