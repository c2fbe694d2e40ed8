"""MLTensors whose work fails, is cancelled, or outlives them; contexts that end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import LONG, ONES, SHAPE, Parked, adding, broken, tensor
from tests.graphs import doubling
from tests.loops import Run, cancel_after, pause, together
from tests.processes import run_alone
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLExecution,
    MLTensor,
    NotSupportedError,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)

# Destruction


def test_a_destroyed_tensor_is_refused_and_its_work_is_done(context: MLContext) -> None:
    parked = Parked(context)
    kept = tensor(context)
    context.dispatch(doubling(context), {"x": parked.target}, {"y": kept})
    for made in (parked.source, parked.target):
        made.destroy()
        made.destroy()
    with pytest.raises(ValidationError, match="destroyed"):
        context.read_tensor_sync(parked.target)
    with pytest.raises(ValidationError, match="destroyed"):
        context.write_tensor(parked.source, ONES)
    parked.go()
    np.testing.assert_array_equal(context.read_tensor_sync(kept), ONES * 4)


def test_a_tensor_destroyed_after_recorded_work_is_still_used_by_it(context: MLContext) -> None:
    x, y = tensor(context, ONES), tensor(context)
    context.dispatch(doubling(context), {"x": x}, {"y": y})
    x.destroy()
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)


def test_a_graph_destroyed_after_dispatch_still_runs(context: MLContext) -> None:
    graph = doubling(context)
    parked, y = Parked(context, graph), tensor(context)
    context.dispatch(graph, {"x": parked.target}, {"y": y})
    graph.destroy()
    parked.go()
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 4)


# Failures


def test_reading_what_was_never_made_raises(context: MLContext, run: Run) -> None:
    made = broken(context)
    for _ in range(2):
        with pytest.raises(OperationError, match="was to write this MLTensor failed: boom") as got:
            context.read_tensor_sync(made)
        assert isinstance(got.value.__cause__, ValueError)

    async def main() -> None:
        with pytest.raises(OperationError, match="boom"):
            await context.read_tensor_async(made)

    run(main)


def test_work_on_what_was_never_made_fails_and_signals_so(context: MLContext) -> None:
    made, y, timeline = broken(context), tensor(context), Timeline()
    graph = doubling(context)
    context.dispatch(graph, {"x": made}, {"y": y}, sync=[timeline(signal=1)])
    with pytest.raises(OperationError, match="boom"):
        timeline.wait_sync(1, timeout=LONG)
    for failed in (made, y):
        with pytest.raises(OperationError, match="boom") as caught:
            context.read_tensor_sync(failed)
        assert str(caught.value).count("failed") == 1


def test_writing_mends_what_was_never_made(context: MLContext) -> None:
    made, y, graph = broken(context), tensor(context), doubling(context)
    context.write_tensor(made, ONES)
    np.testing.assert_array_equal(context.read_tensor_sync(made), ONES)
    again = broken(context)
    context.dispatch(graph, {"x": made}, {"y": again})
    context.dispatch(graph, {"x": again}, {"y": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 4)


# Awaited runs on tensors


def test_awaited_runs_take_tensors_in_order(context: MLContext, run: Run) -> None:
    graph = adding(context)
    execution = MLAwaitedExecution(context)
    x, y = tensor(context), tensor(context)

    async def main() -> None:
        for turn in range(10):
            context.write_tensor(x, ONES * turn)
            results = await execution.compute(graph, {"x": x, "k": ONES}, {"y": y})
            assert results["y"] is y
            results = await execution.compute(
                graph, {"x": {"resource": y, "dimensions": [2, 3]}, "k": x}
            )
            np.testing.assert_array_equal(results["y"], ONES * (2 * turn + 1))

    run(main)


def test_awaited_runs_wait_for_what_was_dispatched_before(context: MLContext, run: Run) -> None:
    parked = Parked(context)
    execution, graph = MLAwaitedExecution(context), doubling(context)
    results: dict[str, Any] = {}

    async def compute() -> None:
        results.update(await execution.compute(graph, {"x": parked.target}))

    async def apart() -> None:  # keeps no order, as it has no tensors
        await execution.compute(graph, {"x": ONES})
        assert not results
        parked.go()

    run(lambda: together([compute, apart]))
    np.testing.assert_array_equal(results["y"], ONES * 4)


def test_a_cancelled_run_on_tensors_leaves_them_and_the_order_alone(
    context: MLContext, run: Run
) -> None:
    execution, graph = MLAwaitedExecution(context), doubling(context)
    x, y = tensor(context, ONES), tensor(context, ONES * 7)
    never, after = Timeline(), Timeline()

    async def compute() -> None:
        await execution.compute(graph, {"x": x}, {"y": y}, sync=[never(wait=1), after(signal=1)])

    async def main() -> None:
        await cancel_after(compute, lambda: pause(0.02))
        np.testing.assert_array_equal(await context.read_tensor_async(y), ONES * 7)
        with pytest.raises(OperationError, match="cancelled"):
            await after.wait_async(1)
        await execution.compute(graph, {"x": x}, {"y": y}, sync=[after(signal=1)])
        await after.wait_async(1)
        np.testing.assert_array_equal(await context.read_tensor_async(y), ONES * 2)

    run(main)


def test_an_awaited_run_on_what_was_never_made_fails(context: MLContext, run: Run) -> None:
    made, y = broken(context), tensor(context)
    execution, graph = MLAwaitedExecution(context), doubling(context)

    async def main() -> None:
        for outputs in (None, {"y": y}):
            with pytest.raises(OperationError, match="boom"):
                await execution.compute(graph, {"x": made}, outputs)
        with pytest.raises(OperationError, match="boom"):
            await context.read_tensor_async(y)
        await execution.compute(graph, {"x": ONES}, {"y": y})
        np.testing.assert_array_equal(await context.read_tensor_async(y), ONES * 2)

    run(main)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda context: tensor(context, np.ones((3, 2), np.float32)), "the MLTensor is"),
        (lambda context: tensor(context, np.ones(SHAPE, np.int32)), "the MLTensor is"),
    ],
)
def test_awaited_runs_refuse_tensors_that_do_not_fit(
    context: MLContext, run: Run, make: Callable[[MLContext], MLTensor], message: str
) -> None:
    execution, graph, bad = MLAwaitedExecution(context), doubling(context), make(context)

    async def main() -> None:
        with pytest.raises(DataError, match=f"input 'x': {message}"):
            await execution.compute(graph, {"x": bad})
        with pytest.raises(DataError, match=f"output 'y': {message}"):
            await execution.compute(graph, {"x": ONES}, {"y": bad})

    run(main)


def test_runs_refuse_tensors_of_others_and_destroyed_ones(context: MLContext, run: Run) -> None:
    execution, graph = MLAwaitedExecution(context), doubling(context)
    gone = tensor(context)
    gone.destroy()

    async def main() -> None:
        with ml.create_context_sync(device_type="cpu") as other:
            for bad, message in ((tensor(other, ONES), "another"), (gone, "destroyed")):
                with pytest.raises(DataError, match=message):
                    await execution.compute(graph, {"x": bad})
                with pytest.raises(DataError, match=message):
                    await execution.compute(graph, {"x": ONES}, {"y": bad})

    run(main)


def test_synchronous_runs_take_tensors_in_order(cpu: MLContext) -> None:
    graph, execution = doubling(cpu), MLExecution(cpu)
    x, y = tensor(cpu, ONES), tensor(cpu)
    cpu.dispatch(graph, {"x": x}, {"y": y})
    results = execution.compute(graph, {"x": y}, {"y": x})
    assert results["y"] is x
    np.testing.assert_array_equal(cpu.read_tensor_sync(x), ONES * 4)
    with pytest.raises(OperationError, match="boom"):
        execution.compute(graph, {"x": broken(cpu)})


# The end of a context


def test_a_lost_context_refuses_everything(own: MLContext, run: Run) -> None:
    made, y, graph = tensor(own, ONES), tensor(own), doubling(own)
    own.destroy()

    async def read() -> None:
        await own.read_tensor_async(made)

    for call in (
        lambda: own.create_tensor_sync("float32", SHAPE),
        lambda: own.create_constant_tensor_sync(ONES),
        lambda: own.write_tensor(made, ONES),
        lambda: own.read_tensor_sync(made),
        lambda: own.dispatch(graph, {"x": made}, {"y": y}),
        lambda: own.submit([]),
        lambda: own.from_dlpack(ONES),
        lambda: run(read),
        own.flush,
    ):
        with pytest.raises(ContextLostError, match="destroy"):
            call()
    made.destroy()
    own.destroy()


def test_destroying_a_context_fails_what_is_parked_on_it(own: MLContext, run: Run) -> None:
    parked, after = Parked(own), Timeline()
    graph, execution = doubling(own), MLAwaitedExecution(own)
    x, y = tensor(own, ONES), tensor(own)
    ended: list[type[BaseException]] = []

    async def fails(work: Callable[[], Any]) -> None:
        with pytest.raises(ContextLostError, match=r"destroy\(\) was called") as caught:
            await work()
        ended.append(caught.type)

    async def destroy() -> None:
        await pause(0.02)
        own.destroy()
        with pytest.raises(OperationError, match=r"destroy\(\) was called"):
            await after.wait_async(1)
        info = await own.lost
        assert "destroy" in info.message

    async def read() -> None:
        await own.read_tensor_async(x)

    async def compute() -> None:
        await execution.compute(graph, {"x": x}, {"y": y}, sync=[after(signal=1)])

    async def apart() -> None:
        await execution.compute(graph, {"x": ONES}, sync=[parked.timeline(wait=1)])

    run(lambda: together([*(lambda w=w: fails(w) for w in (read, compute, apart)), destroy]))
    assert len(ended) == 3
    parked.go()


def test_destroying_a_context_ends_what_is_under_way(own: MLContext, run: Run) -> None:
    graph, execution = doubling(own), MLAwaitedExecution(own)
    x = tensor(own, ONES)
    ended: list[str] = []

    async def work(call: Callable[[], Any]) -> None:
        try:
            await call()
            ended.append("done")
        except ContextLostError:
            ended.append("lost")

    async def destroy() -> None:
        await pause()
        own.destroy()

    calls: list[Callable[[], Any]] = [
        *[lambda: own.read_tensor_async(x) for _ in range(20)],
        *[lambda: execution.compute(graph, {"x": x}) for _ in range(20)],
        *[lambda: execution.compute(graph, {"x": ONES}) for _ in range(40)],
    ]
    run(lambda: together([*(lambda call=call: work(call) for call in calls), destroy]))
    assert len(ended) == 80


def test_a_thread_that_reads_parked_work_is_woken_by_the_end(own: MLContext) -> None:
    parked = Parked(own)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            own.read_tensor_sync(parked.target)
        except MLError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    own.destroy()
    thread.join(LONG)
    assert [type(error) for error in caught] == [ContextLostError]


def test_exporting_and_submitting_need_a_gpu(cpu: MLContext) -> None:
    with pytest.raises(NotSupportedError, match="GPU"):
        cpu.create_tensor_sync("float32", SHAPE, exportable=True)
    with pytest.raises(InvalidStateError, match="CPU context"):
        cpu.submit([])
    with (
        pytest.raises(ValidationError, match="not created exportable"),
        cpu.export_to_gpu(tensor(cpu)),
    ):
        pass


class Circle:
    """What Python ends in any order, when it ends itself."""

    def __init__(self, *parts: object) -> None:
        self.parts = (self, *parts)


def leave_exports_open() -> None:
    gc.disable()
    for holds in (export, export_in_a_block):
        for keep in (None, threading):
            context = ml.create_context_sync(device_type="gpu")
            made = tensor(context, ONES, exportable=True)
            circle = Circle(context, made, holds(context, made))
            if keep is not None:
                setattr(keep, holds.__name__, circle)


def export(context: MLContext, made: MLTensor) -> object:
    entered = context.export_to_gpu(made)
    entered.__enter__()
    return entered


def export_in_a_block(context: MLContext, made: MLTensor) -> object:
    def generator() -> Iterator[None]:
        with context.export_to_gpu(made):
            yield

    begun = generator()
    next(begun)
    return begun


@pytest.mark.parametrize("native", ["0", "1"])
def test_exports_that_are_never_left_end_with_the_process(gpu: MLContext, native: str) -> None:
    assert not run_alone(leave_exports_open, WEBNN_NATIVE=native)


def test_an_export_that_is_never_left_goes_on(gpu: MLContext) -> None:
    made = tensor(gpu, ONES, exportable=True)
    export(gpu, made)
    gc.collect()
    with pytest.raises(InvalidStateError, match="exported"):
        gpu.read_tensor_sync(made)


def test_a_rental_ends_once_and_can_begin_again(gpu: MLContext) -> None:
    made = gpu.create_tensor_sync("float32", SHAPE, exportable=True, readable=True)
    rental = gpu.export_to_gpu(made)
    with rental as buffer:
        assert buffer.size == 24
        with pytest.raises(InvalidStateError, match="is exported"), rental:
            pytest.fail("it was lent twice")
        with pytest.raises(InvalidStateError, match="is exported"):
            gpu.read_tensor_sync(made)
    rental.__exit__(None, None, None)
    assert not gpu.read_tensor_sync(made).any()
    with rental as again:
        assert again.size == 24
    made.destroy()
    with pytest.raises(ValidationError, match="destroyed"), rental:
        pytest.fail("it was lent when it was destroyed")
