"""Arrays, buffers and DLPack tensors of users, checked against a descriptor."""

from __future__ import annotations

import functools
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core import convert, dtypes
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import DataError, MLError, ValidationError, convert_memory_errors
from webnn_py.core.messages import describe_error, shown, type_name
from webnn_py.core.shapes import check_dimensions
from webnn_py.ir import Array, Descriptor, Shape
from webnn_py.memory import array_remedies
from webnn_py.memory.allocation import HUGE_PAGE_BYTES, aligned_array, copy_array
from webnn_py.memory.overlap import overlaps_itself

DLPACK_CPU = 1

SLOW_COPY_BYTES = 1 << 22
"""Smallest copy that takes about a millisecond."""


def resource_of(value: Any, what: str = "a resource") -> Any:
    """Return the resource of {"resource", "dimensions"}, or the value itself.

    A binding is converted to a dictionary.
    """
    if not isinstance(value, Mapping):
        return value
    given = convert.mapping(value, what, DataError)
    return given.get("resource", given)


def split_dimensions(value: Any, descriptor: Descriptor, what: str) -> Any:
    """Return the resource of a value, after a check of its "dimensions" if it has any."""
    if not isinstance(value, Mapping):
        return value
    given = convert.mapping(value, what, DataError)
    if "resource" not in given:
        return given
    unknown = [key for key in given if key not in ("resource", "dimensions")]
    if unknown:
        raise DataError(f"{what}: unknown keys {shown(unknown)} next to 'resource'")
    try:
        dimensions = convert.unsigned_list(given.get("dimensions", descriptor.shape), "dimensions")
    except ValidationError as error:
        raise DataError(f"{what}: {error}") from None
    if dimensions != descriptor.shape:
        raise DataError(
            f"{what}: dimensions {shown(list(dimensions))}, expected {list(descriptor.shape)}"
        )
    resource = given["resource"]
    if isinstance(resource, Mapping) and "resource" in convert.mapping(resource, what, DataError):
        raise DataError(f"{what}: got a 'resource' within a 'resource', expected what holds memory")
    return resource


def array_of(value: Any) -> Array:
    """Return an array over the memory of `value`, without a copy.

    Raises:
        DataError: It is no array, has no buffer, or does not lie in CPU memory.
        ValidationError: It is a masked array.
    """
    if _is_masked(value):
        raise ValidationError(
            "got a masked array, whose mask would be lost; give one without, as .filled(…) with a"
            " number for what is masked makes it"
        )
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        array = _shared(value)
    except MLError:
        raise
    except Exception as error:  # its own methods may raise anything
        raise DataError(
            f"the memory of the {type_name(value)} cannot be taken: {describe_error(error)}"
        ) from error
    if array is None:
        raise DataError(f"got {type_name(value)}, expected an array, a buffer or a DLPack tensor")
    return array


def _is_masked(value: object) -> bool:
    """Whether a value is a masked array; NumPy imports their module at its first use."""
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def _shared(value: Any) -> Array | None:
    """Return an array over an object's memory by its protocol; None if it has none."""
    if hasattr(value, "__dlpack__"):
        device = int(value.__dlpack_device__()[0])
        if device != DLPACK_CPU:
            raise DataError(f"got a tensor on DLPack device type {device}, expected the CPU (1)")
        return np.from_dlpack(value)
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        view = memoryview(value)
    except TypeError:
        return None
    return np.asarray(view)


def _typed(array: Array, value: Any, descriptor: Descriptor, what: str) -> Array:
    wanted = dtypes.DTYPES[descriptor.data_type].numpy
    if is_raw(value, array, descriptor.data_type):
        if array.size == descriptor.byte_length:
            flat = np.ascontiguousarray(array).reshape(-1)
            return flat.view(wanted).reshape(descriptor.shape)
        raise DataError(
            f"{what}: {array.size} bytes, expected {descriptor.byte_length} for {descriptor}"
        )
    if array.dtype != wanted:
        remedy = array_remedies.for_data_type(value, array, descriptor.data_type, descriptor.shape)
        raise DataError(f"{what}: data type {array.dtype}, expected {descriptor.data_type}{remedy}")
    if array.shape == descriptor.shape:
        return array
    if array.ndim == 1 and array.size == descriptor.size:
        return array.reshape(descriptor.shape)
    remedy = array_remedies.for_shape(value, array.shape, descriptor.shape)
    raise DataError(f"{what}: shape {list(array.shape)}, expected {list(descriptor.shape)}{remedy}")


def is_raw(value: object, array: Array, data_type: str) -> bool:
    """Whether a value is raw bytes without a meaningful data type and shape.

    Args:
        value: The user's value.
        array: The array over its memory.
        data_type: The expected data type.
    """
    if array.itemsize != 1:
        return False
    if isinstance(value, memoryview):
        return array.ndim == 1 or dtypes.DTYPES[data_type].bits > 8
    try:
        return array.ndim == 1 and not hasattr(value, "shape")
    except Exception:  # its own methods may raise anything
        return False


