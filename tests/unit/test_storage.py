"""Archives, documents and weights of saved files: what is written, and what is refused and how."""

from __future__ import annotations

import errno
import io
import math
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from webnn_py import DataError, NotSupportedError
from webnn_py.ir import Array
from webnn_py.storage.archive import Archive, Parts, replacing, write_archive
from webnn_py.storage.document import parse, to_json
from webnn_py.storage.safetensors import NAMES, read_safetensors, safetensors_parts

ENTRIES: dict[str, Parts] = {
    "a.json": [b"{}"],
    "folder/b": [b"some", memoryview(b"thing"), b""],
    "empty": [],
}


def archive(entries: dict[str, Parts]) -> bytes:
    stream = io.BytesIO()
    write_archive(stream, entries)
    return stream.getvalue()


GOOD = archive(ENTRIES)
DIRECTORY = GOOD.index(b"PK\x01\x02")


def test_archives_are_zip_files_of_plain_aligned_entries() -> None:
    opened = Archive(GOOD, "file")
    assert opened.names == tuple(ENTRIES)
    with zipfile.ZipFile(io.BytesIO(GOOD)) as peer:
        assert peer.testzip() is None
        assert peer.namelist() == list(ENTRIES)
        for name, parts in ENTRIES.items():
            assert peer.read(name) == b"".join(parts) == opened.read(name)
    assert GOOD.index(b"something") % 64 == 0
    assert archive(ENTRIES) == GOOD


def test_archives_of_other_programs_are_read_where_they_are_as_plain() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as peer:
        peer.writestr("a", b"1")
        with peer.open("wide", "w", force_zip64=True) as entry:
            entry.write(b"2")
    assert Archive(stream.getvalue(), "file").read("wide") == b"2"


