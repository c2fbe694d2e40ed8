"""Saved files with something wrong in them, drawn from a seed."""

from __future__ import annotations

import copy
import io
import json
import os
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from webnn_py import DataError, MLError, NotSupportedError, OperationError

T = TypeVar("T")

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "150"))
"""Files of a test."""
FIXED = 2**20
"""Bytes that reading may take besides; what is kept for all files is among them."""
PER_BYTE_OF_JSON = 32
"""What Python's objects may take for each byte of a document."""
WEIGHTS = "weights.safetensors"
NUMBERS = (0, 1, 2, 7, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
TOKENS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-0", "1.5", "null", "true", '""', '"\\ud800"'),
    *("[", "]", "{", "}", ",", ":", "[]", "{}", "\\", '"', "\x00", "\ufeff", "9" * 5000),
    *("[" * 3000, '{"a":' * 3000, '{"a":1,"a":2}', "//", "1" + "0" * 30, '{"dimension":[[1,"n"]]}'),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3.5,
        -0.0,
        2**31,
        2**63,
        10**30,
        "",
        "x",
        "float32",
        "\ud800",
    ),
    *([], {}, [1], [[1]], [None], {"a": 1}, {"float": "nan"}, {"float": 1}, {"dimension": []}),
    *({"dimension": [[1, "batch"]]}, {"dimension": [[2**62, "batch", "batch"]]}, [1] * 2000),
)


class Mutations:
    """Draws what is wrong with a file.

    Args:
        data: A good file.
        rng: Where choices come from.
        document: The name of its JSON document.
    """

    def __init__(self, data: bytes, rng: np.random.Generator, document: str) -> None:
        self._data = data
        self._rng = rng
        self._document = document
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            self._entries = {name: archive.read(name) for name in archive.namelist()}

    def draw(self) -> tuple[str, bytes]:
        """Name of a way to break a file, and the broken one."""
        ways: list[Callable[[], bytes]] = [
            self.bytes_flipped,
            self.headers_flipped,
            self.numbers_replaced,
            self.piece_moved,
            self.cut,
            self.zip_tricks,
            self.text_changed,
            self.members_changed,
            self.members_changed,
            self.weights_header_changed,
        ]
        way = ways[self._below(len(ways))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that stand twice
            return way.__name__, way()

    def _below(self, end: int) -> int:
        return int(self._rng.integers(end))

    def _one_of(self, things: Any) -> Any:
        return things[self._below(len(things))]

    def _flipped(self, places: list[int]) -> bytes:
        data = bytearray(self._data)
        for _ in range(1 + self._below(4)):
            data[self._one_of(places)] ^= 1 << self._below(8)
        return bytes(data)

    def bytes_flipped(self) -> bytes:
        return self._flipped([*range(len(self._data))])

    def _headers(self) -> list[int]:
        """Where the archive's own bytes and the header of the weights lie."""
        start = self._data.index(self._entries[WEIGHTS])
        length = 8 + int.from_bytes(self._entries[WEIGHTS][:8], "little")
        graph = self._data.index(self._entries[self._document])
        directory = self._data.rindex(b"PK\x01\x02", 0, self._data.rindex(b"PK\x01\x02"))
        return [
            *range(graph),
            *range(start - 64, start + length),
            *range(directory, len(self._data)),
        ]

    def headers_flipped(self) -> bytes:
        return self._flipped(self._headers())

    def numbers_replaced(self) -> bytes:
        width = self._one_of([1, 2, 4, 8])
        at = self._one_of(self._headers())
        number = self._one_of([*NUMBERS, len(self._data), self._below(2**16)]) % 2 ** (8 * width)
        replaced = self._data[:at] + number.to_bytes(width, "little") + self._data[at + width :]
        return replaced[: len(self._data)]

    def piece_moved(self) -> bytes:
        """A piece taken out, put in twice, or put elsewhere."""
        begin, end = sorted(self._below(len(self._data)) for _ in range(2))
        piece, rest = self._data[begin:end], self._data[:begin] + self._data[end:]
        at = self._below(len(rest) + 1)
        return self._one_of(
            [rest, rest[:at] + piece + rest[at:], self._data[:end] + piece + self._data[end:]]
        )

    def cut(self) -> bytes:
        end = self._below(len(self._data))
        return self._one_of([self._data[:end], self._data[end:], self._data[:end] + bytes(end)])

    def zip_tricks(self) -> bytes:
        return self._one_of(
            [self._zipped, self._bomb, self._streamed, self._overlapping, self._surrounded]
        )()

    def _zipped(self, method: int = zipfile.ZIP_STORED, **more: bytes) -> bytes:
        """As another program packs it, under names that may be wrong, maybe twice."""
        entries = [*self._entries.items(), *more.items()]
        names = ["../graph.json", "/etc/passwd", "graph.json", "GRAPH.JSON", "a\\b", "x/", "."]
        entries.insert(self._below(3), (self._one_of(names), b"{}"))
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", self._one_of([method, zipfile.ZIP_DEFLATED])) as peer:
            for name, data in entries:
                with peer.open(zipfile.ZipInfo(name), "w", force_zip64=self._below(2) > 0) as out:
                    out.write(data)
            peer.comment = self._one_of([b"", b"comment"])
        return stream.getvalue()

    def _bomb(self) -> bytes:
        return self._zipped(zipfile.ZIP_DEFLATED, bomb=bytes(2**22))

    def _streamed(self) -> bytes:
        """Sizes behind the bytes, not before them."""

        class Pipe(io.RawIOBase):
            written = b""

            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                Pipe.written += bytes(data)
                return len(data)

        with zipfile.ZipFile(Pipe(), "w") as peer:  # type: ignore[arg-type]
            for name, data in self._entries.items():
                peer.writestr(name, data)
        return Pipe.written

    def _overlapping(self) -> bytes:
        """Both entries of the directory at one place."""
        data = bytearray(self._data)
        first = self._data.index(b"PK\x01\x02")
        second = self._data.index(b"PK\x01\x02", first + 1)
        one, other = self._one_of([(first, second), (second, first)])
        for field in self._one_of([(42, 46), (16, 28), (16, 46), (20, 28)]), (42, 46):
            data[one + field[0] : one + field[1]] = data[other + field[0] : other + field[1]]
        return bytes(data)

    def _surrounded(self) -> bytes:
        """A file in a file, before it or behind it."""
        outer = self._zipped()
        return self._one_of([outer + self._data, self._data + outer, b"#!/bin/sh\n" + self._data])

    def _archived(self, **changed: bytes) -> bytes:
        """Archived anew, with the right checksums."""
        names = {"document": self._document, "weights": WEIGHTS}
        entries = self._entries | {names[name]: data for name, data in changed.items()}
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in entries.items():
                archive.writestr(name, data)
        return stream.getvalue()

    def _text(self, data: bytes) -> bytes:
        text = bytearray(data)
        for _ in range(1 + self._below(3)):
            begin = self._below(len(text) + 1)
            end = min(len(text), begin + self._one_of([0, 0, 1, 1, 2, 30]))
            token = self._one_of(TOKENS).encode("utf-8", "surrogatepass")
            raw = bytes([self._below(256)])
            text[begin:end] = self._one_of([b"", token, raw, text[begin:end] * 2])
        return bytes(text)

    def text_changed(self) -> bytes:
        return self._archived(document=self._text(self._entries[self._document]))

    def members_changed(self) -> bytes:
        """A document that is JSON, of other members and values."""
        document = json.loads(self._entries[self._document])
        for _ in range(1 + self._below(3)):
            self._change_one(document)
        return self._archived(document=json.dumps(document).encode())

    def _change_one(self, document: Any) -> None:
        places: list[tuple[Any, Any]] = []

        def walk(value: Any) -> None:
            members = value.items() if isinstance(value, dict) else enumerate(value)
            for key, member in list(members):
                places.append((value, key))
                if isinstance(member, (dict, list)):
                    walk(member)

        walk(document)
        if not places:
            return
        parent, key = self._one_of(places)
        other, other_key = self._one_of(places)
        old = parent[key]
        kind = self._below(5)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(old))
        elif kind == 2:
            parent[key] = copy.deepcopy(other[other_key])
        elif kind == 3 and type(old) is int:
            parent[key] = self._one_of([old + 1, old - 1, -old, old * 2, old + 2**31, float(old)])
        else:
            parent[key] = copy.deepcopy(self._one_of(VALUES))

    def weights_header_changed(self) -> bytes:
        weights = self._entries[WEIGHTS]
        length = int.from_bytes(weights[:8], "little")
        header, data = weights[8 : 8 + length], weights[8 + length :]
        kind = self._below(3)
        if kind == 0:
            header = self._text(header)
        elif kind == 1:
            document = json.loads(header)
            self._change_one(document)
            header = json.dumps(document).encode()
        told = (
            self._one_of([len(header), len(header), *NUMBERS]) if kind < 2 else self._below(2**16)
        )
        data = self._one_of([data, data, data[:-1], data + b"\0", b""])
        return self._archived(weights=told.to_bytes(8, "little") + header + data)


