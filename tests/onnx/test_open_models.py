"""Models with open dimensions, imported once and run at several sizes, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.exports import EXPORTERS, MODELS, PLACES, WORDS, Script, encoder
from tests.onnx.models import model
from webnn_py import (
    DataError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
)
from webnn_py.onnx import add_to, load, load_impl
from webnn_py.onnx.importer import Importer

node = onnx.helper.make_node

SIZES: dict[str, list[dict[str, int]]] = {
    "encoder": [{"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 7}, {"sequence": PLACES}],
    "decoder": [
        {"past_sequence": 3, "sequence": 1},
        {"batch": 2, "past_sequence": 5, "sequence": 4},
    ],
    "classifier": [{"height": 17, "width": 9}, {"batch": 2, "height": 8, "width": 32}],
    "segmenter": [{"height": 16, "width": 8}, {"batch": 2, "height": 13, "width": 7}],
    "recurrent": [{"time": 1}, {"batch": 3, "time": 5}],
}


def inputs_of(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    made = {}
    for value in model.graph.input:
        own = value.type.tensor_type
        shape = [
            d.dim_value or sum(sizes.get(name, 1) for name in str(d.dim_param).split(" + "))
            for d in own.shape.dim
        ]
        if own.elem_type == onnx.TensorProto.FLOAT:
            made[value.name] = rng.normal(size=shape).astype(np.float32)
            continue
        made[value.name] = rng.integers(0, WORDS, shape)
        if value.name == "attention_mask":
            made[value.name] = (np.arange(shape[1]) >= np.arange(shape[0])[:, None]).astype(int)
            made[value.name][:, -1] = 1
    return made


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_runs_at_any_size(cpu: MLContext, name: str, exporter: str) -> None:
    model = MODELS[name](EXPORTERS[exporter]())
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    graph = load(model, cpu)
    for sizes in SIZES[name]:
        inputs = inputs_of(model, sizes)
        expected = session.run(None, inputs)
        results = MLExecution(cpu).compute(graph, inputs)
        for output, wanted in zip(model.graph.output, expected, strict=True):
            np.testing.assert_allclose(results[output.name], wanted, rtol=2e-4, atol=2e-5)


def shapes(made: onnx.ModelProto, context: MLContext, **given: Any) -> dict[str, list[str]]:
    """The inputs' shapes, as listings show them."""
    graph = load(made, context, given or None)
    return {name: [str(size) for size in value.shape] for name, value in graph.inputs.items()}


RESIZED = [
    ("nearest", kind, nearest, by)
    for kind in ("half_pixel", "asymmetric", "align_corners")
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for by in (2.0, 1.5, "height")
    if (kind, by) != ("align_corners", 1.5)  # where float32 decides between two elements
] + [
    (mode, kind, "floor", by)
    for mode in ("linear", "cubic")
    for kind in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    for by in (2.0, 0.5, "height")
    if (kind, by) != ("align_corners", 0.5)  # whose lengths ONNX Runtime rounds, and ONNX does not
]


@pytest.mark.parametrize("case", RESIZED, ids=lambda case: "-".join(map(str, case)))
def test_resizing_of_open_dimensions(cpu: MLContext, case: tuple[str, str, str, Any]) -> None:
    """To a multiple, or to another size of the input."""
    mode, kind, nearest, by = case
    resize = {"mode": mode, "coordinate_transformation_mode": kind, "nearest_mode": nearest}
    if by == "height":
        sizes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "order"], ["z"])]
        nodes = [*sizes, node("Resize", ["x", "", "", "z"], ["y"], **resize)]
        weights = {"order": np.asarray([0, 1, 3, 2])}
    else:
        nodes = [node("Resize", ["x", "", "f"], ["y"], **resize)]
        weights = {"f": np.asarray([1, 1, by, by], np.float32)}
    made = model(nodes, {"x": [1, 1, "height", "width"]}, ["y"], weights, opset=19)
    made.ir_version = 9
    graph = load(made, cpu)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for shape in ((1, 1, 4, 5), (1, 1, 8, 3)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        results = MLExecution(cpu).compute(graph, {"x": x})
        np.testing.assert_allclose(results["y"], wanted, rtol=1e-4, atol=1e-4)


AVERAGED: dict[str, dict[str, Any]] = {
    "three dimensions": {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]},
    "padding that does not count": {"kernel_shape": [2, 3, 3], "pads": [1, 1, 2, 0, 1, 0]},
    "padding that counts": {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "count_include_pad": 1},
    "as large as the input": {"kernel_shape": [3, 2, 2], "auto_pad": "SAME_LOWER"},
}


