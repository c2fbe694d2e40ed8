"""Runs recorded ahead: inputs are written at the call, and who awaits submits where it may."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.tensors import tensor
from tests.graphs import ONES, TWOS, doubling
from tests.internals import engine_of, executable_of, session_of, set_policy, settle
from tests.loops import Run, cancel_after, pause, together, under_asyncio
from tests.threads import in_threads
from webnn_py import ContextLostError, MLAwaitedExecution, MLContext, MLGraph, OperationError, ml
from webnn_py.engines.webgpu.runtime.devices.run_policy import RunPolicy
from webnn_py.engines.webgpu.runtime.devices.staging import Ending, Staging
from webnn_py.engines.webgpu.runtime.prerecord import RunCommands, RunPrerecorder


@pytest.fixture(params=["with the worker", "here", "ends by a thread"])
def context(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MLContext]:
    """On a device whose driver only queues what is submitted; all runs are long, or short."""
    by_thread = request.param == "ends by a thread"
    with ml.create_context_sync(device_type="gpu") as made:
        set_policy(
            made,
            short_run_seconds=0.0 if request.param == "with the worker" else 1e9,
            tiny_run_seconds=0.0,
            late_finish_seconds=-1e9 if by_thread else 1e9,
        )
        if by_thread:
            set_policy(made, late_seconds=1e9, back_to_back_seconds=1e9)
        monkeypatch.setattr(engine_of(made).gpu, "hardware", True)
        yield made


@pytest.fixture
def submitters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread that submitted each run."""
    found: list[int] = []
    submit = RunCommands.submit

    def submitting(self: RunCommands, in_pieces: bool) -> None:
        found.append(threading.get_ident())
        submit(self, in_pieces)

    monkeypatch.setattr(RunCommands, "submit", submitting)
    return found


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


