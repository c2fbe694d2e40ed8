"""Memory layout and compute type of each data type.

32-bit types are native. float16 is `f16` with shader-f16, else two per word; both compute in f32.
int8 and uint8 are stored four per word and computed in 32 bits. int64 and uint64 are `i64` and
`u64` with shader-int64, else pairs of words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from webnn_py.core.devices import Float32Precision
from webnn_py.core.shape_tracing import Traced, is_traced
from webnn_py.engines.webgpu.program.pieces import i32, number, u32
from webnn_py.ir import Descriptor

PAIR = "vec2<u32>"
"""The compute type of 64-bit integers without shader-int64, see `int64`."""

NO_TILES: Mapping[str, str] = MappingProxyType({})

PART_ALIGNMENT = 256
"""Alignment of a binding's offset in bytes; enough for every device."""


class Place(Protocol):
    """The index of an element, as WGSL text."""

    @property
    def enclosed(self) -> str:
        """The index, in parentheses unless it is a single name or number."""
        ...


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """Sizes of subgroup matrices that a device multiplies: [m, k] times [k, n].

    Attributes:
        m: Rows of the left operand.
        n: Columns of the right operand.
        k: Columns of the left operand, rows of the right one.
        invocations: Invocations of the subgroup.
    """

    m: int
    n: int
    k: int
    invocations: int = 32


@dataclass(frozen=True, slots=True)
class Features:
    """Device properties that affect the generated code.

    Attributes:
        f16: Whether shader-f16 is enabled.
        int64: Whether shader-int64 is enabled.
        max_bindings: Storage buffers that one kernel may bind.
        workgroup_bytes: Shared memory of a workgroup.
        invocations: Invocations of a workgroup.
        grid: Workgroups along one dimension.
        kind: "cpu" for a software adapter, else "gpu".
        binding_bytes: Largest binding; a larger tensor is bound in parts.
        large: Elements from which each invocation writes four: as many as a large GPU has
            invocations at once.
        f16_matrix: Shape of the matrices of float16 that the device multiplies and adds in
            float32, if it has any (tensor cores).
        i8_matrix: Shape of the matrices of signed 8-bit integers that it adds in int32, if any.
        float32_precision: How products of float32 may be computed.
        tiles: Names of measured tiles, by problem (`compiler/tuning.py`).
    """

    f16: bool = True
    int64: bool = True
    max_bindings: int = 8
    workgroup_bytes: int = 16384
    invocations: int = 256
    grid: int = 65535
    kind: str = "gpu"
    binding_bytes: int = 128 << 20
    large: int = 1 << 20
    f16_matrix: MatrixShape | None = None
    i8_matrix: MatrixShape | None = None
    float32_precision: Float32Precision = "highest"
    tiles: Mapping[str, str] = field(default_factory=lambda: NO_TILES, hash=False)


