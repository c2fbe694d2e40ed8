"""initialize_graph takes effect with the submission that carries it, and not before."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.adapters import new_device
from tests.backend.buffers import buffer_of, empty_buffer, encoder_of, read, submit
from tests.backend.tensors import adding, tensor
from tests.graphs import ONES, awaited
from webnn_py import (
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    Timeline,
    ValidationError,
    ml,
)

FIVES = ONES * 5
SIXES = ONES * 6
RECORDED = "input 'k' was made a constant by an initialize_graph that is recorded and not submitted"


def initialized(graph: MLGraph, value: Any = FIVES) -> MLCommandEncoder:
    """An encoder that carries the initialization."""
    encoder = encoder_of(graph)
    encoder.initialize_graph(graph, {"k": value})
    return encoder


def assert_refused_everywhere(context: MLContext, graph: MLGraph, message: str = RECORDED) -> None:
    x, y = tensor(context, ONES), tensor(context)
    with pytest.raises((InvalidStateError, DataError), match=message):
        awaited(graph, {"x": ONES})
    with pytest.raises((InvalidStateError, DataError), match=message):
        MLCommandEncoder(context).dispatch(graph, {"x": x}, {"y": y})
    with pytest.raises((InvalidStateError, ValidationError), match=message):
        context.dispatch(graph, {"x": x}, {"y": y})


def assert_runs_everywhere(context: MLContext, graph: MLGraph, expected: Any = SIXES) -> None:
    x, y = tensor(context, ONES), tensor(context)
    np.testing.assert_array_equal(awaited(graph, {"x": ONES})["y"], expected)
    context.dispatch(graph, {"x": x}, {"y": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), expected)
    encoder, z = MLCommandEncoder(context), empty_buffer(context.device, 24)
    encoder.dispatch(graph, {"x": x}, {"y": z})
    submit(encoder, context)
    np.testing.assert_array_equal(read(z, (2, 3)), expected)


def test_until_it_is_submitted_others_are_refused(gpu: MLContext) -> None:
    graph = adding(gpu)
    encoder = initialized(graph)
    assert_refused_everywhere(gpu, graph)
    commands = encoder.finish()
    assert_refused_everywhere(gpu, graph)
    gpu.submit([commands])
    assert_runs_everywhere(gpu, graph)
    with pytest.raises(InvalidStateError, match="initialized already"):
        initialized(graph)


def test_until_it_is_submitted_others_may_give_every_input(gpu: MLContext) -> None:
    graph = adding(gpu)
    encoder = initialized(graph)
    np.testing.assert_array_equal(awaited(graph, {"x": ONES, "k": ONES})["y"], ONES * 2)
    submit(encoder, gpu)
    with pytest.raises(DataError, match="'k' was made a constant"):
        awaited(graph, {"x": ONES, "k": ONES})
    assert_runs_everywhere(gpu, graph)


@pytest.mark.parametrize("end", ["kept", "finished", "dropped"])
def test_one_that_is_never_submitted_is_made_again(gpu: MLContext, end: str) -> None:
    graph = adding(gpu)
    kept: list[Any] = [initialized(graph, ONES * 100)]
    if end == "finished":
        kept.append(kept[0].finish())
    if end == "dropped":
        kept.clear()
        gc.collect()
        assert_refused_everywhere(gpu, graph, "input 'k' is missing")
    submit(initialized(graph), gpu)
    assert_runs_everywhere(gpu, graph)


def test_the_one_submitted_first_counts(gpu: MLContext) -> None:
    graph, y = adding(gpu), empty_buffer(gpu.device, 24)
    late, first = initialized(graph, ONES * 100), initialized(graph)
    late.dispatch(graph, {"x": ONES}, {"y": y})
    submit(first, gpu)
    assert_runs_everywhere(gpu, graph)
    submit(late, gpu)
    np.testing.assert_array_equal(read(y, (2, 3)), ONES * 101)  # what it had recorded itself
    assert_runs_everywhere(gpu, graph)


def test_the_encoder_of_the_user_s_carries_it(gpu: MLContext) -> None:
    graph, y = adding(gpu), empty_buffer(gpu.device, 24)
    commands = gpu.device.create_command_encoder()
    MLCommandEncoder(gpu, encoder=commands).initialize_graph(graph, {"k": FIVES})
    MLCommandEncoder(gpu, encoder=commands).dispatch(graph, {"x": ONES}, {"y": y})
    with pytest.raises(InvalidStateError, match="initialized already"):
        MLCommandEncoder(gpu, encoder=commands).initialize_graph(graph, {"k": FIVES})
    command_buffer = commands.finish()
    assert_refused_everywhere(gpu, graph)
    gpu.device.queue.submit([command_buffer])
    np.testing.assert_array_equal(read(y, (2, 3)), SIXES)
    assert_runs_everywhere(gpu, graph)


def test_an_invalid_recording_initializes_nothing(gpu: MLContext) -> None:
    graph = adding(gpu)
    commands = gpu.device.create_command_encoder()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    encoder.initialize_graph(graph, {"k": FIVES})
    commands.begin_compute_pass()
    with pytest.raises(Exception, match=r"wgpuCommandEncoderFinish|While finishing"):
        commands.finish()
    assert_refused_everywhere(gpu, graph)
    submit(initialized(graph), gpu)
    assert_runs_everywhere(gpu, graph)


def test_a_parked_submission_initializes_when_it_is_made(gpu: MLContext) -> None:
    graph, gate = adding(gpu), Timeline()
    gpu.submit([initialized(graph).finish()], sync=[gate(wait=1, signal=2)])
    with pytest.raises(InvalidStateError, match=RECORDED):
        awaited(graph, {"x": ONES})
    gate.signal(1)
    gate.wait_sync(2, timeout=60)
    assert_runs_everywhere(gpu, graph)


def test_device_constants_are_as_the_submission_finds_them(gpu: MLContext) -> None:
    graph, k = adding(gpu), buffer_of(gpu.device, ONES)
    encoder = initialized(graph, k)
    gpu.device.queue.write_buffer(k, 0, FIVES)
    submit(encoder, gpu)
    gpu.device.queue.write_buffer(k, 0, ONES)
    assert_runs_everywhere(gpu, graph)


def test_a_dispatch_that_is_never_submitted_initializes_nothing(gpu: MLContext) -> None:
    graph, y = adding(gpu), empty_buffer(gpu.device, 24)
    MLCommandEncoder(gpu).dispatch(graph, {"x": ONES, "k": ONES}, {"y": y})
    submit(initialized(graph), gpu)
    assert_runs_everywhere(gpu, graph)


def test_without_constants_there_is_nothing_to_wait_for(gpu: MLContext) -> None:
    graph = adding(gpu)
    MLCommandEncoder(gpu).initialize_graph(graph)
    inputs, y = {"x": ONES, "k": FIVES}, empty_buffer(gpu.device, 24)
    np.testing.assert_array_equal(awaited(graph, inputs)["y"], SIXES)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, inputs, {"y": y})
    submit(encoder, gpu)
    np.testing.assert_array_equal(read(y, (2, 3)), SIXES)
    with pytest.raises(InvalidStateError, match="initialized already"):
        MLCommandEncoder(gpu).initialize_graph(graph)


def test_an_encoder_of_before_the_context_carries_it_too(gpu: MLContext) -> None:
    device = new_device()
    commands = device.create_command_encoder()
    with ml.create_context_sync(device) as context:
        graph = adding(context)
        MLCommandEncoder(context, encoder=commands).initialize_graph(graph, {"k": FIVES})
        assert_refused_everywhere(context, graph)
        device.queue.submit([commands.finish()])
        assert_runs_everywhere(context, graph)
