"""The next awaited run is recorded while the device works on this one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import buffer_of
from tests.backend.webgpu import Encoder
from tests.graphs import awaited, doubling, normal
from tests.internals import engine_of, executable_of, prepared_for, set_policy, settle
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLGraph,
    MLGraphBuilder,
    OperationError,
    ml,
)
from webnn_py.engines.webgpu.runtime.devices.run_policy import RunPolicy
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable
from webnn_py.engines.webgpu.runtime.prerecord import RunCommands, RunPrerecorder

X = normal(2, 3)
TWO = np.asarray(2, np.float32)


@pytest.fixture
def fresh() -> Iterator[MLContext]:
    """A context whose worker has all runs, on hardware too, as none is short."""
    with ml.create_context_sync(device_type="gpu") as context:
        set_policy(context, tiny_run_seconds=0.0, short_run_seconds=0.0)
        yield context


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run, whether all of it was recorded before."""
    made: list[bool] = []
    submit = RunCommands.submit

    def submitting(self: RunCommands, in_pieces: bool) -> None:
        made.append(self.is_recorded)
        submit(self, in_pieces)

    monkeypatch.setattr(RunCommands, "submit", submitting)
    return made


def run(graph: MLGraph, x: Any = X) -> None:
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x * 2)


def test_from_the_second_run_on_the_next_is_recorded(
    fresh: MLContext, submissions: list[bool]
) -> None:
    graph = doubling(fresh)
    for number in range(5):
        run(graph, X + number)
        settle(fresh)
    assert submissions == [False, False, True, True, True]


def swapping(context: MLContext) -> MLGraph:
    """Many dispatches."""
    b = MLGraphBuilder(context)
    h = b.input("x", "float32", [8, 8])
    swap = np.eye(8, dtype=np.float32)[::-1]
    for _ in range(101):
        h = b.matmul(h, b.constant(np.ascontiguousarray(swap)))
    return b.build_sync({"y": h})


class Told:
    """An ending that tells at once whether it is over, and is due."""

    left = 0.0

    def __init__(self, ending: Any, done: bool) -> None:
        self.wait = ending.wait
        self._done = done

    def look(self) -> bool:
        return self._done


@pytest.mark.parametrize(
    ("done", "ending", "before"), [(True, 0.0, 0), (False, 0.0, 14), (False, 1.0, 13)]
)
def test_it_stops_when_the_run_is_done_and_does_not_begin_what_takes_longer(
    fresh: MLContext, monkeypatch: pytest.MonkeyPatch, done: bool, ending: float, before: int
) -> None:
    graph, events, x = swapping(fresh), [], normal(8, 8)
    awaited(graph, {"x": x})
    settle(fresh)
    staging, prerecorder = executable_of(graph).loaded.gpu.staging, executable_of(graph).prerecorder
    record, read, ending_of = RunCommands.record, staging.read, staging.ending

    def recording(self: RunCommands) -> None:
        events.append("record")
        record(self)

    def reading(*args: Any) -> None:
        events.append("read")
        read(*args)

    monkeypatch.setattr(RunCommands, "record", recording)
    monkeypatch.setattr(staging, "ending", lambda *args: Told(ending_of(*args), done))
    monkeypatch.setattr(staging, "read", reading)
    prerecorder.latency.seconds, prerecorder._finish_latency.seconds = (
        1e-5,
        ending,
    )  # it is over by now
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])
    settle(fresh)
    del events[0]  # the end of this run
    assert events.index("read") == before
    assert events.count("record") == 14  # 13 steps, and the end


def test_runs_of_many_dispatches_are_whole(fresh: MLContext, submissions: list[bool]) -> None:
    graph = swapping(fresh)
    for number in range(8):
        x = normal(8, 8, seed=number)
        np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])
    settle(fresh)
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])
    assert submissions[-1]


