"""A weight has a name, and one array object wherever it is not changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.graphs import build, normal
from tests.internals import recipe_of, replayed
from webnn_py import MLContext, MLGraphBuilder, MLOperand, ValidationError
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Array, Graph, Value, make_graph
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.passes import Target, optimize

NO_COMPOSITES = Target(lambda node: node.op not in DECOMPOSITIONS, evaluate)
WEIGHTS = normal(3, 3)


def heads(graph: Graph) -> list[str]:
    """What the listing says of the constants, and the rest of it."""
    return [line.strip() for line in str(graph).splitlines()[1:-1]]


def test_constants_print_by_their_names(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [3, 3])
        w = b.constant(WEIGHTS, name="stem.weight")
        return {"y": b.add(b.matmul(x, w), b.constant(normal(3)))}

    assert heads(recipe_of(build(cpu, body))) == [
        "%stem.weight: float32[3,3] constant",
        "%c1: float32[3] constant",
        "%0: float32[3,3] = matmul(%x, %stem.weight)",
        "%1: float32[3,3] = add(%0, %c1)",
        "return y=%1",
    ]


def test_an_operand_shows_its_name(cpu: MLContext) -> None:
    assert repr(MLGraphBuilder(cpu).constant(WEIGHTS, name="w")) == "<MLOperand 'w' float32[3,3]>"


def test_names_in_a_listing_are_unique_and_printable() -> None:
    names = ["x", "w", "w", "w_1", "c5", "", "0", "a\nb"]
    values = [Value("float32", (), name) for name in names]
    constants: Mapping[Value, Array] = {value: np.zeros((), np.float32) for value in values[1:]}
    graph = make_graph(values[:1], constants, [], [("y", values[0])])
    shown = [graph.names[value] for value in values]
    assert shown == ["%x", "%w", "%w_1", "%w_1_1", "%c5", "%c4", "%0", "%a\\nb"]


@pytest.mark.parametrize("name", [None, 5, b"w"])
def test_a_name_is_a_string(cpu: MLContext, name: object) -> None:
    with pytest.raises(ValidationError, match=r"constant: name: got .*, expected a string"):
        MLGraphBuilder(cpu).constant(WEIGHTS, name=name)  # type: ignore[arg-type]


def test_graphs_over_one_constant_tensor_have_its_array(cpu: MLContext) -> None:
    tensor = cpu.create_constant_tensor_sync(WEIGHTS)

    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [3, 3])
        twice = b.matmul(b.matmul(x, b.constant(tensor, name="w")), b.constant(tensor))
        return {"y": b.softmax(twice, 1)}

    graphs = [recipe_of(build(cpu, body)) for _ in range(2)]
    graphs += [optimize(graph, NO_COMPOSITES) for graph in graphs]
    graphs.append(replayed(graphs[0]))
    for graph in graphs:
        for value, array in graph.constants.items():
            assert array is tensor._memory.contents
            assert value.name in ("w", "")
    assert [len(graph.constants) for graph in graphs] == [2, 2, 1, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tensor._memory.contents[0] = 0


def test_passes_keep_the_arrays_that_they_do_not_change(cpu: MLContext) -> None:
    """Nor does an operator that gives its operand as it is."""
    weight, bias, scale = normal(3, 3, seed=1), normal(3, seed=2), np.float32([1, 2, 3])

    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [3, 3])
        w = b.identity(b.reshape(b.constant(weight, name="w"), [3, 3]))
        y = b.gemm(x, w, c=b.constant(bias, name="b"))
        y = b.transpose(b.relu(b.transpose(y)))
        y = b.softmax(b.mul(y, b.relu(b.constant(scale, name="s"))), 1)
        return {"y": y, "w": b.identity(w)}

    source = recipe_of(build(cpu, body))
    made = optimize(source, NO_COMPOSITES)
    before = {value.name: array for value, array in source.constants.items()}
    after = {value.name: array for value, array in made.constants.items()}
    for name in ("w", "b", "s"):
        assert after[name] is before[name]
        assert not after[name].flags.writeable


def test_what_an_engine_folds_is_used_as_it_is(cpu: MLContext) -> None:
    """So it may fold a weight once for many graphs."""
    folded = evaluate(recipe_of(build(cpu, negated)).nodes[0], [WEIGHTS])
    target = Target(lambda node: True, lambda node, arrays: folded)
    for _ in range(2):
        (array,) = optimize(recipe_of(build(cpu, negated)), target).constants.values()
        assert array is folded[0]


def negated(b: MLGraphBuilder) -> dict[str, MLOperand]:
    return {"y": b.add(b.input("x", "float32", [3, 3]), b.neg(b.constant(WEIGHTS)))}


def test_bytes_are_widened_as_far_as_the_engine_has_room(cpu: MLContext) -> None:
    codes = np.arange(1 << 20, dtype=np.int64).astype(np.int8)

    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        weight = b.mul(b.cast(b.constant(codes), "float32"), b.constant(2.0, "float32"))
        return {"y": b.add(b.input("x", "float32", [1]), weight)}

    source = recipe_of(build(cpu, body))
    for room, expected in ((0, ["cast", "mul", "add"]), (3 << 20, ["add"])):
        target = Target(lambda node: True, evaluate, widen_limit=room)
        assert [node.op for node in optimize(source, target).nodes] == expected
