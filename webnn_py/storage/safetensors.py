"""Reads and writes weights in the safetensors format: header length, JSON header, bytes.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from webnn_py.core import dtypes
from webnn_py.ir import Array
from webnn_py.storage.archive import ALIGNMENT, Parts, damaged
from webnn_py.storage.document import Field, parse, to_json

NAMES = {
    f"{info.kind.upper()}{info.bits}": info.numpy
    for name, info in dtypes.DTYPES.items()
    if name in dtypes.ANY
}
"""NumPy data type by its safetensors name."""
_NAME_OF = {dtype: name for name, dtype in NAMES.items()}
_MAX_RANK, _MAX_SIZE = 8, 2**62


def safetensors_parts(arrays: Mapping[str, Array]) -> Parts:
    """Return the parts of a safetensors file without copying the arrays' bytes.

    If the file is aligned to 64 bytes, each array is aligned to its element size.
    """
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    header, position = {}, 0
    for name, array in ordered:
        header[name] = {
            "dtype": _NAME_OF[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = to_json(header)
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    raw = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for _, array in ordered)
    return [len(text).to_bytes(8, "little") + text, *raw]


def read_safetensors(memory: memoryview, where: str) -> dict[str, Array]:
    """Return views of the arrays in a safetensors file by name; only the header is read.

    Unaligned arrays are copied.

    Args:
        memory: The whole file.
        where: The file's name in messages.

    Raises:
        DataError: The header is damaged, or its arrays overlap or leave gaps.
    """
    if len(memory) < 8:
        raise damaged(where, f"got {len(memory)} bytes, expected 8 or more")
    start = 8 + int.from_bytes(memory[:8], "little")
    if start > len(memory):
        raise damaged(where, f"a header of {start - 8} bytes, and {len(memory) - 8} are there")
    header = parse(memory[8:start], f"{where}: header")
    fields = {name: field for name, field in header.mapping().items() if name != "__metadata__"}
    places = {name: _place(field) for name, field in fields.items()}
    position = 0
    for name, (_, _, begin, end) in sorted(places.items(), key=lambda item: item[1][2:]):
        if begin != position:
            raise fields[name].error(f"its data begins at {begin}, expected {position}")
        position = end
    if position != len(memory) - start:
        raise header.error(
            f"the tensors have {position} bytes, but the file has {len(memory) - start}"
        )
    data = memory[start:]
    arrays = {
        name: np.frombuffer(data[begin:end], dtype).reshape(shape)
        for name, (dtype, shape, begin, end) in places.items()
    }
    return {name: a if a.flags.aligned else a.copy() for name, a in arrays.items()}


def _place(field: Field) -> tuple[np.dtype[np.generic], tuple[int, ...], int, int]:
    """Return an array's data type, shape, first byte and end byte from its header field."""
    members = field.members("dtype", "shape", "data_offsets")
    dtype = NAMES[members["dtype"].choice(tuple(NAMES))]
    shape = tuple(n.integer(0, _MAX_SIZE) for n in members["shape"].items(_MAX_RANK))
    offsets = [n.integer(0, _MAX_SIZE) for n in members["data_offsets"].items(2)]
    size = math.prod(shape) * dtype.itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise members["data_offsets"].unlike(f"begin and end of {size} bytes")
    return dtype, shape, offsets[0], offsets[1]