def test_it_begins_with_its_first_piece(fresh: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a run takes is told from then on, however long the rest is being recorded."""
    graph, begun, told = swapping(fresh), [], []
    gpu, submit = executable_of(graph).loaded.gpu, RunCommands.submit
    monkeypatch.setattr(gpu, "submit", lambda commands: begun.append(time.monotonic()))

    def submitting(self: RunCommands, in_pieces: bool) -> None:
        submit(self, in_pieces)
        told.append(self.begun_at)
        raise MLError("submitted nothing")

    monkeypatch.setattr(RunCommands, "submit", submitting)
    with pytest.raises(MLError, match="submitted nothing"):
        awaited(graph, {"x": normal(8, 8)})
    assert begun[0] <= told[0] <= begun[1]


def test_runs_on_resources_of_the_user_are_not(fresh: MLContext, submissions: list[bool]) -> None:
    graph = doubling(fresh)
    for _ in range(3):
        buffer = buffer_of(fresh.device, X)
        np.testing.assert_array_equal(awaited(graph, {"x": buffer})["y"], X * 2)
        buffer.destroy()
    assert submissions == [False] * 3
    run(graph)


def test_runs_of_large_results_are_not(fresh: MLContext, submissions: list[bool]) -> None:
    set_policy(fresh, prerecorded_result_bytes=X.nbytes - 1)
    graph = doubling(fresh)
    for _ in range(3):
        run(graph)
        settle(fresh)
    assert submissions == [False] * 3


def test_it_serves_one_of_many_at_once(fresh: MLContext) -> None:
    graph = doubling(fresh)

    async def main() -> None:
        for _ in range(4):
            await compute(0)
            await asyncio.gather(*map(compute, range(40)))

    async def compute(number: int) -> None:
        x = X + number
        y = (await MLAwaitedExecution(fresh).compute(graph, {"x": x}))["y"]
        np.testing.assert_array_equal(y, x * 2)

    asyncio.run(main())


def test_a_failure_to_record_ahead_harms_nothing(
    fresh: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = doubling(fresh)
    run(graph)
    gpu = executable_of(graph).loaded.gpu
    copy = gpu.staging.copy
    failed = []

    def copying(*args: Any) -> Any:
        if gpu.submit_lock.locked():
            return copy(*args)
        failed.append(args)
        raise MLError("no memory left")

    monkeypatch.setattr(gpu.staging, "copy", copying)
    for _ in range(3):
        run(graph)
        settle(fresh)
    assert failed
    monkeypatch.undo()
    run(graph)


def test_a_device_that_is_destroyed_with_a_run_recorded(fresh: MLContext) -> None:
    graph = doubling(fresh)
    for _ in range(3):
        run(graph)
        settle(fresh)
    assert executable_of(graph).prerecorder.take() is not None
    run(graph)
    settle(fresh)
    fresh.device.destroy()
    with pytest.raises(ContextLostError):
        run(graph)


@pytest.fixture
def following(fresh: MLContext, monkeypatch: pytest.MonkeyPatch) -> MLContext:
    """On a device whose driver only queues, short runs that follow each other at once."""
    set_policy(
        fresh,
        short_run_seconds=1e9,
        late_seconds=1e9,
        back_to_back_seconds=1e9,
        late_finish_seconds=-1e9,
    )
    monkeypatch.setattr(engine_of(fresh).gpu, "hardware", True)
    return fresh


def test_two_are_recorded_and_a_thread_ends_them(
    following: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, threads, finish = swapping(following), [], Encoder.finish

    def finishing(encoder: Encoder) -> Any:
        threads.append(threading.current_thread().name)
        return finish(encoder)

    monkeypatch.setattr(Encoder, "finish", finishing)
    seen = False
    for number in range(4000):  # where a run is over soon, nobody needs the thread
        x = normal(8, 8, seed=number)
        np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])
        seen = any(name.startswith("webnn-recording") for name in threads)
        if seen and number >= 40:
            break
    assert seen
    settle(following)
    prerecorder = executable_of(graph).prerecorder
    assert 1 <= sum(map(bool, iter(prerecorder.take, None))) <= RunPolicy.max_prerecorded_runs


def test_an_end_that_fails_in_a_thread(
    following: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x, finish = swapping(following), normal(8, 8), Encoder.finish

    def finishing(encoder: Encoder) -> Any:
        if threading.current_thread().name.startswith("webnn-recording"):
            raise wgpu.GPUValidationError("no")
        return finish(encoder)

    def often() -> None:
        for _ in range(100):
            awaited(graph, {"x": x})

    with monkeypatch.context() as failing:
        failing.setattr(Encoder, "finish", finishing)
        with pytest.raises(OperationError, match="submitting a graph: the device refused: no"):
            often()
    for _ in range(8):
        with contextlib.suppress(OperationError):  # those that were recorded
            awaited(graph, {"x": x})
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])


def test_sizes_that_were_used_last_have_runs_recorded(fresh: MLContext) -> None:
    b = MLGraphBuilder(fresh)
    graph = b.build_sync({"y": b.mul(b.input("x", "float32", ["n", 3]), b.constant(TWO))})
    sizes = range(1, 3 * RunPolicy.max_prerecorded_graphs)
    for _ in range(3):
        for n in sizes:
            x = normal(n, 3, seed=n)
            for _ in range(2):
                run(graph, x)
            settle(fresh)
    recorded = [n for n in sizes if prerecorder_of(graph, n).is_recorded]
    assert recorded == [*sizes][-RunPolicy.max_prerecorded_graphs :]
    for n in (sizes[0], sizes[-1]):
        run(graph, normal(n, 3, seed=n))


def prerecorder_of(graph: MLGraph, n: int) -> RunPrerecorder:
    executable = prepared_for(graph, n=n).executable
    assert isinstance(executable, WebGPUExecutable)
    return executable.prerecorder
