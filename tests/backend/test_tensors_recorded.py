"""Tensors that work failed to write, where recorded commands read or write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer, read, submit
from tests.backend.tensors import ONES, broken, tensor
from tests.graphs import TWOS, doubling
from webnn_py import MLCommandEncoder, MLContext, MLProgram, OperationError

Record = Callable[[MLContext, MLCommandEncoder, Any, Any], None]


def dispatch(context: MLContext, encoder: MLCommandEncoder, x: Any, y: Any) -> None:
    encoder.dispatch(doubling(context), {"x": x}, {"y": y})


def slices(context: MLContext, encoder: MLCommandEncoder, x: Any, y: Any) -> None:
    assert encoder.dispatch_slice(context.slice_dispatch(doubling(context), {"x": x}, {"y": y}))


def initialization(context: MLContext, encoder: MLCommandEncoder, x: Any, y: Any) -> None:
    graph = doubling(context)
    encoder.initialize_graph(graph, {"x": x})
    encoder.dispatch(graph, {}, {"y": y})


def program(context: MLContext, encoder: MLCommandEncoder, x: Any, y: Any) -> None:
    made = MLProgram(context)
    ends = [made.argument(name, "float32", ONES.shape) for name in ("x", "y")]
    step = made.sequence()
    step.dispatch(doubling(context), {"x": ends[0]}, {"y": ends[1]})
    made.append(step)
    encoder.execute(made, {"x": x, "y": y})


each_way = pytest.mark.parametrize("record", [dispatch, slices, initialization, program])


@each_way
def test_what_was_never_made_is_not_read(gpu: MLContext, record: Record) -> None:
    made, encoder = broken(gpu), MLCommandEncoder(gpu)
    y = empty_buffer(gpu.device, 24)
    with pytest.raises(OperationError, match="was to write this MLTensor failed: boom"):
        record(gpu, encoder, made, y)
    gpu.write_tensor(made, ONES)
    record(gpu, encoder, made, y)
    submit(encoder, gpu)
    np.testing.assert_array_equal(read(y, ONES.shape), TWOS)


@each_way
def test_writing_mends_what_was_never_made(gpu: MLContext, record: Record) -> None:
    made, encoder = broken(gpu), MLCommandEncoder(gpu)
    record(gpu, encoder, tensor(gpu, ONES), made)
    submit(encoder, gpu)
    np.testing.assert_array_equal(gpu.read_tensor_sync(made), TWOS)
