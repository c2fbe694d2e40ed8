"""Nodes on which no output of a model depends: nothing is asked of them."""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

node = helper.make_node
X = np.asarray([-1, 2], np.float32)
ODD = [
    node("Unique", ["x"], ["i"], name="contents"),
    node("NoSuchOperator", ["i"], ["j"], name="unknown"),
    node("Abs", ["j"], ["k"], name="behind"),
    node("Unique", ["x"], ["r"], name="noise"),
    node("Squeeze", ["x"], ["q"], name="narrow", axes=[0]),
    node("StringNormalizer", ["x"], ["s"], name="strings"),
    node("Own", ["x"], ["o"], name="own", domain="some.where"),
]


def computed(cpu: MLContext, made: onnx.ModelProto) -> Any:
    graph = load(made, cpu)
    inputs = dict.fromkeys(graph.inputs, X)
    return {n: a.tolist() for n, a in MLExecution(cpu).compute(graph, inputs).items()}


def graph_of(nodes: list[Any], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    values = [[onnx.ValueInfoProto(name=n) for n in names] for names in (inputs, outputs)]
    return helper.make_graph(nodes, "inner", *values)


def renamed(prefix: str, x: str) -> list[Any]:
    """Nodes that cannot be mapped, of another operand."""
    made = []
    for one in ODD:
        copy = onnx.NodeProto()
        copy.CopyFrom(one)
        names = [x if name == "x" else prefix + name for name in one.input]
        del copy.input[:], copy.output[:]
        copy.input.extend(names)
        copy.output.extend(prefix + name for name in one.output)
        made.append(copy)
    return made


def test_nodes_that_no_output_needs_are_not_mapped(cpu: MLContext) -> None:
    made = model([*ODD, node("Neg", ["x"], ["y"])], {"x": [2]}, ["y"], opset=11)
    assert computed(cpu, made) == {"y": [1, -2]}
    made.graph.output.append(onnx.ValueInfoProto(name="k"))
    with pytest.raises(NotSupportedError) as refused:
        load(made, cpu)
    assert "Unique [contents]" in str(refused.value)
    assert "NoSuchOperator [unknown]" in str(refused.value)
    assert "noise" not in str(refused.value)


def test_nodes_that_no_output_needs_bound_no_sizes(cpu: MLContext) -> None:
    weights = {"w": np.ones(3, np.float32), "first": np.asarray([0])}
    unused = [node("Squeeze", ["x", "first"], ["s"]), node("Add", ["x", "w"], ["t"])]
    graph = load(model([*unused, node("Neg", ["x"], ["y"])], {"x": ["n"]}, ["y"], weights), cpu)
    assert MLExecution(cpu).compute(graph, {"x": X})["y"].tolist() == [1, -2]


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_branches(cpu: MLContext, takes: bool, known: bool) -> None:
    """What no output of a branch needs, and outputs of it that nothing reads."""
    branches = [
        graph_of([*renamed(side, "x"), node(op, ["x"], [f"{side}y"])], [], [f"{side}y", f"{side}k"])
        for side, op in (("t", "Neg"), ("e", "Exp"))
    ]
    choice = node("If", ["c"], ["y", "unused"], then_branch=branches[0], else_branch=branches[1])
    weights = {"c": np.asarray(takes)} if known else {"low": np.float32(-9 if takes else 9)}
    if not known:
        weights["z"] = np.zeros(1, np.float32)
    condition = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "low"], ["c"]),
    ]
    nodes = [choice] if known else [*condition, choice]
    found = computed(cpu, model(nodes, {"x": [2]}, ["y"], weights, opset=11))
    np.testing.assert_allclose(found["y"], -X if takes else np.exp(X), rtol=1e-6)


def test_what_only_an_unused_output_of_a_branch_reads(cpu: MLContext) -> None:
    branches = [
        graph_of(
            [node("Neg", ["x"], [f"{s}y"]), node("Abs", ["k"], [f"{s}k"])], [], [f"{s}y", f"{s}k"]
        )
        for s in "te"
    ]
    choice = node("If", ["c"], ["y", "unused"], then_branch=branches[0], else_branch=branches[1])
    made = model([*ODD, choice], {"x": [2]}, ["y"], {"c": np.asarray(True)}, opset=11)
    assert computed(cpu, made) == {"y": [1, -2]}


def test_loops(cpu: MLContext) -> None:
    """Of a body, and what it carries and collects for nobody, round by round."""
    body = graph_of(
        [
            *renamed("b", "v"),
            node("Add", ["v", "v"], ["w"]),
            node("Unique", ["lost"], ["more"]),
            node("Identity", ["go"], ["on"]),
        ],
        ["i", "go", "v", "lost"],
        ["on", "w", "more", "br"],
    )
    loop = node("Loop", ["n", "", "x", "k"], ["y", "unused", "collected"], body=body)
    made = model([*ODD, loop], {"x": [2]}, ["y"], {"n": np.asarray(3)}, opset=11)
    assert computed(cpu, made) == {"y": [-8, 16]}
    made.graph.output.append(onnx.ValueInfoProto(name="collected"))
    with pytest.raises(NotSupportedError, match="Unique"):
        load(made, cpu)


