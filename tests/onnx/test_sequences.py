"""Sequences of tensors within models, beside ONNX's reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

node = helper.make_node
X = np.arange(28, dtype=np.float32).reshape(4, 7)
NUMBERS = {
    "two": np.asarray(2),
    "sizes": np.asarray([1, 4, 2]),
    "first": np.asarray(0),
    "last": np.asarray(-1),
}


def split(*inputs: str, **attributes: Any) -> Any:
    return node("SplitToSequence", ["x", *inputs], ["s"], **attributes)


CASES = {
    "parts of one size": [
        split("two", axis=1),
        node("SequenceAt", ["s", "last"], ["y"]),
        node("SequenceAt", ["s", "two"], ["z"]),
    ],
    "parts of given sizes": [
        split("sizes", axis=-1),
        node("ConcatFromSequence", ["s"], ["y"], axis=-1),
        node("SequenceLength", ["s"], ["n"]),
        node("SequenceAt", ["s", "first"], ["z"]),
        node("Identity", ["n"], ["count"]),
    ],
    "rows": [
        split(keepdims=0),
        node("SequenceErase", ["s", "first"], ["t"]),
        node("SequenceErase", ["t"], ["u"]),
        node("ConcatFromSequence", ["u"], ["y"], axis=-1, new_axis=1),
    ],
    "rows that keep their axis": [split(), node("ConcatFromSequence", ["s"], ["y"], axis=1)],
    "tensors put in": [
        node("Neg", ["x"], ["m"]),
        node("SequenceEmpty", [], ["e"]),
        node("SequenceInsert", ["e", "x"], ["s"]),
        node("SequenceInsert", ["s", "m", "first"], ["t"]),
        node("Identity", ["t"], ["u"]),
        node("ConcatFromSequence", ["u"], ["y"], axis=0),
        node("SequenceConstruct", ["m", "x", "m"], ["v"]),
        node("ConcatFromSequence", ["v"], ["z"], axis=0, new_axis=1),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_sequences_within_a_model(cpu: MLContext, name: str) -> None:
    nodes = CASES[name]
    names = {output for one in nodes for output in one.output}
    made = model(nodes, {"x": X.shape}, sorted(names & {"y", "z", "count"}), NUMBERS)
    expected = ReferenceEvaluator(made).run(None, {"x": X})
    results = MLExecution(cpu).compute(load(made, cpu), {"x": X})
    for value, wanted in zip(made.graph.output, expected, strict=True):
        np.testing.assert_array_equal(results[value.name], wanted)
        assert results[value.name].shape == wanted.shape


def test_a_sequence_that_a_loop_fills(cpu: MLContext) -> None:
    filling = [
        node("Mul", ["x", "two"], ["m"]),
        node("SequenceInsert", ["s", "m"], ["t"]),
        node("Identity", ["go"], ["on"]),
    ]
    body = helper.make_graph(
        filling,
        "body",
        [onnx.ValueInfoProto(name=name) for name in ("i", "go", "s")],
        [onnx.ValueInfoProto(name=name) for name in ("on", "t")],
    )
    nodes = [
        node("SequenceEmpty", [], ["e"]),
        node("Loop", ["n", "", "e"], ["f"], body=body),
        node("ConcatFromSequence", ["f"], ["y"], axis=0, new_axis=1),
    ]
    weights = {"n": np.asarray(3), "two": np.float32(2)}
    graph = load(model(nodes, {"x": [None, 7]}, ["y"], weights), cpu)
    results = MLExecution(cpu).compute(graph, {"x": X})
    np.testing.assert_array_equal(results["y"], np.stack([2 * X] * 3))


def test_sequences_that_graphs_cannot_hold(cpu: MLContext) -> None:
    with pytest.raises(NotSupportedError, match=r"output \[s\]: it is no tensor"):
        load(model([split()], {"x": X.shape}, ["s"]), cpu)
    open_size = [split("two", axis=1), node("SequenceAt", ["s", "first"], ["y"])]
    with pytest.raises(NotSupportedError, match="the number of its parts must be known at import"):
        load(model(open_size, {"x": [4, "n"]}, ["y"], NUMBERS), cpu)
    with pytest.raises(NotSupportedError, match="it makes more than 10000 tensors"):
        load(model([split()], {"x": [20_000]}, ["s"]), cpu)
    beyond = [split(), node("SequenceAt", ["s", "four"], ["y"])]
    with pytest.raises(DataError, match="its position is 4, of 4 tensors"):
        load(model(beyond, {"x": X.shape}, ["y"], {"four": np.asarray(4)}), cpu)
    with pytest.raises(DataError, match="it is not valid"):
        load(model([split(), node("Relu", ["s"], ["y"])], {"x": X.shape}, ["y"]), cpu)