def input_array(value: Any, descriptor: Descriptor, what: str) -> Array:
    """Return a C-contiguous array of exactly the descriptor's data type and shape.

    It shares memory with `value` unless that is strided or not aligned. An array must have the
    operand's shape, or be flat with its number of elements; bytes must have its number of bytes.

    Raises:
        DataError: The value does not fit; the message says what was got and expected.
    """
    if type(value) is np.ndarray and _is_just(value, descriptor):
        return value
    resource = split_dimensions(value, descriptor, what)
    try:
        array = array_of(resource)
    except MLError as error:
        remedy = array_remedies.for_untaken(resource, descriptor.data_type)
        raise type(error)(f"{what}: {error}{remedy}") from error.__cause__
    typed = np.ascontiguousarray(_typed(array, resource, descriptor, what))
    if not typed.flags.aligned:  # raw bytes may begin anywhere
        typed = typed.copy()
    return typed.reshape(descriptor.shape)


def plain_arrays(
    given: object, wanted: Mapping[str, tuple[Shape, np.dtype[Any]]]
) -> list[Array] | None:
    """Return the arrays by name if they all need no conversion, the common case; else None.

    Args:
        given: The user's value.
        wanted: Shape and type of each, by name.
    """
    if type(given) is not dict or len(given) != len(wanted):
        return None
    arrays = []
    for name, (shape, dtype) in wanted.items():
        array = given.get(name)
        if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
            return None
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
        arrays.append(array)
    return arrays


def plain_array_copies(
    given: object, wanted: Mapping[str, tuple[Shape, np.dtype[Any]]]
) -> list[Array] | None:
    """Do as `plain_arrays`, but return private copies."""
    if type(given) is not dict or len(given) != len(wanted):
        return None
    copies = []
    for name, (shape, dtype) in wanted.items():
        array = given.get(name)
        if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
            return None
        copies.append(aligned_copy(array))
    return copies


def _is_just(array: Array, descriptor: Descriptor) -> bool:
    """Whether `input_array` would return the array itself."""
    if array.shape != descriptor.shape:
        return False
    flags = array.flags
    wanted = dtypes.DTYPES[descriptor.data_type].numpy
    return array.dtype == wanted and flags.c_contiguous and flags.aligned


def snapshot(array: Array, value: Any) -> Array:
    """Return the array made of `value`, or a copy if it shares memory that may change.

    Args:
        array: The result of `input_array`, or an array computed from it.
        value: The user's value.
    """
    if array is not value:
        resource = resource_of(value)
        if isinstance(resource, bytes) or not np.may_share_memory(array, array_of(resource)):
            return array
    return aligned_copy(array)


def aligned_copy(array: Array) -> Array:
    """Return an aligned private copy in C order.

    Copies under a millisecond keep the GIL: other threads that got it would make an event loop
    wait.
    """
    if array.nbytes < HUGE_PAGE_BYTES:
        return np.ndarray(array.shape, array.dtype, array.tobytes())
    made = aligned_array(np.empty, array.shape, array.dtype, HUGE_PAGE_BYTES)
    if array.nbytes < SLOW_COPY_BYTES and array.flags.c_contiguous:
        made.data.cast("B")[:] = array.data.cast("B")
    else:
        copy_array(made, array)
    return made


