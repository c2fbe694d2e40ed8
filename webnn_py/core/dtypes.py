"""Table of WebNN's data types.

Source: WebNN 2026, "MLOperandDataType"; int4 and uint4 are an extension for quantised constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import did_you_mean, shown

MLOperandDataType = Literal[
    "float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8", "int4", "uint4"
]
"""Names of the data types; each name tells kind and bits."""


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """Facts of one data type.

    Attributes:
        name: WebNN's name.
        kind: "f" (float), "i" (signed) or "u" (unsigned).
        bits: Size of one element in bits.
        numpy: The NumPy type that holds it on the host (int4 and uint4: one element a byte).
    """

    name: MLOperandDataType
    kind: str
    bits: int
    numpy: np.dtype[Any]

    @property
    def min(self) -> float | int:
        """Lowest value."""
        if self.kind == "f":
            return float(np.finfo(self.numpy).min)
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def max(self) -> float | int:
        """Highest value."""
        if self.kind == "f":
            return float(np.finfo(self.numpy).max)
        return (1 << (self.bits - (self.kind == "i"))) - 1


def _info(name: MLOperandDataType) -> DTypeInfo:
    kind = name.rstrip("0123456789")
    bits = int(name.removeprefix(kind))
    return DTypeInfo(name, kind[0], bits, np.dtype(f"{kind}{max(bits, 8)}"))


DTYPES: dict[str, DTypeInfo] = {name: _info(name) for name in get_args(MLOperandDataType)}

PACKED_4BIT = ("int4", "uint4")
ANY: tuple[str, ...] = tuple(name for name in DTYPES if name not in PACKED_4BIT)
FLOATS: tuple[str, ...] = tuple(name for name in ANY if DTYPES[name].kind == "f")
_BY_NUMPY = {DTYPES[name].numpy: DTYPES[name].name for name in ANY}
_OF_KIND = {"f": "float32", "i": "int32", "u": "uint32", "b": "uint8"}
"""Data type recommended for NumPy's other types, by kind."""
_OTHER_NAMES = {
    **dict.fromkeys(("float", "float64", "double", "bfloat16"), "float32"),
    **dict.fromkeys(("int", "int16"), "int32"),
    **dict.fromkeys(("bool", "byte"), "uint8"),
    "half": "float16",
    "uint16": "uint32",
    "long": "int64",
}
"""WebNN's names by the names that other libraries use."""


def from_numpy(
    dtype: Any, convert_to: Callable[[str], str] = "; convert it with .astype(np.{})".format
) -> MLOperandDataType:
    """Return WebNN's name of a NumPy dtype.

    Args:
        dtype: The NumPy dtype.
        convert_to: Returns the hint how to convert to a data type, as the end of a message.

    Raises:
        ValidationError: WebNN has no such type; nothing is converted silently.
    """
    key = np.dtype(dtype)
    name = _BY_NUMPY.get(key.newbyteorder("=") if key.isnative else key)
    if name is None:
        near = _BY_NUMPY.get(key.newbyteorder("="), _OF_KIND.get(key.kind))
        if key.kind == "V" and key.type is not np.void:  # types of other packages, such as bfloat16
            near = {"int4": "int8", "uint4": "uint8"}.get(key.name, "float32")
        raise ValidationError(
            f"data type {key} is not one of WebNN's ({', '.join(ANY)})"
            + (convert_to(near) if near else "; convert it first")
        )
    return name


def _meant(name: object) -> str:
    """Return a hint which data type was meant, by NumPy's, PyTorch's or similar names."""
    if isinstance(name, (list, tuple)):
        return "; the data type comes before the shape"
    try:
        key = np.dtype(name).name if not isinstance(name, str) else name  # type: ignore[call-overload]
    except Exception:  # no type of NumPy's, or an error of its own methods
        key = shown(name).rpartition(".")[2]
    return f"; give {key!r}" if key in DTYPES else did_you_mean(key, DTYPES, _OTHER_NAMES)


def check(name: object) -> MLOperandDataType:
    """Return `name` if it is a data type, else raise a ValidationError."""
    if not isinstance(name, str) or (text := str.__str__(name)) not in DTYPES:
        raise ValidationError(
            f"data type {shown(name)} is not one of {', '.join(DTYPES)}{_meant(name)}"
        )
    return text  # type: ignore[return-value]


def byte_length(name: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor; two 4-bit elements share a byte, rounded up to whole bytes."""
    return (math.prod(shape) * DTYPES[name].bits + 7) // 8


def cast_number(value: int | float, name: str) -> int | float:
    """Cast a number to a data type: clamp and round integers (half to even), round floats.

    Source: WebNN 2026, "Casting".
    """
    info = DTYPES[name]
    if info.kind == "f":
        with np.errstate(over="ignore"):
            try:
                return float(info.numpy.type(value))
            except OverflowError:
                return math.inf if value > 0 else -math.inf
    if isinstance(value, float) and math.isnan(value):
        return 0
    clamped = min(max(value, int(info.min)), int(info.max))
    return clamped if isinstance(clamped, int) else round(clamped)


def exact_number(value: int | float, name: str) -> int | float:
    """Convert a number to a data type without changing it, except for float rounding.

    Raises:
        ValidationError: It is out of range, or is a fraction and the data type has none.
    """
    info = DTYPES[name]
    if info.kind == "f":
        held = cast_number(value, name)
        if math.isinf(held) and held != value:
            raise ValidationError(
                f"{shown(value)} is out of the range of {name}, {info.min:.6g} to {info.max:.6g}"
            )
        return held
    if isinstance(value, float) and not value.is_integer():
        raise ValidationError(
            f"{shown(value)} is no integer, as {name} needs; round it first, or choose a float type"
        )
    if not info.min <= value <= info.max:
        raise ValidationError(
            f"{shown(value)} is out of the range of {name}, {info.min} to {info.max}"
        )
    return int(value)


def unpack_4bit(data: np.ndarray[Any, Any], name: str, count: int) -> np.ndarray[Any, Any]:
    """Unpack bytes (low nibble first) to one element a byte."""
    raw = data.reshape(-1).view(np.uint8)
    nibbles = np.stack([raw & 0xF, raw >> 4], axis=-1).reshape(-1)[:count]
    if name == "uint4":
        return nibbles
    return (nibbles.astype(np.int8) ^ 8) - 8


def pack_4bit(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pack one element a byte to bytes, low nibble first."""
    raw = data.reshape(-1).view(np.uint8) & 0xF
    if raw.size % 2:
        raw = np.append(raw, np.uint8(0))
    return raw[0::2] | (raw[1::2] << 4)