@pytest.mark.parametrize("name", AVERAGED)
def test_means_of_windows_over_open_dimensions(cpu: MLContext, name: str) -> None:
    pool = AVERAGED[name]
    shape = ["d", "h", "w"][-len(pool["kernel_shape"]) :]
    made = model([node("AveragePool", ["x"], ["y"], **pool)], {"x": ["n", 2, *shape]}, ["y"])
    made.ir_version = 10
    graph = load(made, cpu)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for sizes in ((4, 6, 5), (7, 3, 8)):
        x = np.random.default_rng(0).normal(size=(2, 2, *sizes[-len(shape) :])).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        results = MLExecution(cpu).compute(graph, {"x": x})
        np.testing.assert_allclose(results["y"], wanted, rtol=1e-5, atol=1e-6)


def test_what_is_turned_round(cpu: MLContext) -> None:
    first, last = np.asarray([-1]), np.asarray([-(2**63) + 1])
    weights = {"a": first, "z": last, "axis": np.asarray([1])}
    made = model(
        [node("Slice", ["x", "a", "z", "axis", "a"], ["y"])], {"x": [2, "n"]}, ["y"], weights
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = MLExecution(cpu).compute(load(made, cpu), {"x": x})
    assert (results["y"] == x[:, ::-1]).all()


def test_names_of_dimensions_are_those_of_the_model(cpu: MLContext) -> None:
    sums = [node("Add", ["x", "y"], ["s"]), node("Neg", ["z"], ["n"])]
    inputs = {"x": ["batch", "odd name", 2], "y": ["batch", "odd name", 2], "z": [None, "batch"]}
    made = model(sums, inputs, ["s", "n"])
    assert shapes(made, cpu)["x"] == shapes(made, cpu)["y"] == ["batch", "_odd_name", "2"]
    assert shapes(made, cpu)["z"] == ["z_0", "batch"]
    assert shapes(made, cpu, batch=4)["z"] == ["z_0", "4"]
    assert shapes(made, cpu, x=[3, "n", 2])["y"] == ["3", "_odd_name", "2"]
    assert shapes(made, cpu, z_0=np.int64(2), _odd_name=5)["z"] == ["2", "batch"]
    assert shapes(made, cpu, z=[None, 2], _odd_name=5) == {
        "x": ["2", "5", "2"], "y": ["2", "5", "2"], "z": ["z_0", "2"]
    }  # fmt: skip


def test_input_shapes_fix_and_bound_what_is_open(cpu: MLContext) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": ["batch", 2]}, ["y"])
    assert load(made, cpu, {"x": [3, 2]}).outputs["y"].shape == (3, 2)
    assert load(made, cpu, {"batch": 4}).outputs["y"].shape == (4, 2)
    bounded = load(made, cpu, {"batch": (1, 4)})
    assert bounded.output_shapes({"batch": 4}) == {"y": (4, 2)}
    with pytest.raises(DataError, match=r"expected 1\.\.4"):
        MLExecution(cpu).compute(bounded, {"x": np.ones((5, 2), np.float32)})
    for given, told in (
        ({"x": [3, 3]}, r"the model has \['batch', 2\]"),
        ({"x": 3}, "expected a list"),
        ({"x": [1.5, 2]}, "got 1.5 among its dimensions"),
        ({"batch": "3"}, "expected a size or"),
        ({"batch": (None, 3)}, "expected a size or"),
        ({"batch": -1}, "got -1, expected a size or"),
        ({"batch": True}, "got True, expected a size or"),
        ({"batch": 4, "x": [3, 2]}, "'batch' is 3 by input 'x', and 4 by its name"),
        ({"x": [5, 2], "batch": (1, 4)}, r"'batch' is 5 by input 'x', and \(1, 4\) by its name"),
        ({"bach": 3}, "no input or dimension 'bach'; it has x, batch; did you mean batch"),
    ):
        with pytest.raises(ValidationError, match=told):
            load(made, cpu, given)
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValidationError, match="'x' has no shape; give input_shapes"):
        load(made, cpu)