class BorrowedArray:
    """An array of the user, who may change it after the call that received it has returned.

    Args:
        array: The array; `keep` replaces it by a copy.
    """

    __slots__ = ("_kept", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        self._kept = False

    def keep(self) -> None:
        """Copy the array, as it will be read after the call returns; harmless twice."""
        if not self._kept:
            self.array, self._kept = self.array.copy(), True


def output_array(value: Any, descriptor: Descriptor, what: str) -> Array:
    """Return a writable view of the output's shape over the user's memory.

    An array must have the output's shape, or be flat. A flat array, or bytes, may be larger; the
    output then fills its first elements.

    Raises:
        DataError: It is too small, of another data type or shape, read-only, flat and strided, or
            has elements that share memory.
        ValidationError: It is a masked array.
    """
    wanted = dtypes.DTYPES[descriptor.data_type].numpy
    sizes = ", ".join(map(str, descriptor.shape)) + "," * (descriptor.rank == 1)
    remedy = f"; make an array with np.empty(({sizes}), np.{wanted.name})"
    if isinstance(value, np.generic):  # its array would be a copy
        raise DataError(f"{what}: got {type_name(value)}, which cannot be written to{remedy}")
    try:
        array = array_of(value)
    except MLError as error:
        raise type(error)(f"{what}: {error}{remedy}") from error.__cause__
    if not array.flags.writeable:
        raise DataError(f"{what}: the array is read-only{remedy}")
    if is_raw(value, array, descriptor.data_type) and array.dtype != wanted:
        array = _bytes_as(array, wanted, what)
    if array.dtype != wanted:
        raise DataError(f"{what}: data type {array.dtype}, expected {descriptor.data_type}{remedy}")
    if overlaps_itself(array):
        raise DataError(f"{what}: elements of the array share memory{remedy}")
    if array.shape == descriptor.shape:
        return array
    if array.ndim != 1:
        raise DataError(
            f"{what}: shape {list(array.shape)}, expected {list(descriptor.shape)}{remedy}"
        )
    if array.size < descriptor.size:
        raise DataError(
            f"{what}: {array.size} elements, expected at least {descriptor.size}"
            f" for shape {list(descriptor.shape)}{remedy}"
        )
    if not array.flags.c_contiguous:
        raise DataError(
            f"{what}: a strided array of shape {list(array.shape)}, expected"
            f" {list(descriptor.shape)} or contiguous memory"
        )
    return array[: descriptor.size].reshape(descriptor.shape)


def _bytes_as(array: Array, wanted: np.dtype[Any], what: str) -> Array:
    """View writable bytes as whole elements of a data type."""
    if not array.flags.c_contiguous:
        raise DataError(f"{what}: strided bytes, expected contiguous memory")
    whole = array.size // wanted.itemsize * wanted.itemsize
    return array.reshape(-1).view(np.uint8)[:whole].view(wanted)


def plain_copy(array: Array) -> Array:
    """Return a copy in C order."""
    return np.array(array, order="C", copy=True)


def immutable_copy(array: Array) -> Array:
    """Return a copy; the array itself if it is all of a bytes object, which never changes."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    whole = isinstance(owner, bytes) and len(owner) == array.nbytes
    return array if whole and array.flags.aligned else plain_copy(array)


@convert_memory_errors
def constant_array(
    value: Any,
    data_type: str | None,
    shape: Sequence[int] | None,
    copy: Callable[[Array], Array] = plain_copy,
) -> tuple[Array, MLOperandDataType]:
    """Return a constant's contents, which nobody changes, and its data type.

    Args:
        value: The contents, as the builder takes them.
        data_type: The data type; the value's own if None.
        shape: The shape; the value's own if None.
        copy: Makes a copy in C order, where one is needed.

    Raises:
        ValidationError: The contents do not fit data type and shape.
    """
    name: MLOperandDataType | None = None if data_type is None else dtypes.check(data_type)
    if _is_number(value, name):
        return _number_constant(value, name, shape)
    try:
        array = array_of(value)
    except MLError as error:
        remedy = array_remedies.for_untaken(value, name or "float32")
        raise ValidationError(f"{error}{remedy}") from error.__cause__
    if name is None:
        convert_to = functools.partial(array_remedies.for_data_type, value, array)
        name = dtypes.from_numpy(array.dtype, convert_to)
    sizes = array.shape if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, name)
    descriptor = Descriptor(name, sizes)
    if name in dtypes.PACKED_4BIT:
        return _packed_constant(array, descriptor), name
    wanted = dtypes.DTYPES[name].numpy
    flat = np.ascontiguousarray(array).reshape(-1)
    if is_raw(value, array, name):
        if flat.nbytes != descriptor.byte_length:
            raise ValidationError(
                f"{flat.nbytes} bytes, expected {descriptor.byte_length} for {descriptor}"
            )
        flat = flat.view(wanted)
    if flat.dtype != wanted:
        remedy = array_remedies.for_data_type(value, array, name)
        raise ValidationError(f"data type {array.dtype}, expected {name}{remedy}")
    if flat.size != descriptor.size:
        raise ValidationError(
            f"{flat.size} elements, expected {descriptor.size} for shape {list(sizes)}"
        )
    return copy(flat.reshape(sizes)), name


def _is_number(value: object, data_type: str | None) -> bool:
    """Whether a value is a plain number, not an array without dimensions.

    NumPy's float64 and int64 scalars, which calculations with Python numbers produce, count as
    numbers if a data type is given. Other NumPy scalars keep their own data type. Bools are no
    numbers.
    """
    if not isinstance(value, np.generic):
        return isinstance(value, numbers.Real)
    if data_type is None:
        return isinstance(value, (np.float64, np.bool_))
    plain = isinstance(value, (np.float64, np.int64, np.bool_))
    return plain or value.dtype == dtypes.DTYPES[data_type].numpy


def _number_constant(
    value: Any, data_type: MLOperandDataType | None, shape: Sequence[int] | None
) -> tuple[Array, MLOperandDataType]:
    number = convert.number(value, "value")
    if data_type is None:
        raise ValidationError("a number needs a data type: constant(3.0, 'float32')")
    exact = dtypes.exact_number(number, data_type)
    sizes = () if shape is None else convert.unsigned_list(shape, "shape")
    check_dimensions(sizes, data_type)
    return np.full(sizes, exact, dtype=dtypes.DTYPES[data_type].numpy), data_type


def _packed_constant(array: Array, descriptor: Descriptor) -> Array:
    """Unpack bytes of 4-bit elements to one element a byte."""
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
