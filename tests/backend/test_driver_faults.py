"""Devices that their drivers lose, and memory that they do not have, at each call that tells so.

The driver is a small one in front of the real one (faulty_driver.c): what fails keeps failing until
the context is gone and what belonged to it was released; then a new context works.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.backend.faulty_driver import (
    DEVICE_LOST,
    LOOKS,
    OUT_OF_MEMORY,
    build,
    fail,
    failures,
    missing,
)
from tests.backend.tensors import tensor
from tests.backend.webgpu import BufferMapping
from tests.graphs import ONES, assert_awaits, doubling
from tests.processes import ROOT
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLGraphBuilder,
    OperationError,
    Timeline,
    ml,
)

LONG = 20.0
LARGE = [1 << 14, 1 << 13]
SUBMISSION = "vkQueueSubmit"
FAULTS = {"lost": DEVICE_LOST, "out of memory": OUT_OF_MEMORY}

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


# What is done with a context, in a process of its own; a fault is at hand where it is to begin


Fault = Callable[[], None]


def awaits(context: MLContext, fault: Fault) -> None:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    fault()
    asyncio.run(_within_time(execution.compute(graph, {"x": ONES})))


def many_awaits(context: MLContext, fault: Fault) -> None:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    fault()

    async def all_of_them() -> list[Any]:
        works = [execution.compute(graph, {"x": ONES}) for _ in range(20)]
        return await asyncio.gather(*works, return_exceptions=True)

    ended = asyncio.run(_within_time(all_of_them()))
    assert all(isinstance(error, MLError) for error in ended), ended
    raise ended[-1]


def reads(context: MLContext, fault: Fault) -> None:
    made = tensor(context, ONES)
    fault()
    context.read_tensor_sync(made)


def waits_for_a_timeline(context: MLContext, fault: Fault) -> None:
    graph, done = doubling(context), Timeline()
    x, y = tensor(context, ONES), tensor(context)
    fault()
    context.dispatch(graph, {"x": x}, {"y": y}, sync=[done(signal=1)])
    with pytest.raises(OperationError, match="lost"):
        done.wait_sync(1, timeout=LONG)
    context.read_tensor_sync(y)


def submits(context: MLContext, fault: Fault) -> None:
    commands = [context.device.create_command_encoder().finish() for _ in range(2)]
    fault()
    for each in commands:  # Dawn asks its driver after a submission, and tells the next one
        context.device.queue.submit([each])


def makes_tensors(context: MLContext, fault: Fault) -> None:
    fault()
    kept = [context.create_tensor_sync("float32", LARGE) for _ in range(2)]
    assert kept


def builds(context: MLContext, fault: Fault) -> None:
    fault()
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [37, 41])
    builder.build_sync({"y": builder.softmax(builder.matmul(x, builder.transpose(x)), 1)})


Do = Callable[[MLContext, Fault], None]
CASES: dict[str, tuple[Do, int, tuple[str, ...], bool]] = {
    f"{do.__name__}, {when}": (do, DEVICE_LOST, LOOKS, when == "found by a wait")
    for do in (awaits, reads, waits_for_a_timeline)
    for when in ("found before a submission", "found by a wait")
} | {
    **{
        f"{do.__name__}, found before a submission": (do, DEVICE_LOST, LOOKS, False)
        for do in (submits, many_awaits)
    },
    **{
        f"{do.__name__}, {what} at {call}": (do, result, (call,), False)
        for do, call in (
            (many_awaits, "vkEndCommandBuffer"),
            (makes_tensors, "vkCreateBuffer"),
            (makes_tensors, "vkAllocateMemory"),
            (builds, "vkCreateComputePipelines"),
        )
        for what, result in FAULTS.items()
    },
}
"""What is done, what fails how, and whether it fails from the first wait on."""


def try_case(name: str) -> None:
    do, result, calls, in_a_wait = CASES[name]
    real_look, before = BufferMapping.look, failures(*calls)

    def look_after_fault(mapping: BufferMapping) -> bool:
        fail(result, *calls)
        return real_look(mapping)

    def fault() -> None:
        if in_a_wait:
            BufferMapping.look = look_after_fault  # type: ignore[method-assign]
        else:
            fail(result, *calls)

    def use() -> None:
        with ml.create_context_sync(device_type="gpu") as context:
            try:
                do(context, fault)
            except OperationError:
                assert result == OUT_OF_MEMORY
            except ContextLostError:
                assert "lost" in asyncio.run(_within_time(context.lost)).message
            else:
                # Buffers may lie in memory that was allocated before; and Dawn does not ask its
                # driver about what is done.
                asks = context.engine != "dawn" and calls != ("vkAllocateMemory",)
                assert not asks, "nothing failed"
                assert failures(*calls) == before, "a failure was not told"

    try:
        use()
        gc.collect()  # with the fault still there
    finally:
        BufferMapping.look = real_look  # type: ignore[method-assign]
        fail(0, *calls)
    with ml.create_context_sync(device_type="gpu") as new:
        assert_awaits(new)


async def _within_time(work: Any) -> Any:
    return await asyncio.wait_for(work, LONG)


def try_all() -> None:
    logging.disable()
    for name in CASES:
        print(f"{name}: ", end="", flush=True)
        try:
            try_case(name)
        except BaseException as error:
            print(f"{type(error).__name__}: {error!s}".replace("\n", " "), flush=True)
        else:
            print("well", flush=True)


def submission_fails() -> None:
    """Nothing but wgpu-native is told, and that ends the process."""
    result = FAULTS[os.environ["FAULT"]]
    with ml.create_context_sync(device_type="gpu") as context:
        reads(context, lambda: fail(result, SUBMISSION))


def run_here(work: Callable[[], None], **variables: str) -> subprocess.CompletedProcess[str]:
    code = f"from {__name__} import {work.__name__}; {work.__name__}()"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=5 * LONG,
        check=False,
    )


@pytest.fixture(scope="module")
def driver(gpu: MLContext, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def told(driver: dict[str, str]) -> str:
    """What the process says in which all cases are tried."""
    ended = run_here(try_all, **driver)
    return ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr[-2000:]


@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_the_driver_is_an_error(told: str, name: str) -> None:
    assert f"{name}: well\n" in told, told


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_submission_itself_ends_the_process(
    driver: dict[str, str], fault: str
) -> None:
    """As docs/troubleshooting.md says; once wgpu does better, that goes with this test."""
    ended = run_here(submission_fails, FAULT=fault, RUST_BACKTRACE="0", **driver)
    if os.environ.get("WEBNN_TEST_ENGINE") == "dawn":  # which does better
        assert re.search(
            r"^webnn_py\S*\.(ContextLost|Operation)Error: ", ended.stderr, re.MULTILINE
        )
        return
    assert ended.returncode == -signal.SIGABRT
    assert "Error in wgpuQueueSubmit" in ended.stderr
