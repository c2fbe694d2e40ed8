"""The order of one context: kept where work shares memory or timelines, else overtaken.

WEBNN_REPEAT is the number of passes of the long ones (50 if not set).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.tensors import LONG, ONES, SHAPE, adding, tensor
from tests.graphs import build, doubling
from tests.loops import Run, limited, pause, together
from tests.threads import in_threads
from webnn_py import (
    InvalidStateError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperand,
    OperationError,
    Timeline,
    WaitTimeoutError,
)

PASSES = max(50, int(os.environ.get("WEBNN_REPEAT", "50")))
IMAGES = 10


def rasterizing(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """An image whose pixels are the number of the pass."""
    number = builder.input("number", "float32", [1])
    return {"image": builder.mul(builder.constant(np.ones((4, 4), np.float32)), number)}


def blending(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Half of what was blended so far, and the image: shows in which order images came."""
    image, so_far = (builder.input(name, "float32", [4, 4]) for name in ("image", "so_far"))
    return {"blended": builder.add(builder.mul(so_far, builder.constant(0.5, "float32")), image)}


@pytest.fixture(params=["cpu", "several", "gpu"])
def context(request: pytest.FixtureRequest) -> MLContext:
    """A context of each kind, and a CPU context of several threads."""
    found: MLContext = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("first", ["rasterize", "blend", "neither"])
def test_rasterizing_and_blending_share_one_context(context: MLContext, first: str) -> None:
    """Two threads and ten images; whoever is ahead waits for the other by timelines alone."""
    raster, blend = build(context, rasterizing), build(context, blending)
    drawn, blended = Timeline(label="drawn"), Timeline(label="blended")
    make = context.create_tensor_sync
    images = [make("float32", (4, 4)) for _ in range(IMAGES)]
    sums = [make("float32", (4, 4), readable=True) for _ in range(2)]
    numbers = [tensor(context, np.array([n], np.float32)) for n in range(PASSES + 1)]

    def rasterize() -> None:
        for n in range(1, PASSES + 1):
            context.dispatch(
                raster,
                {"number": numbers[n]},
                {"image": images[n % IMAGES]},
                sync=[blended(wait=n - IMAGES), drawn(signal=n)],
            )

    def blend_all() -> None:
        for n in range(1, PASSES + 1):
            context.dispatch(
                blend,
                {"image": images[n % IMAGES], "so_far": sums[n % 2]},
                {"blended": sums[(n + 1) % 2]},
                sync=[drawn(wait=n), blended(signal=n)],
            )

    if first == "neither":
        in_threads(rasterize, blend_all)
    else:
        for work in (rasterize, blend_all) if first == "rasterize" else (blend_all, rasterize):
            work()
    blended.wait_sync(PASSES, timeout=LONG + PASSES / 20)
    expected = np.float32(0)
    for n in range(1, PASSES + 1):
        expected = expected * np.float32(0.5) + np.float32(n)
    found = context.read_tensor_sync(sums[(PASSES + 1) % 2])
    np.testing.assert_array_equal(found, np.full((4, 4), expected))


def test_independent_work_releases_what_is_parked(context: MLContext) -> None:
    graph, timeline = doubling(context), Timeline()
    x, y, u, v = tensor(context, ONES), tensor(context), tensor(context, ONES), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y}, sync=[timeline(wait=1)])
    context.dispatch(graph, {"x": u}, {"y": v}, sync=[timeline(signal=1)])
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)


@pytest.mark.parametrize("use", ["read", "write", "dispatch", "compute"])
def test_work_that_shares_nothing_overtakes(context: MLContext, use: str, run: Run) -> None:
    graph, timeline = doubling(context), Timeline()
    x, y, u, v = tensor(context, ONES), tensor(context), tensor(context, ONES), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y}, sync=[timeline(wait=1)])
    context.read_tensor_sync(x)  # it is only read by what is parked
    if use == "write":
        context.write_tensor(v, ONES * 2)
    elif use == "dispatch":
        context.dispatch(graph, {"x": u}, {"y": v})
    elif use == "compute":
        run(lambda: MLAwaitedExecution(context).compute(graph, {"x": x}, {"y": v}))
    np.testing.assert_array_equal(context.read_tensor_sync(v), ONES * (0 if use == "read" else 2))
    timeline.signal(1)
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)


