"""Strides of a reshape of strided memory are NumPy's, and so is whether there are any."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import reshaped_strides

SIZES = st.sampled_from([1, 2, 3, 4, 6])


@st.composite
def shapes_of(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of so many elements."""
    shape = []
    while size > 1:
        shape.append(draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])))
        size //= shape[-1]
        if len(shape) > 6:
            shape.append(size)
            size = 1
    return tuple(shape)


@given(st.data())
def test_strides_of_reshapes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(SIZES, min_size=1, max_size=4)))
    parts = [data.draw(st.sampled_from([slice(0, n), slice(0, 2 * n, 2)])) for n in shape]
    whole = np.zeros([2 * n for n in shape], np.int8)[tuple(parts)]
    array = whole.transpose(data.draw(st.permutations(range(len(shape)))))
    reshaped = data.draw(shapes_of(math.prod(shape)))
    view = array.reshape(reshaped)
    expected = None
    if np.shares_memory(view, array):
        expected = [step for step, size in zip(view.strides, reshaped, strict=True) if size > 1]
    found = reshaped_strides(array.shape, array.strides, reshaped)
    if found is not None:
        found = [step for step, size in zip(found, reshaped, strict=True) if size > 1]
    assert found == expected
