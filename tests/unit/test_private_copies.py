"""Memory that users give is copied where it may change, and once."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from webnn_py.ir import Descriptor
from webnn_py.memory.host_arrays import input_array, snapshot


@pytest.mark.parametrize(
    ("value", "copies"),
    [
        (np.zeros((2, 3), np.float32), True),
        (np.zeros((3, 2), np.float32).T, False),
        (bytes(24), False),
        (bytearray(24), True),
        (array.array("f", [0] * 6), True),
        (memoryview(bytes(25))[1:], False),
        ({"resource": np.zeros((2, 3), np.float32)}, True),
    ],
)
def test_nothing_is_copied_twice(value: Any, copies: bool) -> None:
    made = input_array(value, Descriptor("float32", (2, 3)), "x")
    assert (snapshot(made, value) is not made) == copies
