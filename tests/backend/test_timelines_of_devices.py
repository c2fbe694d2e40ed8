"""Timelines where contexts share a device, fail or end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.adapters import new_device
from tests.backend.buffers import empty_buffer, read
from tests.backend.held import fail
from tests.backend.tensors import LONG, ONES, SHAPE, adding, tensor
from tests.graphs import doubling
from tests.loops import Run
from tests.threads import in_threads
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLContext,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)

PASSES = max(20, int(os.environ.get("WEBNN_REPEAT", "20")))


# One device, two contexts


@pytest.fixture
def shared(gpu: MLContext) -> Iterator[tuple[MLContext, MLContext]]:
    """Two contexts on one device of the user's."""
    device = new_device()
    with ml.create_context_sync(device) as one, ml.create_context_sync(device) as two:
        yield one, two


def test_the_queue_of_one_device_orders_two_contexts_without_the_host(
    shared: tuple[MLContext, MLContext], never_parked: None
) -> None:
    one, two = shared
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
    fail(broken)
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
    for kind in ("cpu", "gpu"):
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
