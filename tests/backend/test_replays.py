"""Repeated dispatches find their commands recorded, and mean the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import tensor
from tests.graphs import build
from tests.internals import engine_of, set_policy
from webnn_py import (
    ContextLostError,
    DataError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    MLTensor,
    ValidationError,
    ml,
)
from webnn_py.api import runs, tensor_operations
from webnn_py.api.signature import Signature
from webnn_py.engines.webgpu.runtime.replay import MIN_DISPATCHES, Replays

WIDE = 8
TURN = np.eye(WIDE, dtype=np.float32)[::-1].copy()
X = np.arange(WIDE, dtype=np.float32)[None]


@pytest.fixture
def context(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[MLContext]:
    """A context whose device counts as hardware, and is never done at the first look."""
    with ml.create_context_sync(gpu.device) as made:
        engine = engine_of(made)
        if not engine.gpu.webgpu.RECORDING.is_available:
            pytest.skip("no own encoders")
        monkeypatch.setattr(engine.gpu, "hardware", True)
        kind = engine.gpu.webgpu.BufferMapping
        look_for = kind.look_for

        def looked(mapping: Any, seconds: float, meanwhile: Callable[[], None]) -> bool:
            meanwhile()
            found: bool = look_for(mapping, 60.0)
            return found

        monkeypatch.setattr(kind, "look_for", looked)
        yield made


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each repetition's commands were recorded."""
    noted: list[bool] = []
    take = Replays.next

    def next_of(replays: Replays, commands: Any) -> Any:
        recorded = take(replays, commands)
        noted.append(recorded is not None)
        return recorded

    monkeypatch.setattr(Replays, "next", next_of)
    return noted