@dataclass(frozen=True, slots=True)
class Storage:
    """One data type on one device.

    Attributes:
        data_type: WebNN's name.
        element: WGSL type of the buffer's array elements.
        compute: WGSL type of expressions.
        per_word: Tensor elements in one array element.
        word_bytes: Bytes of one array element.
    """

    data_type: str
    element: str
    compute: str
    per_word: int
    word_bytes: int

    def words(self, size: int) -> int:
        """Return the array elements that hold `size` tensor elements."""
        return -(-size // self.per_word)

    def buffer_bytes(self, size: int) -> int:
        """Return the bytes of a buffer for `size` tensor elements, a multiple of 4."""
        return -(-self.words(size) * self.word_bytes // 4) * 4

    def load(self, at: Callable[[str], str], index: Place) -> str:
        """Emit the load of one tensor element; `at` emits the array element at an index."""
        place = index.enclosed
        match self.data_type:
            case "uint8":
                return f"(({at(f'{place} >> 2u')} >> (({place} & 3u) * 8u)) & 0xffu)"
            case "int8":
                word = f"bitcast<i32>({at(f'{place} >> 2u')})"
                return f"extractBits({word}, ({place} & 3u) * 8u, 8u)"
            case "float16" if self.per_word == 2:
                return f"unpack2x16float({at(f'{place} >> 1u')})[{place} & 1u]"
            case "float16":
                return f"f32({at(str(index))})"
        return at(str(index))

    def pack(self, parts: list[str]) -> str:
        """Emit one array element from the tensor elements in it."""
        if self.per_word == 4:
            bytes_ = [f"((u32({part}) & 0xffu) << {8 * i}u)" for i, part in enumerate(parts)]
            return " | ".join(bytes_)
        if self.per_word == 2:
            low, high = (f"wn_half_bits({part})" for part in parts)
            return f"{low} | ({high} << 16u)"
        return f"{self.element}({parts[0]})" if self.element != self.compute else parts[0]

    def wrap(self, expression: str) -> str:
        """Reduce the result of 32-bit arithmetic to the data type's range."""
        match self.data_type:
            case "uint8":
                return f"(({expression}) & 0xffu)"
            case "int8":
                return f"extractBits({expression}, 0u, 8u)"
        return expression

    def literal(self, value: float | int) -> str:
        """Return a literal of the compute type."""
        return literal(value, self.compute)

    def extreme(self, which: str) -> str:
        """Return the literal of the lowest ("min") or highest ("max") value, or infinity."""
        if self.compute == "f32":
            return self.literal(-math.inf if which == "min" else math.inf)
        info = np.iinfo(self.data_type)
        return self.literal(int(getattr(info, which)))


def literal(value: float | int, compute: str) -> str:
    """Return a WGSL literal; WGSL has none for infinities and NaN, so emit their bits."""
    if is_traced(value):
        return _traced_literal(value, compute)
    match compute:
        case "f32":
            return _float_literal(float(value))
        case "i32":
            return "i32(-2147483647 - 1)" if value == -(2**31) else i32(int(value))
        case "u32":
            return u32(int(value))
        case "i64":
            return (
                "(-9223372036854775807li - 1li)" if value == -(2**63) else number(int(value), "li")
            )
        case "u64":
            return number(int(value), "lu")
        case "vec2<u32>":
            bits = int(value) & 0xFFFFFFFFFFFFFFFF
            return f"vec2<u32>({u32(bits & 0xFFFFFFFF)}, {u32(bits >> 32)})"
    raise AssertionError(compute)


def _traced_literal(value: Traced, compute: str) -> str:
    """Return the literal of a traced integer; a fixed number where its type allows no symbol."""
    match compute:
        case "f32" if isinstance(value.number, int):
            return number(value, "f")
        case "i32":
            return i32(value)
        case "u32":
            return u32(value)
        case "i64":
            return number(value, "li")
        case "u64":
            return number(value, "lu")
        case "vec2<u32>" if 0 <= value < 1 << 32:
            return f"vec2<u32>({u32(value)}, 0u)"
    return literal(value.exactly(), compute)


def _float_literal(value: float) -> str:
    if math.isnan(value):
        return "wn_bits(0x7fc00000u)"
    if abs(value) > 3.4028234663852886e38:
        return f"wn_bits({'0xff800000u' if value < 0 else '0x7f800000u'})"
    if value == 0 and math.copysign(1.0, value) < 0:
        return "wn_bits(0x80000000u)"
    return f"{'-' if value < 0 else ''}{number(abs(value), 'f')}"


def storage_of(data_type: str, features: Features) -> Storage:
    """Return the layout of a data type on a device with these features."""
    return _storage_of(data_type, features.f16, features.int64)


@functools.cache
def _storage_of(data_type: str, f16: bool, int64: bool) -> Storage:
    match data_type:
        case "float32":
            return Storage(data_type, "f32", "f32", 1, 4)
        case "int32":
            return Storage(data_type, "i32", "i32", 1, 4)
        case "uint32":
            return Storage(data_type, "u32", "u32", 1, 4)
        case "float16" if f16:
            return Storage(data_type, "f16", "f32", 1, 2)
        case "float16":
            return Storage(data_type, "u32", "f32", 2, 4)
        case "int64" if int64:
            return Storage(data_type, "i64", "i64", 1, 8)
        case "uint64" if int64:
            return Storage(data_type, "u64", "u64", 1, 8)
        case "int64" | "uint64":
            return Storage(data_type, PAIR, PAIR, 1, 8)
        case "int8" | "int4":
            return Storage("int8", "u32", "i32", 4, 4)
        case "uint8" | "uint4":
            return Storage("uint8", "u32", "u32", 4, 4)
    raise AssertionError(data_type)


def buffer_bytes(tensor: Descriptor) -> int:
    """Return the bytes of a tensor's buffer, a multiple of 4; equal on all devices."""
    return _storage_of(tensor.data_type, False, False).buffer_bytes(tensor.size)


def aligned(size: int) -> int:
    """Round `size` up to the next binding offset."""
    return -(-size // PART_ALIGNMENT) * PART_ALIGNMENT


def parts_of(size: int, limit: int) -> list[tuple[int, int]]:
    """Return offset and length in bytes of the bindings that cover `size` bytes."""
    step = limit // PART_ALIGNMENT * PART_ALIGNMENT
    if size <= step:
        return [(0, size)]
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def host_dtype(data_type: str) -> str:
    """Return the data type of uploads: 4-bit constants are uploaded as bytes."""
    return {"int4": "int8", "uint4": "uint8"}.get(data_type, data_type)