def loaded(load: Callable[[], T], data: bytes) -> T | MLError:
    """What loading a file gives, or how it is refused, within memory that its size bounds."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    result: T | MLError
    try:
        result = load()
    except (DataError, NotSupportedError, OperationError) as error:
        result = error
    _, peak = tracemalloc.get_traced_memory()
    json = data.find(WEIGHTS.encode())
    most = FIXED + 3 * len(data) + PER_BYTE_OF_JSON * (json if json > 0 else len(data))
    assert peak - before < most, f"{peak - before} bytes for a file of {len(data)}"
    return result


def check_mutations(
    good: Sequence[bytes], document: str, check: Callable[[str, bytes, bytes], str]
) -> None:
    """Check files with something wrong; each way to break them must have refused ones.

    Args:
        good: Good files.
        document: The name of their JSON document.
        check: Checks one: takes the way that it was broken, its contents and the good file's.
            Returns what came of it: "DataError" or another word.
    """
    outcomes: Counter[tuple[str, str]] = Counter()
    tracemalloc.start()
    try:
        for seed in range(CASES):
            file = good[seed % len(good)]
            way, data = Mutations(file, np.random.default_rng(seed), document).draw()
            try:
                outcomes[way, check(way, data, file)] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}: {way}")
                raise
    finally:
        tracemalloc.stop()
    print(*sorted(outcomes.items()), sep="\n")
    ways = {way for way, _ in outcomes}
    assert len(ways) == 9
    for way in ways:
        assert outcomes[way, "DataError"] > outcomes.total() // 100, way
