"""MLOperandDescriptor: what is said of a tensor before there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.core import dtypes, open_dims
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, shown


class MLOperandDescriptor(Suggesting):
    """Data type and shape of an operand. It cannot be changed.

    Args:
        data_type: Its name; int4 and uint4 are for constants alone.
        shape: The dimensions; empty for a scalar. Of an input, a name is an open size, and -1 one
            without a name.

    Raises:
        ValidationError: The data type is none, or the shape no list of sizes.

    Source: WebNN 2026, "MLOperandDescriptor dictionary".
    """

    __slots__ = ("_data_type", "_shape")

    def __init__(self, data_type: MLOperandDataType, shape: Sequence[int | str] = ()) -> None:
        self._data_type: MLOperandDataType = dtypes.check(data_type)
        self._shape: tuple[int, ...] = open_dims.shape(shape, "shape")

    @property
    def data_type(self) -> MLOperandDataType:
        """The data type's name."""
        return self._data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, a tuple of int, MLDimension where open; empty for a scalar."""
        return self._shape

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MLOperandDescriptor):
            return NotImplemented
        return (self.data_type, self.shape) == (other.data_type, other.shape)

    def __hash__(self) -> int:
        return hash((self.data_type, self.shape))

    def __repr__(self) -> str:
        return f"MLOperandDescriptor({self.data_type!r}, {list(self.shape)})"


def split(data_type: Any, shape: Any) -> tuple[Any, Any]:
    """Data type and shape, each as given or both of an MLOperandDescriptor.

    Raises:
        ValidationError: A shape is given besides an MLOperandDescriptor, and is another one.
    """
    if not isinstance(data_type, MLOperandDescriptor):
        return data_type, shape
    if shape is not None and open_dims.shape(shape, "shape") != data_type.shape:
        raise ValidationError(f"shape: got {shown(shape)} besides {data_type}; give it once")
    return data_type.data_type, data_type.shape
