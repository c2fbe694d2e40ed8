"""What stands for a tensor of an ONNX model during import: known contents, or an operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx

from webnn_py.core.errors import MLError
from webnn_py.ops.operand import MLOperand

Array = np.ndarray[Any, Any]

_TYPE = onnx.TensorProto
WEBNN_TYPES: dict[int, str] = {
    _TYPE.FLOAT: "float32",
    _TYPE.FLOAT16: "float16",
    _TYPE.INT8: "int8",
    _TYPE.UINT8: "uint8",
    _TYPE.INT32: "int32",
    _TYPE.UINT32: "uint32",
    _TYPE.INT64: "int64",
    _TYPE.UINT64: "uint64",
    _TYPE.BOOL: "uint8",
}
"""ONNX's element types that WebNN has; a bool is a uint8 that is 0 or 1."""
ELEMENT_TYPES: dict[str, int] = {
    name: number for number, name in WEBNN_TYPES.items() if number != _TYPE.BOOL
}


class UnmappableError(Exception):
    """A node that WebNN cannot express; the text is the reason."""


class UnknownValueError(UnmappableError):
    """A node needs contents at import that are known only when the graph runs.

    Attributes:
        inputs: The model's inputs that the contents depend on.
    """

    def __init__(self, what: str, inputs: frozenset[str]) -> None:
        names = ", ".join(sorted(inputs))
        depends = f", and depends on the contents of input {names}; give add_to an array for it"
        super().__init__(f"{what} must be known at import{depends if inputs else ''}")
        self.inputs = inputs


class BrokenModelError(MLError, ValueError):
    """A model that contradicts itself; becomes a DataError that names the node."""


def element_name(elem: int) -> str:
    """ONNX's name of an element type, in lower case, as messages give it."""
    try:
        return str(_TYPE.DataType.Name(elem)).lower()
    except ValueError:
        return f"element type {elem}"


@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor of the model.

    Attributes:
        elem: ONNX's element type, which tells bool from uint8.
        shape: Its dimensions.
        array: Its contents, where they are known at import.
        operand: The operand, where one has been made.
        inputs: Names of the model's inputs that the contents depend on.
        name: What the constant is called, where `array` is a weight.
        is_input: Whether it stands for an input itself.
    """

    elem: int
    shape: tuple[int, ...]
    array: Array | None = None
    operand: MLOperand | None = None
    inputs: frozenset[str] = frozenset()
    name: str = ""
    is_input: bool = False

    @property
    def is_leaf(self) -> bool:
        """Whether it cannot be a graph's output as it is."""
        return self.is_input or self.array is not None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def data_type(self) -> str:
        """WebNN's data type.

        Raises:
            UnmappableError: WebNN has none for it.
        """
        return webnn_type(self.elem)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats that WebNN has."""
        return self.elem in (_TYPE.FLOAT, _TYPE.FLOAT16)

    def known(self, what: str) -> Array:
        """The contents.

        Args:
            what: What they are for, for the message.

        Raises:
            UnknownValueError: They are known only when the graph runs.
        """
        if self.array is None:
            raise UnknownValueError(what, self.inputs)
        return self.array

    def integers(self, what: str) -> list[int]:
        """The contents as a list of integers."""
        return [int(value) for value in self.known(what).reshape(-1)]


def webnn_type(elem: int) -> str:
    """WebNN's data type for an element type of ONNX.

    Raises:
        UnmappableError: WebNN has none for it.
    """
    if elem not in WEBNN_TYPES:
        raise UnmappableError(f"WebNN has no data type {element_name(elem)}")
    return WEBNN_TYPES[elem]


def of_array(array: Any, name: str = "") -> Tensor:
    """A tensor whose contents are known."""
    array = np.asarray(array)
    elem = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    return Tensor(elem, array.shape, array, name=name)


def refuse(reason: str) -> NoReturn:
    """Raise an UnmappableError."""
    raise UnmappableError(reason)
