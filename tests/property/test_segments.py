"""Random graphs split among engines: the parts can run, are few, and give the same bits."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.internals import built_from
from tests.property.graphs import seeded_case
from tests.toy_engines import Partial, context_on
from webnn_py import MLExecution
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines import HostExecutable
from webnn_py.engines.executor import compile_on
from webnn_py.engines.partition import Segment, segments, split
from webnn_py.engines.reference import ReferenceEngine
from webnn_py.ir import Array, Graph, Node, Value, make_graph, verify
from webnn_py.ops.declare import REGISTRY

some = settings(max_examples=80, derandomize=True)
Supports = Callable[[int, Node], bool]


@st.composite
def graphs(draw: Callable[..., Any], most: int = 24) -> Graph:
    """Any shape that a graph can have; what its operators do is of no meaning."""
    values = [Value("float32", (draw(st.integers(1, 9)),), f"x{i}") for i in range(2)]
    inputs, nodes = tuple(values), []
    for _ in range(draw(st.integers(1, most))):
        read = tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
        sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))
        made = tuple(Value("float32", (size,)) for size in sizes)
        nodes.append(Node("op", read, {}, made))
        values += made
    read = {value for node in nodes for value in node.operands}
    ends = [v for v in values[2:] if v not in read or draw(st.integers(0, 9)) == 0]
    graph = make_graph(inputs, {}, nodes, ((f"y{i}", v) for i, v in enumerate(ends)))
    verify(graph)
    return graph


@st.composite
def splits(
    draw: Callable[..., Any], engines: int = 3, most: int = 24
) -> tuple[Graph, Supports, list[int]]:
    """A graph, which of the engines support which node, and what crossing to them costs.

    The last engine supports everything and costs nothing.
    """
    graph = draw(graphs(most))
    last = engines - 1
    few = st.frozensets(st.integers(0, last - 1))
    supported = {node: draw(few) | {last} for node in graph.nodes}
    costs = [draw(st.sampled_from([0, 10, 40, 1000])) for _ in range(last)] + [0]
    return graph, lambda engine, node: engine in supported[node], costs


def free(engine: int) -> int:
    """What crossing costs where it costs nothing."""
    return 0


def segments_of(
    graph: Graph, engines: int, supports: Supports, cost: Callable[[int], int]
) -> list[Segment[int]]:
    return segments(graph, split(graph, range(engines), supports, cost))


def chosen(parts: Sequence[Segment[int]]) -> dict[Node, int]:
    return {node: segment.engine for segment in parts for node in segment.graph.nodes}


def assert_runs(graph: Graph, parts: Sequence[Segment[int]]) -> None:
    """Each node is in one segment, each segment finds what it reads and gives what others need.

    Segments that run one after the other are convex.
    """
    nodes = [node for segment in parts for node in segment.graph.nodes]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == set(graph.nodes)
    known = set(graph.inputs)
    for segment in parts:
        verify(segment.graph)
        assert known.issuperset(segment.graph.inputs)
        outputs = [value for _, value in segment.graph.outputs]
        assert len(outputs) == len(set(outputs))
        known.update(outputs)
    assert known.issuperset(graph.results)


def fewest(graph: Graph, engine_of: dict[Node, int]) -> int:
    """The number of parts that any order needs, by trying them all."""
    producers = graph.producers
    before = {node: {producers[v] for v in node.operands if v in producers} for node in graph.nodes}
    reached: set[frozenset[Node]] = {frozenset()}
    for count in itertools.count():
        if any(len(done) == len(graph.nodes) for done in reached):
            return count
        following = set()
        for done, engine in itertools.product(reached, set(engine_of.values())):
            grown = set(done)
            for node in graph.nodes:  # in order, so that each finds what stands before it
                if engine_of[node] == engine and before[node] <= grown:
                    grown.add(node)
            following.add(frozenset(grown))
        reached = following
    raise AssertionError


def levels(graph: Graph, engine_of: dict[Node, int]) -> int:
    """How many pairs of an engine and a number of changes to the end there are."""
    changes: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        readers = {reader for value in node.outputs for reader in graph.readers.get(value, ())}
        counts = [changes[reader] + (engine_of[reader] != engine_of[node]) for reader in readers]
        changes[node] = max(counts, default=0)
    return len({(changes[node], engine_of[node]) for node in graph.nodes})


@some
@given(splits())
def test_parts_can_run_one_after_the_other(drawn: tuple[Graph, Supports, list[int]]) -> None:
    graph, supports, costs = drawn
    for cost in (free, costs.__getitem__):
        parts = segments_of(graph, 3, supports, cost)
        assert_runs(graph, parts)
        for segment in parts:
            assert all(supports(segment.engine, node) for node in segment.graph.nodes)


@some
@given(splits())
def test_nodes_go_to_the_first_engine_and_into_few_parts(
    drawn: tuple[Graph, Supports, list[int]],
) -> None:
    graph, supports, _ = drawn
    parts = segments_of(graph, 3, supports, free)
    engine_of = chosen(parts)
    for node, engine in engine_of.items():
        assert engine == min(number for number in range(3) if supports(number, node))
    assert len(parts) <= levels(graph, engine_of)


@some
@given(splits(engines=2, most=9))
def test_two_engines_have_as_few_parts_as_can_be(
    drawn: tuple[Graph, Supports, list[int]],
) -> None:
    graph, supports, _ = drawn
    parts = segments_of(graph, 2, supports, free)
    assert len(parts) == fewest(graph, chosen(parts))


@some
@given(splits())
def test_no_part_is_smaller_than_crossing_over_to_it_is_worth(
    drawn: tuple[Graph, Supports, list[int]],
) -> None:
    """Unless no other engine runs all of it."""
    graph, supports, costs = drawn
    parts = segments_of(graph, 3, supports, costs.__getitem__)
    for segment in parts if len(parts) > 1 else ():
        nodes = segment.graph.nodes
        values = [v for node in nodes for v in (*node.operands, *node.outputs)]
        small = sum(math.prod(v.shape) for v in values) < costs[segment.engine]
        others = range(segment.engine + 1, 3)
        assert not (small and all(any(supports(e, n) for e in others) for n in nodes))


@settings(max_examples=30, derandomize=True)
@given(st.integers(0, 400), st.integers(0, 2**32 - 1), st.booleans())
def test_segments_give_the_same_bits_as_one_engine(seed: int, which: int, strided: bool) -> None:
    case = seeded_case(seed)
    rng = np.random.default_rng(which)
    chances = {node: rng.random(2) for node in case.graph.nodes}
    engines = [
        Partial("a", lambda node: chances[node][0] < 0.4),
        Partial("b", lambda node: chances[node][1] < 0.5),
        ReferenceEngine(),
    ]
    _, executable = compile_on(case.graph, engines)
    assert isinstance(executable, HostExecutable)
    outputs = {
        name: _output(value, strided and rng.random() < 0.5) for name, value in case.graph.outputs
    }
    executable.run([case.inputs[v.name] for v in case.graph.inputs], list(outputs.values()))
    case.assert_equal({name: array.copy(order="C") for name, array in outputs.items()})


def _output(value: Value, strided: bool) -> Array:
    dtype = DTYPES[value.data_type].numpy
    if not strided:
        return np.empty(value.shape, dtype)
    return np.empty((*value.shape, 2), dtype)[..., 1]


@pytest.mark.parametrize("seed", range(30))
def test_graphs_of_a_context_with_two_engines_give_what_the_reference_gives(seed: int) -> None:
    """Composites that the engine does not run are taken apart on the way."""
    case = seeded_case(seed)
    supported = {name for name in REGISTRY if hash_of(name, seed) % 2}
    with context_on(Partial("toy", lambda node: node.op in supported)) as context:
        graph = built_from(context, case.graph)
        case.assert_close(MLExecution(context).compute(graph, case.inputs))


def hash_of(name: str, seed: int) -> int:
    """The same in every process."""
    return zlib.crc32(f"{name}{seed}".encode())


def test_random_graphs_are_really_split() -> None:
    """Else the test above would show nothing."""
    splits = [
        compile_on(
            seeded_case(seed).graph,
            [Partial("a", lambda node: len(node.op) % 2 == 0), ReferenceEngine()],
        )[1]
        for seed in range(20)
    ]
    assert sum("# engine" in executable.describe() for executable in splits) > 15