@pytest.fixture
def readers(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread that read each run back."""
    found: list[int] = []
    staging = engine_of(context).gpu.staging
    read = staging.read

    def reading(*args: Any) -> None:
        found.append(threading.get_ident())
        read(*args)

    monkeypatch.setattr(staging, "read", reading)
    return found


async def compute(graph: MLGraph, context: MLContext, number: float = 1) -> None:
    y = (await MLAwaitedExecution(context).compute(graph, {"x": ONES * number}))["y"]
    np.testing.assert_array_equal(y, TWOS * number)


def repeated(context: MLContext, run: Run = under_asyncio) -> MLGraph:
    """A graph whose next run is recorded."""
    graph = doubling(context)
    for number in range(3):
        run(functools.partial(compute, graph, context, number))
        settle(context)
    return graph


# Inputs


def test_inputs_changed_after_the_call(context: MLContext) -> None:
    graph, execution, memory = repeated(context), MLAwaitedExecution(context), ONES.copy()

    async def main() -> None:
        calls = []
        for number in range(4):
            memory[:] = number
            calls.append(execution.compute(graph, {"x": memory}))
        memory[:] = -1
        for number, call in reversed(list(enumerate(calls))):
            np.testing.assert_array_equal((await call)["y"], TWOS * number)

    under_asyncio(main)


def test_their_buffers_are_used_again(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = doubling(context), []
    device = engine_of(context).gpu.handle
    create = device.create_buffer

    def creating(**given: Any) -> Any:
        made.append(given["usage"])
        return create(**given)

    monkeypatch.setattr(device, "create_buffer", creating)
    for number in range(12):
        under_asyncio(functools.partial(compute, graph, context, number))
        settle(context)
    most = 1 + RunPolicy.max_prerecorded_runs
    assert 1 <= sum(bool(usage & wgpu.BufferUsage.MAP_WRITE) for usage in made) <= most


def test_large_ones_are_uploaded_by_the_worker(context: MLContext, submitters: list[int]) -> None:
    set_policy(context, large_input_bytes=ONES.nbytes)
    repeated(context)
    assert threading.get_ident() not in submitters


def test_one_that_is_never_awaited_harms_nothing(context: MLContext) -> None:
    graph = repeated(context)
    for _ in range(3):
        MLAwaitedExecution(context).compute(graph, {"x": ONES}).close()
        gc.collect()
        under_asyncio(functools.partial(compute, graph, context, 7))
        settle(context)


@pytest.mark.parametrize("hardware", [True, False])
def test_results_go_with_who_has_them(context: MLContext, hardware: bool) -> None:
    engine_of(context).gpu.hardware = hardware
    graph = repeated(context)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            call = MLAwaitedExecution(context).compute(graph, {"x": ONES})
            results = asyncio.run(call)
            result = weakref.ref(results["y"])
            del results, call
            settle(context)
            assert result() is None
    finally:
        gc.enable()


# Submission


def test_who_awaits_submits(context: MLContext, run: Run, submitters: list[int]) -> None:
    graph = repeated(context, run)
    submitters.clear()
    run(functools.partial(compute, graph, context))
    assert submitters == [threading.get_ident()]


@pytest.mark.parametrize("soon", [0.0, 1e9])
@pytest.mark.parametrize(("recorded", "most"), [(0, 3), (0, 2), (1, 1), (1, 0)])
def test_who_awaits_records_what_little_is_left(
    context: MLContext,
    submitters: list[int],
    monkeypatch: pytest.MonkeyPatch,
    recorded: int,
    most: int,
    soon: float,
) -> None:
    """Nothing may be recorded, as the worker may still be at it, or so many steps."""
    set_policy(context, max_prerecorded_runs=1, back_to_back_seconds=soon)
    graph, record, allowed = repeated(context), RunPrerecorder.record, [1] * recorded

    def recording(prerecorder: RunPrerecorder, make: Callable[[], RunCommands], *_: Any) -> bool:
        return bool(allowed) and record(prerecorder, make, lambda seconds: True, allowed.pop())

    monkeypatch.setattr(RunPrerecorder, "record", recording)
    set_policy(context, max_steps_left=most)
    for number in (3, 4):  # the first one was recorded before
        submitters.clear()
        under_asyncio(functools.partial(compute, graph, context, number))
        settle(context)
    here = engine_of(context).gpu.policy.short_run_seconds > 0 and (most in (1, 3) or soon > 0)
    assert (submitters == [threading.get_ident()]) == here


def test_a_software_driver_may_work_meanwhile(context: MLContext, submitters: list[int]) -> None:
    engine_of(context).gpu.hardware = False
    repeated(context)
    assert threading.get_ident() not in submitters


def test_only_one_that_is_alone_is_submitted(
    context: MLContext, submitters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [repeated(context) for _ in range(3)]
    submitters.clear()

    async def main() -> None:
        with Gate(monkeypatch):
            tasks = [asyncio.ensure_future(compute(graph, context)) for graph in graphs]
            await pause()
        await asyncio.gather(*tasks)

    under_asyncio(main)
    assert submitters.count(threading.get_ident()) == 1


def test_it_follows_what_the_worker_is_to_begin(context: MLContext, submitters: list[int]) -> None:
    graph, release = repeated(context), threading.Event()
    x, y = tensor(context, ONES), tensor(context, ONES)
    submitters.clear()

    async def main() -> None:
        blocker = session_of(context).run_on_worker(release.wait)
        compute_tensors = MLAwaitedExecution(context).compute(graph, {"x": x}, {"y": y})
        tasks = [asyncio.ensure_future(each) for each in (compute_tensors, compute(graph, context))]
        await pause()
        assert not submitters
        release.set()
        await asyncio.gather(blocker.settled(), *tasks)

    under_asyncio(main)
    assert len(submitters) == 2


def test_what_is_recorded_before_is_submitted_before(
    context: MLContext, submitters: list[int]
) -> None:
    graph = repeated(context)
    x, y = tensor(context, ONES), tensor(context, ONES)
    context.dispatch(graph, {"x": x}, {"y": y})
    submitters.clear()
    under_asyncio(functools.partial(compute, graph, context))
    assert threading.get_ident() not in submitters
    np.testing.assert_array_equal(context.read_tensor_sync(y), TWOS)


def test_it_waits_for_no_other_submission(context: MLContext, submitters: list[int]) -> None:
    graph, gpu = repeated(context), engine_of(context).gpu
    submitters.clear()

    async def main() -> None:
        with gpu.submit_lock:
            task = asyncio.ensure_future(compute(graph, context))
            await pause()
        await task

    under_asyncio(main)
    assert threading.get_ident() not in submitters


def test_loops_of_two_threads(context: MLContext) -> None:
    graph = repeated(context)

    async def main(first: int) -> None:
        for number in range(first, first + 40):
            await compute(graph, context, number)

    in_threads(*(functools.partial(under_asyncio, functools.partial(main, n)) for n in (0, 100)))


# Ends


def test_who_awaits_reads_what_is_small(
    context: MLContext, run: Run, readers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_policy(context, wake_seconds=1e9)
    graph, before = repeated(context, run), -1
    readers.clear()
    gate = Gate(monkeypatch)

    async def other() -> None:
        nonlocal before
        with gate:
            for _ in range(3):
                await pause()
            before = len(readers)

    run(lambda: together([functools.partial(compute, graph, context), other]))
    assert readers == [threading.get_ident()]
    assert before == 0


@pytest.mark.parametrize("soon", [0.0, 1e9])
def test_the_next_one_is_recorded_at_once_where_runs_follow_each_other(
    context: MLContext, monkeypatch: pytest.MonkeyPatch, soon: float
) -> None:
    set_policy(
        context,
        short_run_seconds=1e9,
        wake_seconds=1e9,
        late_seconds=1e9,
        back_to_back_seconds=soon,
    )
    graph, found, record = repeated(context), set(), RunCommands.record

    def recording(self: RunCommands) -> None:
        found.add(threading.get_ident())
        record(self)

    monkeypatch.setattr(RunCommands, "record", recording)
    for number in range(3):
        executable_of(graph).prerecorder.latency.seconds = 1e-9  # it is over by now
        under_asyncio(functools.partial(compute, graph, context, number))
        settle(context)
    assert len(found) == 1
    assert (threading.get_ident() in found) == bool(soon)


def test_the_worker_reads_what_is_large(context: MLContext, readers: list[int]) -> None:
    set_policy(context, loop_result_bytes=ONES.nbytes - 1)
    graph = repeated(context)
    under_asyncio(functools.partial(compute, graph, context))
    assert len(readers) == 4
    assert threading.get_ident() not in readers


def test_one_that_takes_longer_is_read_by_another_thread(
    context: MLContext, run: Run, readers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, reader = repeated(context, run), engine_of(context).gpu.reader
    readers.clear()
    gate = Gate(monkeypatch)

    async def late() -> None:
        with gate:
            while reader.idle:
                await pause()

    run(lambda: together([functools.partial(compute, graph, context), late]))
    assert len(readers) == 1
    assert threading.get_ident() not in readers


def test_one_that_is_cancelled_while_it_is_looked_for(
    context: MLContext, run: Run, readers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, gate = repeated(context, run), Gate(monkeypatch)
    set_policy(context, wake_seconds=1e9)
    readers.clear()

    async def main() -> None:
        with gate:
            await cancel_after(functools.partial(compute, graph, context), watched)

    async def watched() -> None:
        while not session_of(context).worker_is_idle:
            await pause()
        await pause()

    run(main)
    settle(context)
    while engine_of(context).gpu.in_flight.under_way:
        time.sleep(0)
    assert threading.get_ident() not in readers
    run(functools.partial(compute, graph, context))


def test_one_that_is_cancelled(
    context: MLContext, run: Run, submitters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = repeated(context, run)
    submitters.clear()

    async def main() -> None:
        with Gate(monkeypatch):
            await cancel_after(functools.partial(compute, graph, context), pause)
            assert submitters == [threading.get_ident()]
        for number in range(4):
            await compute(graph, context, number)

    run(main)
    settle(context)
    assert engine_of(context).gpu.in_flight.under_way == 0


def test_a_submission_that_fails(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, gpu = repeated(context), engine_of(context).gpu

    def submitting(commands: Any) -> None:
        raise wgpu.GPUValidationError("no")

    monkeypatch.setattr(gpu, "submit", submitting)
    with pytest.raises(OperationError, match="submitting a graph: the device refused: no"):
        under_asyncio(functools.partial(compute, graph, context))
    monkeypatch.undo()
    settle(context)
    assert gpu.in_flight.under_way == 0
    under_asyncio(functools.partial(compute, graph, context))


@pytest.mark.parametrize("when", ["before the call", "before the await", "while it waits"])
def test_a_device_that_is_destroyed(
    context: MLContext, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, execution = repeated(context), MLAwaitedExecution(context)

    async def main() -> None:
        with Gate(monkeypatch):
            if when == "before the call":
                context.device.destroy()
            call = execution.compute(graph, {"x": ONES})
            if when == "before the await":
                context.device.destroy()
            task = asyncio.ensure_future(call)
            await pause()
            context.device.destroy()
            with pytest.raises(ContextLostError):
                await task

    under_asyncio(main)
