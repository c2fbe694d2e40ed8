"""Many threads at once: on one graph, on builders, on tensors, on contexts that come and go.

WEBNN_STRESS is how many times longer than usual they go on (1 if not set).
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.networks import assert_like, network, network_inputs
from tests.backend.tensors import Array, adding, tensor
from tests.graphs import ONES, awaited, build, doubling, expected, lost_info
from tests.threads import LONG, in_threads
from webnn_py import (
    ContextLostError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperand,
    OperationError,
    Timeline,
    ml,
)

TIMES = int(os.environ.get("WEBNN_STRESS", "1"))
THREADS = 6


def each(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Run `work(0)`, `work(1)` … each on a thread."""
    in_threads(*[functools.partial(work, number) for number in range(threads)])


def compute(context: MLContext, graph: Any, inputs: Any) -> Any:
    """One run in the mode that fits the context."""
    if context.device_type == "cpu":
        return MLExecution(context).compute(graph, inputs)
    return awaited(graph, inputs)


def test_one_graph_runs_on_many_threads(own: MLContext) -> None:
    graph = build(own, network)
    wanted = [expected(network, network_inputs(number)) for number in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(30 * TIMES):
            assert_like(compute(own, graph, network_inputs(number)), wanted[number])

    each(work)


def test_results_land_in_the_outputs_of_the_thread_that_gave_them(cpu: MLContext) -> None:
    graph, execution = doubling(cpu), MLExecution(cpu)

    def work(number: int) -> None:
        out = np.empty_like(ONES)
        for turn in range(100 * TIMES):
            value = ONES * (number * 1000 + turn)
            found = execution.compute(graph, {"x": value}, {"y": out})
            assert found["y"] is out
            np.testing.assert_array_equal(out, 2 * value)

    each(work)


def chain(length: int, number: int) -> Callable[[MLGraphBuilder], dict[str, MLOperand]]:
    """y = x + number + number …, one node each: graphs of many sizes that differ."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        y = builder.input("x", "int32", [4])
        step = builder.constant(np.full(4, number, np.int32))
        for index in range(length):
            # What stands between keeps the chain from being folded into one node.
            y = builder.add(y, step) if index % 2 else builder.sub(builder.neg(y), step)
        return {"y": y}

    return what


def chained(x: Array, length: int, number: int) -> Array:
    """What `chain` makes of x."""
    for index in range(length):
        x = x + number if index % 2 else -x - number
    return x


def test_builders_build_in_parallel(own: MLContext) -> None:
    """Graphs of all threads on one context, built and run while others are built."""
    x = np.arange(4, dtype=np.int32)

    def work(number: int) -> None:
        for length in range(1, 5 + 5 * TIMES):
            graph = build(own, chain(length, number))
            found = compute(own, graph, {"x": x})["y"]
            np.testing.assert_array_equal(found, chained(x, length, number))
            graph.destroy()

    each(work)


def test_contexts_come_and_go_while_others_run(own: MLContext) -> None:
    """One context runs on; others of both kinds are made, used and destroyed beside it."""
    graph, inputs = build(own, network), network_inputs(1)
    wanted = expected(network, inputs)
    done = threading.Event()

    def stay() -> None:
        while not done.is_set():
            assert_like(compute(own, graph, inputs), wanted)

    def come_and_go(kind: Any) -> None:
        try:
            for turn in range(6 * TIMES):
                with ml.create_context_sync(device_type=kind) as context:
                    found = compute(context, doubling(context), {"x": ONES * turn})
                    np.testing.assert_array_equal(found["y"], ONES * 2 * turn)
        finally:
            done.set()

    kinds = ["cpu", "cpu", own.device_type]
    in_threads(stay, stay, *[functools.partial(come_and_go, kind) for kind in kinds])
    assert_like(compute(own, graph, inputs), wanted)


def test_threads_share_the_order_of_one_context(own: MLContext) -> None:
    """Each thread's tensors hold what its own calls, in their order, make of them."""
    graph = adding(own)

    def work(number: int) -> None:
        x, y, k = tensor(own, ONES * number), tensor(own), tensor(own, ONES)
        for turn in range(1, 30 * TIMES):
            own.dispatch(graph, {"x": x, "k": k}, {"y": y})
            x, y = y, x
            if turn % 7 == 0:
                found = own.read_tensor_sync(x)
                np.testing.assert_array_equal(found, ONES * (number + turn))
            if turn % 11 == 0:
                own.write_tensor(x, ONES * (number + turn))

    each(work)


def test_threads_pass_a_tensor_on_by_a_timeline(own: MLContext) -> None:
    """Each thread adds 1 in its turn; the timeline says whose turn it is."""
    graph, timeline = adding(own), Timeline()
    tensors, k = [tensor(own), tensor(own)], tensor(own, ONES)
    rounds = 10 * TIMES

    def work(number: int) -> None:
        for turn in range(number, rounds * THREADS, THREADS):
            x, y = tensors[turn % 2], tensors[(turn + 1) % 2]
            # Work on one context is in order: who submits before its turn would hold up the rest.
            timeline.wait_sync(turn, timeout=LONG)
            own.dispatch(graph, {"x": x, "k": k}, {"y": y}, [timeline(signal=turn + 1)])

    each(work)
    found = own.read_tensor_sync(tensors[0])
    np.testing.assert_array_equal(found, ONES * rounds * THREADS)


def test_contexts_of_many_threads_pass_a_turn_on(own: MLContext) -> None:
    """A context for each thread; all work is submitted at once, and runs turn by turn."""
    timeline, order = Timeline(), []
    rounds = 5 * TIMES

    def work(number: int) -> None:
        with ml.create_context_sync(device_type=own.device_type) as context:
            graph, x, y = doubling(context), tensor(context, ONES * number), tensor(context)
            for turn in range(number, rounds * THREADS, THREADS):
                sync = [timeline(wait=turn), timeline(wait=turn - 1, signal=turn + 1)]
                context.dispatch(graph, {"x": x}, {"y": y}, sync)
            for turn in range(number, rounds * THREADS, THREADS):
                timeline.wait_sync(turn + 1, timeout=LONG)
                order.append(turn)
            np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2 * number)

    each(work)
    assert sorted(order) == list(range(rounds * THREADS))
    assert timeline.value == rounds * THREADS


