"""Graphs that run on several engines: what users give and get, and what happens to the memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, awaited, build
from tests.toy_engines import Array, Computed, Partial, context_on, running
from tests.unit.passes.listings import printed
from webnn_py import (
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    MLTensor,
    OperationError,
)
from webnn_py.engines import HostEngine, HostExecutable

X = np.arange(6, dtype=np.float32).reshape(2, 3)
DOUBLE, SUM, TRIPLED = X * 2, X * 2 + X, (X * 2 + X) * 3


def mixed(b: MLGraphBuilder) -> dict[str, MLOperand]:
    """Toy, reference, toy: `double` and `sum` are results, and read by others."""
    x = b.input("x", "float32", [2, 3])
    double = b.mul(x, b.constant(2.0, "float32"), label="double")
    total = b.add(double, x, label="total")
    tripled = b.mul(total, b.constant(3.0, "float32"), label="triple")
    return {"double": double, "sum": total, "again": total, "tripled": tripled}


@pytest.fixture
def context() -> Iterator[MLContext]:
    """One whose engine multiplies."""
    with context_on(Partial("toy", running("mul"))) as made:
        yield made


@pytest.fixture
def graph(context: MLContext) -> MLGraph:
    made = build(context, mixed)
    assert str(made).count("# engine") == 3
    return made


def tensors_of(context: MLContext, graph: MLGraph) -> tuple[MLTensor, dict[str, MLTensor]]:
    """One that holds X, and one for each output."""
    x = context.create_tensor_sync("float32", [2, 3], writable=True)
    context.write_tensor(x, X)
    names = graph.outputs
    return x, {n: context.create_tensor_sync("float32", [2, 3], readable=True) for n in names}


def assert_right(results: dict[str, Any]) -> None:
    expected = {"double": DOUBLE, "sum": SUM, "again": SUM, "tripled": TRIPLED}
    assert list(results) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


def test_the_listing_says_which_engine_runs_what(graph: MLGraph) -> None:
    assert str(graph).splitlines() == [
        "graph(%x: float32[2,3]) {",
        "  %c0: float32[] constant = 2.0",
        "  %c1: float32[] constant = 3.0",
        "  # engine toy",
        '  %0: float32[2,3] = mul(%x, %c0)  "double"',
        "  # engine reference",
        '  %1: float32[2,3] = add(%0, %x)  "total"',
        "  # engine toy",
        '  %2: float32[2,3] = mul(%1, %c1)  "triple"',
        "  return double=%0, sum=%1, again=%1, tripled=%2",
        "}",
    ]
    listing = str(graph)
    graph.destroy()
    assert str(graph) == listing


def test_a_listing_says_so_where_another_engine_runs_all(context: MLContext) -> None:
    def sums(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [2])
        return {"y": b.add(x, x)}

    assert "\n  # engine reference\n  %0" in str(build(context, sums))


def test_each_segment_is_described(context: MLContext) -> None:
    with printed(3) as text:
        build(context, mixed)
    steps = text.getvalue().split("# steps\n")[-1]
    first, second, _ = steps.split("\n# engine ")
    assert first.startswith("# engine toy\ngraph(%x: float32[2,3]) {")
    assert second.startswith("reference\ngraph(%in0: float32[2,3], %x: float32[2,3]) {")


def test_all_modes_run(context: MLContext, graph: MLGraph) -> None:
    assert_right(MLExecution(context).compute(graph, {"x": X}))
    assert_right(awaited(graph, {"x": X}))
    x = context.create_tensor_sync("float32", [2, 3], writable=True)
    outputs = {
        name: context.create_tensor_sync("float32", [2, 3], readable=True) for name in graph.outputs
    }
    context.write_tensor(x, X)
    context.dispatch(graph, {"x": x}, outputs)
    assert_right({name: context.read_tensor_sync(tensor) for name, tensor in outputs.items()})


@pytest.mark.parametrize("name", ["double", "sum", "again", "tripled"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.empty((2, 3), np.float32),
        lambda x: np.empty((3, 2), np.float32).T,
        lambda x: np.empty((2, 6), np.float32)[:, ::2],
        lambda x: np.empty((2, 3), np.float32)[::-1],
        lambda x: np.empty(25, np.uint8)[1:].view(np.float32).reshape(2, 3),  # not aligned
        lambda x: x,
    ],
    ids=["plain", "transposed", "strided", "reversed", "unaligned", "the input"],
)
def test_an_output_is_written_in_place(
    context: MLContext, graph: MLGraph, name: str, make: Callable[[Array], Array]
) -> None:
    x = X.copy()
    target = make(x)
    results = MLExecution(context).compute(graph, {"x": x}, {name: target})
    assert results[name] is target
    assert_right(results)


def test_an_output_may_lie_over_a_part_of_an_input(context: MLContext, graph: MLGraph) -> None:
    memory = np.zeros(12, np.float32)
    x = memory[:6].reshape(2, 3)
    x[:] = X
    targets = {"double": memory[3:9].reshape(2, 3)}
    assert_right(MLExecution(context).compute(graph, {"x": x}, targets))


def test_one_value_fills_the_outputs_of_both_its_names(context: MLContext, graph: MLGraph) -> None:
    outputs = {"sum": np.empty((3, 2), np.float32).T, "again": np.empty((2, 3), np.float32)}
    results = MLExecution(context).compute(graph, {"x": X}, outputs)
    assert results["sum"] is outputs["sum"]
    assert results["again"] is outputs["again"]
    assert_right(results)


def test_an_input_that_is_not_aligned_is_copied(context: MLContext, graph: MLGraph) -> None:
    """Such as memory of another library's that a tensor was made over."""
    shifted = np.empty(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    shifted[:] = X
    x, outputs = context.from_dlpack(shifted), tensors_of(context, graph)[1]
    context.dispatch(graph, {"x": x}, outputs)
    assert_right({name: context.read_tensor_sync(tensor) for name, tensor in outputs.items()})


def test_an_engine_alone_is_given_plain_memory() -> None:
    """Also where it runs the whole graph, and one value under two names."""

    def doubled(b: MLGraphBuilder) -> dict[str, MLOperand]:
        y = b.mul(b.input("x", "float32", [2, 3]), b.constant(2.0, "float32"))
        return {"y": y, "again": y}

    with context_on(Partial("toy", lambda node: True)) as context:
        graph, x = build(context, doubled), X.copy()
        target = np.empty((3, 2), np.float32).T
        results = MLExecution(context).compute(graph, {"x": x}, {"y": target})
        np.testing.assert_array_equal(target, DOUBLE)
        np.testing.assert_array_equal(results["again"], DOUBLE)
        MLExecution(context).compute(graph, {"x": x}, {"y": x})
        np.testing.assert_array_equal(x, DOUBLE)


def test_one_graph_runs_on_many_threads(context: MLContext, graph: MLGraph) -> None:
    def once(number: int) -> None:
        results = MLExecution(context).compute(graph, {"x": X + number})
        np.testing.assert_array_equal(results["sum"], 3 * (X + number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, range(200)))


class Watched(HostExecutable):
    """Notes how many of the arrays that were written before are still there."""

    def __init__(self, executable: HostExecutable, seen: list[Any], alive: list[int]) -> None:
        self._executable, self._seen, self._alive = executable, seen, alive

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._seen += [weakref.ref(array) for array in outputs]
        self._alive.append(sum(array() is not None for array in self._seen))
        self._executable.run(inputs, outputs)

    def describe(self) -> str:
        return ""


class Watching(Partial):
    """An engine whose executables are watched."""

    def __init__(self, seen: list[Any], alive: list[int]) -> None:
        super().__init__("watching", running("relu"))
        self._ends = seen, alive

    def compile(self, graph: Any) -> HostExecutable:
        return Watched(super().compile(graph), *self._ends)


def test_values_are_dropped_after_their_last_use() -> None:
    alive: list[int] = []

    def chain(b: MLGraphBuilder) -> dict[str, MLOperand]:
        y = b.input("x", "float32", [1000])
        for _ in range(10):
            y = b.neg(b.relu(b.add(y, y)))
        return {"y": y}

    with context_on(Watching([], alive)) as context:
        graph = build(context, chain)
        gc.collect()
        MLExecution(context).compute(graph, {"x": np.ones(1000, np.float32)})
    assert alive == [1] * 10


class Failing(HostEngine):
    """Runs products, and fails where it is told to."""

    name = "failing"

    def __init__(self) -> None:
        self.fails: str | None = None

    def supports(self, node: Any) -> bool:
        return running("mul")(node)

    def compile(self, graph: Any) -> HostExecutable:
        if self.fails == "compile":
            raise KeyError("no such thing")
        if self.fails == "type":
            return object()  # type: ignore[return-value]
        return _FailingRun(self, graph)


class _FailingRun(HostExecutable):
    def __init__(self, engine: Failing, graph: Any) -> None:
        self._engine = engine
        self._label = graph.nodes[-1].label
        self._executable = Computed(graph)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if self._engine.fails == self._label:
            raise ZeroDivisionError("by nought")
        self._executable.run(inputs, outputs)

    def describe(self) -> str:
        return ""


@pytest.mark.parametrize("label", ["double", "triple"])
def test_what_an_engine_raises_is_an_operation_error(label: str) -> None:
    engine = Failing()
    with context_on(engine) as context:
        graph = build(context, mixed)
        tensors = {
            n: context.create_tensor_sync("float32", [2, 3], readable=True) for n in graph.outputs
        }
        x = context.create_tensor_sync("float32", [2, 3], writable=True)
        context.write_tensor(x, X)
        engine.fails = label
        message = "engine 'failing': ZeroDivisionError: by nought"
        with pytest.raises(OperationError, match=message) as raised:
            MLExecution(context).compute(graph, {"x": X})
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        with pytest.raises(OperationError, match=message):
            awaited(graph, {"x": X})
        context.dispatch(graph, {"x": x}, tensors)
        for tensor in tensors.values():
            with pytest.raises(OperationError, match=message):
                context.read_tensor_sync(tensor)
        engine.fails = None
        assert_right(MLExecution(context).compute(graph, {"x": X}))
        context.dispatch(graph, {"x": x}, tensors)
        assert_right({name: context.read_tensor_sync(tensor) for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("compile", "engine 'failing' cannot compile: KeyError: 'no such thing'"),
        ("type", "engine 'failing': `compile` gave object, expected a HostExecutable"),
    ],
)
def test_what_cannot_be_compiled_is_an_operation_error(fails: str, message: str) -> None:
    engine = Failing()
    engine.fails = fails
    with context_on(engine) as context, pytest.raises(OperationError, match=message):
        build(context, mixed)


# What engines say of themselves


def composites(b: MLGraphBuilder) -> dict[str, MLOperand]:
    x = b.input("x", "float32", [2, 3])
    return {"y": b.softmax(x, 1), "z": b.layer_normalization(x, axes=[1])}


def test_composites_are_taken_apart_where_the_engine_does_not_run_them() -> None:
    with context_on(Partial("toy", running("softmax", "exp"))) as context:
        kept = str(build(context, composites))
        assert "= softmax(" in kept
        assert "= layer_normalization(" not in kept
    with context_on(Partial("toy", running("exp"))) as context:
        apart = build(context, composites)
        assert "= softmax(" not in str(apart)
        results = MLExecution(context).compute(apart, {"x": ONES})
        np.testing.assert_allclose(results["y"], 1 / 3, rtol=1e-6)


def test_an_engine_chooses_its_passes() -> None:
    engine = Partial("toy", running("exp"))
    engine.passes = ()
    with context_on(engine) as context:
        listing = str(build(context, composites))
    assert "= softmax(" in listing
    assert "= layer_normalization(" in listing


def test_crossing_cost_counts() -> None:
    for cost, expected in ((12, "# engine toy"), (999, "# engine reference")):
        with context_on(Partial("toy", running("mul"), crossing_cost=cost)) as context:
            lines = str(build(context, mixed)).splitlines()
        assert next(line for line in lines if "#" in line).strip() == expected


def test_a_context_takes_what_the_reference_behind_its_engine_takes(cpu: MLContext) -> None:
    with context_on(Partial("toy", lambda node: False)) as context:
        assert context.op_support_limits() == cpu.op_support_limits()
