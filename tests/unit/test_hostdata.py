"""Memory that users give: what is shared, what is copied, what is refused."""

from __future__ import annotations

import array
import contextlib
from typing import Any

import numpy as np
import pytest

from webnn_py import DataError, ValidationError, hostdata
from webnn_py.ir import Descriptor

SIX = Descriptor("float32", (2, 3))
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


class DLPackOnly:
    """A tensor of another library: nothing but DLPack."""

    def __init__(self, values: np.ndarray, device: int = 1) -> None:
        self.values, self.device = values, device

    def __dlpack__(self, **how: Any) -> Any:
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        VALUES.tobytes(),
        bytearray(VALUES.tobytes()),
        memoryview(VALUES),
        memoryview(VALUES).cast("B"),
        memoryview(b"-" + VALUES.tobytes())[1:],
        array.array("f", VALUES.ravel().tolist()),
        DLPackOnly(VALUES.copy()),
        {"resource": VALUES, "dimensions": [2, 3]},
        {"resource": VALUES.tobytes()},
        np.asfortranarray(VALUES),
        np.repeat(VALUES, 2, axis=1)[:, ::2],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_input_may_be(value: object) -> None:
    made = hostdata.input_array(value, SIX, "input 'x'")
    assert (made.dtype, made.shape) == (np.float32, (2, 3))
    assert made.flags.c_contiguous
    assert made.flags.aligned
    np.testing.assert_array_equal(made, VALUES)


@pytest.mark.parametrize(
    "value",
    [VALUES, memoryview(VALUES), array.array("f", bytes(24)), DLPackOnly(VALUES.copy())],
    ids=lambda value: type(value).__name__,
)
def test_inputs_share_memory(value: Any) -> None:
    owner = value.values if isinstance(value, DLPackOnly) else np.asarray(value)
    assert np.shares_memory(hostdata.input_array(value, SIX, "x"), owner)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (VALUES.astype(">f4"), "data type >f4, expected float32"),
        (VALUES.astype(np.int32), "data type int32"),
        (VALUES.reshape(6), r"shape \[6\], expected \[2, 3\]"),
        (VALUES.reshape(1, 2, 3), r"shape \[1, 2, 3\]"),
        (np.float32(1), r"shape \[\]"),
        (array.array("d", [0] * 6), "data type float64"),
        (array.array("f", [0] * 5), r"shape \[5\]"),
        (DLPackOnly(VALUES, device=2), r"DLPack device type 2, expected the CPU"),
        (3.0, "got float, expected an array"),
        (None, "got NoneType"),
        ({"resource": VALUES, "dimensions": [6]}, r"dimensions \[6\], expected \[2, 3\]"),
    ],
)
def test_what_an_input_may_not_be(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        hostdata.input_array(value, SIX, "input 'x'")
    assert str(caught.value).startswith("input 'x': ")


def test_scalars_are_arrays_without_dimensions() -> None:
    made = hostdata.input_array(np.float32(2), Descriptor("float32", ()), "x")
    assert (made.shape, made.item()) == ((), 2.0)


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3), np.float32), bytearray(24), bytearray(26), array.array("f", bytes(32))],
    ids=["array", "bytes", "more bytes", "buffer"],
)
def test_outputs_are_views_of_the_user_s_memory(value: Any) -> None:
    view = hostdata.output_array(value, SIX, "output 'y'")
    view[...] = VALUES
    assert view.shape == (2, 3)
    assert bytes(memoryview(value).cast("B"))[:24] == VALUES.tobytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(5, np.float32), "5 elements, expected at least 6"),
        (np.zeros(6, np.float64), "data type float64, expected float32"),
        (bytearray(23), "5 elements"),
        (bytes(24), "read-only"),
        (np.zeros((4, 4), np.float32)[:, :3], "strided array of shape .4, 3."),
        ([0.0] * 6, "got list"),
    ],
)
def test_what_an_output_may_not_be(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        hostdata.output_array(value, SIX, "output 'y'")
    assert str(caught.value).startswith("output 'y': ")


@pytest.mark.parametrize(
    ("arguments", "expected", "name"),
    [
        ((VALUES, None, None), VALUES, "float32"),
        ((VALUES, "float32", [3, 2]), VALUES.reshape(3, 2), "float32"),
        ((np.float16(2), None, None), np.float16(2), "float16"),
        ((3.7, "int8", None), np.int8(4), "int8"),
        ((1, "float16", [2]), np.ones(2, np.float16), "float16"),
        ((2**64 - 1, "uint64", None), np.uint64(2**64 - 1), "uint64"),
        ((b"\x01\x00\x02\x00", "int32", [1]), np.array([0x20001], np.int32), "int32"),
        ((b"\x21\x0f", "uint4", [3]), np.array([1, 2, 15], np.uint8), "uint4"),
        ((b"\xf8", "int4", [2]), np.array([-8, -1], np.int8), "int4"),
        ((memoryview(VALUES), None, None), VALUES, "float32"),
    ],
)
def test_constants(arguments: tuple[Any, Any, Any], expected: np.ndarray, name: str) -> None:
    made, data_type = hostdata.constant_array(*arguments)
    assert (data_type, made.dtype, made.shape) == (name, expected.dtype, expected.shape)
    np.testing.assert_array_equal(made, expected)
    assert not np.shares_memory(made, expected)
    with contextlib.suppress(TypeError):  # a number has no memory
        assert not np.shares_memory(made, memoryview(arguments[0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((True, "float32", None), "expected a number"),
        ((1, None, None), "needs a data type"),
        ((VALUES > 1, None, None), "bool is not one of"),
        ((b"\x01\x02\x03", "uint4", [2]), "3 bytes, expected 1"),
        ((VALUES, "int4", [6]), "expected bytes of packed nibbles"),
        ((b"", "float32", [-1]), "shape: got -1"),
        ((VALUES, "float32", [2**33]), "shape: got 8589934592"),
        ((VALUES, "float32", [2**31, 2**31]), "dimension 2147483648"),
        ((VALUES, "float32", [2**30]), "takes 4294967296 bytes, over"),
        ((object(), "float32", None), "got object"),
    ],
)
def test_what_a_constant_may_not_be(arguments: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        hostdata.constant_array(*arguments)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (VALUES, True),
        (b"1", True),
        (array.array("f"), True),
        (DLPackOnly(VALUES), True),
        (DLPackOnly(VALUES, device=15), False),
        (object(), False),
        ([1.0], False),
    ],
)
def test_what_lies_in_host_memory(value: object, expected: bool) -> None:
    assert hostdata.is_host(value) is expected
