"""Data types and conversions between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from webnn_py import ValidationError
from webnn_py.core import dtypes
from webnn_py.core.dtypes import ANY, DTYPES, cast_number


@pytest.mark.parametrize("name", ANY)
def test_numpy_s_types_are_the_same(name: str) -> None:
    info = DTYPES[name]
    assert dtypes.from_numpy(np.dtype(name)) == name
    assert info.bits == np.dtype(name).itemsize * 8
    bounds = np.finfo(name) if info.kind == "f" else np.iinfo(name)
    assert (info.min, info.max) == (bounds.min, bounds.max)


@pytest.mark.parametrize("dtype", [np.float64, np.bool_, np.int16, np.complex64, ">f4", "U3"])
def test_other_types_are_refused(dtype: object) -> None:
    with pytest.raises(ValidationError, match=r"; convert it (with|first)"):
        dtypes.from_numpy(dtype)


@pytest.mark.parametrize("name", ["float64", "Float32", "", None, np.float32])
def test_only_the_names_of_the_text_are_names(name: object) -> None:
    with pytest.raises(ValidationError, match="is not one of float32"):
        dtypes.check(name)


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [("float32", (), 4), ("int64", (2, 3), 48), ("int4", (3,), 2), ("uint4", (2, 2), 2)],
)
def test_byte_lengths(name: str, shape: tuple[int, ...], size: int) -> None:
    assert dtypes.byte_length(name, shape) == size


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (300, "uint8", 255),
        (-1, "uint32", 0),
        (2.5, "int8", 2),
        (3.5, "int8", 4),
        (-math.inf, "int32", -(2**31)),
        (math.nan, "int64", 0),
        (2**63, "int64", 2**63 - 1),
        (2**53 + 1, "int64", 2**53 + 1),
        (2**64 - 1, "uint64", 2**64 - 1),
        (9, "int4", 7),
        (1e5, "float16", math.inf),
        (-1e39, "float32", -math.inf),
        (10**400, "float32", math.inf),
        (0.1, "float32", float(np.float32(0.1))),
    ],
)
def test_numbers_are_clamped_and_rounded_to_even(value: float, name: str, expected: float) -> None:
    assert cast_number(value, name) == expected


@given(st.floats() | st.integers(), st.sampled_from(sorted(DTYPES)))
def test_a_cast_number_fits_its_type(value: float, name: str) -> None:
    info, number = DTYPES[name], cast_number(value, name)
    if info.kind != "f":
        assert isinstance(number, int)
        assert info.min <= number <= info.max
    assert cast_number(number, name) == number or math.isnan(number)


@given(st.sampled_from(dtypes.PACKED_4BIT), st.data())
def test_packing_and_unpacking_nibbles(name: str, data: st.DataObject) -> None:
    info = DTYPES[name]
    elements = st.integers(int(info.min), int(info.max))
    values = data.draw(hnp.arrays(info.numpy, st.integers(0, 9), elements=elements))
    packed = dtypes.pack_4bit(values)
    assert packed.nbytes == dtypes.byte_length(name, values.shape)
    np.testing.assert_array_equal(dtypes.unpack_4bit(packed, name, values.size), values)


def test_the_low_nibble_comes_first() -> None:
    assert dtypes.pack_4bit(np.array([1, 2, 15], np.uint8)).tolist() == [0x21, 0x0F]
    assert dtypes.unpack_4bit(np.array([0xF8], np.uint8), "int4", 2).tolist() == [-8, -1]