def test_hazards_keep_their_order(context: MLContext) -> None:
    """Read after write, write after read, write after write, and what is behind them."""
    graph, add, go = doubling(context), adding(context), Timeline()
    a, b, c, d, e = (tensor(context, ONES * n) for n in (1, 2, 3, 4, 5))
    context.dispatch(graph, {"x": a}, {"y": b}, sync=[go(wait=1)])
    context.write_tensor(a, ONES * 10)
    context.dispatch(add, {"x": b, "k": a}, {"y": c})
    context.write_tensor(b, ONES * 20)
    context.dispatch(graph, {"x": c}, {"y": a})
    context.dispatch(graph, {"x": d}, {"y": e})
    np.testing.assert_array_equal(context.read_tensor_sync(e), ONES * 8)
    go.signal(1)
    for made, value in ((a, 24), (b, 20), (c, 12)):
        np.testing.assert_array_equal(context.read_tensor_sync(made), ONES * value)


# What can never run


def test_two_timelines_of_one_context_in_a_cycle(context: MLContext) -> None:
    a, b = Timeline(label="a"), Timeline(label="b")
    graph = doubling(context)
    first, second = tensor(context), tensor(context)
    context.dispatch(graph, {"x": tensor(context)}, {"y": first}, [a(wait=1), b(signal=1)])
    context.dispatch(graph, {"x": tensor(context)}, {"y": second}, [b(wait=1), a(signal=1)])
    for made in (first, second):
        with pytest.raises(OperationError, match="can never run") as caught:
            context.read_tensor_sync(made)
        for part in ("timeline 'a' to reach 1", "timeline 'b' to reach 1", "dispatch to 'y'"):
            assert part in str(caught.value)
    for timeline in (a, b):
        with pytest.raises(OperationError, match=r"timeline '[ab]'.*can never run"):
            timeline.wait_sync(1, timeout=LONG)


def test_a_cycle_over_two_contexts(pair: tuple[MLContext, MLContext]) -> None:
    a, b = Timeline(label="a"), Timeline(label="b")
    outputs = [tensor(context) for context in pair]
    for context, y, points in zip(
        pair, outputs, [[a(wait=2), b(signal=3)], [b(wait=3), a(signal=2)]], strict=True
    ):
        context.dispatch(doubling(context), {"x": tensor(context)}, {"y": y}, points)
    for context, y in zip(pair, outputs, strict=True):
        with pytest.raises(OperationError, match=r"can never run.*timeline 'a' to reach 2"):
            context.read_tensor_sync(y)


@pytest.mark.parametrize("end", ["destroyed", "failed"])
def test_a_wait_whose_every_signaller_is_gone(
    contexts: Callable[[str], MLContext], end: str
) -> None:
    context, other, never = contexts("cpu"), contexts("cpu"), Timeline()
    t = Timeline(label="t")
    y = tensor(context)
    context.dispatch(doubling(context), {"x": tensor(context)}, {"y": y}, [t(wait=1)])
    sync = [never(wait=1), t(signal=1)]
    other.dispatch(doubling(other), {"x": tensor(other)}, {"y": tensor(other)}, sync)
    if end == "destroyed":
        other.destroy()
    else:
        other.dispatch(
            doubling(other),
            {"x": tensor(other)},
            {"y": tensor(other)},
            [t(wait=1), never(signal=1)],
        )
    with pytest.raises(OperationError, match="timeline 't'") as caught:
        context.read_tensor_sync(y)
    assert ("destroy() was called" if end == "destroyed" else "can never run") in str(caught.value)


def test_what_the_host_may_still_signal_is_no_deadlock(context: MLContext) -> None:
    """The host may signal 1 before the work behind it signals 2."""
    t, graph = Timeline(), doubling(context)
    x, y, z = tensor(context, ONES), tensor(context), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y}, [t(wait=1)])
    context.dispatch(graph, {"x": y}, {"y": z}, [t(signal=2)])
    t.signal(1)
    np.testing.assert_array_equal(context.read_tensor_sync(z), ONES * 4)


def test_a_wait_that_takes_too_long_says_what_is_parked(context: MLContext) -> None:
    go, done, graph = Timeline(label="go"), Timeline(label="done"), doubling(context)
    x, y, z = tensor(context, ONES), tensor(context), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y}, [go(wait=3)])
    context.dispatch(graph, {"x": y}, {"y": z}, [done(signal=1)])
    context.flush()
    with pytest.raises(WaitTimeoutError) as caught:
        done.wait_sync(1, timeout=0)
    for part in (
        "timeline 'done' is at 0 after 0 s, not yet at 1",
        "to be signalled by: dispatch to 'y' waits behind dispatch to 'y'",
        "waits for timeline 'go' to reach 3, now 0",
    ):
        assert part in str(caught.value)
    with pytest.raises(WaitTimeoutError, match="no work was accepted that is to signal it"):
        go.wait_sync(3, timeout=0)
    go.signal(3)
    done.wait_sync(1, timeout=LONG)


# Memory of the user's


