"""Timelines between contexts, devices and threads, on real graphs.

WEBNN_REPEAT is the number of passes of the long ones (20 if not set).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.tensors import LONG, ONES, SHAPE, adding, tensor
from tests.graphs import build, doubling
from tests.loops import Run, pause, together
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
    ml,
)
from webnn_py.engines.webgpu.runtime.adapters import find_adapter
from webnn_py.ordering.timeline import state_of
from webnn_py.ordering.timeline_state import TimelineState

PASSES = max(20, int(os.environ.get("WEBNN_REPEAT", "20")))
KINDS = ["cpu", "gpu"]
PAIRS = [(one, two) for one in KINDS for two in KINDS]
AHEAD = 10


@pytest.fixture
def contexts(gpu: MLContext) -> Iterator[Callable[[str], MLContext]]:
    """Makes contexts that end with the test."""
    made: list[MLContext] = []

    def make(kind: Any) -> MLContext:
        made.append(ml.create_context_sync(device_type=kind))
        return made[-1]

    yield make
    for context in made:
        context.destroy()


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(
    request: pytest.FixtureRequest, contexts: Callable[[str], MLContext]
) -> tuple[MLContext, MLContext]:
    """Two contexts of each pair of kinds."""
    one, two = request.param
    return contexts(one), contexts(two)


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


def test_what_a_failed_run_was_to_signal_fails_before_its_await(
    context: MLContext, run: Run
) -> None:
    graph = doubling(context)

    async def main() -> None:
        for _ in range(PASSES):
            broken, timeline = Timeline(), Timeline()
            state_of(broken).fail(1, ValueError("boom"))
            sync = [broken(wait=1), timeline(signal=1)]
            with pytest.raises(OperationError, match="boom"):
                await MLAwaitedExecution(context).compute(graph, {"x": ONES}, sync=sync)
            with pytest.raises(OperationError, match="boom"):
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


@pytest.fixture
def shared(gpu: MLContext) -> Iterator[tuple[MLContext, MLContext]]:
    """Two contexts on one device of the user's."""
    device = find_adapter().request_device_sync()
    with ml.create_context_sync(device) as one, ml.create_context_sync(device) as two:
        yield one, two


