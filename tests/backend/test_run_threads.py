"""Which threads record, submit and read back awaited runs, and what is kept for the next ones."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.tensors import tensor
from tests.backend.test_run_policies import _reversing as reversing
from tests.backend.test_run_policies import compute
from tests.backend.test_submit_chunks import SIZE, chain, prepared
from tests.backend.test_submit_chunks import X as SQUARE
from tests.graphs import ONES, awaited, build, doubling, normal
from tests.internals import (
    engine_of,
    executable_of,
    prepared_for,
    run_on_worker,
    session_of,
    set_policy,
    settle,
)
from tests.loops import Run, pause, together, under_asyncio
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLGraph,
    MLGraphBuilder,
    OperationError,
    ml,
)
from webnn_py.engines.webgpu.runtime.devices.run_policy import RunPolicy
from webnn_py.engines.webgpu.runtime.devices.staging import Ending, Staging
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable
from webnn_py.engines.webgpu.runtime.prerecord import RunCommands


@dataclass
class Steps:
    """What was done on this thread (True) and on others, and whether runs were recorded before."""

    submitted: list[bool] = field(default_factory=list)
    read: list[bool] = field(default_factory=list)
    recorded: list[bool] = field(default_factory=list)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    found, here = Steps(), threading.get_ident()
    submit, read = RunCommands.submit, Staging.read

    def submitting(self: RunCommands, in_pieces: bool) -> None:
        found.submitted.append(threading.get_ident() == here)
        found.recorded.append(self.is_recorded)
        submit(self, in_pieces)

    def reading(self: Staging, *given: Any) -> None:
        found.read.append(threading.get_ident() == here)
        read(self, *given)

    monkeypatch.setattr(RunCommands, "submit", submitting)
    monkeypatch.setattr(Staging, "read", reading)
    return found


def repeat(context: MLContext, times: int = 3) -> MLGraph:
    """Return a graph whose next run is recorded, as far as it will be."""
    graph = doubling(context)
    for number in range(times):
        under_asyncio(functools.partial(compute, graph, context, number))
        settle(context)
    return graph


@pytest.mark.parametrize(
    ("policed", "submits", "reads", "recorded"),
    [
        ("the worker watches", True, True, True),
        ("who awaits", True, True, True),
        ("a thread finishes", True, True, True),
        ("the worker in software", False, False, True),
        ("who awaits in software", True, True, None),
        ("large inputs", False, False, True),
        ("large results", False, False, False),
    ],
    indirect=["policed"],
)
def test_who_submits_and_reads(
    policed: MLContext, steps: Steps, submits: bool, reads: bool, recorded: bool | None
) -> None:
    set_policy(policed, wake_seconds=1e9)  # whoever may watches for the end
    repeat(policed, 9)
    assert steps.submitted[0] is False  # of the first run nothing is known
    assert steps.submitted[-2:] == [submits] * 2
    assert steps.read[-2:] == [reads] * 2
    assert steps.recorded[:2] == [False, False]
    assert recorded is None or any(steps.recorded[3:]) == recorded


class Gate:
    """Lets no run be seen to end until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = threading.Event()
        look, wait, map_ = Ending.look, Ending.wait, Staging.map

        def looking(ending: Ending) -> bool:
            return self._opened.is_set() and look(ending)

        def waiting(ending: Ending) -> None:
            self._opened.wait()
            wait(ending)

        def mapping(staging: Staging, buffer: Any) -> None:
            self._opened.wait()
            map_(staging, buffer)

        monkeypatch.setattr(Ending, "look", looking)
        monkeypatch.setattr(Ending, "wait", waiting)
        monkeypatch.setattr(Staging, "map", mapping)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        self._opened.set()


at_once = pytest.mark.parametrize("policed", ["who awaits"], indirect=True)


