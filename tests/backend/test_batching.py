"""Computes that are joined along an open dimension: results as if each had run alone."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.joined import (
    Held,
    Sizes,
    alone,
    assert_alone,
    computed,
    inputs,
    prepared,
    rows,
)
from tests.graphs import build, normal
from tests.loops import Run, limited, pause, together
from tests.threads import LONG
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    Timeline,
    ValidationError,
    ml,
)


def test_each_gets_its_own_results(context: MLContext, run: Run) -> None:
    graph = build(context, rows)
    execution = MLAwaitedExecution(context, batch="batch", max_batch=8)
    given = [inputs(seed, batch=1 + seed % 3, length=2 + seed % 2) for seed in range(24)]
    given[5]["scale"] = normal(4, seed=1)
    given[6] = inputs(6, batch=9)  # larger than a run may be
    results: list[dict[str, Any]] = []

    async def main() -> None:
        results.extend(await computed(execution, graph, given))

    run(main)
    for result, each in zip(results, given, strict=True):
        assert_alone(result, each)
        whole = [array.base for array in result.values() if isinstance(array.base, np.ndarray)]
        assert not whole, "a view keeps the whole run"


def test_what_waits_when_a_run_begins_is_joined(
    own: MLContext, run: Run, runs: Sizes, hold: Callable[[MLContext], Held]
) -> None:
    graph = prepared(own, 8)
    execution = MLAwaitedExecution(own, batch="batch", max_batch=8)
    given = [inputs(seed) for seed in range(7)]

    async def main() -> None:
        await execution.compute(graph, given[0])  # where rows are joined is known now
        runs.clear()
        for result, each in zip(
            await computed(execution, graph, given, hold(own)), given, strict=True
        ):
            assert_alone(result, each)

    run(main)
    assert runs == [(7, 8)]


def test_only_what_may_be_joined_is(
    cpu: MLContext, run: Run, runs: Sizes, hold: Callable[[MLContext], Held]
) -> None:
    graph = prepared(cpu, 1, 2)
    execution = MLAwaitedExecution(cpu, batch="batch", max_batch=4)
    given = [inputs(0), inputs(1, length=2), inputs(2) | {"scale": normal(4, seed=1)}, inputs(3)]

    async def main() -> None:
        for each in given:
            await execution.compute(graph, each)
        runs.clear()
        for result, each in zip(
            await computed(execution, graph, given, hold(cpu)), given, strict=True
        ):
            assert_alone(result, each)

    run(main)
    assert sorted(count for count, _ in runs) == [1, 1, 2]


def test_outputs_that_are_given_are_written_in_place(context: MLContext, run: Run) -> None:
    graph = build(context, rows)
    execution = MLAwaitedExecution(context, batch="batch")
    given = [inputs(seed, batch=1 + seed % 2) for seed in range(6)]
    targets = [np.zeros((2, 3, 5), np.float32)[: 1 + seed % 2] for seed in range(6)]

    async def one(number: int) -> None:
        out = {"y": targets[number]}
        results = await execution.compute(graph, given[number], out)
        assert results["y"] is targets[number]

    run(lambda: together(functools.partial(one, number) for number in range(6)))
    for target, each in zip(targets, given, strict=True):
        np.testing.assert_allclose(target, alone(each)["y"], rtol=1e-4, atol=1e-6)


def test_a_compute_waits_for_others_if_it_is_told_to(cpu: MLContext, run: Run, runs: Sizes) -> None:
    graph = prepared(cpu, 1, 2)
    patient = MLAwaitedExecution(cpu, batch="batch", max_batch=2, max_delay=3600)

    async def main() -> None:
        await computed(patient, graph, [inputs(0), inputs(1)])
        runs.clear()
        for result, seed in zip(
            await computed(patient, graph, [inputs(2), inputs(3)]), (2, 3), strict=True
        ):
            assert_alone(result, inputs(seed))
        hasty = MLAwaitedExecution(cpu, batch="batch", max_batch=2, max_delay=0.001)
        assert_alone(await hasty.compute(graph, inputs(4)), inputs(4))

    run(main)
    assert runs == [(2, 2), (1, 1)]


def test_nothing_is_left_of_waiting_for_others(cpu: MLContext, run: Run) -> None:
    graph = prepared(cpu, 1, 2)
    patient = MLAwaitedExecution(cpu, batch="batch", max_batch=2, max_delay=3600)

    async def main() -> None:
        for _ in range(10):
            await computed(patient, graph, [inputs(0), inputs(1)])

    before = set(threading.enumerate())
    run(main)
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    for timer in timers:
        if timer not in before:
            timer.join(LONG)
            assert not timer.is_alive()


def test_work_with_timelines_and_tensors_runs_alone(own: MLContext, run: Run, runs: Sizes) -> None:
    graph, done = build(own, rows), Timeline()
    execution = MLAwaitedExecution(own, batch="batch")
    tensor = own.create_tensor_sync("float32", [3, 2, 4], writable=True)
    own.write_tensor(tensor, inputs(1, batch=2)["x"])

    async def main() -> None:
        results = await execution.compute(graph, inputs(0), sync=[done(signal=1)])
        assert done.value == 1
        assert_alone(results, inputs(0))
        given = inputs(1, batch=2)
        assert_alone(await execution.compute(graph, given | {"x": tensor}), given)

    run(main)
    assert not runs


def test_few_sizes_are_compiled(cpu: MLContext, run: Run, runs: Sizes) -> None:
    graph = build(cpu, rows)
    execution = MLAwaitedExecution(cpu, batch="batch", max_batch=12)

    async def main() -> None:
        for count in range(1, 20):
            await computed(execution, graph, [inputs(seed) for seed in range(count)])

    run(main)
    assert {size for _, size in runs} <= {1, 2, 4, 8, 12}


def test_graphs_without_the_dimension_are_refused(
    context: MLContext, run: Run, runs: Sizes
) -> None:
    graph = build(context, rows)
    execution = MLAwaitedExecution(context, batch="width")

    async def main() -> None:
        with pytest.raises(ValidationError, match=r"'width' is .*, which has batch, length$"):
            await execution.compute(graph, inputs(0))

    run(main)
    assert not runs


def test_large_inputs_without_the_dimension_are_not_compared(
    cpu: MLContext, run: Run, runs: Sizes
) -> None:
    def scaled(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", ["batch", 1 << 17])
        return {"y": builder.mul(x, builder.input("scale", "float32", [1 << 17]))}

    graph = build(cpu, scaled)
    execution = MLAwaitedExecution(cpu, batch="batch")
    given = {"x": normal(1, 1 << 17), "scale": normal(1 << 17)}

    async def main() -> None:
        results = await execution.compute(graph, given)
        np.testing.assert_array_equal(results["y"], given["x"] * given["scale"])

    run(main)
    assert not runs


def test_random_loads_lose_and_mix_up_nothing(own: MLContext, run: Run) -> None:
    load_at_random(own, run)


def test_several_threads_of_a_context_run_what_is_joined(run: Run) -> None:
    with ml.create_context_sync(device_type="cpu", workers=3) as context:
        load_at_random(context, run)


def load_at_random(own: MLContext, run: Run) -> None:
    """Two graphs at once, of several sizes, some cancelled at some time."""
    graphs = [build(own, rows), build(own, rows)]
    for graph, size in itertools.product(graphs, (1, 2, 4, 8)):
        graph.prepare_sync({"batch": size, "length": 3})
    execution = MLAwaitedExecution(own, batch="batch", max_batch=8)
    rng = np.random.default_rng(0)
    given = [inputs(seed, batch=int(rng.integers(1, 5))) for seed in range(40)]
    wanted = [alone(each)["y"] for each in given]
    right: list[bool] = []

    async def one(number: int) -> None:
        await pause(float(rng.random()) / 100)
        seed = number % len(given)
        target = np.full(wanted[seed].shape, -7, np.float32)

        async def work() -> None:
            out = {"y": target} if number % 3 else None
            results = await execution.compute(graphs[number % 2], given[seed], out)
            target[...] = results["y"]

        if await limited(work, 0.01 if number % 5 == 0 else 60):
            right.append(np.allclose(target, wanted[seed], rtol=1e-4, atol=1e-6))
        else:  # cancelled: untouched or whole
            right.append(bool((target == -7).all()) or np.allclose(target, wanted[seed], 1e-4))

    run(lambda: together(functools.partial(one, number) for number in range(200)))
    assert len(right) == 200
    assert all(right)
