"""Large inputs of awaited runs: written where commands copy them from, for one run at a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.tensors import adding, tensor
from tests.backend.webgpu import WAITING, WEBGPU
from tests.graphs import ONES, TWOS, doubling
from tests.internals import engine_of, set_policy
from tests.loops import cancel_after, pause, under_asyncio
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, ml
from webnn_py.core.completion import runs_event_loop
from webnn_py.engines.webgpu.runtime.devices.staging import _Pool

pytestmark = pytest.mark.skipif(not WAITING.is_available, reason="needs mapped buffers")


@pytest.fixture
def context() -> Iterator[MLContext]:
    with ml.create_context_sync(device_type="gpu") as made:
        set_policy(made, large_input_bytes=ONES.nbytes)
        yield made


@pytest.fixture
def made(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the buffers to upload from that are made."""
    found: list[int] = []
    device = engine_of(context).gpu.handle
    create = device.create_buffer

    def creating(**given: Any) -> Any:
        if given["usage"] & wgpu.BufferUsage.MAP_WRITE:
            found.append(given["size"])
        return create(**given)

    monkeypatch.setattr(device, "create_buffer", creating)
    return found


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of what goes by way of the device's queue."""
    found: list[int] = []
    write = WEBGPU.write_buffer

    def writing(queue: Any, buffer: Any, offset: int, contents: Any) -> None:
        found.append(contents.nbytes)
        write(queue, buffer, offset, contents)

    monkeypatch.setattr(WEBGPU, "write_buffer", writing)
    return found


async def compute(context: MLContext, graph: MLGraph, number: float) -> None:
    y = (await MLAwaitedExecution(context).compute(graph, {"x": ONES * number}))["y"]
    np.testing.assert_array_equal(y, TWOS * number)


def test_their_buffers_are_used_again(
    context: MLContext, made: list[int], written: list[int]
) -> None:
    graph = doubling(context)

    async def main() -> None:
        for number in range(6):
            await compute(context, graph, number)

    under_asyncio(main)
    assert len(made) == 1
    assert not written


def test_many_at_once(context: MLContext, made: list[int], written: list[int]) -> None:
    graph = doubling(context)

    async def main() -> None:
        for _ in range(3):
            await asyncio.gather(*(compute(context, graph, number) for number in range(8)))

    under_asyncio(main)
    assert made
    assert written


def test_those_that_are_never_awaited(
    context: MLContext, made: list[int], written: list[int]
) -> None:
    graph, execution = doubling(context), MLAwaitedExecution(context)
    under_asyncio(lambda: compute(context, graph, 1))
    for _ in range(2):
        execution.compute(graph, {"x": ONES}).close()
        gc.collect()
    under_asyncio(lambda: compute(context, graph, 3))
    assert len(made) == 2
    assert not written


def test_their_buffers_are_made_beside_the_event_loop(
    context: MLContext, made: list[int], written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, loops = doubling(context), list[bool]()
    make = _Pool.make

    def making(*given: Any, **options: Any) -> Any:
        loops.append(runs_event_loop())
        return make(*given, **options)

    monkeypatch.setattr(_Pool, "make", making)
    x = ONES.copy()

    async def main() -> None:
        results = MLAwaitedExecution(context).compute(graph, {"x": x})
        x[:] = 9
        np.testing.assert_array_equal((await results)["y"], TWOS)

    under_asyncio(main)
    assert len(made) == 1
    assert not written
    assert not any(loops)


def test_one_that_is_cancelled(context: MLContext, made: list[int], written: list[int]) -> None:
    graph = doubling(context)

    async def main() -> None:
        await cancel_after(lambda: compute(context, graph, 1), pause)
        for number in range(3):
            await compute(context, graph, number)

    under_asyncio(main)
    assert made


def test_beside_tensors(context: MLContext, made: list[int], written: list[int]) -> None:
    graph, k = adding(context), tensor(context, TWOS)
    written.clear()

    async def main() -> None:
        for number in range(3):
            given = {"x": ONES * number, "k": k}
            y = (await MLAwaitedExecution(context).compute(graph, given))["y"]
            np.testing.assert_array_equal(y, ONES * number + TWOS)

    under_asyncio(main)
    assert len(made) == 1
    assert not written
