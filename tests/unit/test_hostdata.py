"""Memory that users give: what is shared, what is copied, what is refused."""

from __future__ import annotations

import array
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from webnn_py import DataError, MLExecution, MLGraph, MLGraphBuilder, ValidationError, ml

REFERENCE = ml.create_context_sync(engine="reference")
EXECUTION = MLExecution(REFERENCE)


def same(*shape: int) -> MLGraph:
    """y = x."""
    b = MLGraphBuilder(REFERENCE)
    return b.build_sync({"y": b.identity(b.input("x", "float32", shape))})


SIX = same(2, 3)
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
        memoryview(np.repeat(np.frombuffer(VALUES.tobytes(), np.uint8), 2))[::2],
        array.array("f", VALUES.ravel().tolist()),
        DLPackOnly(VALUES.copy()),
        {"resource": VALUES, "dimensions": [2, 3]},
        {"resource": VALUES.tobytes()},
        VALUES.ravel(),
        DLPackOnly(VALUES.ravel()),
        np.repeat(VALUES.ravel(), 2)[::2],
        {"resource": VALUES.ravel(), "dimensions": [2, 3]},
        np.asfortranarray(VALUES),
        np.repeat(VALUES, 2, axis=1)[:, ::2],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_input_may_be(value: object) -> None:
    made = EXECUTION.compute(SIX, {"x": value})["y"]
    np.testing.assert_array_equal(made, VALUES)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (VALUES.astype(">f4"), "data type >f4, expected float32"),
        (VALUES.astype(np.int32), "data type int32"),
        (VALUES.reshape(3, 2), r"shape \[3, 2\], expected \[2, 3\]; .*\.transpose\(1, 0\)$"),
        (VALUES.ravel()[:5], r"shape \[5\], expected \[2, 3\]$"),
        (VALUES.astype(np.float64), r"float64, expected float32; .*\.astype\(np\.float32\)"),
        (b"\0" * 20, r"20 bytes, expected 24 for float32\[2,3\]"),
        (VALUES.reshape(1, 2, 3), r"shape \[1, 2, 3\]"),
        (np.float32(1), r"shape \[\]"),
        (array.array("d", [0] * 6), "data type float64"),
        (array.array("f", [0] * 5), r"shape \[5\]"),
        (DLPackOnly(VALUES, device=2), r"DLPack device type 2, expected the CPU"),
        (3.0, "got float, expected an array"),
        (None, "got NoneType"),
        ({"resource": {"resource": VALUES}}, "a 'resource' within a 'resource'"),
        ({"resource": VALUES, "dimensions": [6]}, r"dimensions \[6\], expected \[2, 3\]"),
    ],
)
def test_what_an_input_may_not_be(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        EXECUTION.compute(SIX, {"x": value})
    assert str(caught.value).startswith("input 'x': ")


def test_scalars_are_arrays_without_dimensions() -> None:
    made = EXECUTION.compute(same(), {"x": np.float32(2)})["y"]
    assert (made.shape, made.item()) == ((), 2.0)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 3), np.float32),
        bytearray(24),
        bytearray(26),
        array.array("f", bytes(32)),
        memoryview(bytearray(26)).cast("B", (13, 2)),
    ],
    ids=["array", "bytes", "more bytes", "buffer", "shaped bytes"],
)
def test_outputs_are_views_of_the_user_s_memory(value: Any) -> None:
    EXECUTION.compute(SIX, {"x": VALUES}, {"y": value})
    assert bytes(memoryview(value).cast("B"))[:24] == VALUES.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((3, 2), np.float32).T,
        np.zeros((4, 9), np.float32)[::-2, ::3],
        as_strided(np.zeros(6, np.float32), (2, 1, 3), (4, 0, 8)).reshape(2, 3),
    ],
)
def test_outputs_may_be_strided(value: Any) -> None:
    EXECUTION.compute(SIX, {"x": VALUES}, {"y": value})
    np.testing.assert_array_equal(value, VALUES)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(5, np.float32), "5 elements, expected at least 6"),
        (np.zeros(6, np.float64), "data type float64, expected float32"),
        (bytearray(23), "5 elements"),
        (bytes(24), "read-only"),
        (np.zeros((4, 4), np.float32)[:, :3], r"shape \[4, 3\], expected \[2, 3\]"),
        (np.zeros(12, np.float32)[::2], "strided array of shape .6."),
        ([0.0] * 6, "got list"),
        (np.float32(0), "got float32, which cannot be written to"),
        (memoryview(bytearray(48))[::2], "strided bytes"),
        (as_strided(np.zeros(3, np.float32), (2, 3), (0, 4)), "share memory"),
        (as_strided(np.zeros(4, np.float32), (2, 3), (4, 4)), "share memory"),
        (as_strided(np.zeros(9, np.float32), (2, 3), (8, 8)), "share memory"),
    ],
)
def test_what_an_output_may_not_be(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        EXECUTION.compute(SIX, {"x": VALUES}, {"y": value})
    assert str(caught.value).startswith("output 'y': ")


@pytest.mark.parametrize(
    ("arguments", "expected", "name"),
    [
        ((VALUES, None, None), VALUES, "float32"),
        ((VALUES, "float32", [3, 2]), VALUES.reshape(3, 2), "float32"),
        ((np.float16(2), None, None), np.float16(2), "float16"),
        ((-128, "int8", None), np.int8(-128), "int8"),
        ((4.0, "int8", None), np.int8(4), "int8"),
        ((7, "int4", [2]), np.full(2, 7, np.int8), "int4"),
        ((0.1, "float16", None), np.float16(0.1), "float16"),
        ((3.4028235e38, "float32", None), np.finfo(np.float32).max, "float32"),
        ((float("-inf"), "float16", None), np.float16("-inf"), "float16"),
        ((float("nan"), "float32", None), np.float32("nan"), "float32"),
        ((Fraction(1, 4), "float32", None), np.float32(0.25), "float32"),
        ((np.float64(0.125), "float32", None), np.float32(0.125), "float32"),
        ((np.float64(2), "uint8", [2]), np.full(2, 2, np.uint8), "uint8"),
        ((np.int64(-3), "float16", None), np.float16(-3), "float16"),
        ((np.int64(-3), None, None), np.int64(-3), "int64"),
        ((np.float32(0.1), "float32", [2]), np.full(2, 0.1, np.float32), "float32"),
        ((1, "float16", [2]), np.ones(2, np.float16), "float16"),
        ((2**64 - 1, "uint64", None), np.uint64(2**64 - 1), "uint64"),
        ((b"\x01\x00\x02\x00", "int32", [1]), np.array([0x20001], np.int32), "int32"),
        ((b"\x21\x0f", "uint4", [3]), np.array([1, 2, 15], np.uint8), "uint4"),
        ((b"\xf8", "int4", [2]), np.array([-8, -1], np.int8), "int4"),
        ((memoryview(VALUES), None, None), VALUES, "float32"),
    ],
)
def test_constants(arguments: tuple[Any, Any, Any], expected: np.ndarray, name: str) -> None:
    b = MLGraphBuilder(REFERENCE)
    made = b.constant(*arguments)
    assert (made.data_type, made.shape) == (name, expected.shape)
    if name in ("int4", "uint4"):
        one, zero = b.constant(np.ones(1, np.float32)), b.constant(b"\0", made.data_type, [1])
        made = b.dequantize_linear(made, one, zero)
    x = b.input("x", "float32", [1])
    graph = b.build_sync({"y": b.identity(made), "x": b.relu(x)})
    found = EXECUTION.compute(graph, {"x": np.ones(1, np.float32)})["y"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((True, "float32", None), "expected a number"),
        ((np.bool_(True), "uint8", None), "expected a number"),
        ((np.bool_(True), None, None), "expected a number"),
        ((1.5, "int32", None), "1.5 is no integer, as int32 needs; round it first"),
        ((np.float64(1.5), "uint8", None), "1.5 is no integer"),
        ((float("nan"), "int8", None), "nan is no integer"),
        ((float("inf"), "uint64", None), "inf is no integer"),
        ((300, "int8", None), "300 is out of the range of int8, -128 to 127"),
        ((-1, "uint32", None), "-1 is out of the range of uint32, 0 to 4294967295"),
        ((2.0**31, "int32", None), "out of the range of int32"),
        ((2**63, "int64", None), "out of the range of int64"),
        ((np.int64(8), "int4", None), "8 is out of the range of int4, -8 to 7"),
        ((10**5000, "int64", None), "an integer of 16610 bits is out of the range"),
        ((10**5000, "float32", None), "an integer of 16610 bits is out of the range"),
        ((1e39, "float32", None), r"1e\+39 is out of the range of float32, -3.40282e\+38 to"),
        ((-7e4, "float16", None), "-70000.0 is out of the range of float16, -65504 to 65504"),
        ((np.float32(0.1), "float16", None), "data type float32, expected float16; convert"),
        ((np.int32(1), "float32", None), r"int32, expected float32; .*\.astype\(np\.float32\)"),
        ((np.float64(1), None, None), "a number needs a data type"),
        ((np.array(1.0), "float32", None), "data type float64, expected float32"),
        ((np.timedelta64(1, "s"), "int64", None), r"data type timedelta64\S*, expected int64$"),
        (([1.0], "float32", None), "got list, expected an array.*np.array"),
        ((10**5000, None, None), "a number needs a data type"),
        ((1, None, None), "needs a data type"),
        ((VALUES > 1, None, None), r"bool is not one of .* \.astype\(np\.uint8\)"),
        ((VALUES.astype(">f4"), None, None), r"is not one of .* \.astype\(np\.float32\)"),
        ((VALUES.astype(np.int16), None, None), r"int16 is not one of .* \.astype\(np\.int32\)"),
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
        MLGraphBuilder(REFERENCE).constant(*arguments)