def test_the_queue_of_one_device_orders_two_contexts_without_the_host(
    shared: tuple[MLContext, MLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = shared
    monkeypatch.setattr(TimelineState, "when", pytest.fail)  # nobody is ever parked
    a, b = Timeline(), Timeline()
    graphs = {context: adding(context) for context in shared}
    # Both contexts count in the same two buffers, each in its turn.
    buffers = [empty_buffer(one.device, 24) for _ in range(2)]
    ones = {context: tensor(context, ONES) for context in shared}
    ends = {context: [tensor(context, exportable=True) for _ in range(2)] for context in shared}

    def copy(context: MLContext, source: Any, target: Any, sync: Any) -> None:
        encoder = one.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, 24)
        context.submit([encoder.finish()], sync=sync)

    for turn in range(1, PASSES + 1):
        for context, wait, signal in ((one, b(wait=turn - 1), a), (two, a(wait=turn), b)):
            x, y = ends[context]
            with context.export_to_gpu(x) as inside, context.export_to_gpu(y) as outside:
                pass
            copy(context, buffers[0], inside, [wait])
            context.dispatch(graphs[context], {"x": x, "k": ones[context]}, {"y": y})
            copy(context, outside, buffers[0], [signal(signal=turn)])
    np.testing.assert_array_equal(read(buffers[0], SHAPE), ONES * 2 * PASSES)


def test_contexts_on_two_devices_do_wait(contexts: Callable[[str], MLContext]) -> None:
    one, two = contexts("gpu"), contexts("gpu")
    timeline, graph = Timeline(), doubling(two)
    x, y = tensor(two, ONES), tensor(two)
    one.dispatch(doubling(one), {"x": tensor(one)}, {"y": tensor(one)}, sync=[timeline(signal=1)])
    two.dispatch(graph, {"x": x}, {"y": y}, sync=[timeline(wait=1, signal=2)])
    timeline.wait_sync(2, timeout=LONG)
    np.testing.assert_array_equal(two.read_tensor_sync(y), ONES * 2)


# Failures


def test_destroying_a_context_fails_those_that_wait_for_it(
    pair: tuple[MLContext, MLContext], run: Run
) -> None:
    one, two = pair
    never, made, after = Timeline(), Timeline(), Timeline()
    x, y = tensor(two, ONES), tensor(two)
    graph_one, graph_two = doubling(one), doubling(two)
    one.dispatch(graph_one, {"x": tensor(one)}, {"y": tensor(one)}, [never(wait=1), made(signal=1)])
    two.dispatch(graph_two, {"x": x}, {"y": y}, [made(wait=1), after(signal=1)])
    one.destroy()
    for timeline in (made, after):
        with pytest.raises(OperationError, match=r"this MLContext is lost: destroy\(\)"):
            timeline.wait_sync(1, timeout=LONG)
    with pytest.raises(OperationError, match="lost"):
        two.read_tensor_sync(y)

    async def main() -> None:
        with pytest.raises(OperationError, match="lost"):
            await MLAwaitedExecution(two).compute(graph_two, {"x": ONES}, sync=[made(wait=1)])

    run(main)
    two.dispatch(graph_two, {"x": x}, {"y": y}, [made(signal=1)])
    made.wait_sync(1, timeout=LONG)
    np.testing.assert_array_equal(two.read_tensor_sync(y), ONES * 2)


def test_a_failure_runs_down_the_pipeline(pair: tuple[MLContext, MLContext]) -> None:
    one, two = pair
    broken, a, b = Timeline(), Timeline(), Timeline()
    graphs = {context: doubling(context) for context in pair}
    tensors = {context: (tensor(context, ONES), tensor(context)) for context in pair}
    for turn in range(1, 6):
        for context, wait, signal in ((one, b(wait=turn - 1), a), (two, a(wait=turn), b)):
            x, y = tensors[context]
            spoiled = [broken(wait=1)] if turn == 3 and context is one else []
            sync = [wait, signal(signal=turn), *spoiled]
            context.dispatch(graphs[context], {"x": x}, {"y": y}, sync)
    b.wait_sync(2, timeout=LONG)
    state_of(broken).fail(1, ValueError("boom"))
    for timeline in (a, b):
        for turn in (3, 5):
            with pytest.raises(OperationError, match="boom"):
                timeline.wait_sync(turn, timeout=LONG)
        assert timeline.value == 2
    for context in pair:
        with pytest.raises(OperationError, match="boom"):
            context.read_tensor_sync(tensors[context][1])


def test_points_of_a_refused_call_are_void(context: MLContext) -> None:
    timeline = Timeline()
    with pytest.raises(ValidationError):
        context.dispatch(doubling(context), {}, {}, sync=[timeline(signal=1)])
    context.dispatch(
        doubling(context), {"x": tensor(context)}, {"y": tensor(context)}, [timeline(signal=1)]
    )
    timeline.wait_sync(1, timeout=LONG)


def test_a_lost_context_gives_no_signal(contexts: Callable[[str], MLContext]) -> None:
    for kind in KINDS:
        context, timeline = contexts(kind), Timeline()
        graph, x, y = doubling(context), tensor(context), tensor(context)
        context.destroy()
        with pytest.raises(ContextLostError):
            context.dispatch(graph, {"x": x}, {"y": y}, sync=[timeline(signal=1)])
        timeline.signal(1)
        assert timeline.value == 1


def test_destroying_contexts_in_the_midst_of_a_pipeline_hangs_nobody(
    pair: tuple[MLContext, MLContext],
) -> None:
    one, two = pair
    a, b = Timeline(), Timeline()
    graphs = {context: doubling(context) for context in pair}
    tensors = {context: (tensor(context, ONES), tensor(context)) for context in pair}

    def play(context: MLContext, sync: Callable[[int], Any]) -> None:
        x, y = tensors[context]
        try:
            for turn in range(1, 10 * PASSES):
                context.dispatch(graphs[context], {"x": x}, {"y": y}, sync(turn))
            context.read_tensor_sync(y)
        except ContextLostError:
            a.signal(10 * PASSES)  # what was refused signals nothing, and `two` waits for it
        except OperationError:
            assert context is two

    def destroy() -> None:
        a.wait_sync(PASSES // 2, timeout=LONG)
        one.destroy()

    in_threads(
        lambda: play(one, lambda n: [b(wait=n - 3), a(signal=n)]),
        lambda: play(two, lambda n: [a(wait=n), b(signal=n)]),
        destroy,
    )
