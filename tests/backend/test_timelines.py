"""Timelines between contexts, devices and threads, on real graphs.

WEBNN_REPEAT is the number of passes of the long ones (20 if not set).
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer
from tests.backend.tensors import LONG, ONES, SHAPE, adding, tensor
from tests.graphs import build, doubling
from tests.loops import Run, cancel_after, pause, together
from tests.threads import in_threads
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    OperationError,
    Timeline,
    ValidationError,
)

PASSES = max(20, int(os.environ.get("WEBNN_REPEAT", "20")))
AHEAD = 10


# A, B -> C


def test_one_pass_follows_two_others(contexts: Callable[[str], MLContext]) -> None:
    """C is submitted first and runs last."""
    ctx_a, ctx_b, ctx_c = contexts("gpu"), contexts("cpu"), contexts("gpu")
    done = {name: Timeline() for name in "abc"}
    tensors = {c: (tensor(c, ONES), tensor(c)) for c in (ctx_a, ctx_b, ctx_c)}

    def dispatch(context: MLContext, sync: Any) -> None:
        x, y = tensors[context]
        context.dispatch(doubling(context), {"x": x}, {"y": y}, sync=sync)

    dispatch(ctx_c, [done["a"](wait=1), done["b"](wait=1), done["c"](signal=1)])
    dispatch(ctx_a, [done["a"](signal=1)])
    with pytest.raises(TimeoutError):
        done["c"].wait_sync(1, timeout=0.05)
    dispatch(ctx_b, [done["b"](signal=1)])
    done["c"].wait_sync(1, timeout=LONG)
    assert {name: timeline.value for name, timeline in done.items()} == {"a": 1, "b": 1, "c": 1}
    for context, (_, y) in tensors.items():
        np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)


def test_dispatch_submit_and_compute_take_points(
    contexts: Callable[[str], MLContext], run: Run
) -> None:
    """A chain through every call that takes `sync`, on both kinds, submitted backwards."""
    cpu, gpu = contexts("cpu"), contexts("gpu")
    chain = Timeline()
    source, target = buffer_of(gpu.device, ONES * 3), empty_buffer(gpu.device, 24)
    encoder = gpu.device.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, 0, target, 0, 24)
    x, y = tensor(cpu, ONES), tensor(cpu)
    results: dict[str, Any] = {}

    async def compute(context: MLContext, inputs: Any, wait: int) -> None:
        points = [chain(wait=wait, signal=wait + 1)]
        found = await MLAwaitedExecution(context).compute(doubling(context), inputs, sync=points)
        results[context.device_type] = found["y"]

    async def submit() -> None:
        await pause()
        cpu.dispatch(doubling(cpu), {"x": x}, {"y": y}, sync=[chain(wait=4, signal=5)])
        gpu.submit([encoder.finish()], sync=[chain(wait=1, signal=2)])
        chain.signal(1)

    works = [
        lambda: compute(gpu, {"x": target}, 2),
        lambda: compute(cpu, {"x": ONES}, 3),
        submit,
    ]
    run(lambda: together(works))
    chain.wait_sync(5, timeout=LONG)
    np.testing.assert_array_equal(results["gpu"], ONES * 6)
    np.testing.assert_array_equal(results["cpu"], ONES * 2)
    np.testing.assert_array_equal(cpu.read_tensor_sync(y), ONES * 2)


def test_what_a_run_signals_is_reached_when_its_await_returns(context: MLContext, run: Run) -> None:
    graph, timeline = doubling(context), Timeline()

    async def main() -> None:
        for turn in range(1, 2 * PASSES):
            inputs = {"x": tensor(context, ONES) if turn % 2 else ONES}
            await MLAwaitedExecution(context).compute(graph, inputs, sync=[timeline(signal=turn)])
            assert timeline.value == turn

    run(main)


def test_what_a_run_was_to_signal_fails_that_is_cancelled_while_it_is_compiled(
    context: MLContext, run: Run
) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    graph = builder.build_sync({"y": builder.neg(x)})
    execution = MLAwaitedExecution(context)

    async def main() -> None:
        for size in range(1, PASSES):
            parked, timeline = Timeline(), Timeline()
            inputs = {"x": np.ones(size, np.float32)}
            sync = [parked(wait=1), timeline(signal=1)]
            compute = functools.partial(execution.compute, graph, inputs, sync=sync)
            await cancel_after(compute, pause)
            with pytest.raises(OperationError, match=r"compute of 'y'.*cancelled before it began"):
                timeline.wait_sync(1, timeout=0)
            await execution.compute(graph, inputs, sync=[timeline(signal=1)])
            assert timeline.value == 1

    run(main)


def test_what_a_run_was_to_signal_fails_if_its_task_never_began(context: MLContext) -> None:
    graph, timeline = doubling(context), Timeline()
    compute = MLAwaitedExecution(context).compute

    async def main() -> None:
        task = asyncio.create_task(compute(graph, {"x": ONES}, sync=[timeline(signal=1)]))
        task.cancel()
        with pytest.raises(OperationError, match="cancelled before it began"):
            await asyncio.wait_for(timeline.wait_async(1), LONG)
        compute(graph, {"x": ONES}, sync=[timeline(signal=2)]).close()
        with pytest.raises(OperationError, match="cancelled before it began"):
            timeline.wait_sync(2, timeout=0)
        await asyncio.create_task(compute(graph, {"x": ONES}, sync=[timeline(signal=1)]))
        await asyncio.gather(compute(graph, {"x": ONES}, sync=[timeline(signal=2)]))
        assert timeline.value == 2

    asyncio.run(main())


def test_what_a_run_was_to_signal_fails_if_its_context_is_lost_before(
    contexts: Callable[[str], MLContext], run: Run
) -> None:
    async def main() -> None:
        for kind in ("cpu", "gpu"):
            context, timeline = contexts(kind), Timeline()
            graph = doubling(context)
            sync = [timeline(signal=1)]
            awaitable = MLAwaitedExecution(context).compute(graph, {"x": ONES}, sync=sync)
            context.destroy()
            with pytest.raises(ContextLostError):
                await awaitable
            with pytest.raises(OperationError, match=r"compute of 'y'.*destroy\(\) was called"):
                timeline.wait_sync(1, timeout=0)

    run(main)


@pytest.mark.parametrize("bad", [5, [5], "a", [None], [Timeline()]])
def test_what_is_no_sync_is_refused_everywhere(context: MLContext, run: Run, bad: Any) -> None:
    x, y, graph = tensor(context, ONES), tensor(context, ONES * 7), doubling(context)
    execution = MLAwaitedExecution(context)
    with pytest.raises(ValidationError, match="sync"):
        context.dispatch(graph, {"x": x}, {"y": y}, sync=bad)
    if context.device_type == "gpu":
        with pytest.raises(ValidationError, match="sync"):
            context.submit([], sync=bad)

    async def main() -> None:
        with pytest.raises(ValidationError, match="sync"):
            await execution.compute(graph, {"x": ONES}, sync=bad)

    run(main)
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 7)


# Host memory between contexts


def test_host_memory_passes_from_context_to_context(
    pair: tuple[MLContext, MLContext], run: Run
) -> None:
    """Runs read arrays at the call, and write them before they signal."""
    one, two = pair
    between = np.zeros((4, 6), np.float32)[::2, ::2]  # strided: engines would copy it
    whole = np.zeros(SHAPE, np.float32)
    made, kept = Timeline(), Timeline()
    graph_one, graph_two = doubling(one), doubling(two)
    results: list[Any] = []

    async def consume(turn: int) -> None:
        await made.wait_async(turn)
        found = await MLAwaitedExecution(two).compute(graph_two, {"x": whole})
        results.append(found["y"][0, 0])
        between[:] = found["y"]
        kept.signal(turn)

    async def produce(turn: int) -> None:
        await kept.wait_async(turn - 1)
        await MLAwaitedExecution(one).compute(
            graph_one,
            {"x": between if turn > 1 else ONES},
            {"y": whole},
            sync=[made(signal=turn)],
        )

    async def main() -> None:
        for turn in range(1, 6):
            await together([lambda turn=turn: consume(turn), lambda turn=turn: produce(turn)])

    run(main)
    assert results == [4.0**turn for turn in range(1, 6)]


def test_host_memory_is_filled_when_a_run_signals(context: MLContext, run: Run) -> None:
    """That work was submitted to a queue does not mean that it was read back."""
    graph, execution = doubling(context), MLAwaitedExecution(context)
    between = np.zeros(SHAPE, np.float32)
    filled = Timeline()
    results: list[float] = []

    async def first(turn: int) -> None:
        between_inputs = {"x": ONES * turn}
        await execution.compute(graph, between_inputs, {"y": between}, sync=[filled(signal=turn)])

    async def second(turn: int) -> None:
        await filled.wait_async(turn)
        found = await execution.compute(graph, {"x": between})
        results.append(found["y"][0, 0])

    async def main() -> None:
        for turn in range(1, 10):
            await together([lambda turn=turn: first(turn), lambda turn=turn: second(turn)])

    run(main)
    assert results == [4.0 * turn for turn in range(1, 10)]


# Pipelines


def rasterizing(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """A disc whose brightness is the number of the pass."""
    number = builder.input("number", "float32", [1])
    y, x = np.mgrid[-1:1:32j, -1:1:32j].astype(np.float32)
    distance = builder.constant((x * x + y * y)[None, None])
    inside = builder.lesser(distance, builder.constant(0.5, "float32"))
    return {"image": builder.mul(builder.cast(inside, "float32"), number)}


def blending(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Adds an image to what was blended so far."""
    image = builder.input("image", "float32", [1, 1, 32, 32])
    so_far = builder.input("so_far", "float32", [1, 1, 32, 32])
    return {"blended": builder.add(so_far, image)}


