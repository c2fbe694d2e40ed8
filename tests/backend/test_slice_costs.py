"""What slices are measured to take, and buffers of runs that are recorded in slices."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.backend.test_slices import TINY, X, buffers, frames, network
from tests.internals import engine_of, executable_of
from webnn_py import InvalidStateError, MLCommandEncoder, MLContext
from webnn_py.engines.webgpu.runtime import slicing
from webnn_py.engines.webgpu.runtime.slicing import Costs


def test_the_next_run_has_the_buffers_of_one_that_was_submitted(gpu: MLContext) -> None:
    graph = network(gpu)
    loaded = executable_of(graph).loaded
    given = ({"x": X}, buffers(gpu, graph))
    frames(gpu, gpu.slice_dispatch(graph, *given), TINY)
    taken = loaded.borrow_twin()
    assert loaded.borrow_twin() is not taken
    loaded.return_twin(taken)
    encoder = MLCommandEncoder(gpu)
    assert encoder.dispatch_slice(gpu.slice_dispatch(graph, *given), budget_ms=1e9)
    assert loaded.borrow_twin() is not taken
    gpu.submit([encoder.finish()])
    assert loaded.borrow_twin() is taken


def test_threads_record_a_slice_one_after_the_other(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = network(gpu)
    job = gpu.slice_dispatch(graph, {"x": X}, buffers(gpu, graph))
    encode, both = slicing.SlicedGraphRun.encode, threading.Barrier(2)

    def encode_with_another(self: Any, *given: Any) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return encode(self, *given)

    def last(encoder: MLCommandEncoder) -> bool:
        with contextlib.suppress(InvalidStateError):
            return encoder.dispatch_slice(job, budget_ms=1e9)
        return False

    monkeypatch.setattr(slicing.SlicedGraphRun, "encode", encode_with_another)
    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(last, [MLCommandEncoder(gpu) for _ in range(2)])) == 1


def test_what_dispatches_take_is_measured(gpu: MLContext) -> None:
    if "timestamp-query" not in gpu.device.features:
        pytest.skip("this device leaves no timestamps")
    graph = network(gpu)
    loaded = executable_of(graph).loaded
    every = [(number, 1) for number in range(len(loaded.compiled.kernels))]
    costs = loaded.costs(Costs)
    assert not costs.is_measured(every)
    frames(gpu, gpu.slice_dispatch(graph, {"x": X}, buffers(gpu, graph)), TINY)
    costs.read()
    engine_of(gpu).gpu.reader.run(lambda: None).wait()
    assert costs.is_measured(every)


def test_frames_that_are_never_submitted_are_not_kept(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "timestamp-query" not in gpu.device.features:
        pytest.skip("needs timestamps")
    monkeypatch.setattr(slicing, "MAX_UNREAD_MEASUREMENTS", 2)
    graph = network(gpu)
    job = gpu.slice_dispatch(graph, {"x": X}, buffers(gpu, graph))
    while not job.done:
        encoder = MLCommandEncoder(gpu)
        encoder.dispatch_slice(job, budget_ms=TINY)
        encoder.finish()
    assert len(executable_of(graph).loaded.costs(Costs)._unread) == 2


def test_costs_follow_what_was_measured(gpu: MLContext) -> None:
    costs = Costs(executable_of(network(gpu)).loaded)
    costs.learn([(0, 4), (1, 1)], [0.004, 0.002])
    assert [costs.of(0), costs.of(1)] == [0.001, 0.002]
    for _ in range(50):  # the device has become half as fast
        costs.correct([(0, 2), (1, 1)], 0.008)
    assert costs.of(0) == pytest.approx(0.002, rel=1e-3)
    assert costs.of(1) == pytest.approx(0.004, rel=1e-3)
    costs.correct([(0, 1)], 1e6)  # noise
    assert costs.of(0) == pytest.approx(0.002, rel=1e-3)


@pytest.mark.parametrize("hardware", [False, True])
def test_dispatches_of_no_time_are_not_believed_of_software(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch, hardware: bool
) -> None:
    loaded = executable_of(network(gpu)).loaded
    monkeypatch.setattr(loaded.gpu, "hardware", hardware)
    costs = Costs(loaded)
    expected = costs.of(0)
    costs.learn([(0, 1)], [expected / 1000])
    assert costs.of(0) == (expected / 1000 if hardware else expected)
    assert costs.is_measured([(0, 1)])
