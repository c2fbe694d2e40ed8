"""An output may be an input's own tensor, buffer or array: the input is read as it was before."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, read
from tests.backend.tensors import Parked, tensor
from tests.conftest import KINDS, context_of
from tests.graphs import awaited, build
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    Timeline,
    ValidationError,
)

ROWS, WIDE = 6, 4
STATE = np.arange(ROWS * WIDE, dtype=np.float32).reshape(ROWS, WIDE)


@pytest.fixture(scope="module", params=list(KINDS))
def each(request: pytest.FixtureRequest) -> Any:
    """A context of each engine."""
    with context_of(request, KINDS[request.param]) as context:
        yield context


def cumulative(context: MLContext) -> MLGraph:
    """next = state turned around and added to itself; sum = what the old state sums to.

    Every element of `next` depends on another element of the state than the one in its place.
    """

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        state = builder.input("state", "float32", STATE.shape)
        following = builder.add(state, builder.reverse(state, axes=[0]))
        return {"next": following, "sum": builder.reduce_sum(state, axes=[0])}

    return build(context, what)


def after(state: Any, times: int = 1) -> Any:
    for _ in range(times):
        state = state + state[::-1]
    return state


def test_a_tensor_is_read_as_it_was_and_written(each: MLContext) -> None:
    graph = cumulative(each)
    state, total = tensor(each, STATE), tensor(each, np.zeros(WIDE, np.float32))
    for _ in range(4):  # the third and later ones repeat recorded commands
        each.dispatch(graph, {"state": state}, {"next": state, "sum": total})
    np.testing.assert_array_equal(each.read_tensor_sync(state), after(STATE, 4))
    np.testing.assert_array_equal(each.read_tensor_sync(total), after(STATE, 3).sum(0))


def test_an_awaited_compute_of_tensors(each: MLContext) -> None:
    graph, state = cumulative(each), tensor(each, STATE)
    for turn in range(1, 4):
        made = awaited(graph, {"state": state}, {"next": state})
        assert made["next"] is state
        np.testing.assert_array_equal(made["sum"], after(STATE, turn - 1).sum(0))
        np.testing.assert_array_equal(each.read_tensor_sync(state), after(STATE, turn))


def test_an_awaited_compute_of_an_array(each: MLContext) -> None:
    graph, state = cumulative(each), STATE.copy()
    for turn in range(1, 4):
        made = awaited(graph, {"state": state}, {"next": state})
        np.testing.assert_array_equal(made["sum"], after(STATE, turn - 1).sum(0))
        np.testing.assert_array_equal(state, after(STATE, turn))


@pytest.mark.parametrize("engine", ["cpu", "reference", "openvino"])
def test_the_synchronous_mode(request: pytest.FixtureRequest, engine: str) -> None:
    with context_of(request, KINDS[engine]) as context:
        graph, execution, array = cumulative(context), MLExecution(context), STATE.copy()
        shared = np.concatenate([STATE.ravel(), np.zeros(3 * WIDE, np.float32)])
        state = tensor(context, STATE)
        for given in (array, state):
            made = execution.compute(graph, {"state": given}, {"next": given})
            np.testing.assert_array_equal(made["sum"], STATE.sum(0))
        np.testing.assert_array_equal(array, after(STATE))
        np.testing.assert_array_equal(context.read_tensor_sync(state), after(STATE))
        # An output that overlaps an input in part.
        source, target = shared[: STATE.size], shared[2 * WIDE : 2 * WIDE + STATE.size]
        execution.compute(graph, {"state": source}, {"next": target})
        np.testing.assert_array_equal(target.reshape(STATE.shape), after(STATE))


@pytest.mark.parametrize("offset", [0, 256, 16])
def test_a_buffer(gpu: MLContext, offset: int) -> None:
    graph = cumulative(gpu)
    contents = np.concatenate([np.zeros(offset // 4, np.float32), STATE.ravel()])
    buffer = buffer_of(gpu.device, contents)
    place = {"buffer": buffer, "offset": offset}
    made = awaited(graph, {"state": place}, {"next": place})
    np.testing.assert_array_equal(made["sum"], STATE.sum(0))
    np.testing.assert_array_equal(read(buffer, STATE.shape, offset=offset), after(STATE))


def test_parked_work_on_a_state_keeps_its_order(each: MLContext) -> None:
    """It is one writer: what reads the state later waits for it, and it waits for earlier reads."""
    graph, state = cumulative(each), tensor(each, STATE)
    total, later = (tensor(each, np.zeros(WIDE, np.float32)) for _ in range(2))
    timeline = Timeline()
    each.dispatch(
        graph, {"state": state}, {"next": state, "sum": total}, sync=[timeline(wait=1, signal=2)]
    )
    each.dispatch(graph, {"state": state}, {"next": state, "sum": later})
    assert timeline.value == 0
    timeline.signal(1)
    timeline.wait_sync(2, timeout=60)
    np.testing.assert_array_equal(each.read_tensor_sync(state), after(STATE, 2))
    np.testing.assert_array_equal(each.read_tensor_sync(later), after(STATE).sum(0))


def test_an_awaited_compute_waits_behind_parked_work(context: MLContext) -> None:
    graph, state = cumulative(context), tensor(context, STATE)

    async def main() -> None:
        held = Parked(context)
        execution = MLAwaitedExecution(context)
        runs = [
            asyncio.ensure_future(execution.compute(graph, {"state": state}, {"next": state}))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        held.timeline.signal(1)
        made = [await run for run in runs]
        for turn, each in enumerate(made):
            np.testing.assert_array_equal(each["sum"], after(STATE, turn).sum(0))

    asyncio.run(main())
    np.testing.assert_array_equal(context.read_tensor_sync(state), after(STATE, 3))


def test_swapped_states(each: MLContext) -> None:
    """Each of two outputs is the other input's tensor."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        a, b = (builder.input(name, "float32", STATE.shape) for name in "ab")
        return {"c": builder.add(a, b), "d": builder.sub(a, b)}

    graph = build(each, what)
    a, b = tensor(each, STATE), tensor(each, 2 * STATE)
    each.dispatch(graph, {"a": a, "b": b}, {"c": b, "d": a})
    np.testing.assert_array_equal(each.read_tensor_sync(b), 3 * STATE)
    np.testing.assert_array_equal(each.read_tensor_sync(a), -STATE)


def test_two_outputs_are_not_one_state(each: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        a = builder.input("a", "float32", STATE.shape)
        return {"c": builder.add(a, a), "d": builder.mul(a, a)}

    graph, state = build(each, what), tensor(each, STATE)
    with pytest.raises(ValidationError, match="outputs 'c' and 'd' share memory"):
        each.dispatch(graph, {"a": state}, {"c": state, "d": state})
