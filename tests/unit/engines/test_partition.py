"""How graphs are split, on graphs small enough to see it."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Mapping

import numpy as np
import pytest

from webnn_py import NotSupportedError
from webnn_py.core import gil_yield
from webnn_py.engines.partition import segments, split
from webnn_py.ir import Graph, Node, Value, make_graph


def graph_of(edges: str, size: int = 10) -> Graph:
    """Nodes by their names; "a1 < b2 b3" reads what b2 and b3 make, and x, if nothing else."""
    x = Value("float32", (size,), "x")
    made: dict[str, Value] = {}
    nodes = []
    for line in edges.split(","):
        name, _, read = line.partition("<")
        output = made[name.strip()] = Value("float32", (size,))
        inputs = tuple(made[r] for r in read.split()) or (x,)
        nodes.append(Node("op", inputs, {}, (output,), label=name.strip()))
    read_values = {value for node in nodes for value in node.operands}
    ends = [(name, value) for name, value in made.items() if value not in read_values]
    return make_graph([x], {}, nodes, ends)


def parts(graph: Graph, **costs: int) -> list[str]:
    """The labels of each part; a node runs on the engines whose letters are in its label."""
    found = split(graph, list("abc"), lambda e, node: e in node.label, lambda e: costs.get(e, 0))
    return [
        f"{segment.engine}: {' '.join(node.label for node in segment.graph.nodes)}"
        for segment in segments(graph, found)
    ]


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ("a1, a2 < a1, a3 < a2", ["a: a1 a2 a3"]),
        ("a1, b2 < a1, a3 < b2", ["a: a1", "b: b2", "a: a3"]),
        ("a1, b1, a2 < a1, b2 < b1", ["a: a1 a2", "b: b1 b2"]),  # independent branches
        ("b1, a1, a2 < b1 a1", ["b: b1", "a: a1 a2"]),  # a1 can wait for a2
        ("a1, a2 < a1, b1 < a1, a3 < a2 b1", ["a: a1 a2", "b: b1", "a: a3"]),
        ("a1, b1 < a1, c1 < a1, a2 < b1 c1", ["a: a1", "b: b1", "c: c1", "a: a2"]),
    ],
)
def test_parts(edges: str, expected: list[str]) -> None:
    assert parts(graph_of(edges)) == expected


def test_the_interpreter_is_offered_before_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    offers: list[None] = []
    monkeypatch.setattr(gil_yield, "checkpoint", lambda: offers.append(None))
    parts(graph_of("a1, a2 < a1, b1 < a2"))
    assert len(offers) == 3


def test_a_whole_graph_is_given_as_it_is() -> None:
    graph = graph_of("a1, a2 < a1")
    found = split(graph, ["a"], lambda engine, node: True, lambda engine: 99)
    (segment,) = segments(graph, found)
    assert segment.graph is graph


@pytest.mark.parametrize(
    ("edges", "costs", "expected"),
    [
        # Each node reads and makes 10 elements.
        ("ab1, b2 < ab1", {"a": 20}, ["a: ab1", "b: b2"]),
        ("ab1, b2 < ab1", {"a": 21}, ["b: ab1 b2"]),
        ("ab1, ab2 < ab1, b3 < ab2", {"a": 40}, ["a: ab1 ab2", "b: b3"]),
        ("ab1, b2 < ab1, ab3 < b2, ab4 < ab3", {"a": 21}, ["b: ab1 b2", "a: ab3 ab4"]),
        ("ab1, ab2 < ab1", {"a": 999}, ["a: ab1 ab2"]),  # a whole graph crosses over to nobody
        ("a1, b2 < a1", {"a": 999}, ["a: a1", "b: b2"]),  # nobody else runs it
        ("a1, ab2 < a1, b3 < ab2", {"a": 999}, ["a: a1 ab2", "b: b3"]),  # nor this, as a whole
        # What one engine gives up is enough for the next one: together it is worth crossing.
        ("abc1, bc2 < abc1, c3 < bc2", {"a": 30, "b": 30}, ["b: abc1 bc2", "c: c3"]),
        ("abc1, bc2 < abc1, c3 < bc2", {"a": 30, "b": 50}, ["c: abc1 bc2 c3"]),
    ],
)
def test_small_parts_go_to_the_next_engine(
    edges: str, costs: Mapping[str, int], expected: list[str]
) -> None:
    assert parts(graph_of(edges), **costs) == expected


def test_weights_count_as_work() -> None:
    """A product of few results over large weights is no small part."""
    x, weights = Value("float32", (4,), "x"), Value("float32", (1000, 4))
    hidden, y = Value("float32", (4,)), Value("float32", (1000,))
    nodes = [
        Node("op", (x,), {}, (hidden,), label="b"),
        Node("op", (hidden, weights), {}, (y,), label="ab"),
    ]
    graph = make_graph([x], {weights: np.ones((1000, 4), np.float32)}, nodes, [("y", y)])
    assert parts(graph, a=2000) == ["b: b", "a: ab"]


def test_the_node_that_no_engine_runs_is_named() -> None:
    with pytest.raises(NotSupportedError, match=r"op \[x2\]: no engine of this context runs it"):
        parts(graph_of("a1, x2 < a1"))


def calls(count: int) -> int:
    """Calls of functions that splitting takes, where every second node may move to the other."""
    names = [f"ab{i}" if i % 2 else f"b{i}" for i in range(count)]
    graph = graph_of(",".join(f"{n} < {m}" for n, m in zip(names, ["", *names], strict=False)))
    profile = cProfile.Profile()
    made = profile.runcall(parts, graph, a=999)
    assert len(made) == 1
    return int(pstats.Stats(profile).total_calls)


def test_long_graphs_take_calls_in_proportion() -> None:
    assert calls(4000) < 2.2 * calls(2000)


def test_20_000_nodes_in_as_many_parts() -> None:
    names = ["a0" if i == 0 else f"{'ab'[i % 2]}{i}" for i in range(20_000)]
    graph = graph_of(",".join(f"{n} < {m}" for n, m in zip(names, ["", *names], strict=False)))
    assert len(parts(graph, a=999, b=999)) == 20_000
