"""A dispatch that was checked before is not checked again, and still means what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read, run_recorded
from tests.backend.tensors import ONES, adding, tensor
from tests.graphs import doubling
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    Timeline,
    ValidationError,
    ml,
)


@pytest.fixture(params=["cpu", "gpu"])
def context(request: pytest.FixtureRequest) -> MLContext:
    chosen: MLContext = request.getfixturevalue(request.param)
    return chosen


def test_repeats_see_new_contents(context: MLContext) -> None:
    graph, x, y = doubling(context), tensor(context), tensor(context)
    for turn in range(5):
        context.write_tensor(x, ONES * turn)
        context.dispatch(graph, {"x": x}, {"y": y})
        np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2 * turn)


def test_tensors_may_change_places(context: MLContext) -> None:
    graph, x, y = doubling(context), tensor(context, ONES), tensor(context)
    for _ in range(4):
        context.dispatch(graph, {"x": x}, {"y": y})
        x, y = y, x
    np.testing.assert_array_equal(context.read_tensor_sync(x), ONES * 16)


def test_names_and_not_their_order_say_which_input_a_tensor_is(context: MLContext) -> None:
    graph, y = adding(context), tensor(context)
    a, b = tensor(context, ONES), tensor(context, ONES * 10)
    for inputs in ({"x": a, "k": b}, {"k": b, "x": a}, {"x": b, "k": a}, {"x": a, "k": a}) * 2:
        context.dispatch(graph, inputs, {"y": y})
        expected = (1 if inputs["x"] is a else 10) + (1 if inputs["k"] is a else 10)
        np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * expected)


def test_graphs_do_not_share_what_was_checked(context: MLContext) -> None:
    x, y = tensor(context, ONES), tensor(context)
    first, second = doubling(context), adding(context)
    for _ in range(2):
        context.dispatch(first, {"x": x}, {"y": y})
        with pytest.raises(ValidationError, match="'k' is missing"):
            context.dispatch(second, {"x": x}, {"y": y})


def test_what_was_valid_may_not_be_any_more(context: MLContext) -> None:
    graph, x, y = doubling(context), tensor(context, ONES), tensor(context)
    for _ in range(2):
        context.dispatch(graph, {"x": x}, {"y": y})
    with pytest.raises(ValidationError, match="unknown input 'y'"):
        context.dispatch(graph, {"x": x, "y": y}, {})
    for given in ([x], {"x": None}, {"x": ONES}, None):
        with pytest.raises(ValidationError):
            context.dispatch(graph, given, {"y": y})  # type: ignore[arg-type]
    x.destroy()
    with pytest.raises(ValidationError, match="destroyed"):
        context.dispatch(graph, {"x": x}, {"y": y})
    other = tensor(context, ONES)
    context.dispatch(graph, {"x": other}, {"y": y})
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        context.dispatch(graph, {"x": other}, {"y": y})


def test_an_exported_tensor_is_refused_while_it_is_lent(gpu: MLContext) -> None:
    graph, x, y = doubling(gpu), tensor(gpu, ONES, exportable=True), tensor(gpu)
    gpu.dispatch(graph, {"x": x}, {"y": y})
    with gpu.export_to_gpu(x), pytest.raises(InvalidStateError, match="exported"):
        gpu.dispatch(graph, {"x": x}, {"y": y})
    gpu.dispatch(graph, {"x": x}, {"y": y})


def test_an_input_that_became_a_constant_is_refused(gpu: MLContext) -> None:
    graph, x, k, y = adding(gpu), tensor(gpu, ONES), tensor(gpu, ONES), tensor(gpu)
    gate = Timeline()
    gpu.dispatch(graph, {"x": x, "k": k}, {"y": y})
    # This one is recorded only after the graph has changed.
    gpu.dispatch(graph, {"x": x, "k": k}, {"y": y}, sync=[gate(wait=1)])
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"k": ONES * 5})
    gpu.submit([encoder.finish()])
    gate.signal(1)
    np.testing.assert_array_equal(gpu.read_tensor_sync(y), ONES * 2)
    for _ in range(2):
        with pytest.raises(ValidationError, match="'k' was made a constant"):
            gpu.dispatch(graph, {"x": x, "k": k}, {"y": y})
        gpu.dispatch(graph, {"x": x}, {"y": y})
        np.testing.assert_array_equal(gpu.read_tensor_sync(y), ONES * 6)


def test_more_combinations_than_are_remembered(gpu: MLContext) -> None:
    graph, x = doubling(gpu), tensor(gpu, ONES)
    outputs = [tensor(gpu) for _ in range(150)]
    for _ in range(2):
        for y in outputs:
            gpu.dispatch(graph, {"x": x}, {"y": y})
    for y in outputs:
        np.testing.assert_array_equal(gpu.read_tensor_sync(y), ONES * 2)


def test_a_lost_context_refuses_a_repeat(gpu: MLContext) -> None:
    with ml.create_context_sync(gpu.device) as context:
        graph, x, y = doubling(context), tensor(context, ONES), tensor(context)
        context.dispatch(graph, {"x": x}, {"y": y})
    with pytest.raises(ContextLostError, match="destroy"):
        context.dispatch(graph, {"x": x}, {"y": y})


# Into an encoder, on the user's buffers


def test_recordings_on_the_same_buffers_see_new_contents(gpu: MLContext) -> None:
    device, graph = gpu.device, doubling(gpu)
    x, y = empty_buffer(device, ONES.nbytes), empty_buffer(device, ONES.nbytes)
    for turn in range(4):
        device.queue.write_buffer(x, 0, ONES * turn)
        run_recorded(graph, {"x": x}, {"y": y})
        np.testing.assert_array_equal(read(y, ONES.shape), ONES * 2 * turn)


def test_recordings_repeat_behind_tensors_that_are_still_written(gpu: MLContext) -> None:
    graph, device, x = doubling(gpu), gpu.device, tensor(gpu, exportable=True)
    y = empty_buffer(device, ONES.nbytes)
    for turn in range(4):
        gpu.write_tensor(x, ONES * turn)
        with gpu.export_to_gpu(x) as buffer:
            run_recorded(graph, {"x": buffer}, {"y": y})
        np.testing.assert_array_equal(read(y, ONES.shape), ONES * 2 * turn)


def test_names_and_not_their_order_say_which_input_a_buffer_is(gpu: MLContext) -> None:
    graph, device = adding(gpu), gpu.device
    a, b, c = (buffer_of(device, ONES * n) for n in (1, 10, 100))
    y = empty_buffer(device, ONES.nbytes)
    for x, k in ((a, b), (b, c), (c, a), (a, a)) * 2:
        run_recorded(graph, {"k": k, "x": x}, {"y": y})
        wanted = read(x, ONES.shape) + read(k, ONES.shape)
        np.testing.assert_array_equal(read(y, ONES.shape), wanted)


def test_a_recording_that_was_valid_may_not_be_any_more(gpu: MLContext) -> None:
    device, graph = gpu.device, doubling(gpu)
    x, y = buffer_of(device, ONES), empty_buffer(device, ONES.nbytes)
    for _ in range(2):
        run_recorded(graph, {"x": x}, {"y": y})
    encoder = MLCommandEncoder(gpu)
    for inputs, outputs, message in (
        ({"x": x, "k": x}, {"y": y}, "unknown input 'k'"),
        ({"k": x}, {"y": y}, "unknown input 'k'"),
        ({"x": x}, {"y": y, "z": y}, "unknown output 'z'"),
        ({"x": x}, {"y": y, "z": None}, "unknown output 'z'"),
        ({"x": x}, {}, "expected at least 'y'"),
        ({}, {"y": y}, "'x' is missing"),
    ):
        with pytest.raises(DataError, match=message):
            encoder.dispatch(graph, inputs, outputs)
    encoder.dispatch(graph, {"x": x}, {"y": y})
    encoder.finish()
    with pytest.raises(InvalidStateError, match="finished"):
        encoder.dispatch(graph, {"x": x}, {"y": y})
    x.destroy()
    encoder = MLCommandEncoder(gpu)
    with pytest.raises(DataError, match="input 'x': the GPUBuffer is destroyed"):
        encoder.dispatch(graph, {"x": x}, {"y": y})
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        encoder.dispatch(graph, {"x": buffer_of(device, ONES)}, {"y": y})


def test_a_buffer_in_the_place_of_one_that_is_gone_is_checked(gpu: MLContext) -> None:
    """It may have its address."""
    device, graph, y = gpu.device, doubling(gpu), empty_buffer(gpu.device, ONES.nbytes)
    for turn in range(20):
        x = buffer_of(device, ONES * turn)
        run_recorded(graph, {"x": x}, {"y": y})
        np.testing.assert_array_equal(read(y, ONES.shape), ONES * 2 * turn)
        del x
        small = empty_buffer(device, 4)
        with pytest.raises(DataError, match="expected at least"):
            run_recorded(graph, {"x": small}, {"y": y})
        del small


def test_constants_of_the_same_recording_are_used(gpu: MLContext) -> None:
    device, graph = gpu.device, adding(gpu)
    x, k, y = (buffer_of(device, ONES) for _ in range(3))
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"k": ONES * 5})
    for _ in range(2):
        with pytest.raises(DataError, match="'k' was made a constant"):
            encoder.dispatch(graph, {"x": x, "k": k}, {"y": y})
        encoder.dispatch(graph, {"x": x}, {"y": y})
    gpu.submit([encoder.finish()])
    np.testing.assert_array_equal(read(y, ONES.shape), ONES * 6)
    for _ in range(2):
        run_recorded(graph, {"x": x}, {"y": y})
        with pytest.raises(DataError, match="'k' was made a constant"):
            run_recorded(graph, {"x": x, "k": k}, {"y": y})
