"""Contexts destroyed, and their devices, in the midst of each kind of work.

Whatever is awaited fails at once, not when the device or a build comes to its end; nobody hangs,
and new contexts work. WEBNN_RANDOM_CASES=50 goes through the table so many times.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend import joined
from tests.backend.held import Gate
from tests.backend.program_cases import X, mixed
from tests.backend.tensors import buffer_behind, tensor
from tests.graphs import ONES, assert_awaits, build, doubling
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

ROUNDS = int(os.environ.get("WEBNN_RANDOM_CASES", "1"))
WAYS: dict[str, Callable[[MLContext], None]] = {
    "context destroyed": lambda context: context.destroy(),
    "device destroyed": lambda context: context.device.destroy(),
}
Work = Coroutine[Any, Any, Any]


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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("where", "begin"), SITUATIONS, ids=NAMES)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_all_that_is_awaited_fails_at_once(
    lost_gpu: MLContext,
    where: str,
    begin: Begin,
    way: str,
    round_: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        works = begin(lost_gpu, tmp_path / "saved")
        gate = Gate(monkeypatch, where)
        try:
            tasks = [asyncio.ensure_future(ended(work)) for work in works]
            while not gate.reached.is_set():
                await asyncio.sleep(0.001)
            WAYS[way](lost_gpu)
            errors = await asyncio.wait_for(asyncio.gather(*tasks), LONG / 2)
        finally:
            gate.open()  # only now: nobody has waited for the thread that is held
        expected = (
            {ContextLostError, DLPackError} if begin is blocked_threads else {ContextLostError}
        )
        assert {type(error) for error in errors} == expected
        assert "destroy" in (await lost_gpu.lost).message

    asyncio.run(main())
    monkeypatch.undo()
    with ml.create_context_sync(device_type="gpu") as new:
        assert_awaits(new)


@pytest.mark.parametrize("way", WAYS)
def test_timelines_and_what_waits_for_them(
    lost_gpu: MLContext, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, signalled = Timeline(), Timeline()
    graph, x, y = doubling(lost_gpu), tensor(lost_gpu, ONES), tensor(lost_gpu)
    gate = Gate(monkeypatch, "readback")
    lost_gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[signalled(signal=1)])
    lost_gpu.dispatch(graph, {"x": y}, {"y": x}, sync=[never(wait=1), signalled(signal=2)])
    try:
        assert gate.reached.wait(LONG)
        WAYS[way](lost_gpu)
        for value in (1, 2):
            with pytest.raises(OperationError, match="destroy"):
                signalled.wait_sync(value, timeout=LONG / 2)
    finally:
        gate.open()


@pytest.mark.parametrize("way", WAYS)
def test_slices(lost_gpu: MLContext, way: str) -> None:
    graph, x, y = doubling(lost_gpu), tensor(lost_gpu, ONES), tensor(lost_gpu)
    job = lost_gpu.slice_dispatch(graph, {"x": x}, {"y": y})
    encoder = MLCommandEncoder(lost_gpu)
    WAYS[way](lost_gpu)
    with pytest.raises(ContextLostError):
        encoder.dispatch_slice(job, budget_ms=1.0)
    with pytest.raises(ContextLostError):
        lost_gpu.slice_dispatch(graph, {"x": x}, {"y": y})


def test_every_context_of_a_destroyed_device_is_told(lost_gpu: MLContext) -> None:
    async def main() -> None:
        with ml.create_context_sync(lost_gpu.device) as other:
            lost_gpu.device.destroy()
            for context in (lost_gpu, other):
                info = await asyncio.wait_for(_reason(context), LONG)
                assert "GPUDevice" in info
                with pytest.raises(ContextLostError, match="GPUDevice"):
                    doubling(context)

    asyncio.run(main())


async def _reason(context: MLContext) -> str:
    return (await context.lost).message


@pytest.mark.parametrize("way", WAYS)
def test_memory_returns(lost_gpu: MLContext, way: str) -> None:
    graph, x = doubling(lost_gpu), tensor(lost_gpu, ONES)
    lost_gpu.read_tensor_sync(x)
    alive = [weakref.ref(thing) for thing in (graph, x, buffer_behind(x))]
    WAYS[way](lost_gpu)
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
