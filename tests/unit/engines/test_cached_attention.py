"""Attention over caches: CPU engines read the rows in use and write new ones in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, MLOperand, ml
from webnn_py.api.compiled import compiled_of
from webnn_py.engines.base import HostExecutable
from webnn_py.engines.onnxruntime.attention import counts_new_rows

HEADS, SHARED, SIZE, KEYS, TABLE = 6, 2, 16, 24, 40
ENDS = ["keys after", "values after"]


@dataclass(frozen=True)
class Case:
    """A step of a decoder.

    Attributes:
        batch: Number of texts, which may be open.
        rows: Number of new tokens, which may be open.
        rotary: How queries and keys are rotated: not, by halves, or side by side.
        split: Whether the heads are split as models split them.
        options: Further options of the attention.
        also: What else reads a cache: nothing, or a node.
        size: Number of elements of a head.
        table: Number of positions that the tables of angles have.
    """

    batch: int | str = 3
    rows: int | str = 2
    rotary: str = "halves"
    split: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    also: str = ""
    size: int = SIZE
    table: int = TABLE

    def built(self, context: MLContext) -> MLGraph:
        b = MLGraphBuilder(context)
        ends = {
            name: b.input(name, "float32", [self.batch, self.rows, count * self.size])
            if self.split
            else b.input(name, "float32", [self.batch, count, self.rows, self.size])
            for name, count in (("query", HEADS), ("key", SHARED), ("value", SHARED))
        }
        starts = b.input("starts", "int32", [self.batch])
        caches = [
            b.input(name, "float32", [self.batch, SHARED, KEYS, self.size])
            for name in ("keys", "values")
        ]
        batch, rows = caches[0].shape[0], ends["query"].shape[-2 if not self.split else 1]

        def heads(x: MLOperand) -> MLOperand:
            if not self.split:
                return x
            apart = b.reshape(x, [batch, rows, x.shape[2] // self.size, self.size])
            return b.transpose(apart, permutation=[0, 2, 1, 3])

        ones = b.expand(b.constant(np.ones(1, np.int32)), [rows])
        count = b.slice(b.cumulative_sum(ones, 0, reversed=True), [0], [1])
        places = b.add(
            b.reshape(b.cumulative_sum(ones, 0, exclusive=True), [1, rows]),
            b.reshape(starts, [batch, 1]),
        )
        q, k, v = map(heads, ends.values())
        if self.rotary:
            angles = np.outer(np.arange(self.table), 9.0 ** -np.linspace(0, 1, self.size // 2))
            tables = [b.constant(one(angles).astype(np.float32)) for one in (np.cos, np.sin)]
            beside = self.rotary == "side by side"
            q, k = (
                b.rotary_embedding(x, *tables, positions=places, interleaved=beside) for x in (q, k)
            )
        keys, values = (
            b.scatter_rows(cache, x, starts) for cache, x in zip(caches, (k, v), strict=True)
        )
        lengths = b.add(starts, count)
        y = b.scaled_dot_product_attention(
            q, keys, values, causal=True, lengths=lengths, **dict(self.options)
        )
        turned = b.transpose(y, permutation=[0, 2, 1, 3])
        outputs = {"y": b.reshape(turned, [batch, rows, HEADS * self.size]) if self.split else y}
        outputs |= dict(zip(ENDS, (keys, values), strict=True))
        if self.also == "a node":
            outputs["also"] = b.relu(keys)
        return b.build_sync(outputs)


CASES = {
    "step": Case(rows=1),
    "several rows": Case(),
    "one text": Case(batch=1, rows=5),
    "side by side": Case(rotary="side by side"),
    "no rotation": Case(rotary=""),
    "heads already": Case(split=False),
    "window": Case(options=(("window", 3),)),
    "softcap": Case(options=(("softcap", 1.5), ("scale", 0.4))),
    "open": Case(batch="batch", rows="rows"),
    "heads of 8": Case(size=8, split=False),
    "heads of 6": Case(size=6, split=False),
    "short tables": Case(table=7),
    "more rows than in tables": Case(rows=9, table=5, split=False),
    "another reader": Case(also="a node"),
}


def arguments(
    batch: int, rows: int, split: bool, starts: Any, seed: int = 1, size: int = SIZE
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    counts = {"query": HEADS, "key": SHARED, "value": SHARED}
    given: dict[str, Any] = {
        name: rng.normal(size=[batch, rows, count * size] if split else [batch, count, rows, size])
        for name, count in counts.items()
    }
    given |= {name: rng.normal(size=[batch, SHARED, KEYS, size]) for name in ("keys", "values")}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    return given | {"starts": np.asarray(starts, np.int32)}


def executable(graph: MLGraph, given: dict[str, Any], context: MLContext) -> HostExecutable:
    compiled = compiled_of(graph)
    made = compiled.check_usable(context._session).get(compiled.fixed(given)[1]).executable
    assert isinstance(made, HostExecutable)
    return made


@pytest.fixture(scope="module")
def ort() -> Any:
    with ml.create_context_sync(engine="onnxruntime") as context:
        yield context


@pytest.fixture(scope="module", params=["onnxruntime", "openvino", "reference"])
def each(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip({"reference": "numpy"}.get(request.param, request.param))
    with ml.create_context_sync(engine=request.param) as context:
        yield context


@pytest.fixture(scope="module")
def reference() -> Any:
    with ml.create_context_sync(engine="reference") as context:
        yield context


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_reference(name: str, each: MLContext, reference: MLContext) -> None:
    case = CASES[name]
    graphs = [case.built(context) for context in (each, reference)]
    batch = case.batch if isinstance(case.batch, int) else 2
    rows = case.rows if isinstance(case.rows, int) else 3
    for turn, starts in enumerate(([0, 9, KEYS - rows], [4, 0, 7])):
        given = arguments(batch, rows, case.split, starts[:batch], turn, case.size)
        found, wanted = (
            MLExecution(context).compute(graph, given)
            for context, graph in zip((each, reference), graphs, strict=True)
        )
        for end in wanted:
            np.testing.assert_allclose(found[end], wanted[end], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].also])
def test_caches_are_written_in_place(name: str, each: MLContext, reference: MLContext) -> None:
    case = CASES[name]
    graph, other = case.built(each), case.built(reference)
    batch = case.batch if isinstance(case.batch, int) else 2
    rows = case.rows if isinstance(case.rows, int) else 3
    given = arguments(batch, rows, case.split, [3, 0, 5][:batch], size=case.size)
    made = executable(graph, given, each)
    inner = getattr(made, "_executable", made)
    names = list(graph.inputs)
    is_copied = each.engine == "openvino" and name == "window"
    is_copied |= each.engine == "onnxruntime" and (not counts_new_rows() or case.size % 8 != 0)
    states = {1: names.index("keys"), 2: names.index("values")}
    assert inner.in_place == ({} if is_copied else states)
    wanted = MLExecution(reference).compute(other, given)
    caches = {end: given[end.split()[0]] for end in ENDS}
    found = MLExecution(each).compute(graph, given, caches)
    for end in ENDS:
        assert found[end] is caches[end]
        np.testing.assert_allclose(caches[end], wanted[end], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=2e-6)


def joined(context: MLContext, batch: int | str, rows: int | str) -> MLGraph:
    """A step that reads two caches with the new rows behind them, as exported models do."""
    b = MLGraphBuilder(context)
    starts, outputs = b.input("starts", "int32", [batch]), {}
    for name in ("keys", "values"):
        cache = b.input(name, "float32", [batch, SHARED, KEYS, SIZE])
        made = b.input(name[:-1], "float32", [batch, SHARED, rows, SIZE])
        both = b.concat([cache, b.tanh(made)], 2)
        new = b.slice(both, [0, 0, KEYS, 0], made.shape)
        outputs[f"{name} sum"] = b.reduce_sum(both, axes=[2])
        outputs[f"{name} after"] = b.scatter_rows(cache, new, starts)
    return b.build_sync(outputs)


@pytest.mark.parametrize("sizes", [(2, 3), ("batch", "rows")])
def test_caches_that_other_nodes_read_first_are_written_in_place(
    sizes: tuple[Any, Any], each: MLContext, reference: MLContext
) -> None:
    rng = np.random.default_rng(5)
    given = {
        name: rng.normal(size=[2, SHARED, rows, SIZE]).astype(np.float32)
        for name, rows in (("keys", KEYS), ("values", KEYS), ("key", 3), ("value", 3))
    }
    given["starts"] = np.array([4, KEYS - 3], np.int32)
    wanted = MLExecution(reference).compute(joined(reference, *sizes), given)
    graph = joined(each, *sizes)
    made = executable(graph, given, each)
    inner = getattr(made, "_executable", made)
    names, ends = list(graph.inputs), list(graph.outputs)
    assert inner.in_place == {ends.index(end): names.index(end.split()[0]) for end in ENDS}
    found = MLExecution(each).compute(graph, given, {end: given[end.split()[0]] for end in ENDS})
    assert found["keys after"] is given["keys"]
    for end in wanted:
        np.testing.assert_allclose(found[end], wanted[end], rtol=1e-5, atol=2e-6)


def test_other_readers_of_a_cache_see_all_its_rows(ort: MLContext) -> None:
    case = CASES["another reader"]
    given = arguments(3, 2, True, [0, 1, 2])
    graph = case.built(ort)
    made = executable(graph, given, ort)
    assert not getattr(made, "_executable", made).in_place


@pytest.mark.parametrize("engine", ["onnxruntime", "reference", "openvino"])
def test_bound_arrays_are_read_and_written_each_time(
    engine: str, request: pytest.FixtureRequest, reference: MLContext
) -> None:
    pytest.importorskip({"reference": "numpy"}.get(engine, engine))
    case = CASES["several rows"]
    with ml.create_context_sync(engine=engine) as context:
        graph, other = case.built(context), case.built(reference)
        given = arguments(3, 2, True, [3, 0, 5])
        made = executable(graph, given, context)
        outputs = [np.empty((3, 2, HEADS * SIZE), np.float32), given["keys"], given["values"]]
        run = made.bind([given[name] for name in graph.inputs], outputs)
        for turn in range(3):
            following = arguments(3, 2, True, [turn, 1, 7 - turn], seed=turn)
            for name in ("query", "key", "value", "starts"):
                np.copyto(given[name], following[name])
            wanted = MLExecution(reference).compute(other, given)
            run()
            for found, end in zip(outputs, wanted, strict=True):
                np.testing.assert_allclose(found, wanted[end], rtol=1e-5, atol=2e-6)


def test_arrays_that_an_engine_cannot_write_are_copied_when_bound(ort: MLContext) -> None:
    case = CASES["several rows"]
    graph, given = case.built(ort), arguments(3, 2, True, [3, 0, 5])
    wanted = MLExecution(ort).compute(graph, given)
    outputs = [np.empty((2, *wanted[end].shape), np.float32).swapaxes(0, 1) for end in wanted]
    run = executable(graph, given, ort).bind(
        [given[name] for name in graph.inputs], [each[:, 1] for each in outputs]
    )
    run()
    for found, end in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(found[:, 1], wanted[end], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("engine", ["openvino", "reference"])
def test_rows_outside_of_the_cache_are_dropped(engine: str, reference: MLContext) -> None:
    pytest.importorskip({"reference": "numpy"}.get(engine, engine))
    case = CASES["several rows"]
    given = arguments(3, 2, True, [-1, KEYS - 1, KEYS + 4])
    with ml.create_context_sync(engine=engine) as context:
        found = MLExecution(context).compute(case.built(context), given)
    wanted = MLExecution(reference).compute(case.built(reference), given)
    for end in wanted:
        np.testing.assert_allclose(found[end], wanted[end], rtol=1e-5, atol=2e-6)


def test_more_rows_than_the_cache_has(each: MLContext, reference: MLContext) -> None:
    """The cache keeps the rows that fit, and the attention sees these."""
    case = Case(rows=KEYS + 2, rotary="")
    given = arguments(3, KEYS + 2, True, [-2, 0, 5])
    found = MLExecution(each).compute(case.built(each), given)
    wanted = MLExecution(reference).compute(case.built(reference), given)
    for end in wanted:
        np.testing.assert_allclose(found[end], wanted[end], rtol=1e-5, atol=2e-6)
