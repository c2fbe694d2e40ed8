"""Host memory that users give: arrays, buffers, DLPack; checked against a descriptor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py import convert, dtypes
from webnn_py.errors import DataError, ValidationError
from webnn_py.ir import Array, Descriptor
from webnn_py.shapes import check_dimensions

KDL_CPU = 1


def split_dimensions(value: Any, descriptor: Descriptor, what: str) -> Any:
    """The resource of a plain one or of {"resource", "dimensions"}, the dimensions checked."""
    if not isinstance(value, Mapping) or "resource" not in value:
        return value
    unknown = set(value) - {"resource", "dimensions"}
    if unknown:
        raise DataError(f"{what}: unknown keys {sorted(map(str, unknown))}")
    dimensions = convert.unsigned_list(value.get("dimensions", descriptor.shape), what)
    if dimensions != descriptor.shape:
        raise DataError(f"{what}: dimensions {list(dimensions)}, expected {list(descriptor.shape)}")
    return value["resource"]


def is_host(value: object) -> bool:
    """Whether `array_of` can take it."""
    if isinstance(value, (np.ndarray, np.generic, bytes, bytearray, memoryview)):
        return True
    if hasattr(value, "__dlpack_device__"):
        return bool(value.__dlpack_device__()[0] == KDL_CPU)
    return hasattr(value, "__array_interface__") or _has_buffer(value)


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def array_of(value: Any) -> Array:
    """An array over the memory of `value`; copies nothing.

    Raises:
        DataError: It is no array, has no buffer, and does not lie in CPU memory.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        raise DataError(
            f"got {type(value).__name__}, expected an array, a buffer or a DLPack tensor"
        ) from None


def _from_dlpack(value: Any) -> Array:
    device = value.__dlpack_device__()[0]
    if device != KDL_CPU:
        raise DataError(f"got a tensor on DLPack device type {int(device)}, expected the CPU (1)")
    try:
        return np.from_dlpack(value)
    except (BufferError, TypeError, RuntimeError) as error:
        raise DataError(f"the DLPack exchange failed: {error}") from error


def _typed(array: Array, raw: bool, descriptor: Descriptor, what: str) -> Array:
    wanted = dtypes.DTYPES[descriptor.data_type].numpy
    if raw and array.itemsize == 1 and array.size == descriptor.byte_length:
        return array.reshape(-1).view(wanted).reshape(descriptor.shape)
    if array.dtype != wanted:
        raise DataError(f"{what}: data type {array.dtype}, expected {descriptor.data_type}")
    if raw and array.ndim == 1 and array.size == descriptor.size:
        return array.reshape(descriptor.shape)
    if array.shape != descriptor.shape:
        raise DataError(f"{what}: shape {list(array.shape)}, expected {list(descriptor.shape)}")
    return array


def _is_raw(value: object) -> bool:
    """A flat buffer, which has a length but no shape of its own."""
    return not hasattr(value, "shape") or isinstance(value, memoryview)


def input_array(value: Any, descriptor: Descriptor, what: str) -> Array:
    """A C-contiguous array of just the descriptor's data type and shape.

    Memory is shared with `value` unless it is strided or not aligned. An array must have the
    operand's shape; a flat buffer (bytes, array.array) its number of elements or bytes.

    Raises:
        DataError: Names what was got and expected.
    """
    resource = split_dimensions(value, descriptor, what)
    try:
        array = array_of(resource)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    typed = np.ascontiguousarray(_typed(array, _is_raw(resource), descriptor, what))
    if not typed.flags.aligned:  # raw bytes may begin anywhere
        typed = typed.copy()
    return typed.reshape(descriptor.shape)


def output_array(value: Any, descriptor: Descriptor, what: str) -> Array:
    """A writable view of the output's shape over the user's memory.

    A larger contiguous array is accepted; its first elements are the output.

    Raises:
        DataError: Too small, of another data type, read-only, or strided and of another shape.
    """
    try:
        array = array_of(value)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    wanted = dtypes.DTYPES[descriptor.data_type].numpy
    if _is_raw(value) and array.itemsize == 1 and array.dtype != wanted:
        array = array.view(np.uint8)[: array.size // wanted.itemsize * wanted.itemsize].view(wanted)
    if not array.flags.writeable:
        raise DataError(f"{what}: the array is read-only")
    if array.dtype != wanted:
        raise DataError(f"{what}: data type {array.dtype}, expected {descriptor.data_type}")
    if array.size < descriptor.size:
        raise DataError(
            f"{what}: {array.size} elements, expected at least {descriptor.size}"
            f" for shape {list(descriptor.shape)}"
        )
    if array.shape == descriptor.shape:
        return array
    if not array.flags.c_contiguous:
        raise DataError(
            f"{what}: a strided array of shape {list(array.shape)}, expected"
            f" {list(descriptor.shape)} or contiguous memory"
        )
    return array.reshape(-1)[: descriptor.size].reshape(descriptor.shape)


def constant_array(
    value: Any, data_type: str | None, shape: Sequence[int] | None
) -> tuple[Array, str]:
    """A private copy of a constant's contents, and its data type.

    Raises:
        ValidationError: The contents do not fit data type and shape.
    """
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
        return _number_constant(value, data_type, shape)
    try:
        array = array_of(value)
    except DataError as error:
        raise ValidationError(str(error)) from None
    if data_type is None:
        name: str = dtypes.from_numpy(array.dtype)
    else:
        name = dtypes.check(data_type)
    sizes = array.shape if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, name)
    descriptor = Descriptor(name, sizes)
    if name in dtypes.PACKED_4BIT:
        return _packed_constant(array, descriptor), name
    wanted = dtypes.DTYPES[name].numpy
    flat = np.ascontiguousarray(array).reshape(-1)
    if _is_raw(value) and flat.itemsize == 1 and flat.nbytes == descriptor.byte_length:
        flat = flat.view(wanted)
    if flat.dtype != wanted:
        raise ValidationError(f"data type {array.dtype}, expected {name}; convert it first")
    if flat.size != descriptor.size:
        raise ValidationError(
            f"{flat.size} elements, expected {descriptor.size} for shape {list(sizes)}"
        )
    return np.array(flat.reshape(sizes), order="C", copy=True), name


def _number_constant(
    value: int | float, data_type: str | None, shape: Sequence[int] | None
) -> tuple[Array, str]:
    if data_type is None:
        raise ValidationError("a number needs a data type: constant(3.0, 'float32')")
    name = dtypes.check(data_type)
    number = dtypes.cast_number(convert.number(value, "value"), name)
    sizes = () if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, name)
    return np.full(sizes, number, dtype=dtypes.DTYPES[name].numpy), name


def _packed_constant(array: Array, descriptor: Descriptor) -> Array:
    """Packed bytes, or one element a byte, to one element a byte."""
    if array.dtype.itemsize != 1:
        raise ValidationError(f"data type {array.dtype}, expected bytes of packed nibbles")
    if array.size == descriptor.byte_length:
        unpacked = dtypes.unpack_4bit(
            np.ascontiguousarray(array), descriptor.data_type, descriptor.size
        )
        return np.array(unpacked.reshape(descriptor.shape), order="C", copy=True)
    raise ValidationError(
        f"{array.size} bytes, expected {descriptor.byte_length} for {descriptor} (two to a byte)"
    )
