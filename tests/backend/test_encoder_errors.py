"""MLCommandEncoder: what is refused, and that nothing is recorded or breaks by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer, read, run_recorded, submit
from tests.graphs import ONES, TWOS, assert_awaits, doubling, lost_info
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    ValidationError,
    ml,
)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, ..., "input 'x' is missing"),
        ([ONES], ..., "inputs: got list"),
        ({"x": ONES, "z": ONES}, ..., "unknown input 'z'"),
        ({"x": ONES[0]}, ..., "input 'x': shape"),
        ({"x": ONES.astype(np.float64)}, ..., "input 'x': data type float64"),
        ({"x": {"resource": ONES, "dimensions": [6]}}, ..., "input 'x': dimensions"),
        ({"x": ONES}, {}, "outputs: got none, expected at least 'y'"),
        ({"x": ONES}, None, "outputs: got NoneType"),
        ({"x": ONES}, {"y": np.empty((2, 3), np.float32)}, "output 'y': got ndarray"),
        ({"x": ONES}, {"y": None}, "output 'y': got NoneType"),
    ],
)
def test_bad_resources_record_nothing(
    gpu: MLContext, inputs: Any, outputs: Any, message: str
) -> None:
    graph, y = doubling(gpu), empty_buffer(gpu.device, 24)
    encoder = MLCommandEncoder(gpu)
    with pytest.raises(DataError, match=message):
        encoder.dispatch(graph, inputs, {"y": y} if outputs is ... else outputs)
    submit(encoder, gpu)
    assert not read(y).any()
    run_recorded(graph, {"x": ONES}, {"y": y})
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


def test_buffers_too_small_foreign_or_gone(gpu: MLContext) -> None:
    graph, good = doubling(gpu), empty_buffer(gpu.device, 24)
    destroyed = empty_buffer(gpu.device, 24)
    destroyed.destroy()
    with ml.create_context_sync(device_type="gpu") as other:
        for bad, message in (
            (empty_buffer(gpu.device, 20), "20 bytes .* expected at least 24"),
            (empty_buffer(other.device, 24), "another GPUDevice"),
            (destroyed, "is destroyed"),
        ):
            encoder = MLCommandEncoder(gpu)
            with pytest.raises(DataError, match=f"input 'x': .*{message}"):
                encoder.dispatch(graph, {"x": bad}, {"y": good})
            with pytest.raises(DataError, match=f"output 'y': .*{message}"):
                encoder.dispatch(graph, {"x": ONES}, {"y": bad})
            submit(encoder, gpu)
    assert_awaits(gpu)


def test_encoders_that_cannot_be_recorded_into(gpu: MLContext, cpu: MLContext) -> None:
    with pytest.raises(InvalidStateError, match="needs a GPU context"):
        MLCommandEncoder(cpu)
    with pytest.raises(DataError, match="encoder: got int"):
        MLCommandEncoder(gpu, encoder=3)
    with ml.create_context_sync(device_type="gpu") as other:
        foreign = other.device.create_command_encoder()
        with pytest.raises(DataError, match="another GPUDevice"):
            MLCommandEncoder(gpu, encoder=foreign)


def test_a_finished_encoder_records_nothing_more(gpu: MLContext) -> None:
    graph, y = doubling(gpu), empty_buffer(gpu.device, 24)
    encoder = MLCommandEncoder(gpu)
    encoder.finish()
    for late in (
        lambda: encoder.dispatch(graph, {"x": ONES}, {"y": y}),
        lambda: encoder.initialize_graph(graph),
        encoder.finish,
    ):
        with pytest.raises(InvalidStateError, match="finished"):
            late()
    run_recorded(graph, {"x": ONES}, {"y": y})
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


@pytest.mark.parametrize("label", [1, None, b"x", ["x"]])
def test_a_label_that_is_none_does_not_lose_the_recording(gpu: MLContext, label: Any) -> None:
    graph, y = doubling(gpu), empty_buffer(gpu.device, 24)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, {"x": ONES}, {"y": y})
    with pytest.raises(ValidationError, match="option 'label'"):
        encoder.finish(label=label)
    gpu.device.queue.submit([encoder.finish(label="half a pair \ud800, a zero \0")])
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


def test_the_user_finishes_the_user_s_encoder(gpu: MLContext) -> None:
    graph, y = doubling(gpu), empty_buffer(gpu.device, 24)
    commands = gpu.device.create_command_encoder()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    encoder.dispatch(graph, {"x": ONES}, {"y": y})
    with pytest.raises(InvalidStateError, match=r"call its own finish\(\)"):
        encoder.finish()
    gpu.device.queue.submit([commands.finish()])
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)
    with pytest.raises(InvalidStateError, match="the GPUCommandEncoder is finished"):
        encoder.dispatch(graph, {"x": ONES}, {"y": y})
    assert_awaits(gpu)


def test_a_pass_left_open(gpu: MLContext) -> None:
    commands = gpu.device.create_command_encoder()
    own_pass = commands.begin_compute_pass()
    encoder = MLCommandEncoder(gpu, encoder=commands)
    with pytest.raises(InvalidStateError, match="a pass of the GPUCommandEncoder is open"):
        encoder.dispatch(doubling(gpu), {"x": ONES}, {"y": empty_buffer(gpu.device, 24)})
    own_pass.end()
    assert_awaits(gpu)


def test_graphs_that_cannot_be_recorded(gpu: MLContext) -> None:
    encoder, y = MLCommandEncoder(gpu), empty_buffer(gpu.device, 24)
    gone = doubling(gpu)
    gone.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        encoder.dispatch(gone, {"x": ONES}, {"y": y})
    with ml.create_context_sync(device_type="gpu") as other:
        foreign = doubling(other)
        with pytest.raises(DataError, match="another context"):
            encoder.dispatch(foreign, {"x": ONES}, {"y": y})
    with pytest.raises(DataError, match="another context"):  # which is lost
        encoder.dispatch(foreign, {"x": ONES}, {"y": y})
    submit(encoder, gpu)


def test_after_the_context_is_destroyed(gpu: MLContext) -> None:
    context = ml.create_context_sync(device_type="gpu")
    graph, encoder = doubling(context), MLCommandEncoder(context)
    y = empty_buffer(context.device, 24)
    context.destroy()
    with pytest.raises(ContextLostError, match="destroy"):
        encoder.dispatch(graph, {"x": ONES}, {"y": y})
    with pytest.raises(ContextLostError, match="destroy"):
        MLCommandEncoder(context)


def test_a_lost_device_loses_its_context(caplog: pytest.LogCaptureFixture, gpu: MLContext) -> None:
    context = ml.create_context_sync(device_type="gpu")
    graph, encoder = doubling(context), MLCommandEncoder(context)
    y = empty_buffer(context.device, 24)
    context.device.destroy()
    with pytest.raises(ContextLostError, match="GPUDevice is lost"):
        encoder.dispatch(graph, {"x": ONES}, {"y": y})
    assert "GPUDevice" in lost_info(context).message
    caplog.clear()  # wgpu logs the loss