def assert_blended(image: np.ndarray[Any, Any], passes: int) -> None:
    y, x = np.mgrid[-1:1:32j, -1:1:32j].astype(np.float32)
    inside = (x * x + y * y) < 0.5
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(image[0, 0], inside * np.float32(passes * (passes + 1) / 2))


def open_when_ten_ahead(gate: Timeline, drawn: Timeline, blended: Timeline) -> None:
    """Let blending begin once drawing has run ahead as far as it may."""
    drawn.wait_sync(AHEAD, timeout=LONG)
    with pytest.raises(TimeoutError):
        drawn.wait_sync(AHEAD + 1, timeout=0.05)
    assert blended.value == 0
    gate.signal(1)


def test_rasterizing_runs_ahead_of_blending_by_ten_passes_at_most(
    pair: tuple[MLContext, MLContext],
) -> None:
    """Two threads, two contexts, a ring of images in host memory; nobody waits on the host."""
    one, two = pair
    raster, blend = build(one, rasterizing), build(two, blending)
    drawn, blended, gate = Timeline(), Timeline(), Timeline()
    size = (1, 1, 32, 32)
    ring = [np.zeros(size, np.float32) for _ in range(AHEAD)]
    sums = [two.create_tensor_sync("float32", size, readable=True) for _ in range(2)]
    ahead: list[int] = []

    async def draw(number: int) -> None:
        await MLAwaitedExecution(one).compute(
            raster,
            {"number": np.array([number], np.float32)},
            {"image": ring[number % AHEAD]},
            sync=[blended(wait=number - AHEAD), drawn(signal=number)],
        )
        ahead.append(number - blended.value)

    async def draw_all() -> None:
        await asyncio.gather(*(draw(number) for number in range(1, PASSES + 1)))

    async def blend_all() -> None:
        await gate.wait_async(1)
        execution, runs = MLAwaitedExecution(two), []
        for number in range(1, PASSES + 1):
            await drawn.wait_async(number)  # an array is read at the call
            run = execution.compute(
                blend,
                {"image": ring[number % AHEAD], "so_far": sums[number % 2]},
                {"blended": sums[(number + 1) % 2]},
                sync=[blended(wait=number - 1, signal=number)],
            )
            runs.append(asyncio.create_task(run))  # tasks begin in their order
        await asyncio.gather(*runs)

    in_threads(
        lambda: asyncio.run(draw_all()),
        lambda: asyncio.run(blend_all()),
        lambda: open_when_ten_ahead(gate, drawn, blended),
    )
    assert len(ahead) == PASSES
    assert max(ahead) <= AHEAD
    assert_blended(two.read_tensor_sync(sums[(PASSES + 1) % 2]), PASSES)