def test_a_dimension_follows_from_others_by_its_text(cpu: MLContext) -> None:
    inputs = {"mask": ["batch", "past + 2*new"], "x": ["batch", "past"], "y": ["batch", "2*new"]}
    nodes = [node("Concat", ["x", "y"], ["c"], axis=1), node("Add", ["c", "mask"], ["s"])]
    made = model([*nodes, node("Neg", ["new"], ["n"])], {**inputs, "new": ["new"]}, ["s", "n"])
    graph = load(made, cpu)
    assert graph.output_shapes({"batch": 1, "past": 3, "new": 2})["s"] == (1, 7)
    assert shapes(made, cpu, past=5)["mask"] == ["batch", "2*new + 5"]


def test_a_dimension_that_must_be_the_sum_of_others(cpu: MLContext) -> None:
    """As a decoder's mask, where it is called by a name of its own."""
    inputs = {"mask": ["n", 1, "total"], "x": ["n", "past", 2], "y": ["n", "new", 2]}
    nodes = [
        node("Concat", ["x", "y"], ["c"], axis=1),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 1]),
        node("Add", ["t", "mask"], ["s"]),
    ]
    made = model(nodes, inputs, ["s"])
    graph = load(made, cpu)
    assert shapes(made, cpu)["mask"] == ["n", "1", "new + past"]
    assert graph.output_shapes({"n": 2, "past": 3, "new": 1})["s"] == (2, 2, 4)
    with pytest.raises(DataError, match="expected"):
        MLExecution(cpu).compute(
            graph, {n: np.ones((1, 1 if n == "mask" else 2, 2), np.float32) for n in inputs}
        )
    with pytest.raises(NotSupportedError, match="whether `new \\+ past == total` is not known"):
        load(made, cpu, {"total": (2, 8)})


def test_sizes_are_bounded_by_what_a_model_slices(cpu: MLContext) -> None:
    graph = load(encoder(Script()), cpu)
    inputs = inputs_of(encoder(Script()), {"sequence": PLACES + 1})
    with pytest.raises(DataError, match=f"sequence is {PLACES + 1}, expected 1..{PLACES}"):
        MLExecution(cpu).compute(graph, inputs)
    builder = MLGraphBuilder(cpu)
    with pytest.raises(NotSupportedError, match=rf"give dimensions=.*\(1, {PLACES}\)"):
        add_to(builder, encoder(Script()))
    add_to(MLGraphBuilder(cpu, {"sequence": (1, 8)}), encoder(Script()))


def test_sizes_that_must_be_equal_are_one(cpu: MLContext) -> None:
    inputs = {"x": ["x_dynamic_axes_1", 3], "y": ["y_dynamic_axes_1", "y_dynamic_axes_2"]}
    made = model([node("Concat", ["x", "y"], ["s"], axis=1)], inputs, ["s"])
    assert shapes(made, cpu)["y"] == ["x_dynamic_axes_1", "y_dynamic_axes_2"]
    product = [node("MatMul", ["y", "w"], ["s"])]
    made = model(product, {"y": ["n", "m"]}, ["s"], {"w": np.ones((3, 2), np.float32)})
    assert shapes(made, cpu) == {"y": ["n", "3"]}


