"""MLOperandDescriptor: data type and shape of an operand."""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.core import convert, dtypes
from webnn_py.core.messages import Suggesting


class MLOperandDescriptor(Suggesting):
    """Data type and shape of an operand. It cannot be changed.

    Args:
        data_type: One of float32, float16, int32, uint32, int64, uint64, int8, uint8; for constants
            also int4 and uint4.
        shape: The dimensions; empty for a scalar.
    """

    __slots__ = ("_data_type", "_shape")

    def __init__(self, data_type: str, shape: Sequence[int] = ()) -> None:
        self._data_type: str = dtypes.check(data_type)
        self._shape: tuple[int, ...] = convert.unsigned_list(shape, "shape")

    @property
    def data_type(self) -> str:
        """The data type's name."""
        return self._data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, a tuple; empty for a scalar."""
        return self._shape

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MLOperandDescriptor):
            return NotImplemented
        return (self.data_type, self.shape) == (other.data_type, other.shape)

    def __hash__(self) -> int:
        return hash((self.data_type, self.shape))

    def __repr__(self) -> str:
        return f"MLOperandDescriptor({self.data_type!r}, {list(self.shape)})"
