"""Single operators of open sizes, imported once and run at several, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution, MLGraphBuilder, NotSupportedError, ValidationError
from webnn_py.onnx import load

rng = np.random.default_rng(2)


def floats(*shape: int) -> Any:
    return rng.uniform(-1.5, 1.5, shape).astype(np.float32)


def check(cpu: MLContext, made: onnx.ModelProto, runs: list[dict[str, Any]]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    made.ir_version = 9
    session = onnxruntime.InferenceSession(made.SerializeToString())
    graph = load(made, cpu)
    for inputs in runs:
        found = MLExecution(cpu).compute(graph, inputs)
        for output, wanted in zip(made.graph.output, session.run(None, inputs), strict=True):
            np.testing.assert_allclose(found[output.name], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_samples_of_open_images(
    cpu: MLContext, align_corners: int, mode: str, padding: str
) -> None:
    options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    node = onnx.helper.make_node("GridSample", ["x", "grid"], ["y"], **options)
    shapes = {"x": ["n", 2, "h", "w"], "grid": ["n", "rows", "columns", 2]}
    runs = [
        {"x": floats(1, 2, 4, 5), "grid": floats(1, 3, 2, 2)},
        {"x": floats(2, 2, 1, 3), "grid": floats(2, 1, 4, 2)},
    ]
    check(cpu, model([node], shapes, ["y"], opset=20), runs)


@pytest.mark.parametrize("activations", [["Tanh", "Tanh"], ["Relu", "Sigmoid"]])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_simple_recurrent_networks_of_open_length(
    cpu: MLContext, direction: str, activations: list[str]
) -> None:
    ways = 2 if direction == "bidirectional" else 1
    weights = {"w": floats(ways, 4, 3), "r": floats(ways, 4, 4), "b": floats(ways, 8)}
    node = onnx.helper.make_node(
        "RNN",
        ["x", "w", "r", "b", "", "h"],
        ["y", "last"],
        direction=direction,
        hidden_size=4,
        activations=activations[:ways],
    )
    shapes = {"x": ["length", "batch", 3], "h": [ways, "batch", 4]}
    runs = [{"x": floats(n, m, 3), "h": floats(ways, m, 4)} for n, m in ((1, 2), (5, 1))]
    made = model([node], shapes, ["y", "last"], weights, opset=14)
    check(cpu, made, runs)


def test_what_needs_a_size_asks_for_it(cpu: MLContext) -> None:
    node = onnx.helper.make_node("RoiAlign", ["x", "r", "i"], ["y"], name="n", sampling_ratio=1)
    made = model([node], {"x": [1, 1, "h", 4]}, ["y"], {"r": floats(1, 4), "i": np.zeros(1, int)})
    with pytest.raises(NotSupportedError, match=r"\[n\].*; give the size with input_shapes=.'h'"):
        load(made, cpu)


def sized() -> list[onnx.NodeProto]:
    """Half of a size of x, rounded down and up."""
    node = onnx.helper.make_node
    return [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "axis"], ["size"]),
        node("Div", ["size", "two"], ["half"]),
        node("Sub", ["size", "half"], ["rest"]),
    ]


SIZED = {"axis": np.asarray([0]), "two": np.asarray([2])}


def test_parts_of_open_sizes(cpu: MLContext) -> None:
    node = onnx.helper.make_node
    nodes = [*sized(), node("Concat", ["half", "rest"], ["parts"], axis=0)]
    nodes.append(node("Split", ["x", "parts"], ["y", "z"], axis=0))
    made = model(nodes, {"x": ["n", 3]}, ["y", "z"], SIZED, opset=17)
    check(cpu, made, [{"x": floats(n, 3)} for n in (2, 7)])
    assert load(made, cpu).inputs["x"].shape[0].bounds[0] == 2


def test_the_last_of_an_open_size(cpu: MLContext) -> None:
    """As many as a quotient says, which must not be 0: a slice from there is all."""
    node = onnx.helper.make_node
    nodes = [*sized(), node("Neg", ["half"], ["start"])]
    nodes.append(node("Slice", ["x", "start", "size"], ["y"]))
    made = model(nodes, {"x": ["n", 3]}, ["y"], SIZED, opset=17)
    check(cpu, made, [{"x": floats(n, 3)} for n in (2, 5)])
    assert load(made, cpu).inputs["x"].shape[0].bounds[0] == 2


def test_to_the_far_end_of_a_multiple(cpu: MLContext) -> None:
    node = onnx.helper.make_node
    nodes = [node("Reshape", ["x", "all"], ["flat"]), node("Slice", ["flat", "one", "far"], ["y"])]
    weights = {"all": [-1], "one": [1], "far": [2**40]}
    made = model(nodes, {"x": ["n", 3]}, ["y"], weights, opset=17)
    check(cpu, made, [{"x": floats(n, 3)} for n in (1, 4)])


def test_one_hot_of_open_depth(cpu: MLContext) -> None:
    node = onnx.helper.make_node
    nodes = [*sized(), node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64)]
    nodes.append(node("OneHot", ["i", "half", "values"], ["y"]))
    weights = SIZED | {"values": np.asarray([0.5, 2], np.float32)}
    made = model(nodes, {"x": ["n", 3]}, ["y"], weights, opset=17)
    check(cpu, made, [{"x": np.round(3 * floats(n, 3))} for n in (2, 6)])


def test_what_follows_from_sizes_undecided_asks_for_them(cpu: MLContext) -> None:
    node = onnx.helper.make_node
    nodes = [*sized(), node("Max", ["half", "two"], ["most"])]
    nodes.append(node("ConstantOfShape", ["most"], ["y"], name="filled"))
    made = model(nodes, {"x": ["n", 3]}, ["y"], SIZED, opset=17)
    text = (
        r"\[filled\]: shape must be known at import, and follows from open dimensions; give input"
    )
    with pytest.raises(NotSupportedError, match=text):
        load(made, cpu)


def test_an_open_quotient_that_may_be_zero(cpu: MLContext) -> None:
    n = MLGraphBuilder(cpu).input("x", "float32", ["n"]).shape[0]
    with pytest.raises(
        ValidationError, match=r"whether `n // 2 > 0` .*dimensions=\{'n': \(2, None\)\}"
    ):
        bool(n // 2)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_equal_parts_of_an_open_size(cpu: MLContext, opset: int) -> None:
    parts = ["a", "b", "c"]
    made = model([onnx.helper.make_node("Split", ["x"], parts)], {"x": ["n"]}, parts, opset=opset)
    check(cpu, made, [{"x": floats(3)}, {"x": floats(12)}])
