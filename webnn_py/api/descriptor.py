"""MLOperandDescriptor, the data type and shape of an operand or tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.core import dtypes, open_dims
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.ir import Descriptor


class MLOperandDescriptor(Suggesting):
    """Immutable data type and shape of an operand.

    Args:
        data_type: Name of the data type; int4 and uint4 are for constants only.
        shape: The dimensions; empty for a scalar. For an input, a string names an open dimension,
            and -1 is an open dimension without a name.

    Raises:
        ValidationError: The data type is unknown, or the shape is not a list of sizes.

    Examples:
        ```python
        from webnn_py import MLGraphBuilder, MLOperandDescriptor, ml

        descriptor = MLOperandDescriptor("float32", [2, 3])
        print(descriptor.data_type, descriptor.shape)  # float32 (2, 3)
        b = MLGraphBuilder(ml.create_context_sync(device_type="cpu"))
        x = b.input("x", descriptor)
        ```

    Source: WebNN 2026, "MLOperandDescriptor dictionary".
    """

    __slots__ = ("_data_type", "_shape")

    def __init__(self, data_type: MLOperandDataType, shape: Sequence[int | str] = ()) -> None:
        self._data_type: MLOperandDataType = dtypes.check(data_type)
        self._shape: tuple[int, ...] = open_dims.shape(shape, "shape")

    @property
    def data_type(self) -> MLOperandDataType:
        """Return the name of the data type."""
        return self._data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dimensions: an int each, or an MLDimension if open; empty for a scalar."""
        return self._shape

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MLOperandDescriptor):
            return NotImplemented
        return (self.data_type, self.shape) == (other.data_type, other.shape)

    def __hash__(self) -> int:
        return hash((self.data_type, self.shape))

    def __repr__(self) -> str:
        return f"MLOperandDescriptor({self.data_type!r}, {list(self.shape)})"


def public_descriptor(descriptor: Descriptor) -> MLOperandDescriptor:
    """Return a valid data type and shape as an MLOperandDescriptor."""
    made = MLOperandDescriptor.__new__(MLOperandDescriptor)
    made._data_type, made._shape = descriptor.data_type, descriptor.shape
    return made


def split(data_type: Any, shape: Any) -> tuple[Any, Any]:
    """Return data type and shape, taking both from an MLOperandDescriptor if there is one.

    Raises:
        ValidationError: `shape` contradicts the shape of the MLOperandDescriptor.
    """
    if not isinstance(data_type, MLOperandDescriptor):
        return data_type, shape
    if shape is not None and open_dims.shape(shape, "shape") != data_type.shape:
        raise ValidationError(f"shape: got {shown(shape)} besides {data_type}; give it once")
    return data_type.data_type, data_type.shape
