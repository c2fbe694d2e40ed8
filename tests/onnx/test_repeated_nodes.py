"""Nodes that are alike are imported once; the others become copies of what the first became."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from tests.onnx import official
from tests.onnx.models import model
from tests.onnx.own_operators import by_onnx_runtime
from tests.onnx.test_group_query import group_query
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import backend, load
from webnn_py.onnx.repeated_nodes import RepeatedNodes

SHARE = 6
"""One of so many cases of ONNX's suite is run twice in one model."""
RNG = np.random.default_rng(0)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each node that could be copied, whether it was."""
    found: list[bool] = []
    copy_ = RepeatedNodes.copy

    def noted(self: RepeatedNodes, *arguments: Any) -> Any:
        made = copy_(self, *arguments)
        found.append(made is not None)
        return made

    monkeypatch.setattr(RepeatedNodes, "copy", noted)
    return found


def weights(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def layers(count: int) -> onnx.ModelProto:
    """Layers with weights of their own, views, and constants that differ from layer to layer."""
    nodes, constants = [], {"heads": np.array([0, 0, 4, 8]), "flat": np.array([0, 0, 32])}
    x = "x"
    for i in range(count):
        constants |= {f"w{i}": weights(32, 32), f"b{i}": weights(32), f"c{i}": np.float32(i)}
        constants |= {f"from{i}": np.array([i]), f"to{i}": np.array([i + 3])}
        steps = [
            ("MatMul", [x, f"w{i}"], {}),
            ("Add", ["", f"b{i}"], {}),
            ("Reshape", ["", "heads"], {}),
            ("Transpose", [""], {"perm": [0, 2, 1, 3]}),
            ("Mul", ["", f"c{i}"], {}),
            ("Softmax", [""], {"axis": -1}),
            ("Transpose", [""], {"perm": [0, 2, 1, 3]}),
            ("Reshape", ["", "flat"], {}),
            ("LeakyRelu", [""], {"alpha": 0.25 * i}),
        ]
        before = x
        for number, (kind, inputs, attributes) in enumerate(steps):
            made = f"{kind}_{i}_{number}"
            given = [before if name == "" else name for name in inputs]
            nodes.append(make_node(kind, given, [made], name=made, **attributes))
            before = made
        nodes.append(make_node("Add", [x, before], [f"sum{i}"], name=f"sum{i}"))
        nodes.append(make_node("Mul", [f"sum{i}", f"sum{i}"], [f"square{i}"], name=f"square{i}"))
        nodes.append(make_node("Mul", [f"sum{i}", before], [f"y{i}"], name=f"product{i}"))
        nodes.append(make_node("Add", [f"square{i}", f"y{i}"], [f"z{i}"], name=f"end{i}"))
        nodes.append(make_node("Slice", [f"z{i}", f"from{i}", f"to{i}", "axis"], [f"part{i}"]))
        x = f"z{i}"
    constants["axis"] = np.array([2])
    outputs = [x, *(f"part{i}" for i in range(count))]
    return model(nodes, {"x": ["batch", 5, 32]}, outputs, constants)


def test_layers_compute_what_onnx_says(cpu: MLContext, copied: list[bool]) -> None:
    made = layers(4)
    x = 0.1 * weights(2, 5, 32)
    graph = load(made, cpu)
    got = MLExecution(cpu).compute(graph, {"x": x})
    expected = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    for name, one in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(got[name]), one, rtol=2e-4, atol=1e-5)
    # Of a layer, the product with a number, the slope and the slice differ.
    assert sum(copied) >= 3 * 9
    listing = str(graph)
    for node in made.graph.node:
        assert node.name in listing


def test_copies_are_what_the_import_of_each_makes(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = layers(3)
    shapes = {"x": [2, 5, 32]}
    with_copies = str(load(made, cpu, shapes))
    monkeypatch.setattr(RepeatedNodes, "copy", lambda *_: None)
    assert str(load(made, cpu, shapes)) == with_copies


def test_large_constants_that_handlers_read_are_no_ones_else(cpu: MLContext) -> None:
    """A reversal of rows reads its indices; MatMulNBits its weights."""
    nodes, constants = [], {}
    rows = [RNG.permutation(64) for _ in range(3)]
    for i, order in enumerate(rows):
        constants[f"order{i}"] = order - 64 * (i % 2)
        nodes.append(make_node("Gather", ["x", f"order{i}"], [f"y{i}"], axis=0))
    made = model(nodes, {"x": [64, 2]}, [f"y{i}" for i in range(3)], constants)
    x = weights(64, 2)
    got = MLExecution(cpu).compute(load(made, cpu), {"x": x})
    for i, order in enumerate(rows):
        np.testing.assert_array_equal(np.asarray(got[f"y{i}"]), x[order])


def with_another(
    single: onnx.ModelProto, ending: str, shared: Collection[str] = ()
) -> onnx.ModelProto:
    """A model and its first node once more, with inputs of its own but for shared ones."""
    made = copy.deepcopy(single)
    graph = made.graph
    other = copy.deepcopy(graph.node[0])
    kept = {*shared, "", *(tensor.name for tensor in graph.initializer)}
    for names in (other.input, other.output):
        for place, name in enumerate(names):
            names[place] = name if name in kept else f"{name}{ending}"
    other.name = f"node{ending}"
    graph.node.append(other)
    for values, names in ((graph.input, graph.node[0].input), (graph.output, graph.node[0].output)):
        for value in [value for value in values if value.name in names]:
            again = copy.deepcopy(value)
            again.name = f"{value.name}{ending}"
            values.extend([again] * (value.name not in kept))
    return made


def test_each_operator_twice(copied: list[bool]) -> None:
    excluded = official.excluded()
    count = 0
    for name, single, pairs, rtol, atol in official.cases("node"):
        graph = single.graph
        is_plain = len(graph.node) == 1 and not (graph.initializer or single.functions)
        unique = len(set(graph.node[0].input)) == len(graph.input) if is_plain else False
        if name in excluded or not unique or zlib.crc32(name.encode()) % SHARE:
            continue
        if any(not value.type.HasField("tensor_type") for value in graph.input):
            continue
        prepared = backend.prepare(with_another(single, "_again"))
        for inputs, outputs in pairs:
            got = prepared.run([*inputs, *inputs])
            with np.errstate(all="ignore"):
                official.Runner.assert_similar_outputs([*outputs, *outputs], got, rtol, atol)
        count += 1
    assert count > 100
    assert sum(copied) > count / 2


def test_attentions_share_only_what_follows_from_the_same_lengths(
    cpu: MLContext, copied: list[bool]
) -> None:
    single, feeds = group_query(new=1, past=8, ends=[6, 4], total=6, do_rotary=1)
    lengths = single.graph.node[0].input[5]
    made = single
    for ending, shared in (("_b", [lengths]), ("_c", [lengths]), ("_d", [])):
        made = with_another(made, ending, shared)
    given = dict(feeds)
    for value in made.graph.input:
        if value.name not in feeds:
            origin = feeds[value.name[:-2]]
            is_float = origin.dtype.kind == "f"
            given[value.name] = weights(*origin.shape) if is_float else origin - 1
    got = MLExecution(cpu).compute(load(made, cpu), given)
    for name, one in by_onnx_runtime(made, given).items():
        if name.startswith("y0"):  # behind the last key, the caches are undefined
            np.testing.assert_allclose(np.asarray(got[name]), one, rtol=1e-5, atol=1e-5)
    assert copied == [False, False, True, False]