def test_a_pipeline_of_dispatches_is_bounded_by_its_timelines(
    pair: tuple[MLContext, MLContext],
) -> None:
    """Every dispatch of both threads is submitted at once; the timelines alone pace them."""
    one, two = pair
    drawn, blended, gate = Timeline(), Timeline(), Timeline()
    add_one, add_two = adding(one), adding(two)
    ones = {context: tensor(context, ONES) for context in pair}
    rings = {context: [tensor(context), tensor(context)] for context in pair}

    def count(context: MLContext, graph: Any, sync: Callable[[int], Any]) -> None:
        ring = rings[context]
        for number in range(1, PASSES + 1):
            context.dispatch(
                graph,
                {"x": ring[number % 2], "k": ones[context]},
                {"y": ring[(number + 1) % 2]},
                sync=sync(number),
            )

    in_threads(
        lambda: count(one, add_one, lambda n: [blended(wait=n - AHEAD), drawn(signal=n)]),
        lambda: count(two, add_two, lambda n: [gate(wait=1), drawn(wait=n), blended(signal=n)]),
        lambda: open_when_ten_ahead(gate, drawn, blended),
    )
    for context in pair:
        last = rings[context][(PASSES + 1) % 2]
        np.testing.assert_array_equal(context.read_tensor_sync(last), ONES * PASSES)


# One device, two contexts
