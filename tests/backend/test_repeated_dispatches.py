"""A dispatch that was checked before is not checked again, and still means what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.tensors import ONES, adding, tensor
from tests.graphs import doubling
from webnn_py import (
    ContextLostError,
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
