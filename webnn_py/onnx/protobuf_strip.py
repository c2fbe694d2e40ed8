"""Protobuf rewriter that strips large weights from a model's file before it is parsed.

A parsed model would hold the weights a second time. The rewriter removes the raw data of large
initializers and adds an entry of external data with its place in the file.

Source: Protocol Buffers, "Encoding"; onnx.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import onnx

from webnn_py.onnx.tensor import WEBNN_TYPES

MIN_STRIPPED_BYTES = 1 << 12
"""Smallest serialized initializer, in bytes, whose weight stays in the file."""
PLACE = "place"
"""Key of the external data entry with an offset and a length in the model's own file."""

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
"""Offset and length in the model's own file, in bytes."""


def without_weights(memory: Any) -> tuple[bytes, frozenset[Place]]:
    """Strip the large weights of the main graph from a model's file.

    Args:
        memory: The file's bytes.

    Returns:
        The file without the weights, and the places of the weights.

    Raises:
        ValueError: The file is damaged.
        IndexError: The file is truncated.
    """
    places: set[Place] = set()
    graph = _replaced(_INITIALIZER, functools.partial(_without_data, places))
    rest = b"".join(_replaced(_GRAPH, graph)(memory, 0, len(memory)))
    return rest, frozenset(places)


def place_of(tensor: Any) -> Place | None:
    """Return the place of a stripped tensor's contents in the model's file, or None."""
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
    """Return a writer that copies a message, but rewrites its field `number` with `write`."""

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
    """Write a tensor without its raw data if it is large and of a WebNN data type.

    Args:
        places: Receives the place of the data.
        memory: The file's bytes.
        first: Offset of the tensor's first byte.
        last: Offset after its last byte.
    """
    if last - first < MIN_STRIPPED_BYTES:
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
    """Yield each field's number, wire type, and offsets of its start, contents and end."""
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
