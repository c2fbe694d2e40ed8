"""The graph in memory: it prints, knows its values, and refuses to be broken."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest

from webnn_py.ir import Descriptor, Graph, Node, Value, make_graph, verify
from webnn_py.ops.graph_builder import GraphBuilder

X = Value("float32", (2, 3), "x")
W = Value("float32", (3,))
S = Value("float32", ())
SUM = Value("float32", (2, 3))
LEFT = Value("float32", (1, 3))
RIGHT = Value("float32", (1, 3))
ADD = Node("add", (X, W), {}, (SUM,), "bias")
SPLIT = Node("split", (SUM,), {"splits": (1, 1), "axis": 0}, (LEFT, RIGHT))
CONSTANTS = {W: np.array([1, 2, 3], np.float32), S: np.array(0.5, np.float32)}

LISTING = """\
graph(%x: float32[2,3]) {
  %c0: float32[3] constant
  %c1: float32[] constant = 0.5
  %0: float32[2,3] = add(%x, %c0)  "bias"
  %1: float32[1,3], %2: float32[1,3] = split(%0, splits=[1, 1], axis=0)
  return left=%1, sum=%0
}"""


def graph(**changes: object) -> Graph:
    whole = make_graph([X], CONSTANTS, [ADD, SPLIT], [("left", LEFT), ("sum", SUM)])
    return whole.replace(**changes)


def test_a_graph_prints() -> None:
    assert str(graph()) == LISTING


def test_optional_operands_and_attributes_print_as_what_they_are() -> None:
    node = Node("gemm", (X, None, W), {"alpha": 0.1, "a_transpose": True, "c": None}, (SUM,))
    line = str(graph(nodes=[node], outputs=[("y", SUM)])).splitlines()[-3]
    assert line == "  %0: float32[2,3] = gemm(%x, _, %c0, alpha=0.1, a_transpose=true)"


def test_labels_and_outputs_stay_in_their_lines() -> None:
    x, y = Value("float32", (2,), "x"), Value("float32", (2,))
    made = make_graph([x], {}, [Node("relu", (x,), {}, (y,), "a\nb")], [("c\nd", y)])
    assert str(made).splitlines()[1:3] == [
        '  %0: float32[2] = relu(%x)  "a\\nb"',
        "  return c\\nd=%0",
    ]


def test_trailing_operands_not_given_do_not_print() -> None:
    node = Node("conv2d", (X, W, None), {}, (SUM,))
    assert "conv2d(%x, %c0)" in str(graph(nodes=[node], outputs=[("y", SUM)]))


def test_names_are_unique_and_stable() -> None:
    whole = graph()
    names = [whole.names[value] for value in (X, W, S, SUM, LEFT, RIGHT)]
    assert names == ["%x", "%c0", "%c1", "%0", "%1", "%2"]


def test_equal_values_are_not_the_same_value() -> None:
    assert LEFT != RIGHT
    assert Descriptor("float32", (1, 3)) == Descriptor("float32", (1, 3))


def test_producers_and_uses() -> None:
    whole = graph()
    assert whole.producers == {SUM: ADD, LEFT: SPLIT, RIGHT: SPLIT}
    assert whole.uses == {X: 1, W: 1, SUM: 2, LEFT: 1}


def test_what_follows_from_a_graph_is_worked_out_once() -> None:
    whole = graph()
    assert whole.readers == {X: (ADD,), W: (ADD,), SUM: (SPLIT,)}
    assert whole.results == {LEFT, SUM}
    for name in ("producers", "readers", "uses", "results", "names"):
        assert getattr(whole, name) is getattr(whole, name)


def test_descriptor_sizes() -> None:
    assert (Descriptor("float16", (2, 3)).size, Descriptor("float16", (2, 3)).byte_length) == (
        6,
        12,
    )
    assert (S.rank, S.size, S.byte_length) == (0, 1, 4)
    assert Descriptor("uint4", (5,)).byte_length == 3


def test_graphs_cannot_be_changed() -> None:
    constants = dict(CONSTANTS)
    whole = make_graph([X], constants, [ADD], [("y", SUM)])
    constants.clear()
    assert set(whole.constants) == {W, S}
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.nodes = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        whole.constants[X] = np.zeros(1)  # type: ignore[index]


def test_a_whole_graph_passes() -> None:
    verify(graph())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": [SPLIT, ADD]}, "split reads .* before it is made"),
        ({"nodes": [ADD, ADD, SPLIT]}, "add makes .* twice"),
        ({"nodes": [ADD]}, "output left is not made"),
        ({"inputs": [X, X]}, "stands twice"),
        ({"outputs": []}, "needs an output"),
        ({"outputs": [("sum", SUM)]}, "nothing needs what split makes"),
        ({"constants": {W: np.ones(4, np.float32), S: CONSTANTS[S]}}, "constant .4,. for"),
        ({"constants": {W: np.ones(3), S: CONSTANTS[S]}}, "float64 for"),
    ],
)
def test_broken_graphs_are_found(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verify(graph(**changes))


def test_nodes_keep_few_objects_for_the_garbage_collector() -> None:
    """It visits all of them again and again while a large graph is recorded."""
    builder = GraphBuilder()
    y = builder.add_input("x", Descriptor("float32", (2,)))
    gc.collect()
    before, count = len(gc.get_objects()), 500
    for _ in range(count):
        y = builder.relu(y)
    gc.collect()
    assert len(gc.get_objects()) - before < 5 * count