def test_add_to_knows_the_sizes_of_what_it_is_given(cpu: MLContext) -> None:
    made = model([node("Add", ["x", "y"], ["s"])], {"x": ["a", "b"], "y": ["b"]}, ["s"])
    builder = MLGraphBuilder(cpu)
    x = builder.input("mine", "float32", [2, "n"])
    found = add_to(builder, made, {"x": x})
    assert builder.build_sync(found).inputs["y"].shape == (x.shape[1],)
    made = model([node("Add", ["x", "w"], ["s"])], {"x": [2], "w": [2]}, ["s"], {"w": np.ones(2)})
    found = add_to(MLGraphBuilder(cpu), made, {"w": np.ones(2, np.float32)})
    assert found["s"].shape == (2,)


def test_what_numbers_must_decide_says_which(cpu: MLContext) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=onnx.TensorProto.FLOAT),
        node("Sqrt", ["f"], ["r"]),
        node("Cast", ["r"], ["i"], to=onnx.TensorProto.INT64),
        node("Expand", ["x", "i"], ["y"], name="wide"),
        node("ReduceSum", ["x", "s"], ["v"], name="many"),
    ]
    with pytest.raises(NotSupportedError) as caught:
        load(model(nodes, {"x": ["length"]}, ["y", "v"]), cpu)
    text = str(caught.value)
    assert "Expand [wide]: shape must be known at import" in text
    assert "ReduceSum [many]: axes must be known at import, and follows from open dim" in text
    assert "give input_shapes={'length': ...}" in text


def number(*values: Any) -> Any:
    return np.asarray(values)