def test_what_a_loop_carries_for_what_it_carries(cpu: MLContext) -> None:
    """`b` is no output of interest, but the next round's `a` follows from it."""
    body = graph_of(
        [
            node("Add", ["a", "b"], ["a2"]),
            node("Add", ["b", "c"], ["b2"]),
            node("Identity", ["c"], ["c2"]),
            node("Identity", ["go"], ["on"]),
        ],
        ["i", "go", "a", "b", "c"],
        ["on", "a2", "b2", "c2"],
    )
    loop = node("Loop", ["n", "", "x", "x", "x"], ["y", "u", "v"], body=body)
    made = model([loop], {"x": [2]}, ["y"], {"n": np.asarray(3)})
    assert computed(cpu, made) == {"y": [-7, 14]}


@pytest.mark.parametrize("opset", [8, 11])
def test_scans(cpu: MLContext, opset: int) -> None:
    body = graph_of(
        [
            *renamed("b", "row"),
            node("Add", ["v", "row"], ["w"]),
            node("Identity", ["w"], ["s"]),
            node("Unique", ["lost"], ["more"]),
        ],
        ["v", "lost", "row"],
        ["w", "more", "s", "br"],
    )
    lead = [""] if opset == 8 else []
    scan = node(
        "Scan", [*lead, "zero", "zero", "x"], ["y", "u", "z", "v"], body=body, num_scan_inputs=1
    )
    shape = [1, 2, 1] if opset == 8 else [2, 1]
    weights = {"zero": np.zeros(shape[2:] if opset > 8 else [1, 1], np.float32)}
    made = model([scan], {"x": shape}, ["y", "z"], weights, opset=opset)
    graph = load(made, cpu)
    found = MLExecution(cpu).compute(graph, {"x": X.reshape(shape)})
    assert found["y"].reshape(-1).tolist() == [1]
    assert found["z"].reshape(-1).tolist() == [-1, 1]


def nested(kind: str, depth: int) -> Any:
    """Branches or loops in each other."""
    inner = [node("Neg", ["x"], ["y0"])]
    for level in range(1, depth + 1):
        before = f"y{level - 1}"
        if kind == "If":
            other = graph_of([node("Abs", ["x"], [before])], [], [before])
            taken = graph_of(inner, [], [before])
            inner = [node("If", ["c"], [f"y{level}"], then_branch=taken, else_branch=other)]
        else:
            names = [f"i{level}", f"go{level}", f"v{level}"]
            nodes = [node("Identity", [names[1]], [f"on{level}"]), *inner]
            body = graph_of(nodes, names, [f"on{level}", before])
            inner = [node("Loop", ["n", "", "x"], [f"y{level}"], body=body)]
    weights = {"c": np.asarray(True), "n": np.asarray(1)}
    return model(inner, {"x": [2]}, [f"y{depth}"], weights)


@pytest.mark.parametrize("kind", ["Loop", "If"])
def test_what_is_nested_is_looked_at_once(cpu: MLContext, kind: str) -> None:
    """Not again at each level for all levels below it; counted in calls of functions."""

    def calls(depth: int) -> int:
        made, profile = nested(kind, depth), cProfile.Profile()
        profile.runcall(load, made, cpu)
        return int(pstats.Stats(profile).total_calls)

    assert computed(cpu, nested(kind, 12)) == {"y12": [1, -2]}
    assert calls(12) < 2.5 * calls(6)


def test_functions(cpu: MLContext) -> None:
    made = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[2] x) => (float[2] y) {
            y, unused = own.outer (x)
            i, j = own.outer (x)
        }
        <domain: "own", opset_import: ["" : 20, "own" : 1]>
        outer (a) => (r, s) {
            r, t = own.inner (a)
            s = Unique (t)
        }
        <domain: "own", opset_import: ["" : 18]>
        inner (a) => (r, s) {
            odd = Unique (a)
            r = Neg (a)
            s = NoSuchOperator (odd)
        }"""
    )
    assert computed(cpu, made) == {"y": [1, -2]}


def test_inputs_that_only_unused_nodes_read_may_be_of_any_type(cpu: MLContext) -> None:
    made = model([node("Abs", ["d"], ["e"]), node("Neg", ["x"], ["y"])], {"x": [2]}, ["y"])
    made.graph.input.append(helper.make_tensor_value_info("d", onnx.TensorProto.DOUBLE, [2]))
    made.graph.input.append(helper.make_tensor_value_info("t", onnx.TensorProto.STRING, None))
    assert computed(cpu, made) == {"y": [1, -2]}
    made.graph.output.append(onnx.ValueInfoProto(name="e"))
    with pytest.raises(NotSupportedError, match=r"input \[d\]: WebNN has no data type double"):
        load(made, cpu)
