"""A child process that os.fork() made: what cannot live on says so, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer
from tests.backend.tensors import Parked, tensor
from tests.graphs import ONES, assert_awaits, assert_works, doubling
from tests.internals import session_of
from tests.processes import run_alone
from webnn_py import (
    InvalidStateError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    Timeline,
    ml,
)
from webnn_py.ordering.timeline import state_of
from webnn_py.ordering.wait_graph import GRAPH

LONG = 60
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no os.fork() here")


def awaiting(make: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
    async def main() -> Any:
        return await make()

    return lambda: asyncio.run(main())


def uses(context: MLContext) -> dict[str, Callable[[], Any]]:
    """Everything that one can do with what a context made before the fork."""
    graph, builder = doubling(context), MLGraphBuilder(context)
    operand = builder.input("x", "float32", [2, 3])
    awaited = MLAwaitedExecution(context)
    x, y = tensor(context, ONES), tensor(context)
    signalled = Timeline()
    Parked(context)
    context.dispatch(graph, {"x": x}, {"y": y}, sync=[signalled(signal=3)])
    found: dict[str, Callable[[], Any]] = {
        "a builder": lambda: MLGraphBuilder(context),
        "an input": lambda: builder.input("z", "float32", [2]),
        "an operator": lambda: builder.add(operand, operand),
        "building": lambda: builder.build_sync({"y": operand}),
        "building, awaited": awaiting(lambda: builder.build_async({"y": operand})),
        "an execution": lambda: MLAwaitedExecution(context),
        "computing": awaiting(lambda: awaited.compute(graph, {"x": ONES})),
        "computing on tensors": awaiting(lambda: awaited.compute(graph, {"x": x}, {"y": y})),
        "computing after a wait": awaiting(
            lambda: awaited.compute(graph, {"x": ONES}, sync=[signalled(wait=3)])
        ),
        "a tensor": lambda: tensor(context),
        "a constant tensor": lambda: context.create_constant_tensor_sync(ONES),
        "writing": lambda: context.write_tensor(x, ONES),
        "reading": lambda: context.read_tensor_sync(x),
        "reading, awaited": awaiting(lambda: context.read_tensor_async(x)),
        "dispatching": lambda: context.dispatch(graph, {"x": x}, {"y": y}),
        "flushing": context.flush,
        "a tensor of another library's": lambda: context.from_dlpack(ONES),
        "waiting": lambda: signalled.wait_sync(3),
        "waiting, awaited": awaiting(lambda: signalled.wait_async(3)),
    }
    if context.device_type == "cpu":
        execution = MLExecution(context)
        found["computing at once"] = lambda: execution.compute(graph, {"x": ONES})
        found["an execution at once"] = lambda: MLExecution(context)
        return found
    encoder, buffer = MLCommandEncoder(context), empty_buffer(context.device, 24)
    encoder.dispatch(graph, {"x": ONES}, {"y": buffer})
    lent = tensor(context, exportable=True)
    return found | {
        "an encoder": lambda: MLCommandEncoder(context),
        "recording": lambda: encoder.dispatch(graph, {"x": ONES}, {"y": buffer}),
        "initializing": lambda: encoder.initialize_graph(graph),
        "finishing": encoder.finish,
        "submitting": lambda: context.submit([]),
        "exporting": lambda: context.export_to_gpu(lent).__enter__(),
        "another GPU context": lambda: ml.create_context_sync(device_type="gpu"),
        "another context on the device": lambda: ml.create_context_sync(context.device),
    }


def in_the_child(context: MLContext, left: dict[str, Callable[[], Any]], x: Any) -> NoReturn:
    signal.alarm(LONG)  # what hangs ends, and badly
    for name, use in left.items():
        print(name, flush=True)
        with pytest.raises(InvalidStateError, match=r"before os\.fork\(\)"):
            use()
    with pytest.raises(BufferError, match=r"before os\.fork\(\)"):
        np.from_dlpack(x, **({} if context.device_type == "cpu" else {"device": "cpu"}))
    assert "fork" in asyncio.run(waited(context)).message
    with context:
        context.destroy()
    x.destroy()
    with ml.create_context_sync(device_type="cpu") as fresh:
        assert_works(fresh)
        assert_awaits(fresh)
        done, y = Timeline(), tensor(fresh)
        fresh.dispatch(doubling(fresh), {"x": tensor(fresh, ONES)}, {"y": y}, [done(signal=1)])
        done.wait_sync(1, timeout=LONG)
    print("all of it", flush=True)
    if context.engine == "openvino":  # see spec/execution.md
        with pytest.raises(InvalidStateError, match=r"OpenVINO.* before os\.fork\(\)"):
            ml.create_context_sync(engine="openvino")
        os._exit(3)
    sys.exit(3)


async def waited(context: MLContext) -> Any:
    return await context.lost


def fork_with(device_type: Any, workers: int = 1, engine: str = "auto") -> None:
    context = ml.create_context_sync(device_type=device_type, workers=workers, engine=engine)
    left, x, host = uses(context), tensor(context, ONES), Timeline()
    assert_awaits(context)
    queue: Any = session_of(context).queue
    held = [queue._schedule._lock, GRAPH.lock, state_of(host)._lock]
    if device_type == "gpu":
        held.append(queue.recorder.lock)
    with contextlib.ExitStack() as locks:
        for lock in held:  # as by a thread that is not there in the child
            locks.enter_context(lock)
        pid = os.fork()
    if pid == 0:
        host.signal(1)  # nobody of the parent's was to do that
        host.wait_sync(1)
        in_the_child(context, left, x)
    end = time.monotonic() + LONG
    while (status := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < end, "the child hangs"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status[1]) == 3
    np.testing.assert_array_equal(host.value, 0)
    assert_awaits(context)
    context.destroy()


def fork_with_a_cpu_context() -> None:
    fork_with("cpu")


def fork_with_the_reference() -> None:
    fork_with("cpu", engine="reference")


def fork_with_openvino() -> None:
    fork_with("cpu", engine="openvino")


def fork_with_several_workers() -> None:
    fork_with("cpu", workers=4)


def fork_with_a_gpu_context() -> None:
    fork_with("gpu")


def gpu_contexts_in_the_child_alone() -> None:
    with ml.create_context_sync(device_type="cpu") as context:
        assert_awaits(context)
        pid = os.fork()
        if pid == 0:
            signal.alarm(LONG)
            with ml.create_context_sync(device_type="gpu") as fresh:
                assert_awaits(fresh)
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


@pytest.mark.parametrize(
    "work",
    [
        fork_with_a_cpu_context,
        fork_with_the_reference,
        fork_with_openvino,
        fork_with_several_workers,
    ],
)
def test_contexts_of_the_cpu(work: Callable[[], None]) -> None:
    if work is fork_with_openvino:
        pytest.importorskip("openvino")
    run_alone(work)


def test_contexts_of_the_gpu(gpu: MLContext) -> None:
    run_alone(fork_with_a_gpu_context)


def test_a_child_may_be_the_first_to_use_the_gpu(gpu: MLContext) -> None:
    run_alone(gpu_contexts_in_the_child_alone)