@at_once
def test_only_one_that_is_alone_is_submitted_at_once(
    policed: MLContext, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [repeat(policed) for _ in range(3)]
    steps.submitted.clear()

    async def main() -> None:
        with Gate(monkeypatch):
            tasks = [asyncio.ensure_future(compute(graph, policed)) for graph in graphs]
            await pause()
        await asyncio.gather(*tasks)

    under_asyncio(main)
    assert steps.submitted.count(True) == 1


@at_once
def test_what_follows_a_run_of_the_worker_s_is_submitted_here(
    policed: MLContext, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker counts as idle before the await is told that its run has ended."""
    graph, busy, session = repeat(policed), [True], type(session_of(policed))
    is_idle = session.worker_is_idle.fget  # type: ignore[attr-defined]
    idle = property(lambda self: not busy and is_idle(self))
    monkeypatch.setattr(session, "worker_is_idle", idle)
    steps.submitted.clear()

    async def main() -> None:
        await compute(graph, policed)
        busy.clear()
        for _ in range(3):
            await compute(graph, policed)

    under_asyncio(main)
    assert steps.submitted == [False, True, True, True]


@pytest.mark.parametrize("policed", ["who awaits", "who awaits in software"], indirect=True)
@pytest.mark.parametrize("before", ["the worker's", "a dispatch", "a submission"])
def test_none_is_submitted_before_what_was_called_before(
    policed: MLContext, steps: Steps, before: str
) -> None:
    graph, release = repeat(policed), threading.Event()
    x, y = tensor(policed, ONES), tensor(policed)
    policed.flush()
    steps.submitted.clear()

    async def main() -> None:
        tasks = []
        if before == "the worker's":
            run_on_worker(policed, release.wait)
            call = MLAwaitedExecution(policed).compute(graph, {"x": x}, {"y": y})
            tasks.append(asyncio.ensure_future(call))
        elif before == "a dispatch":
            policed.dispatch(graph, {"x": x}, {"y": y})
        lock = engine_of(policed).gpu.submit_lock
        with lock if before == "a submission" else contextlib.nullcontext():
            tasks.append(asyncio.ensure_future(compute(graph, policed)))
            await pause()
            assert True not in steps.submitted
            release.set()
        await asyncio.gather(*tasks)

    under_asyncio(main)
    assert True not in steps.submitted


@at_once
def test_one_that_takes_longer_is_read_by_another_thread(
    policed: MLContext, run: Run, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, reader = repeat(policed), engine_of(policed).gpu.reader
    steps.read.clear()
    gate = Gate(monkeypatch)

    async def late() -> None:
        with gate:
            while reader.idle:
                await pause()

    run(lambda: together([functools.partial(compute, graph, policed), late]))
    assert steps.read == [False]


def test_buffers_of_inputs_are_used_again(policed: MLContext) -> None:
    device, made = engine_of(policed).gpu.handle, []
    create = device.create_buffer

    def creating(**given: Any) -> Any:
        made.append(given["usage"])
        return create(**given)

    device.create_buffer = creating
    try:
        repeat(policed, 12)
    finally:
        del device.create_buffer
    most = 1 + RunPolicy.max_prerecorded_runs
    assert sum(bool(usage & wgpu.BufferUsage.MAP_WRITE) for usage in made) <= most


@at_once
def test_sizes_that_were_used_last_have_runs_recorded(policed: MLContext) -> None:
    graph = build(policed, lambda b: {"y": b.neg(b.input("x", "float32", ["n", 3]))})
    most = RunPolicy.max_prerecorded_graphs
    sizes = range(1, most + 4)
    for n in (*sizes, *sizes):
        x = normal(n, 3, seed=n)
        for _ in range(2):
            np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], -x)
        settle(policed)
    executables: list[Any] = [prepared_for(graph, n=n).executable for n in sizes]
    recorded = [n for n, e in zip(sizes, executables, strict=True) if e.prerecorder.is_recorded]
    assert recorded == [*sizes][-most:]


def test_a_failure_to_record_ahead_harms_nothing(
    policed: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, failed = engine_of(policed).gpu, list[Any]()
    copy = gpu.staging.copy

    def copying(*given: Any) -> Any:
        if gpu.submit_lock.locked():
            return copy(*given)
        failed.append(given)
        raise MLError("no memory left")

    monkeypatch.setattr(gpu.staging, "copy", copying)
    with contextlib.suppress(MLError):
        repeat(policed, 4)
    monkeypatch.undo()
    repeat(policed, 4)


@pytest.mark.parametrize("policed", ["a thread finishes"], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_finishes_what_is_recorded(
    policed: MLContext, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    graph, x = build(policed, reversing), normal(8, 8)
    encoders, threads = type(engine_of(policed).gpu.plain_encoder("")), list[str]()
    finish: Callable[[Any], Any] = encoders.finish

    def finishing(encoder: Any) -> Any:
        threads.append(threading.current_thread().name)
        if fails and threads[-1].startswith("webnn-recording"):
            raise wgpu.GPUValidationError("no")
        return finish(encoder)

    def often() -> bool:
        for _ in range(4000):  # where a run is over soon, nobody needs the thread
            np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])
            if any(name.startswith("webnn-recording") for name in threads) and not fails:
                return True
        return False

    with monkeypatch.context() as patch:
        patch.setattr(encoders, "finish", finishing)
        if fails:
            with pytest.raises(OperationError, match="submitting a graph: the device refused: no"):
                often()
        else:
            assert often()
    settle(policed)
    for _ in range(8):
        with contextlib.suppress(OperationError):  # those that were recorded
            awaited(graph, {"x": x})
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x[:, ::-1])


# In pieces


@pytest.fixture
def fresh() -> Any:
    with ml.create_context_sync(device_type="gpu") as context:
        yield context


def pieces(graph: MLGraph) -> int:
    """In how many submissions it runs."""
    loaded = executable_of(graph).loaded
    ends = (*loaded.graph.inputs, *(value for _, value in loaded.graph.outputs))
    made = loaded.commands({value: loaded.io_buffer(value) for value in ends}).pieces
    return len(made) if loaded.in_pieces else 1


def test_only_graphs_that_nobody_records_run_in_pieces(fresh: MLContext) -> None:
    graph = chain(fresh)
    assert pieces(graph) == 3
    x, y = (fresh.create_tensor_sync("float32", [SIZE, SIZE], readable=True) for _ in range(2))
    fresh.dispatch(graph, {"x": x}, {"y": y})
    assert pieces(graph) == 1
    recorded = chain(fresh)
    MLCommandEncoder(fresh).dispatch(recorded, {"x": SQUARE}, {"y": y})
    assert pieces(recorded) == 1


def test_a_small_graph_is_one_piece(fresh: MLContext) -> None:
    b = MLGraphBuilder(fresh)
    graph = b.build_sync({"y": b.relu(b.input("x", "float32", [2]))})
    assert pieces(graph) == 1


def test_all_sizes_know_that_one_is_recorded(fresh: MLContext) -> None:
    graph = prepared(fresh, SIZE + 9)
    loaded = [prepared_for(graph, rows=n).executable for n in (SIZE, SIZE + 9)]
    assert all(isinstance(each, WebGPUExecutable) and each.loaded.in_pieces for each in loaded)
    y = fresh.create_tensor_sync("float32", [SIZE, SIZE], readable=True)
    MLCommandEncoder(fresh).dispatch(graph, {"x": SQUARE}, {"y": y})
    assert not any(isinstance(each, WebGPUExecutable) and each.loaded.in_pieces for each in loaded)
