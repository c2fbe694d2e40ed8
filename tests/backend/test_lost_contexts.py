"""Contexts destroyed, and their devices, in the midst of each kind of work.

Whatever is awaited fails at once, not when the device or a build comes to its end; nobody hangs,
and new contexts work. WEBNN_RANDOM_CASES=50 goes through the table so many times.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters import new_device
from tests.backend import joined
from tests.backend.program_cases import X, mixed
from tests.backend.tensors import tensor
from tests.backend.webgpu import WEBGPU
from tests.graphs import ONES, assert_awaits, build, doubling
from tests.internals import engine_of, session_of, storage_of
from tests.processes import run_alone
from tests.threads import LONG
from webnn_py import (
    ContextLostError,
    DLPackError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    OperationError,
    Timeline,
    ml,
)
from webnn_py.engines.webgpu.runtime import profiling
from webnn_py.engines.webgpu.runtime.device_queue import DeviceQueue
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.devices.staging import Ending, Staging

ROUNDS = int(os.environ.get("WEBNN_RANDOM_CASES", "1"))
WAYS: dict[str, Callable[[MLContext], None]] = {
    "context destroyed": lambda context: context.destroy(),
    "device destroyed": lambda context: context.device.destroy(),
}
Work = Coroutine[Any, Any, Any]


class Gate:
    """Holds the threads that come to some functions, as a slow driver would."""

    def __init__(self, patch: pytest.MonkeyPatch, functions: Iterable[tuple[Any, str]]) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        for owner, name in functions:
            self._hold(patch, owner, name)

    def _hold(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def held(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            assert self._open.wait(LONG)
            return function(*args, **kwargs)

        patch.setattr(owner, name, held)

    def open(self) -> None:
        self._open.set()


GATES: dict[str, list[tuple[Any, str]]] = {
    "build": [(PipelineCache, "get_all")],
    "readback": [(Staging, "map"), (Ending, "wait")],
    "profile": [(profiling, "profile")],
}


@pytest.fixture
def own_gpu(gpu: MLContext, caplog: pytest.LogCaptureFixture) -> Iterator[MLContext]:
    """A GPU context that the test may destroy, and its device, which wgpu logs on any thread."""
    caplog.set_level(logging.CRITICAL, logger="wgpu")
    context = ml.create_context_sync(device_type="gpu")
    yield context
    context.destroy()
    session, reader = session_of(context), engine_of(context).gpu.reader
    reader.finish()
    for threads in (session._worker, session._builder, reader):
        threads.join()


def chain(b: MLGraphBuilder) -> dict[str, MLOperand]:
    y = b.input("x", "float32", [4, 4])
    for width in (5, 6):
        y = b.matmul(y, b.constant(np.ones((y.shape[1], width), np.float32)))
    return {"y": b.softmax(y, 1)}


def awaits(context: MLContext, path: Path) -> Sequence[Work]:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    return [execution.compute(graph, {"x": ONES}) for _ in range(100)]


def awaits_in_place(context: MLContext, path: Path) -> Sequence[Work]:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    return [execution.compute(graph, {"x": ONES}, {"y": np.zeros_like(ONES)}) for _ in range(20)]


def reads(context: MLContext, path: Path) -> Sequence[Work]:
    return [context.read_tensor_async(tensor(context, ONES)) for _ in range(20)]


def blocked_threads(context: MLContext, path: Path) -> Sequence[Work]:
    x, exported = tensor(context, ONES), tensor(context, ONES)
    return [
        asyncio.to_thread(context.read_tensor_sync, x),
        asyncio.to_thread(exported.__dlpack__, dl_device=(1, 0)),
    ]


def program_runs(context: MLContext, path: Path) -> Sequence[Work]:
    program = mixed(context)
    program.compile_sync()
    return [program.run_async({"x": X, "total": np.zeros((4, 3), np.float32)}) for _ in range(20)]


def builds(context: MLContext, path: Path) -> Sequence[Work]:
    made = [MLGraphBuilder(context) for _ in range(3)]
    return [builder.build_async(chain(builder)) for builder in made]


def preparations(context: MLContext, path: Path) -> Sequence[Work]:
    graph = build(context, joined.rows)
    return [graph.prepare_async({"batch": n, "length": 2}) for n in (1, 2, 3)]


def open_computes(context: MLContext, path: Path) -> Sequence[Work]:
    graph, execution = build(context, joined.rows), MLAwaitedExecution(context)
    return [execution.compute(graph, joined.inputs(n, n)) for n in (1, 2, 3)]


def joined_computes(context: MLContext, path: Path) -> Sequence[Work]:
    execution = MLAwaitedExecution(context, batch="batch")
    graph = build(context, joined.rows)
    return [execution.compute(graph, joined.inputs(n)) for n in range(20)]


def compilation(context: MLContext, path: Path) -> Sequence[Work]:
    return [mixed(context).compile_async()]


def program_loads(context: MLContext, path: Path) -> Sequence[Work]:
    mixed(context).save(path)
    return [context.load_program_async(path) for _ in range(3)]


def graph_loads(context: MLContext, path: Path) -> Sequence[Work]:
    build(context, chain).save(path)
    return [context.load_graph_async(path) for _ in range(3)]


def profiles(context: MLContext, path: Path) -> Sequence[Work]:
    return [doubling(context).profile_async({"x": ONES}, runs=100)]


Begin = Callable[[MLContext, Path], Sequence[Work]]
SITUATIONS: list[tuple[str, Begin]] = [
    ("readback", awaits),
    ("readback", awaits_in_place),
    ("readback", reads),
    ("readback", blocked_threads),
    ("readback", program_runs),
    ("build", builds),
    ("build", preparations),
    ("build", open_computes),
    ("build", joined_computes),
    ("build", compilation),
    ("build", program_loads),
    ("build", graph_loads),
    ("profile", profiles),
]
NAMES = [begin.__name__ for _, begin in SITUATIONS]


async def ended(work: Work) -> BaseException | None:
    try:
        await work
    except BaseException as error:
        return error
    return None


def read_later(queue: DeviceQueue, staging: Any, read: Any, done: Any, end: Any) -> None:
    queue._read_later(read, done, end)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("where", "begin"), SITUATIONS, ids=NAMES)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_all_that_is_awaited_fails_at_once(
    own_gpu: MLContext,
    where: str,
    begin: Begin,
    way: str,
    round_: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        works = begin(own_gpu, tmp_path / "saved")
        gate = Gate(monkeypatch, GATES[where])
        monkeypatch.setattr(DeviceQueue, "_read_soon", read_later)
        try:
            tasks = [asyncio.ensure_future(ended(work)) for work in works]
            while not gate.reached.is_set():
                await asyncio.sleep(0.001)
            WAYS[way](own_gpu)
            errors = await asyncio.wait_for(asyncio.gather(*tasks), LONG / 2)
        finally:
            gate.open()  # only now: nobody has waited for the thread that is held
        expected = (
            {ContextLostError, DLPackError} if begin is blocked_threads else {ContextLostError}
        )
        assert {type(error) for error in errors} == expected
        assert "destroy" in (await own_gpu.lost).message

    asyncio.run(main())
    monkeypatch.undo()
    with ml.create_context_sync(device_type="gpu") as new:
        assert_awaits(new)


@pytest.mark.parametrize("way", WAYS)
def test_timelines_and_what_waits_for_them(
    own_gpu: MLContext, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, signalled = Timeline(), Timeline()
    graph, x, y = doubling(own_gpu), tensor(own_gpu, ONES), tensor(own_gpu)
    gate = Gate(monkeypatch, GATES["readback"])
    own_gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[signalled(signal=1)])
    own_gpu.dispatch(graph, {"x": y}, {"y": x}, sync=[never(wait=1), signalled(signal=2)])
    try:
        assert gate.reached.wait(LONG)
        WAYS[way](own_gpu)
        for value in (1, 2):
            with pytest.raises(OperationError, match="destroy"):
                signalled.wait_sync(value, timeout=LONG / 2)
    finally:
        gate.open()


@pytest.mark.parametrize("way", WAYS)
def test_slices(own_gpu: MLContext, way: str) -> None:
    graph, x, y = doubling(own_gpu), tensor(own_gpu, ONES), tensor(own_gpu)
    job = own_gpu.slice_dispatch(graph, {"x": x}, {"y": y})
    encoder = MLCommandEncoder(own_gpu)
    WAYS[way](own_gpu)
    with pytest.raises(ContextLostError):
        encoder.dispatch_slice(job, budget_ms=1.0)
    with pytest.raises(ContextLostError):
        own_gpu.slice_dispatch(graph, {"x": x}, {"y": y})


def test_a_profile_whose_device_is_destroyed_as_a_step_ends(
    gpu: MLContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL, logger="wgpu")
    device = new_device()  # without timestamps, which are read together
    context = ml.create_context_sync(device)
    graph, map_, witness = doubling(context), Staging.map, life_of(device).witness

    def map_and_destroy(staging: Staging, buffer: Any) -> None:
        map_(staging, buffer)
        device.destroy()
        WEBGPU.is_lost(witness)  # wgpu-native destroys its buffers as somebody looks

    monkeypatch.setattr(Staging, "map", map_and_destroy)
    with pytest.raises(ContextLostError, match="destroy"):
        graph.profile({"x": ONES})


def test_every_context_of_a_destroyed_device_is_told(own_gpu: MLContext) -> None:
    async def main() -> None:
        with ml.create_context_sync(own_gpu.device) as other:
            own_gpu.device.destroy()
            for context in (own_gpu, other):
                info = await asyncio.wait_for(_reason(context), LONG)
                assert "GPUDevice" in info
                with pytest.raises(ContextLostError, match="GPUDevice"):
                    doubling(context)

    asyncio.run(main())


async def _reason(context: MLContext) -> str:
    return (await context.lost).message


@pytest.mark.parametrize("way", WAYS)
def test_memory_returns(own_gpu: MLContext, way: str) -> None:
    graph, x = doubling(own_gpu), tensor(own_gpu, ONES)
    own_gpu.read_tensor_sync(x)
    alive = [weakref.ref(thing) for thing in (graph, x, storage_of(x).buffer)]
    WAYS[way](own_gpu)
    del graph, x
    deadline = time.monotonic() + LONG
    while any(ref() is not None for ref in alive) and time.monotonic() < deadline:
        gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


def destroyed_in_the_midst() -> None:
    """Of submissions, readbacks and uploads of several threads."""

    def use(context: MLContext, graph: MLGraph) -> None:
        x = np.ones((2, 3), np.float32)
        try:
            while True:
                one, two = tensor(context, x), tensor(context)
                context.dispatch(graph, {"x": one}, {"y": two})
                context.read_tensor_sync(two)
                build(context, chain)
        except ContextLostError:
            pass

    for number in range(10):
        context = ml.create_context_sync(device_type="gpu")
        graph = doubling(context)
        threads = [threading.Thread(target=use, args=(context, graph)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.003 * number)
        context.device.destroy()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()


def test_a_device_destroyed_in_the_midst_does_not_end_the_process(gpu: MLContext) -> None:
    run_alone(destroyed_in_the_midst)
