"""The next awaited run is recorded while the device works on this one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of
from tests.graphs import awaited, doubling, normal
from tests.internals import executable_of
from webnn_py import ContextLostError, MLAwaitedExecution, MLContext, MLError, MLGraph, ml
from webnn_py.engines.webgpu.runtime.awaited import Run

X = normal(2, 3)


@pytest.fixture
def fresh() -> Iterator[MLContext]:
    with ml.create_context_sync(device_type="gpu") as context:
        yield context


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run that is recorded, whether it is at once submitted."""
    made: list[bool] = []
    record = Run._record

    def recording(self: Run, *submit: Any) -> Any:
        made.append(bool(submit))
        return record(self, *submit)

    monkeypatch.setattr(Run, "_record", recording)
    return made


def run(graph: MLGraph, x: Any = X) -> None:
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x * 2)


def test_from_the_second_run_on_the_next_is_recorded(
    fresh: MLContext, recordings: list[bool]
) -> None:
    graph = doubling(fresh)
    run(graph)
    assert recordings == [True]
    for number in range(5):
        run(graph, X + number)
    assert recordings == [True, True, *[False] * 5]


def test_runs_on_resources_of_the_user_are_not(fresh: MLContext, recordings: list[bool]) -> None:
    graph = doubling(fresh)
    for _ in range(3):
        buffer = buffer_of(fresh.device, X)
        np.testing.assert_array_equal(awaited(graph, {"x": buffer})["y"], X * 2)
        buffer.destroy()
    assert recordings == [True] * 3
    run(graph)


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
    staging = executable_of(graph).loaded.gpu.staging
    copy = staging.copy
    calls = []

    def copying(*args: Any) -> Any:
        calls.append(args)
        if len(calls) % 2 == 0:  # the second of a run is the next one's
            raise MLError("no memory left")
        return copy(*args)

    monkeypatch.setattr(staging, "copy", copying)
    for _ in range(3):
        run(graph)
    assert len(calls) == 6


def test_a_device_that_is_destroyed_with_a_run_recorded(fresh: MLContext) -> None:
    graph = doubling(fresh)
    run(graph)
    run(graph)
    assert executable_of(graph).loaded.ahead.take() is not None
    run(graph)
    fresh.device.destroy()
    with pytest.raises(ContextLostError):
        run(graph)
