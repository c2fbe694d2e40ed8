"""The format of a model's file, as far as it takes to leave large weights where they are.

A parsed model would hold them a second time. In the file, raw data of initializers is cut out, and
an entry of external data says where it stands.

Source: Protocol Buffers, "Encoding"; onnx.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import onnx

from webnn_py.onnx.tensor import WEBNN_TYPES

LARGE = 1 << 12
"""Bytes from which on a weight is left in the file."""
PLACE = "place"
"""Key of external data: the first byte in the model's own file, and the number of bytes."""

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_GRAPH, _INITIALIZER = (
    onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number,
    onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number,
)
_DATA_TYPE, _RAW_DATA, _EXTERNAL = (
    onnx.TensorProto.DESCRIPTOR.fields_by_name[name].number
    for name in ("data_type", "raw_data", "external_data")
)


Place = tuple[int, int]
"""The first byte in the model's own file, and the number of bytes."""


def without_weights(memory: Any) -> tuple[bytes, frozenset[Place]]:
    """Cut the large weights of its graph out of a model's file.

    Args:
        memory: The file's bytes.

    Returns:
        The rest, and the places of the weights.

    Raises:
        ValueError: It is damaged.
        IndexError: It is cut off.
    """
    places: set[Place] = set()
    graph = _replaced(_INITIALIZER, functools.partial(_without_data, places))
    rest = b"".join(_replaced(_GRAPH, graph)(memory, 0, len(memory)))
    return rest, frozenset(places)


def place_of(tensor: Any) -> Place | None:
    """Return where the contents of a tensor stand in the model's file, if it says so."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL or tensor.HasField("raw_data"):
        return None
    for entry in tensor.external_data:
        numbers = entry.value.split()
        if entry.key == PLACE and len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            return int(numbers[0]), int(numbers[1])
    return None


_Parts = list[Any]
_Writer = Callable[[Any, int, int], _Parts]


def _replaced(number: int, write: _Writer) -> _Writer:
    """Writes a message again, the messages in one of its fields by another writer."""

    def again(memory: Any, first: int, last: int) -> _Parts:
        parts: _Parts = []
        for field, kind, start, contents, end in _fields(memory, first, last):
            if (field, kind) != (number, _LENGTH):
                parts.append(memory[start:end])
                continue
            inner = write(memory, contents, end)
            size = sum(len(part) for part in inner)
            parts += [_varint(number << 3 | _LENGTH), _varint(size), *inner]
        return parts

    return again


def _without_data(places: set[Place], memory: Any, first: int, last: int) -> _Parts:
    """A tensor; its data is cut out if it is large and its elements lie there as in memory."""
    if last - first < LARGE:
        return [memory[first:last]]
    fields = list(_fields(memory, first, last))
    types = [
        _number(memory, contents)[0] for field, _, _, contents, _ in fields if field == _DATA_TYPE
    ]
    data = [field for field in fields if field[:2] == (_RAW_DATA, _LENGTH)]
    is_plain = len(data) == 1 and types and types[-1] in WEBNN_TYPES
    if not is_plain or any(f[0] >= _EXTERNAL for f in fields):
        return [memory[first:last]]
    (_, _, start, contents, end) = data[0]
    places.add((contents, end - contents))
    made = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    made.external_data.add(key=PLACE, value=f"{contents} {end - contents}")
    return [memory[first:start], memory[end:last], made.SerializeToString()]


def _fields(memory: Any, first: int, last: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each field its number, its kind, and where it, its contents and its end are."""
    at = first
    while at < last:
        start = at
        tag, at = _number(memory, at)
        kind, contents = tag & 7, at
        if kind == _VARINT:
            _, at = _number(memory, at)
        elif kind == _LENGTH:
            size, contents = _number(memory, at)
            at = contents + size
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise ValueError(f"a field of kind {kind}")
        if at > last:
            raise ValueError("a field that is longer than what it is in")
        yield tag >> 3, kind, start, contents, at


def _number(memory: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = memory[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of more than 64 bits")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