def test_a_context_is_destroyed_under_its_users(own: MLContext) -> None:
    """Everyone gets a ContextLostError, or whole results; nobody hangs."""
    graph, begun = build(own, network), threading.Barrier(THREADS)
    inputs = network_inputs(3)
    wanted = expected(network, inputs)

    def work(number: int) -> None:
        assert_like(compute(own, graph, inputs), wanted)
        begun.wait(LONG)
        if number == 0:
            own.destroy()
            return
        with pytest.raises((ContextLostError, OperationError)):
            go_on()

    def go_on() -> None:
        while True:
            assert_like(compute(own, graph, inputs), wanted)

    each(work)
    assert "destroy" in lost_info(own).message


def test_the_interpreter_is_free_during_compute(cpu: MLContext) -> None:
    """Other threads go on while a single operator computes for long."""
    size = 2048

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [size, size])
        return {"y": builder.matmul(x, x)}

    graph, execution = build(cpu, what), MLExecution(cpu)
    x = np.ones((size, size), np.float32)
    running, ticks = threading.Event(), [0]

    def run() -> None:
        running.set()
        execution.compute(graph, {"x": x})
        running.clear()

    def tick() -> None:
        assert running.wait(LONG)
        while running.is_set():
            time.sleep(0.001)
            ticks[0] += 1

    in_threads(run, tick)
    assert ticks[0] >= 5  # at most two, if the product held the interpreter
