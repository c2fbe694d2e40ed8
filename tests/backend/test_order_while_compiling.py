"""Awaited runs keep the context's order also where their graph has to be compiled first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.program_cases import X, expected_total, mixed
from tests.backend.tensors import LONG, tensor
from tests.graphs import build, doubling
from tests.loops import Run, cancel_after, pause, together
from webnn_py import (
    DataError,
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    MLProgram,
    OperationError,
    Timeline,
    ValidationError,
)

ONES = np.ones(4, np.float32)
"""What compiles an open graph when it runs: on a CPU, and on a device."""

BeforeCompiling = Callable[[Callable[[], None]], None]


@pytest.fixture(params=["cpu", "several", "gpu"])
def context(request: pytest.FixtureRequest) -> MLContext:
    """A context of each kind, and a CPU context of several threads."""
    found: MLContext = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def compiling(before_compiling: BeforeCompiling) -> threading.Event:
    """Graphs are compiled once this is set."""
    go = threading.Event()
    before_compiling(lambda: go.wait(LONG) and None)
    return go


def growing(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """y = x + 1, of any length."""
    x = builder.input("x", "float32", ["n"])
    return {"y": builder.add(x, builder.constant(1.0, "float32"))}


def summing(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """What mixes the elements along the dimension."""
    x = builder.input("x", "float32", ["n"])
    return {"y": builder.cumulative_sum(x, 0)}


def four(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """y = 2 x, of four elements."""
    x = builder.input("x", "float32", [4])
    return {"y": builder.add(x, x)}


@pytest.mark.parametrize("batch", [None, "n"])
def test_tensors_are_read_and_written_in_their_turn(
    context: MLContext, run: Run, compiling: threading.Event, batch: str | None
) -> None:
    graph, twice = build(context, growing), build(context, four)
    x, y, z = tensor(context, ONES), tensor(context, ONES * 0), tensor(context, ONES * 0)

    async def first() -> None:
        execution = MLAwaitedExecution(context, batch=batch)
        result = await execution.compute(graph, {"x": x}, {"y": y})
        assert result["y"] is y

    async def second() -> None:
        await pause()  # the first has begun then
        context.dispatch(twice, {"x": y}, {"y": z})
        context.write_tensor(x, ONES * 100)
        context.write_tensor(y, ONES * -5)
        other = tensor(context, ONES * 3)
        assert (await context.read_tensor_async(other)).tolist() == [3] * 4  # overtakes
        compiling.set()

    run(lambda: together([first, second]))
    assert context.read_tensor_sync(z).tolist() == [4] * 4
    assert context.read_tensor_sync(y).tolist() == [-5] * 4
    assert context.read_tensor_sync(x).tolist() == [100] * 4


def test_given_arrays_are_written_in_their_turn(
    context: MLContext, run: Run, compiling: threading.Event
) -> None:
    graph, twice = build(context, growing), build(context, four)
    execution, out = MLAwaitedExecution(context), np.zeros(4, np.float32)

    async def first() -> None:
        result = await execution.compute(graph, {"x": ONES}, {"y": out})
        assert result["y"] is out

    async def second() -> None:
        await pause()  # the first has begun then
        compiling.set()
        await execution.compute(twice, {"x": ONES * 4}, {"y": out})
        assert out.tolist() == [8] * 4

    run(lambda: together([first, second]))
    assert out.tolist() == [8] * 4


def test_buffers_are_read_and_written_in_their_turn(
    gpu: MLContext, run: Run, compiling: threading.Event
) -> None:
    graph, twice = build(gpu, growing), build(gpu, four)
    x, y = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 16)
    execution = MLAwaitedExecution(gpu)

    async def first() -> None:
        given = {"resource": x, "dimensions": [4]}
        await execution.compute(graph, {"x": given}, {"y": y})

    async def second() -> None:
        await pause()  # the first has begun then
        compiling.set()
        await execution.compute(twice, {"x": y}, {"y": x})

    run(lambda: together([first, second]))
    assert read(x).tolist() == [4] * 4


def test_a_cancelled_run_leaves_the_order(
    context: MLContext, run: Run, compiling: threading.Event
) -> None:
    graph, y, timeline = build(context, growing), tensor(context, ONES), Timeline()
    compute = functools.partial(
        MLAwaitedExecution(context).compute, graph, {"x": ONES}, {"y": y}, [timeline(signal=1)]
    )

    async def main() -> None:
        await cancel_after(compute, pause)
        assert (await context.read_tensor_async(y)).tolist() == [1] * 4
        with pytest.raises(OperationError, match="cancelled before it began"):
            await timeline.wait_async(1)
        compiling.set()
        await compute()

    run(main)
    assert context.read_tensor_sync(y).tolist() == [2] * 4


def test_a_graph_may_be_destroyed_meanwhile(
    context: MLContext, run: Run, compiling: threading.Event
) -> None:
    graph, y = build(context, growing), tensor(context, ONES * 0)
    out = np.zeros(4, np.float32)
    compute = MLAwaitedExecution(context).compute
    joined = MLAwaitedExecution(context, batch="n").compute
    results: list[Any] = []

    async def onto_tensor() -> None:
        await compute(graph, {"x": ONES}, {"y": y})

    async def onto_array() -> None:
        await compute(graph, {"x": ONES}, {"y": out})

    async def new_array() -> None:
        results.append((await compute(graph, {"x": ONES}))["y"])

    async def with_others() -> None:
        results.append((await joined(graph, {"x": ONES}))["y"])

    async def destroy() -> None:
        await pause()  # the others have begun then
        graph.destroy()
        compiling.set()

    works = [onto_tensor, onto_array, new_array, with_others, with_others]
    run(lambda: together([*works, destroy]))
    assert len(results) == 3
    for got in (context.read_tensor_sync(y), out, *results):
        assert got.tolist() == [2] * 4


def test_what_does_not_compile_fails_what_it_was_to_write(
    context: MLContext, run: Run, before_compiling: BeforeCompiling
) -> None:
    graph, y, timeline = build(context, growing), tensor(context, ONES), Timeline()
    compute = MLAwaitedExecution(context).compute

    def fail() -> None:
        raise OperationError("boom")

    before_compiling(fail)

    async def main() -> None:
        with pytest.raises(OperationError, match=r"^boom$"):
            await compute(graph, {"x": ONES}, {"y": y}, sync=[timeline(signal=1)])
        with pytest.raises(OperationError, match="boom"):
            await timeline.wait_async(1)
        with pytest.raises(OperationError, match="boom"):
            await context.read_tensor_async(y)

    run(main)


def test_what_is_refused_late_changes_nothing(gpu: MLContext, run: Run) -> None:
    """A buffer is looked at when the graph is compiled, and whether operators mix elements."""
    graph: MLGraph = build(gpu, growing)
    mixing: MLGraph = build(gpu, summing)
    y, z = tensor(gpu, ONES), tensor(gpu, ONES)
    small = {"resource": buffer_of(gpu.device, ONES), "dimensions": [5]}
    five = tensor(gpu, np.zeros(5, np.float32))
    execution = MLAwaitedExecution(gpu, batch="n")

    async def main() -> None:
        with pytest.raises(DataError, match="16 bytes"):
            await execution.compute(graph, {"x": small}, {"y": five})
        with pytest.raises(ValidationError, match="cumulative_sum"):
            await execution.compute(mixing, {"x": y}, {"y": z})
        for given in (z, five):
            await gpu.read_tensor_async(given)
        await MLAwaitedExecution(gpu).compute(doubling(gpu), {"x": np.ones((2, 3), np.float32)})

    run(main)


def test_programs_have_their_turn(
    gpu: MLContext, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, timeline, go = mixed(gpu), Timeline(), threading.Event()
    compile_now = MLProgram._compile

    def compile_later(self: MLProgram) -> Any:
        assert go.wait(LONG)
        return compile_now(self)

    monkeypatch.setattr(MLProgram, "_compile", compile_later)
    x, total = tensor(gpu, X), tensor(gpu, np.zeros((4, 3), np.float32))
    arguments = {"x": x, "total": total}
    seen: list[Any] = []

    async def first() -> None:
        await program.run_async(arguments, sync=[timeline(signal=1)])
        assert timeline.value == 1

    async def second() -> None:
        await pause()  # the first has begun then
        cancelled = functools.partial(program.run_async, arguments, [timeline(signal=2)])
        await cancel_after(cancelled, pause)
        gpu.write_tensor(x, X * 100)
        reading = gpu.read_tensor_async(total)
        with pytest.raises(OperationError, match="cancelled before it began"):
            await timeline.wait_async(2)
        go.set()
        seen.append(await reading)

    run(lambda: together([first, second]))
    np.testing.assert_allclose(seen[0], expected_total(X), rtol=1e-5)
