"""`numpy.asarray` of a tensor; and flat arrays, which every mode takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer, read, submit
from tests.backend.tensors import Parked, broken, tensor
from tests.graphs import ONES, TWOS, awaited, doubling
from tests.loops import Run
from webnn_py import (
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLExecution,
    NotSupportedError,
    OperationError,
    ValidationError,
)


def test_a_cpu_tensor_is_an_array(cpu: MLContext) -> None:
    x, y = tensor(cpu, ONES), tensor(cpu)
    cpu.dispatch(doubling(cpu), {"x": x}, {"y": y})
    array = np.asarray(y)
    assert (array.dtype, array.shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(array, TWOS)
    np.testing.assert_array_equal(np.add(x, y), ONES + TWOS)
    assert np.shares_memory(array, np.asarray(y))


def test_it_shares_memory_unless_told_otherwise(cpu: MLContext) -> None:
    x = tensor(cpu, ONES)
    np.asarray(x)[0, 0] = 7
    assert cpu.read_tensor_sync(x)[0, 0] == 7
    for apart in (np.array(x), np.asarray(x, np.float64), x.__array__(copy=True)):
        assert not np.shares_memory(apart, np.asarray(x))
        apart[:] = 9
    assert np.asarray(x, np.float64).dtype == np.float64
    assert x.__array__(np.dtype(np.float32), copy=False)[0, 0] == 7
    with pytest.raises(ValidationError, match="as float64 needs a copy"):
        x.__array__(np.float64, copy=False)


def test_it_is_read_only_where_the_tensor_is(cpu: MLContext) -> None:
    array = np.asarray(tensor(cpu, writable=False))
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


@pytest.mark.parametrize("wait_for_it", [False, True])
def test_it_waits_for_the_work_before(cpu: MLContext, run: Run, wait_for_it: bool) -> None:
    parked = Parked(cpu)

    async def main() -> None:
        with pytest.raises(InvalidStateError, match="event loop"):
            np.asarray(parked.target)

    run(main)
    parked.go()
    if wait_for_it:
        cpu.read_tensor_sync(parked.target)
    np.testing.assert_array_equal(np.asarray(parked.target), TWOS)


def test_what_is_no_array_says_what_to_do(context: MLContext) -> None:
    gone = tensor(context, ONES)
    gone.destroy()
    closed = tensor(context, readable=False)
    constant = context.create_constant_tensor_sync(ONES)
    for made in (gone, closed, constant):
        with pytest.raises(MLError):
            np.asarray(made)
    if context.device_type == "gpu":
        with pytest.raises(NotSupportedError, match="use read_tensor_sync or read_tensor_async"):
            np.asarray(tensor(context, ONES))
        return
    with pytest.raises(ValidationError, match="not created readable"):
        np.asarray(closed)
    with pytest.raises(ValidationError, match="destroyed"):
        np.asarray(gone)
    with pytest.raises(OperationError, match="boom"):
        np.asarray(broken(context))


FLAT = [ONES.ravel(), np.repeat(ONES.ravel(), 2)[::2], {"resource": ONES.ravel()}]


@pytest.mark.parametrize("flat", FLAT, ids=["flat", "strided", "resource"])
def test_a_flat_array_is_an_input_in_every_mode(context: MLContext, flat: Any) -> None:
    graph = doubling(context)
    np.testing.assert_array_equal(awaited(graph, {"x": flat})["y"], TWOS)
    if context.device_type == "cpu":
        made = MLExecution(context).compute(graph, {"x": flat})["y"]
        np.testing.assert_array_equal(made, TWOS)
        return
    for bound in (False, True):
        graph, y = doubling(context), empty_buffer(context.device, 24)
        encoder = MLCommandEncoder(context)
        encoder.initialize_graph(graph, {"x": flat} if bound else {})
        encoder.dispatch(graph, {} if bound else {"x": flat}, {"y": y})
        submit(encoder, context)
        np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


def test_a_flat_array_is_written_to_tensors_and_constants(context: MLContext) -> None:
    x = tensor(context)
    context.write_tensor(x, np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(context.read_tensor_sync(x)[1], [3, 4, 5])
    assert context.create_constant_tensor_sync(ONES.ravel(), "float32", [2, 3]).shape == (2, 3)
    with pytest.raises(ValidationError, match=r"shape \[5\], expected \[2, 3\]"):
        context.write_tensor(x, np.arange(5, dtype=np.float32))