ARITHMETIC: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    "a sum of products": (
        [node("Mul", ["s", "two"], ["a"]), node("Add", ["a", "s"], ["r"])],
        {"two": number(2, 3)},
        lambda n, m: [3 * n, 4 * m],
    ),
    "a rounded up quotient": (
        [node("Add", ["s", "two"], ["a"]), node("Div", ["a", "two"], ["r"])],
        {"two": number(2, 2)},
        lambda n, m: [n // 2 + 1, m // 2 + 1],
    ),
    "a remainder": (
        [node("Mod", ["s", "by"], ["r"])],
        {"by": number(3, 3)},
        lambda n, m: [n % 3, m % 3],
    ),
    "a place before the first one": (
        [node("Mod", ["back", "s"], ["r"])],
        {"back": number(-1, -2)},
        lambda n, m: [n - 1, m - 2],
    ),
    "halves of floats": (
        [
            node("Cast", ["s"], ["f"], to=1),
            node("Mul", ["f", "half"], ["h"]),
            node("Ceil", ["h"], ["c"]),
            node("Cast", ["c"], ["r"], to=7),
        ],
        {"half": number(0.5, 1.5).astype("f4")},
        lambda n, m: [-(-n // 2), -(-3 * m // 2)],
    ),
    "a product of all": (
        [node("ReduceProd", ["s"], ["p"], keepdims=1), node("Concat", ["p", "s"], ["r"], axis=0)],
        {},
        lambda n, m: [n * m, n, m],
    ),
    "what is turned and put": (
        [
            node("Slice", ["s", "last", "far", "first", "last"], ["t"]),
            node("ScatterElements", ["t", "first", "seven"], ["r"], axis=0),
        ],
        {"last": number(-1), "far": number(-9), "first": number(0), "seven": number(7)},
        lambda n, m: [7, n],
    ),
    "a choice": (
        [
            node("Equal", ["s", "none"], ["e"]),
            node("Where", ["e", "none", "s"], ["w"]),
            node("Greater", ["s", "none"], ["g"]),
            node("Not", ["g"], ["l"]),
            node("Where", ["l", "none", "w"], ["r"]),
        ],
        {"none": number(-1, -1)},
        lambda n, m: [n, m],
    ),
    "the greater one": (
        [node("Max", ["s", "least"], ["a"]), node("Sub", ["a", "least"], ["r"])],
        {"least": number(1, 1)},
        lambda n, m: [n - 1, m - 1],
    ),
}


MAY_BE_ZERO = {"a remainder", "a place before the first one", "the greater one"}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_on_sizes(cpu: MLContext, name: str) -> None:
    """As numbers when the graph runs, and as a shape when it is imported."""
    arithmetic, weights, expected = ARITHMETIC[name]
    nodes = [node("Shape", ["x"], ["s"]), *arithmetic, node("Abs", ["r"], ["numbers"])]
    outputs = ["numbers"]
    if name not in MAY_BE_ZERO:
        nodes += [node("ReduceSum", ["x"], ["all"]), node("ConstantOfShape", ["r"], ["zeros"])]
        nodes.append(node("Add", ["zeros", "all"], ["made"]))
        outputs.append("made")
    graph = load(model(nodes, {"x": ["n", "m"]}, outputs, weights), cpu)
    for n, m in ((2, 3), (5, 4)):
        results = MLExecution(cpu).compute(graph, {"x": np.ones((n, m), np.float32)})
        assert results["numbers"].tolist() == expected(n, m)
        assert "made" not in results or list(results["made"].shape) == expected(n, m)


def test_a_part_without_rows_is_left_out_of_an_open_concat(cpu: MLContext) -> None:
    """As PyTorch writes a list of tensors that begins as `torch.zeros(batch, 0, 3)`."""
    op = onnx.helper.make_node
    nodes = [
        op("Shape", ["x"], ["n"], start=0, end=1),
        op("Concat", ["n", "rest"], ["shape"], axis=0),
        op("ConstantOfShape", ["shape"], ["empty"]),
        op("Concat", ["empty", "x", "x"], ["y"], axis=1),
    ]
    rest = {"rest": np.array([0, 3])}
    graph = load(model(nodes, {"x": ["n", 2, 3]}, ["y"], rest, opset=17), cpu)
    x = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    (y,) = MLExecution(cpu).compute(graph, {"x": x}).values()
    np.testing.assert_array_equal(y, np.concatenate([x, x], 1))


@pytest.mark.parametrize(
    ("made", "attempts", "shapes"),
    [
        (
            model(
                [node("MaxPool", ["x"], ["y"], kernel_shape=[5, 9])], {"x": [1, 1, "h", "w"]}, "y"
            ),
            2,
            {"x": (1, 1, "h", "w")},
        ),
        (
            model(
                [node("Concat", ["x", "y", "z"], ["a"], axis=1)],
                {"x": ["k", 2], "y": ["m", 2], "z": ["n", 2]},
                "a",
            ),
            2,
            {"x": ("k", 2), "y": ("k", 2), "z": ("k", 2)},
        ),
        (
            model(  # the pooling needs a size of 2, the sum a multiple of 2
                [
                    node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
                    node("Resize", ["half", "", "twice"], ["whole"]),
                    node("Add", ["x", "whole"], ["y"]),
                ],
                {"x": [1, 1, "h", "w"]},
                "y",
                {"twice": np.array([1, 1, 2, 2], np.float32)},
            ),
            3,
            {"x": (1, 1, "2*h_by_2", "2*w_by_2")},
        ),
    ],
)
def test_all_constraints_of_a_node_are_found_at_once(
    cpu: MLContext,
    monkeypatch: pytest.MonkeyPatch,
    made: onnx.ModelProto,
    attempts: int,
    shapes: dict[str, Any],
) -> None:
    importers = []

    def importer(*given: Any) -> Importer:
        importers.append(Importer(*given))
        return importers[-1]

    monkeypatch.setattr(load_impl, "Importer", importer)
    graph = load(made, cpu)
    assert len(importers) == attempts
    assert {
        name: tuple(n if isinstance(n, int) else str(n) for n in end.shape)
        for name, end in graph.inputs.items()
    } == shapes