def test_sizes_and_places_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for files of more than 4 GiB, which begin at 1,000 bytes here."""
    monkeypatch.setattr("webnn_py.storage.archive._FULL", 1000)
    entries: dict[str, Parts] = {"small": [b"1"], "large": [bytes(2000)], "last": [b"2"]}
    data = archive(entries)
    assert data.count(b"PK\x06\x06") == data.count(b"PK\x06\x07") == 1
    opened = Archive(data, "file")
    assert {name: opened.read(name) for name in opened.names} == {
        name: b"".join(parts) for name, parts in entries.items()
    }
    place = data.index(b"PK\x06\x06")
    for at in (place + n for n in (0, 4, 16, 24, 32, 40, 48, 64)):
        with pytest.raises(DataError, match="file is damaged"):
            Archive(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "file")


def patched(at: int, value: bytes) -> bytes:
    return GOOD[:at] + value + GOOD[at + len(value) :]


def zipped(**options: Any) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as peer:
        peer.writestr("a", b"1" * 100)
    return stream.getvalue()


def with_names(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as peer, pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        for name in names:
            peer.writestr(name, b"1")
    return stream.getvalue()


def with_comment() -> bytes:
    stream = io.BytesIO(zipped())
    with zipfile.ZipFile(stream, "a") as peer:
        peer.comment = b"hello"
    return stream.getvalue()


BROKEN = {
    "empty": b"",
    "no archive": b"not a zip file, and long enough to be one",
    "cut": GOOD[:-1],
    "without its beginning": GOOD[1:],
    "bytes before": b"\0" * 64 + GOOD,
    "bytes after": GOOD + b"\0",
    "comment": with_comment(),
    "compressed": zipped(compression=zipfile.ZIP_DEFLATED),
    "twice": with_names("a", "a"),
    "upwards": with_names("../a"),
    "absolute": with_names("/a"),
    "folder": with_names("a/"),
    "not ASCII": with_names("é"),
    "local method": patched(8, b"\x08"),
    "local flags": patched(6, b"\x01"),
    "local name": patched(30, b"z"),
    "local size": patched(22, b"\x03"),
    "local checksum": patched(14, bytes([GOOD[14] ^ 1])),
    "local extra": patched(28, b"\xff\xff"),
    "extra field": patched(38, b"\xff\xff"),  # the length of the padding
    "size": patched(DIRECTORY + 20, b"\xff\xff\xff\x7f" * 2),
    "offset": patched(DIRECTORY + 42, b"\x01"),
    "name length": patched(DIRECTORY + 28, b"\xff\xff"),
    "entry comment": patched(DIRECTORY + 32, b"\x01"),
    "directory offset": patched(len(GOOD) - 6, b"\x01"),
    "directory size": patched(len(GOOD) - 10, b"\x01"),
    "count": patched(len(GOOD) - 14, b"\x02\0\x02\0"),
    "count too high": patched(len(GOOD) - 14, b"\x04\0\x04\0"),
    "parts": patched(len(GOOD) - 18, b"\x01"),
    "zip64 that is not there": patched(len(GOOD) - 14, b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_archives_say_where(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^file.*; the file is damaged"):
        Archive(data, "file")
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"file.*; the file is damaged"):
        Archive.open(path)


def test_checksums_are_compared_where_an_entry_is_read() -> None:
    opened = Archive(GOOD.replace(b"something", b"somethink"), "file")
    assert bytes(opened.view("folder/b")) == b"somethink"
    with pytest.raises(DataError, match=r"^file: folder/b: its checksum is \w+, expected \w+;"):
        opened.read("folder/b")


def test_entries_are_those_that_are_expected() -> None:
    opened = Archive(GOOD, "file")
    opened.check_names(["a.json", "folder/b", "empty"])
    with pytest.raises(DataError, match="entry weights is missing"):
        opened.check_names(["weights", *opened.names])
    with pytest.raises(DataError, match="entry folder/b is not expected"):
        opened.check_names(["a.json", "empty"])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a file"):
        Archive.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        Archive.open(tmp_path / "missing")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(GOOD)
    mapped = Archive.open(path)
    with pytest.raises(TypeError), replacing(path) as stream:
        write_archive(stream, ENTRIES | {"b": ["not bytes"]})  # type: ignore[list-item]
    assert path.read_bytes() == GOOD
    with replacing(path) as stream:
        stream.write(b"other")
    assert path.read_bytes() == b"other"
    assert os.listdir(tmp_path) == ["file"]
    assert mapped.read("folder/b") == b"something"


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with replacing(path) as stream:
        (other,) = (each for each in tmp_path.iterdir() if each != path)
        assert stat.S_IMODE(other.stat().st_mode) == 0o640
        stream.write(b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_names_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    with replacing(path) as stream:
        stream.write(b"new")
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=f"{pipe} .* device or pipe$"), replacing(str(pipe)):
        pass
    assert pipe.is_fifo()
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pass
    assert os.listdir(tmp_path) == ["pipe"]


def test_errors_name_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        pass
    assert caught.value.filename == path
    with pytest.raises(OSError, match="No space left") as full, replacing(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == tmp_path / "file"
    assert os.listdir(tmp_path) == []


ARRAYS: dict[str, Array] = {
    "bytes": np.arange(3, dtype=np.uint8),
    "scalar": np.array(math.nan, np.float16),
    "matrix": np.array([[1, -0.0, np.inf]], np.float32).T,
    "wide": np.array([2**63 - 1, -(2**63)]),
    "é\ud800\n": np.zeros((1, 2, 1), np.int8),
}


def safetensors(arrays: dict[str, Array]) -> bytes:
    return b"".join(safetensors_parts(arrays))


def test_weights_are_read_as_they_were() -> None:
    read = read_safetensors(memoryview(safetensors(ARRAYS)), "weights")
    assert set(read) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()
        assert not read[name].flags.writeable
    assert read_safetensors(memoryview(safetensors({})), "weights") == {}


def test_the_safetensors_package_reads_them() -> None:
    arrays = {"é": ARRAYS["matrix"]}
    arrays |= {name: np.arange(6).astype(dtype).reshape(2, 3) for name, dtype in NAMES.items()}
    read = load_safetensors(safetensors(arrays))
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)
    assert load_safetensors(safetensors({})) == {}


def test_weights_lie_where_the_memory_does() -> None:
    data = np.frombuffer(safetensors(ARRAYS), np.uint8)
    for array in read_safetensors(memoryview(data), "weights").values():
        assert np.shares_memory(array, data)
    shifted = memoryview(b"." + data.tobytes())[1:]
    assert read_safetensors(shifted, "weights")["wide"].flags.aligned


def header(text: str, size: int = 0) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + bytes(size)


def entry(dtype: str = '"U8"', shape: str = "[2]", offsets: str = "[0,2]") -> bytes:
    return header(f'{{"x":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}', 2)


NEST = "[" * 100_000
BROKEN_WEIGHTS = {
    "short": b"\0" * 7,
    "no header": (2**63).to_bytes(8, "little"),
    "not JSON": header("{"),
    "a list": header("[]"),
    "nested": header(NEST),
    "twice": header('{"x":1,"x":1}'),
    "not a number": header('{"x":NaN}'),
    "out of range": header('{"x":1e999}'),
    "many digits": header(f'{{"x":{"9" * 5000}}}'),
    "not UTF-8": header("{}").replace(b"{", b"\xff"),
    "member missing": header('{"x":{"dtype":"U8"}}'),
    "type": entry(dtype='"F64"'),
    "type's type": entry(dtype="[]"),
    "shape": entry(shape="[-2]"),
    "shape's type": entry(shape="2"),
    "fraction": entry(shape="[2.0]"),
    "bool": entry(offsets="[false,2]"),
    "rank": entry(shape=f"[{'1,' * 8}2]"),
    "product": entry(shape=f"[{2**62},{2**62}]"),
    "offsets": entry(offsets="[0,1]"),
    "one offset": entry(offsets="[2]"),
    "gap": entry(offsets="[1,3]"),
    "data left": entry(shape="[1]", offsets="[0,1]"),
    "data missing": entry(shape="[3]", offsets="[0,3]"),
    "overlap": header(
        '{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
        '"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
        3,
    ),
}


@pytest.mark.parametrize("data", BROKEN_WEIGHTS.values(), ids=BROKEN_WEIGHTS)
def test_broken_weights_say_where(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^weights: .*; the file is damaged"):
        read_safetensors(memoryview(data), "weights")


def test_documents_have_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webnn_py.storage.document.MAX_JSON_BYTES", 9)
    assert parse(to_json("1234567"), "file").text() == "1234567"
    with pytest.raises(NotSupportedError, match="10 bytes of JSON are more than 9"):
        to_json("12345678")
    with pytest.raises(DataError, match="file: 10 bytes of JSON, expected 9 at most"):
        parse(b'"12345678"', "file")


DOCUMENT = parse(to_json({"a": [{"b c": 1.5}, None], "t": True, "s": "\ud800"}), "file")
MISTAKES: dict[str, Callable[[], object]] = {
    r"file: member 'x' is missing": lambda: DOCUMENT.members("a", "x"),
    r"file: member 's' is not expected": lambda: DOCUMENT.members("a", "t"),
    r"file: a\[0\]: got \{'b c': 1\.5\}, expected a list": lambda: at("a", 0).items(),
    r"file: a\[0\]\.b c: got 1\.5, expected an integer in 0\.\.2": lambda: (
        at("a", 0).mapping()["b c"].integer(0, 2)
    ),
    r"file: a\[1\]: got None, expected an object": lambda: at("a", 1).mapping(),
    r"file: a: a list of 2 members, expected 1 at most": lambda: DOCUMENT.mapping()["a"].items(1),
    r"file: t: got True, expected an integer": lambda: DOCUMENT.mapping()["t"].integer(0, 2),
    r"file: t: got True, expected a string": lambda: DOCUMENT.mapping()["t"].text(),
    r"file: s: got '\\ud800', expected one of \['x'\]": lambda: DOCUMENT.mapping()["s"].choice(
        ["x"]
    ),
}


def at(name: str, index: int) -> Any:
    return DOCUMENT.mapping()[name].items()[index]


@pytest.mark.parametrize("message", MISTAKES)
def test_fields_of_documents_say_where_they_stand(message: str) -> None:
    with pytest.raises(DataError, match=message):
        MISTAKES[message]()


def test_fields_of_documents_are_what_they_should_be() -> None:
    members = DOCUMENT.members("a", "t", optional=("s", "u"))
    assert members["s"].text() == members["s"].choice(["\ud800"]) == "\ud800"
    assert parse(b"7", "file").integer(7, 7) == 7
