"""Sizes that contents of tensors decide: the graphs give ONNX Runtime's outputs on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.tensors import ONES, tensor
from tests.graphs import doubling
from tests.onnx.models import model
from tests.onnx.voice_model import voice
from webnn_py import (
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    NotSupportedError,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)
from webnn_py.api.view.facts import facts_of
from webnn_py.onnx import add_to, load

Feeds = Mapping[str, Any]

CHOSEN = """
    g (float[n, 3] x) => (int64[r, k] places, float[k] values) {
        places = NonZero (x)
        rows = Transpose <perm = [1, 0]> (places)
        found = GatherND (x, rows)
        values = Neg (found)
    }"""
FIRST = """
    g (float[2, n] x, int64[1] k) => (float[2, m] values, int64[2, m] places) {
        values, places = TopK (x, k)
    }"""
COUNTED = """
    g (int64[n] x) => (int64[m] y) {
        first = Constant <value_int = 3> ()
        step = Constant <value_int = 2> ()
        total = ReduceSum <keepdims = 0> (x)
        y = Range (first, total, step)
    }"""
FRACTIONS = """
    g (float[n] x) => (float[m] y) {
        first = Constant <value_float = 0.0> ()
        step = Constant <value_float = 1.0> ()
        total = ReduceSum <keepdims = 0> (x)
        numbers = Range (first, total, step)
        y = Mul (numbers, numbers)
    }"""
COMPRESSED = """
    g (float[n, 4] x, bool[n] keep) => (float[m, 4] y) {
        kept = Compress <axis = 0> (x, keep)
        y = Exp (kept)
    }"""
SHAPED = """
    g (float[2, 1] x, int64 count) => (float[m, 2, c] y) {
        axes = Constant <value_ints = [0]> ()
        two = Constant <value_ints = [2]> ()
        wide = Unsqueeze (count, axes)
        shape = Concat <axis = 0> (wide, two, wide)
        y = Expand (x, shape)
    }"""
TWICE = """
    g (float[n] x) => (float[m] y, float[k] z) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        total = ReduceSum <keepdims = 0> (x)
        count = Cast <to = 7> (total)
        numbers = Range (zero, count, one)
        y = Cast <to = 1> (numbers)
        odd = Sin (y)
        half = Constant <value_float = 0.5> ()
        large = Greater (odd, half)
        z = Compress (y, large)
    }"""
SLICED = """
    g (float[n] x, float[n] other) => (float[m] y, float[k, 2] z) {
        start = Constant <value_ints = [0]> ()
        axes = Constant <value_ints = [0]> ()
        total = ReduceSum <keepdims = 0> (other)
        count = Cast <to = 7> (total)
        end = Unsqueeze (count, axes)
        front = Slice (x, start, end)
        y = Neg (front)
        two = Constant <value_ints = [2]> ()
        shape = Concat <axis = 0> (end, two)
        zero = Constant <value_float = 0.5> ()
        z = Expand (zero, shape)
    }"""
EQUAL = """
    g (float[n] x) => (float[n] y) {
        zero = Constant <value_float = 0.0> ()
        below = Less (x, zero)
        above = Greater (x, zero)
        low_places = NonZero (below)
        high_places = NonZero (above)
        low_rows = Transpose <perm = [1, 0]> (low_places)
        high_rows = Transpose <perm = [1, 0]> (high_places)
        low = GatherND (x, low_rows)
        high = GatherND (x, high_rows)
        updates = Sub (high, low)
        y = ScatterND (x, low_rows, updates)
    }"""
MASKED = """
    g (float[n, 3] x, float[n, 3] other) => (float[n, 3] y) {
        zero = Constant <value_float = 0.0> ()
        start = Constant <value_ints = [0]> ()
        first = Constant <value_int = 0> ()
        mask = Greater (x, zero)
        places = NonZero (mask)
        rows = Transpose <perm = [1, 0]> (places)
        chosen = GatherND (x, rows)
        roots = Sqrt (chosen)
        shape = Shape (other)
        again = Expand (mask, shape)
        places_again = NonZero (again)
        rows_again = Transpose <perm = [1, 0]> (places_again)
        sizes = Shape (rows_again)
        count = Gather (sizes, first)
        end = Unsqueeze (count, start)
        updates = Slice (roots, start, end, start)
        y = ScatterND (other, rows_again, updates)
    }"""
GRID = """
    g (float[n, 3] x) => (float[n, 3] y) {
        zero = Constant <value_float = 0.0> ()
        mask = Less (x, zero)
        places = NonZero (mask)
        rows = Transpose <perm = [1, 0]> (places)
        chosen = GatherND (x, rows)
        axes = Constant <value_ints = [1]> ()
        wide = Unsqueeze (chosen, axes)
        pads = Constant <value_ints = [0, 1, 0, 1]> ()
        padded = Pad (wide, pads)
        first = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        sizes = Shape (padded)
        count = Gather (sizes, first)
        numbers = Range (first, count, one)
        column = Unsqueeze (numbers, axes)
        two = Constant <value_ints = [2]> ()
        column_shape = Shape (column)
        twos = Expand (two, column_shape)
        grid = Concat <axis = -1> (column, twos)
        negated = Neg (chosen)
        filled = ScatterND (padded, grid, negated)
        powers = Exp (filled)
        updates = ReduceSum <keepdims = 0> (powers, axes)
        y = ScatterND (x, rows, updates)
    }"""
NUMBERED = """
    g (float[n] x) => (float[n] y) {
        zero = Constant <value_float = 0.0> ()
        first = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        mask = Less (x, zero)
        places = NonZero (mask)
        rows = Transpose <perm = [1, 0]> (places)
        sizes = Shape (rows)
        count = Gather (sizes, first)
        numbers = Range (first, count, one)
        updates = Cast <to = 1> (numbers)
        y = ScatterND (x, rows, updates)
    }"""
BOXES = """
    g (float[1, n, 4] boxes, float[1, 2, n] scores) => (int64[m, 3] places, float[m, 4] y) {
        most = Constant <value_int = 3> ()
        overlap = Constant <value_float = 0.4> ()
        least = Constant <value_float = 0.2> ()
        places = NonMaxSuppression (boxes, scores, most, overlap, least)
        first = Constant <value_ints = [0, 2]> ()
        rows = Gather <axis = 1> (places, first)
        y = GatherND (boxes, rows)
    }"""
DETECTOR = """
    g (float[1, 4, n] boxes, float[1, 3, n] logits)
        => (float[k, 4] best, float[k] score, int64[k] kind) {
        most = Constant <value_int = 20> ()
        overlap = Constant <value_float = 0.5> ()
        least = Constant <value_float = 0.3> ()
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        ten = Constant <value_ints = [10]> ()
        rows = Transpose <perm = [0, 2, 1]> (boxes)
        scores = Sigmoid (logits)
        found = NonMaxSuppression <center_point_box = 1> (rows, scores, most, overlap, least)
        kinds = Gather <axis = 1> (found, one)
        numbers = Gather <axis = 1> (found, two)
        number = Squeeze (numbers, one)
        classes = Squeeze (kinds, one)
        all_boxes = Squeeze (rows, zero)
        all_scores = Squeeze (scores, zero)
        places = Concat <axis = 1> (kinds, numbers)
        chosen = Gather <axis = 0> (all_boxes, number)
        chosen_scores = GatherND (all_scores, places)
        count = Shape (chosen_scores)
        limit = Min (count, ten)
        score, order = TopK (chosen_scores, limit)
        best = Gather <axis = 0> (chosen, order)
        kind = Gather <axis = 0> (classes, order)
    }"""
rng = np.random.default_rng(7)
ROWS = rng.normal(size=(5, 3)).astype(np.float32)
COLUMN = np.float32([-1, 2, -3, -4, 5])
CASES: dict[str, tuple[str, list[Feeds]]] = {
    "NonZero": (CHOSEN, [{"x": np.round(ROWS)}, {"x": np.zeros_like(ROWS)}]),
    "TopK": (FIRST, [{"x": ROWS[:2], "k": np.array([2])}, {"x": ROWS[:2], "k": np.array([3])}]),
    "Range": (COUNTED, [{"x": np.array([7, 5])}, {"x": np.array([1, 1])}]),
    "Range of fractions": (FRACTIONS, [{"x": np.float32([2, 1.5])}, {"x": np.float32([0.5])}]),
    "Compress": (
        COMPRESSED,
        [{"x": np.ones((3, 4), np.float32), "keep": np.array([True, False, True])}],
    ),
    "Expand": (SHAPED, [{"x": ROWS[:2, :1], "count": np.array(n)} for n in (1, 4)]),
    "Slice": (
        SLICED,
        [{"x": COLUMN, "other": np.float32([n, 0, 0, 0, 0])} for n in (2, 1)],
    ),
    "two sizes that are equal": (EQUAL, [{"x": np.float32([-1, 2, 0, -3, 4])}]),
    "a size that another one decides": (TWICE, [{"x": np.float32([9, 2])}]),
    "the chosen ones": (
        MASKED,
        [{"x": x, "other": -ROWS} for x in (ROWS, np.abs(ROWS), -np.abs(ROWS))],
    ),
    "columns of the chosen ones": (GRID, [{"x": ROWS}, {"x": np.abs(ROWS)}]),
    "numbers of the chosen ones": (NUMBERED, [{"x": COLUMN}]),
}
CORNERS = rng.uniform(size=(1, 40, 4)).astype(np.float32)
LOGITS = rng.uniform(1, 3, size=(1, 3, 40)).astype(np.float32)
SCORES = rng.uniform(size=(1, 2, 40)).astype(np.float32)
CASES["boxes"] = BOXES, [{"boxes": CORNERS, "scores": scores} for scores in (SCORES, SCORES / 8)]
CASES["a detector"] = (
    DETECTOR,
    [
        {"boxes": CORNERS.transpose(0, 2, 1).copy(), "logits": logits}
        for logits in (LOGITS, -LOGITS)
    ],
)
ONE_GRAPH = {"the chosen ones", "columns of the chosen ones"}


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>' + text)


def test_listings_show_what_the_host_chooses(cpu: MLContext) -> None:
    graph = load(model_of(BOXES), cpu)
    facts = facts_of(graph, {})
    assert [tensor.name for tensor in facts.inputs] == [*graph.inputs]
    (choice,) = (node for node in facts.nodes if node.operator == "choose")
    assert choice.engine == "host"
    assert str(choice.outputs[0]) == "int64[places,3]"
    assert {node.engine for node in facts.nodes if node is not choice} == {facts.engine}


def computed(context: MLContext, graph: MLGraph, feeds: Feeds) -> dict[str, Any]:
    if context.device_type == "cpu":
        return MLExecution(context).compute(graph, feeds)
    return asyncio.run(awaited(context, graph, feeds))


async def awaited(context: MLContext, graph: MLGraph, feeds: Feeds) -> dict[str, Any]:
    return await MLAwaitedExecution(context).compute(graph, feeds)


@pytest.fixture(params=["reference", "onnxruntime", "openvino", "gpu"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    if request.param == "gpu":
        yield request.getfixturevalue("gpu")
        return
    pytest.importorskip(request.param if request.param != "reference" else "onnx")
    with ml.create_context_sync(device_type="cpu", engine=request.param) as context:
        yield context


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_onnx_runtime(case: str, anywhere: MLContext) -> None:
    runtime = pytest.importorskip("onnxruntime")
    text, runs = CASES[case]
    made = model_of(text)
    session = runtime.InferenceSession(made.SerializeToString())
    graph = load(made, anywhere)
    for feeds in runs:
        wanted = dict(zip(graph.outputs, session.run(None, feeds), strict=True))
        given = {n: a.astype(np.uint8) if a.dtype == np.bool_ else a for n, a in feeds.items()}
        found = computed(anywhere, graph, given)
        for name, array in wanted.items():
            assert found[name].shape == array.shape
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_choice_that_mixes_nothing_needs_no_sizes(
    case: str, cpu: MLContext, tmp_path: Path
) -> None:
    graph = load(model_of(CASES[case][0]), cpu)
    if case in ONE_GRAPH:
        assert {str(size) for shape in graph.inputs.values() for size in shape.shape} == {"n", "3"}
        assert graph.output_shapes({"n": 5}) == {"y": (5, 3)}
    else:
        with pytest.raises(NotSupportedError, match="contents decide the sizes"):
            graph.save(tmp_path / "unsaved.mlgraph")
        assert not list(tmp_path.iterdir())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 40)),
    most=st.integers(1, 9),
    overlap=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    least=st.sampled_from([None, 0.0, 0.4, 2.0]),
    centered=st.integers(0, 1),
)
def test_boxes_are_those_that_onnx_runtime_selects(
    seed: int,
    shape: tuple[int, int, int],
    most: int,
    overlap: float,
    least: float | None,
    centered: int,
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    batches, classes, count = shape
    numbers = np.random.default_rng(seed)
    # In few steps, so that scores are equal, and boxes touch or have no area.
    boxes = numbers.integers(-4, 5, size=(batches, count, 4)).astype(np.float32) / 4
    scores = numbers.integers(0, 5, size=(batches, classes, count)).astype(np.float32) / 4
    names = ["boxes", "scores", "most", "overlap", *(["least"] if least is not None else [])]
    node = onnx.helper.make_node("NonMaxSuppression", names, ["places"], center_point_box=centered)
    weights = {
        "most": np.int64([most]),
        "overlap": np.float32([overlap]),
        "least": np.float32([least or 0]),
    }
    made = model([node], {"boxes": boxes.shape, "scores": scores.shape}, ["places"], weights)
    feeds = {"boxes": boxes, "scores": scores}
    (wanted,) = runtime.InferenceSession(made.SerializeToString()).run(None, feeds)
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        found = MLExecution(context).compute(load(made, context), feeds)
    np.testing.assert_array_equal(found["places"], wanted)


def test_notebooks_show_the_whole_graph(cpu: MLContext) -> None:
    graph = load(model_of(CHOSEN), cpu)
    page = graph._repr_html_()
    for text in ("cumulative_sum", "gather_nd", "float32[n,3]", "int64[2,places]"):
        assert text in page
    assert "0 between" not in page
    assert ":count" not in page
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        MLExecution(cpu).compute(graph, {"x": ROWS})


@pytest.mark.parametrize("case", CASES)
def test_all_graphs_are_shown(case: str, cpu: MLContext) -> None:
    graph = load(model_of(CASES[case][0]), cpu)
    page = graph._repr_html_()
    assert all(str(size) in page for shape in graph.outputs.values() for size in shape.shape)
    assert set(graph.inputs) == set(CASES[case][1][0])


def test_awaited_results_are_the_same(cpu: MLContext) -> None:
    text, runs = CASES["NonZero"]
    graph = load(model_of(text), cpu)

    async def all_at_once() -> list[dict[str, Any]]:
        execution = MLAwaitedExecution(cpu)
        return list(await asyncio.gather(*(execution.compute(graph, feeds) for feeds in runs * 3)))

    for feeds, found in zip(runs * 3, asyncio.run(all_at_once()), strict=True):
        np.testing.assert_array_equal(found["places"], np.nonzero(feeds["x"]))


def test_timelines_order_all_stages(anywhere: MLContext) -> None:
    graph = load(model_of(CHOSEN), anywhere)
    line = Timeline()

    async def ordered() -> dict[str, Any]:
        execution = MLAwaitedExecution(anywhere)
        run = execution.compute(graph, {"x": np.round(ROWS)}, sync=[line(wait=1, signal=2)])
        task = asyncio.ensure_future(run)
        await asyncio.sleep(0.02)
        assert not task.done()
        line.signal(1)
        await asyncio.wait_for(line.wait_async(2), 20)
        return await task

    np.testing.assert_array_equal(asyncio.run(ordered())["places"], np.nonzero(np.round(ROWS)))


def test_no_other_work_comes_between_stages(anywhere: MLContext) -> None:
    """CHOSEN reads x in both stages, and writes its values in the second."""
    graph = load(model_of(CHOSEN), anywhere)
    x, values = tensor(anywhere, np.float32([[1, 0, 2]])), tensor(anywhere, np.zeros(2, np.float32))
    array = np.zeros(2, np.float32)

    async def ordered() -> None:
        execution = MLAwaitedExecution(anywhere)
        runs = [
            asyncio.ensure_future(execution.compute(graph, {"x": x}, {"values": to}))
            for to in (values, array)
        ]
        await asyncio.sleep(0)
        anywhere.write_tensor(x, np.float32([[5, 6, 0]]))
        read = await anywhere.read_tensor_async(values)
        np.testing.assert_array_equal(read, [-1, -2])
        for run in runs:
            np.testing.assert_array_equal((await run)["places"], [[0, 0], [0, 2]])
        np.testing.assert_array_equal(array, [-1, -2])
        found = await execution.compute(graph, {"x": x})
        np.testing.assert_array_equal(found["values"], [-5, -6])

    asyncio.run(asyncio.wait_for(ordered(), 60))


def test_stages_count_as_one_signaller(anywhere: MLContext) -> None:
    graph, feeds = load(model_of(CHOSEN), anywhere), {"x": np.float32([[1, 0, 2]])}
    execution = MLAwaitedExecution(anywhere)
    x, y, z = (tensor(anywhere, ONES) for _ in range(3))

    async def cycle(gate: Timeline, done: Timeline) -> None:
        other = doubling(anywhere)
        anywhere.dispatch(other, {"x": x}, {"y": y}, sync=[done(wait=1), gate(signal=1)])
        with pytest.raises(OperationError, match="can never run"):
            await execution.compute(graph, feeds, sync=[gate(wait=1), done(signal=1)])

    async def freed(first: Timeline, second: Timeline) -> None:
        gate, other = Timeline(), doubling(anywhere)
        points = [gate(wait=1), first(signal=1)]
        run = asyncio.ensure_future(execution.compute(graph, feeds, sync=points))
        await asyncio.sleep(0)
        anywhere.dispatch(other, {"x": x}, {"y": y}, sync=[first(wait=1), second(signal=1)])
        anywhere.dispatch(other, {"x": x}, {"y": z}, sync=[second(wait=1), first(signal=1)])
        gate.signal(1)
        await run
        assert first.value == 1
        np.testing.assert_array_equal(await anywhere.read_tensor_async(z), ONES * 2)

    for case in (cycle, freed):
        asyncio.run(asyncio.wait_for(case(Timeline(), Timeline()), 60))


def test_a_stage_that_fails_fails_the_waits_for_its_signal(cpu: MLContext) -> None:
    graph = load(model_of(COUNTED), cpu, bounds={"y": 4})
    line = Timeline()

    async def failed() -> None:
        run = MLAwaitedExecution(cpu).compute(graph, {"x": np.array([99])}, sync=[line(signal=1)])
        with pytest.raises(DataError, match="decide a size of 48"):
            await run
        with pytest.raises(OperationError, match="decide a size of 48"):
            await asyncio.wait_for(line.wait_async(1), 20)

    asyncio.run(failed())


def test_later_changes_of_an_awaited_input_have_no_effect(cpu: MLContext) -> None:
    graph = load(model_of(CHOSEN), cpu)

    async def changed() -> dict[str, Any]:
        x = np.float32([[1, 0, 2]])
        run = MLAwaitedExecution(cpu).compute(graph, {"x": x})
        x[:] = 0
        return await run

    np.testing.assert_array_equal(asyncio.run(changed())["values"], [-1, -2])


def test_results_go_where_the_caller_says(cpu: MLContext) -> None:
    graph = load(model_of(CHOSEN), cpu)
    target = np.zeros(8, np.float32)
    x = np.float32([[1, 0, 2]])
    found = MLExecution(cpu).compute(graph, {"x": x}, {"values": target})
    np.testing.assert_array_equal(target, [-1, -2, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(found["places"], [[0, 0], [0, 2]])


def test_a_bound_is_never_exceeded(cpu: MLContext) -> None:
    graph = load(model_of(COUNTED), cpu, bounds={"y": 4})
    assert MLExecution(cpu).compute(graph, {"x": np.array([11])})["y"].tolist() == [3, 5, 7, 9]
    with pytest.raises(DataError, match=r"y: the contents decide a size of 5, expected 1 to 4"):
        MLExecution(cpu).compute(graph, {"x": np.array([12])})
    graph = load(model_of(FIRST), cpu, bounds={"values": 100})
    assert graph.output_shapes({"n": 3, "values": 2})["places"] == (2, 2)
    with pytest.raises(DataError, match="the contents decide a size of -2, expected 1 to 100"):
        MLExecution(cpu).compute(graph, {"x": ROWS[:2], "k": np.array([-2])})
    with pytest.raises(ValidationError):
        MLExecution(cpu).compute(graph, {"x": ROWS[:2], "k": np.array([9])})


def test_a_bound_names_a_node_that_decides_a_size(cpu: MLContext) -> None:
    with pytest.raises(ValidationError, match=r"node 'z' decide no size; those of y do"):
        load(model_of(COUNTED), cpu, bounds={"z": 4})
    with pytest.raises(ValidationError, match=r"bounds\['y'\]: got 0, expected 1 to"):
        load(model_of(COUNTED), cpu, bounds={"y": 0})


NOISE = """
    g (int64[n] x) => (float[m, 2] y) {
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        total = ReduceSum <keepdims = 0> (x)
        numbers = Range (first, total, step)
        axes = Constant <value_ints = [1]> ()
        column = Unsqueeze (numbers, axes)
        two = Constant <value_ints = [1, 2]> ()
        wide = Expand (column, two)
        like = Cast <to = 1> (wide)
        noise = RandomNormalLike (like)
        y = Add (noise, like)
    }"""


def test_noise_may_be_longer_than_a_run_needs(cpu: MLContext) -> None:
    graph = load(model_of(NOISE), cpu)
    noise = rng.normal(size=(6, 2)).astype(np.float32)
    found = MLExecution(cpu).compute(graph, {"x": np.array([4]), "noise:noise": noise})["y"]
    np.testing.assert_allclose(found, noise[:4] + np.arange(4)[:, None], rtol=1e-6)
    with pytest.raises(DataError, match=r"'noise:noise': got shape \[6, 2\], and this run needs 7"):
        MLExecution(cpu).compute(graph, {"x": np.array([7]), "noise:noise": noise})


def test_a_size_has_the_bounds_that_all_nodes_accept(cpu: MLContext) -> None:
    text = COUNTED.replace("y = Range", "numbers = Range").replace(
        "numbers = Range (first, total, step)",
        """numbers = Range (first, total, step)
        shape = Shape (numbers)
        start = Constant <value_ints = [0]> ()
        table = Constant <value_ints = [9, 8, 7, 6]> ()
        part = Slice (table, start, shape)
        y = Add (numbers, part)""",
    )
    graph = load(model_of(text), cpu)
    assert MLExecution(cpu).compute(graph, {"x": np.array([8])})["y"].tolist() == [12, 13, 14]
    with pytest.raises(
        DataError, match="numbers: the contents decide a size of 5, expected 1 to 4"
    ):
        MLExecution(cpu).compute(graph, {"x": np.array([13])})


def test_sizes_that_are_used_together_must_be_equal(cpu: MLContext) -> None:
    graph = load(model_of(EQUAL), cpu)
    with pytest.raises(DataError, match="a size of 2, expected 1, as those of low_places decide"):
        MLExecution(cpu).compute(graph, {"x": np.float32([-1, 2, 0, 3])})


def test_no_elements_where_outputs_need_some_are_an_error(cpu: MLContext) -> None:
    text = CHOSEN.replace("float[k] values", "float values").replace(
        "values = Neg", "values = ReduceSum <keepdims = 0>"
    )
    graph = load(model_of(text), cpu)
    with pytest.raises(DataError, match="has no elements, and output 'values' depends on it"):
        MLExecution(cpu).compute(graph, {"x": np.zeros((2, 3), np.float32)})


def test_arguments_are_checked(cpu: MLContext) -> None:
    graph = load(model_of(COUNTED), cpu)
    with pytest.raises(DataError, match="unknown input 'z'; this graph has 'x'"):
        MLExecution(cpu).compute(graph, {"x": np.array([9]), "z": np.array([9])})
    with pytest.raises(DataError, match="unknown output 'z'; this graph has 'y'"):
        MLExecution(cpu).compute(graph, {"x": np.array([9])}, {"z": np.array([9])})
    with pytest.raises(DataError, match="input 'x' is missing"):
        MLExecution(cpu).compute(graph, {})
    with pytest.raises(NotSupportedError, match="option 'batch'"):
        asyncio.run(_batched(cpu, graph))


async def _batched(context: MLContext, graph: MLGraph) -> None:
    await MLAwaitedExecution(context, batch="n").compute(graph, {"x": np.array([9])})


def test_a_builder_has_no_sizes_that_contents_decide(cpu: MLContext) -> None:
    for text in (CHOSEN, FIRST):
        with pytest.raises(NotSupportedError, match="must be known at import"):
            add_to(MLGraphBuilder(cpu), model_of(text))


def test_a_voice_says_what_it_says_in_onnx_runtime(anywhere: MLContext) -> None:
    runtime = pytest.importorskip("onnxruntime")
    made = voice()
    session = runtime.InferenceSession(made.SerializeToString())
    graph = load(made, anywhere)
    draw = np.random.default_rng(5)
    for lengths in ([7], [5, 9], [1]):
        texts = draw.integers(0, 12, (len(lengths), max(lengths)))
        feeds = {"input": texts, "input_lengths": np.array(lengths)}
        feeds["scales"] = np.float32([0, 1.5, 0])  # noise differs between the two
        (wanted,) = session.run(None, feeds)
        noise = {
            "drawn:noise": np.ones((len(lengths), 1, max(lengths)), np.float32),
            "sound_drawn:noise": np.ones((len(lengths), 4, 999), np.float32),
        }
        found = computed(anywhere, graph, {**feeds, **noise})["output"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_only_the_length_of_a_voice_splits_its_graph(cpu: MLContext) -> None:
    graph = load(voice(), cpu, input_shapes={"batch_size": 1}, bounds={"time_places": 3})
    shapes = {name: [str(n) for n in one.shape] for name, one in graph.inputs.items()}
    assert shapes["drawn:noise"] == ["1", "1", "phonemes"]
    assert shapes["sound_drawn:noise"] == ["1", "4", "time_places"]
    feeds = {"input": np.zeros((1, 9), np.int64), "input_lengths": np.array([9])}
    feeds["scales"] = np.float32([0, 1, 0])
    noise = {"drawn:noise": np.zeros((1, 1, 9)), "sound_drawn:noise": np.zeros((1, 4, 3))}
    feeds |= {name: array.astype(np.float32) for name, array in noise.items()}
    with pytest.raises(
        DataError, match=r"time_places: the contents decide a size of \d+, expected 1 to 3"
    ):
        MLExecution(cpu).compute(graph, feeds)


ALONE = {
    "Tanh": "{y} = Tanh ({x})",
    "rows' softmax": "{y} = Softmax <axis = 1> ({x})",
    "running sums in rows": "{y} = CumSum ({x}, one)",
    "rows' maxima": "m{y} = ReduceMax ({x}, axis_1)  {y} = Sub ({x}, m{y})",
    "a product": "{y} = MatMul ({x}, weights)",
    "columns": "c{y} = Concat <axis = 1> ({x}, {x})  {y} = Slice (c{y}, axis_1, four, axis_1)",
    "a column": "r{y} = Reshape ({x}, column)  t{y} = Tanh (r{y})  {y} = Reshape (t{y}, rows_of_3)",
    "turned": "t{y} = Transpose ({x})  s{y} = Sin (t{y})  {y} = Transpose (s{y})",
}
TOGETHER = {
    "columns' softmax": "{y} = Softmax <axis = 0> ({x})",
    "running sums": "{y} = CumSum ({x}, first)",
    "the mean": "m{y} = ReduceMean ({x}, axis_0)  {y} = Sub ({x}, m{y})",
    "all products": "t{y} = Transpose ({x})  g{y} = MatMul (t{y}, {x})  {y} = MatMul ({x}, g{y})",
    "backwards": "{y} = Slice ({x}, last, farthest, axis_0, last)",
    "other rows": "t{y} = Reshape ({x}, columns_of_3)  s{y} = Transpose (t{y})  {y} = Neg (s{y})",
    "numbers": """f{y} = Cast <to = 1> (numbers)  u{y} = Unsqueeze (f{y}, axis_1)
        {y} = Add ({x}, u{y})""",
    "the count": "f{y} = Cast <to = 1> (count)  {y} = Div ({x}, f{y})",
    "the last row": "e{y} = Gather ({x}, last)  {y} = Sub ({x}, e{y})",
}


@pytest.mark.parametrize("seed", range(40))
def test_all_elements_are_computed_only_where_none_mix(seed: int, cpu: MLContext) -> None:
    runtime = pytest.importorskip("onnxruntime")
    draw = np.random.default_rng(seed)
    names = [*ALONE, *(TOGETHER if seed % 2 else ())]
    steps = [names[i] for i in draw.integers(0, len(names), 3)]
    body = "\n".join(
        (ALONE | TOGETHER)[step].format(x=f"v{i}", y=f"v{i + 1}") for i, step in enumerate(steps)
    )
    made = model_of(f"""
    g (float[n, 3] x, float[n] key, float[3, 3] weights) => (float[n, 3] y) {{
        zero = Constant <value_float = 0.0> ()
        first = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        axis_0 = Constant <value_ints = [0]> ()
        axis_1 = Constant <value_ints = [1]> ()
        four = Constant <value_ints = [4]> ()
        last = Constant <value_ints = [-1]> ()
        farthest = Constant <value_ints = [-9223372036854775807]> ()
        column = Constant <value_ints = [-1, 1]> ()
        rows_of_3 = Constant <value_ints = [-1, 3]> ()
        columns_of_3 = Constant <value_ints = [3, -1]> ()
        mask = Less (zero, key)
        places = NonZero (mask)
        rows = Transpose <perm = [1, 0]> (places)
        sizes = Shape (rows)
        count = Gather (sizes, first)
        numbers = Range (first, count, one)
        v0 = GatherND (x, rows)
        {body}
        y = ScatterND (x, rows, v{len(steps)})
    }}""")
    session = runtime.InferenceSession(made.SerializeToString())
    graph = load(made, cpu)
    if not {*steps} & {*TOGETHER}:
        assert graph.output_shapes({"n": 6}) == {"y": (6, 3)}
    for _ in range(3):
        key = draw.normal(size=6).astype(np.float32)
        key[draw.integers(6)] = 1
        feeds = {"x": draw.normal(size=(6, 3)), "key": key, "weights": draw.normal(size=(3, 3))}
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        (wanted,) = session.run(None, feeds)
        given = {name: feeds[name] for name in graph.inputs}
        found = MLExecution(cpu).compute(graph, given)["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