def test_host_arrays_that_are_written_keep_their_order(context: MLContext, run: Run) -> None:
    graph, execution, go = doubling(context), MLAwaitedExecution(context), Timeline()
    whole = np.zeros((4, 3), np.float32)

    async def late() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": whole[:2]}, sync=[go(wait=1)])

    async def later() -> None:
        await pause()
        await execution.compute(graph, {"x": ONES * 5}, {"y": whole[1:3]})

    async def main() -> None:
        await pause(0.02)
        np.testing.assert_array_equal(whole, 0)
        go.signal(1)

    run(lambda: together([late, later, main]))
    np.testing.assert_array_equal(whole[:, 0], [2, 10, 10, 0])


def test_an_array_between_the_rows_of_a_parked_one_shares_nothing(
    context: MLContext, run: Run
) -> None:
    graph, execution, go = doubling(context), MLAwaitedExecution(context), Timeline()
    whole = np.zeros((2, 12), np.float32)
    rest = whole[0, 3:9].reshape(SHAPE)

    async def parked() -> None:
        await execution.compute(graph, {"x": ONES}, {"y": whole[:, :3]}, sync=[go(wait=1)])

    async def overtaking() -> None:
        await execution.compute(graph, {"x": ONES * 2}, {"y": rest})

    async def main() -> None:
        await pause(0.02)
        overtakes = await limited(overtaking, LONG / 4)
        go.signal(1)
        assert overtakes

    run(lambda: together([parked, main]))
    np.testing.assert_array_equal(whole, [[2] * 3 + [4] * 6 + [0] * 3, [2] * 3 + [0] * 9])


def test_synchronous_runs_wait_for_what_is_to_write_their_arrays(cpu: MLContext, run: Run) -> None:
    graph, go, whole = doubling(cpu), Timeline(), np.zeros(SHAPE, np.float32)
    execution = MLExecution(cpu, allow_blocking=True)

    async def write() -> None:
        sync = [go(wait=1)]
        await MLAwaitedExecution(cpu).compute(graph, {"x": ONES}, {"y": whole}, sync=sync)

    async def read_after() -> None:
        await pause(0.02)
        np.testing.assert_array_equal(execution.compute(graph, {"x": ONES * 3})["y"], ONES * 6)
        release = threading.Timer(0.02, go.signal, [1])
        release.start()
        np.testing.assert_array_equal(execution.compute(graph, {"x": whole})["y"], ONES * 4)
        release.join()

    run(lambda: together([write, read_after]))


def test_command_buffers_keep_the_order_of_what_they_use(gpu: MLContext) -> None:
    shared, alone = empty_buffer(gpu.device, 24), empty_buffer(gpu.device, 24)
    ones, twos, others = (buffer_of(gpu.device, ONES * n) for n in (1, 2, 2))
    go, done = Timeline(), Timeline()

    def copy(source: Any, target: Any) -> Any:
        encoder = gpu.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, 24)
        return encoder.finish()

    gpu.submit([copy(ones, shared)], sync=[go(wait=1)])
    gpu.submit([copy(twos, shared)])
    gpu.submit([copy(others, alone)], sync=[done(signal=1)])
    done.wait_sync(1, timeout=LONG)
    np.testing.assert_array_equal(read(alone, SHAPE), ONES * 2)
    np.testing.assert_array_equal(read(shared, SHAPE), ONES * 0)
    go.signal(1)
    gpu.flush()
    np.testing.assert_array_equal(read(shared, SHAPE), ONES * 2)


def test_an_encoder_is_refused_tensors_that_parked_work_writes(gpu: MLContext) -> None:
    graph, go = doubling(gpu), Timeline(label="go")
    x, y, z = tensor(gpu, ONES), tensor(gpu), tensor(gpu)
    gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[go(wait=1)])
    encoder = MLCommandEncoder(gpu)
    for inputs, outputs, name in (
        ({"x": y}, {"y": z}, "input 'x'"),
        ({"x": z}, {"y": x}, "output 'y'"),
        ({"x": z}, {"y": y}, "output 'y'"),
    ):
        with pytest.raises(InvalidStateError, match=f"{name}.*waits for a timeline.*'go'"):
            encoder.dispatch(graph, inputs, outputs)
    with pytest.raises(InvalidStateError, match=r"input 'x'.*waits for a timeline"):
        encoder.initialize_graph(doubling(gpu), {"x": y})
    encoder.dispatch(graph, {"x": x}, {"y": z})  # both only read it
    go.signal(1)
    encoder.dispatch(graph, {"x": y}, {"y": x})
    gpu.submit([encoder.finish()])
    np.testing.assert_array_equal(gpu.read_tensor_sync(x), ONES * 4)