def turning(context: MLContext, add: float = 1.0) -> MLGraph:
    """y = x + add, by many kernels."""

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        y, turn = b.input("x", "float32", X.shape), b.constant(TURN)
        for _ in range(MIN_DISPATCHES // 2 + 1):
            y = b.matmul(b.matmul(y, turn), turn)
        return {"y": b.add(y, b.constant(add, "float32"))}

    return build(context, what)


async def six_turns(
    execution: MLAwaitedExecution, graph: MLGraph, x: MLTensor, y: MLTensor
) -> tuple[MLTensor, MLTensor]:
    """Compute from one tensor into the other; return the last result first."""
    for _ in range(6):
        await execution.compute(graph, {"x": x}, {"y": y})
        x, y = y, x
    return x, y


def step(context: MLContext, graph: MLGraph, x: MLTensor, y: MLTensor) -> None:
    context.dispatch(graph, {"x": x}, {"y": y})


def test_two_tensors_in_turn(context: MLContext, found: list[bool]) -> None:
    graph, x, y = turning(context), tensor(context, X), tensor(context, X)
    for turn in range(12):
        step(context, graph, x, y)
        np.testing.assert_array_equal(context.read_tensor_sync(y), X + turn + 1)
        x, y = y, x
    assert all(found[6:])


@pytest.mark.parametrize("several", [2, 3, 5])
def test_several_runs_between_reads(context: MLContext, found: list[bool], several: int) -> None:
    graph, x, y = turning(context), tensor(context, X), tensor(context, X)
    for turn in range(8):
        for _ in range(several):
            step(context, graph, x, y)
            x, y = y, x
        np.testing.assert_array_equal(context.read_tensor_sync(x), X + several * (turn + 1))
    assert all(found[3 * several :])


def test_awaited_reads(context: MLContext, found: list[bool]) -> None:
    graph = turning(context)

    async def main() -> None:
        x, y = tensor(context, X), tensor(context, X)
        for turn in range(12):
            step(context, graph, x, y)
            np.testing.assert_array_equal(await context.read_tensor_async(y), X + turn + 1)
            x, y = y, x

    asyncio.run(main())
    assert all(found[6:])


def test_awaited_runs_over_tensors(context: MLContext, found: list[bool]) -> None:
    graph, execution = turning(context), MLAwaitedExecution(context)

    async def main() -> None:
        x, y = tensor(context, X), tensor(context, X)
        for turn in range(12):
            made: Any = await execution.compute(graph, {"x": x}, {"y": y})
            assert made["y"] is y
            np.testing.assert_array_equal(await context.read_tensor_async(y), X + turn + 1)
            x, y = y, x

    asyncio.run(main())
    assert found[6:] == [True] * 6


def test_awaited_runs_over_tensors_are_checked_once(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, execution = turning(context), MLAwaitedExecution(context)
    checked: list[Any] = []
    check = Signature.on_device

    def noted(*given: Any, **more: Any) -> Any:
        checked.append(given)
        return check(*given, **more)

    monkeypatch.setattr(Signature, "on_device", noted)

    async def main() -> None:
        x, y = await six_turns(execution, graph, tensor(context, X), tensor(context, X))
        np.testing.assert_array_equal(await context.read_tensor_async(x), X + 6)
        assert len(checked) == 2  # the tensors in turn
        y.destroy()
        with pytest.raises(MLError, match="destroyed"):
            await execution.compute(graph, {"x": x}, {"y": y})
        with pytest.raises(DataError, match="input 'x' is missing"):
            await execution.compute(graph, {}, {"y": x})

    asyncio.run(main())


def test_awaited_runs_read_no_large_output_back(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, execution = turning(context), MLAwaitedExecution(context)
    monkeypatch.setattr(runs, "MAX_END_BYTES", X.nbytes - 1)
    monkeypatch.setattr(tensor_operations, "read_async", None)

    x, y = tensor(context, X), tensor(context, X)
    x, _ = asyncio.run(six_turns(execution, graph, x, y))
    np.testing.assert_array_equal(context.read_tensor_sync(x), X + 6)


def test_awaited_runs_over_tensors_tell_of_a_loss(context: MLContext) -> None:
    graph, execution = turning(context), MLAwaitedExecution(context)
    x, y = tensor(context, X), tensor(context, X)

    async def main() -> None:
        for _ in range(3):
            await execution.compute(graph, {"x": x}, {"y": y})
        later = execution.compute(graph, {"x": x}, {"y": y})
        context.destroy()
        with pytest.raises(ContextLostError):
            await later

    asyncio.run(main())


def test_awaited_runs_follow_recorded_ones(context: MLContext) -> None:
    """Dispatches, writes and awaits of the same tensors keep their order."""
    graph, execution = turning(context), MLAwaitedExecution(context)

    async def main() -> None:
        x, y = tensor(context, X), tensor(context, X)
        for turn in range(8):
            context.write_tensor(x, X * turn)
            step(context, graph, x, y)
            await execution.compute(graph, {"x": y}, {"y": x})
            np.testing.assert_array_equal(await context.read_tensor_async(x), X * turn + 2)
            cancelled = asyncio.ensure_future(execution.compute(graph, {"x": x}, {"y": y}))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])

    asyncio.run(main())


def test_other_work_between_them(context: MLContext, found: list[bool]) -> None:
    """Writes, reads and runs of other graphs keep their places in the order."""
    graph, other = turning(context), turning(context, 10.0)
    x, y, z = (tensor(context, X) for _ in range(3))
    for turn in range(9):
        context.write_tensor(x, X * turn)
        step(context, graph, x, y)
        context.write_tensor(z, X)
        step(context, other, y, z)
        if turn % 3 == 2:  # nobody foresaw this one
            step(context, graph, z, x)
            np.testing.assert_array_equal(context.read_tensor_sync(x), X * turn + 12)
        np.testing.assert_array_equal(context.read_tensor_sync(z), X * turn + 11)
    assert any(found)
    assert not all(found[6:])


def test_a_destroyed_tensor(context: MLContext, found: list[bool]) -> None:
    graph, x, y = turning(context), tensor(context, X), tensor(context, X)
    for _ in range(6):
        step(context, graph, x, y)
        context.read_tensor_sync(y)
    assert found[-1]
    x.destroy()
    with pytest.raises(ValidationError, match="destroyed"):
        step(context, graph, x, y)
    x = tensor(context, X * 2)
    for _ in range(3):
        step(context, graph, x, y)
        np.testing.assert_array_equal(context.read_tensor_sync(y), X * 2 + 1)


def test_a_queue_of_runs_is_finished_by_another_thread(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x, y = turning(context), tensor(context, X), tensor(context, X)
    handed = []
    recorder = engine_of(context).gpu.recorder
    submit = recorder.submit

    def noted(*given: Any) -> None:
        handed.append(given)
        submit(*given)

    monkeypatch.setattr(recorder, "submit", noted)
    set_policy(context, max_batch_replays=100)
    for _ in range(9):
        step(context, graph, x, y)
        x, y = y, x
    np.testing.assert_array_equal(context.read_tensor_sync(x), X + 9)
    assert len(handed) == 6  # two were checked anew, and this thread finishes the last one


def test_few_dispatches_share_a_command_buffer(context: MLContext, found: list[bool]) -> None:
    graph = build(context, lambda b: {"y": b.neg(b.input("x", "float32", X.shape))})
    x, y = tensor(context, X), tensor(context, X)
    for _ in range(6):
        step(context, graph, x, y)
        np.testing.assert_array_equal(context.read_tensor_sync(y), -X)
    assert not found


def test_a_queue_of_runs_is_submitted_meanwhile(context: MLContext, submissions: list[int]) -> None:
    graph, x, y = turning(context), tensor(context, X), tensor(context, X)
    for _ in range(9):
        step(context, graph, x, y)
        x, y = y, x
    assert len(submissions) == 3  # of the 7 repetitions
    np.testing.assert_array_equal(context.read_tensor_sync(x), X + 9)
    assert len(submissions) == 4
