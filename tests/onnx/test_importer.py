"""What the importer makes of models: graphs, names, and one message for what it cannot map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model, small_network
from webnn_py import (
    DataError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
)
from webnn_py.onnx import add_to, backend, load

node = helper.make_node


def computed(context: MLContext, made: Any, x: Any, **options: Any) -> Any:
    graph = load(made, context, **options)
    return MLExecution(context).compute(graph, {"x": x})


def test_a_network_gives_what_the_reference_gives(cpu: MLContext, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    made = small_network()
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    onnx.save(made, tmp_path / "m.onnx")
    for source in (made, made.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        np.testing.assert_allclose(computed(cpu, source, x)["y"], expected, rtol=1e-4, atol=1e-5)


def test_labels_and_names_are_the_model_s(cpu: MLContext) -> None:
    listing = str(load(small_network(), cpu))
    for name in ("stem", "act", "pool", "flat", "head", "w", "b", "m"):
        assert name in listing
    assert "gather" not in listing
    assert "concat" not in listing


def test_add_to_continues_a_graph(cpu: MLContext) -> None:
    made = model([node("Add", ["a", "b"], ["y"])], {"a": [2], "b": [2]}, ["y"])
    builder = MLGraphBuilder(cpu)
    mine = builder.relu(builder.input("mine", "float32", [2]))
    found = add_to(builder, made, {"a": mine, "b": np.ones(2, np.float32)})
    graph = builder.build_sync({"z": builder.neg(found["y"])})
    z = MLExecution(cpu).compute(graph, {"mine": np.asarray([-3, 3], np.float32)})["z"]
    assert z.tolist() == [-1, -4]
    with pytest.raises(ValidationError, match="no input 'c'"):
        add_to(MLGraphBuilder(cpu), made, {"c": mine})
    with pytest.raises(ValidationError, match="int64"):
        add_to(MLGraphBuilder(cpu), made, {"a": np.ones(2, np.int64)})
    for given, told in (
        ({"a": np.ones(3, np.float32)}, r"inputs\['a'\]: got shape \[3\], the model has \[2\]"),
        ({"a": np.ones((2, 1), np.float32)}, r"got shape \[2, 1\], the model has \[2\]"),
        ({"a": None}, "got NoneType, expected an MLOperand or an array of numbers"),
        ({"a": [[1], []]}, "got list, expected an MLOperand or an array of numbers"),
        ({"a": mine}, "operand 'a': <MLOperand.* belongs to another builder"),
    ):
        with pytest.raises(ValidationError, match=told):
            add_to(MLGraphBuilder(cpu), made, given)


def test_all_that_cannot_be_mapped_is_in_one_message(cpu: MLContext) -> None:
    nodes = [
        node("Unique", ["x"], ["i"], name="first"),
        node("Unique", ["x"], ["j"], name="second"),
        node("Cast", ["x"], ["d"], name="wide", to=onnx.TensorProto.DOUBLE),
        node("NoSuchOperator", ["d"], ["e"], name="odd"),
        node("Unique", ["x"], ["", "places"]),
        node("Abs", ["i"], ["k"], name="after"),
    ]
    with pytest.raises(NotSupportedError) as caught:
        load(model(nodes, {"x": [2]}, ["k", "e", "j", "places"]), cpu)
    text = str(caught.value)
    assert "Unique [first, second, places]: the shape of its result depends on contents" in text
    assert "Cast [wide]: WebNN has no data type double" in text
    assert "NoSuchOperator [odd]" in text
    assert "after" not in text


def test_what_cannot_be_mapped_is_found_behind_what_cannot(cpu: MLContext) -> None:
    odd = helper.make_graph([node("Inner", ["a"], ["b"], name="inner")], "odd", [], [])
    odd.output.append(onnx.ValueInfoProto(name="b"))
    nodes = [
        node("Outer", ["x"], ["a"], name="outer"),
        node("Unique", ["a"], ["i"], name="contents"),
        node("If", ["a"], ["f"], name="choice", then_branch=odd, else_branch=odd),
        # of the shape alone, which is not known here, but may be once `Outer` is:
        node("Shape", ["a"], ["s"]),
        node("ConstantOfShape", ["s"], ["z"]),
        node("Unique", ["z"], ["j"], name="sizes"),
    ]
    with pytest.raises(NotSupportedError) as caught:
        load(model(nodes, {"x": [2]}, ["i", "f", "j"]), cpu)
    lines = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == ["Outer [outer]", "Unique [contents]", "Inner [choice/inner]"]


@pytest.mark.parametrize("shapes", [3, ["x"], "x"])
def test_input_shapes_that_are_no_mapping(cpu: MLContext, shapes: Any) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    with pytest.raises(ValidationError, match=r"input_shapes: got .*expected a mapping by name"):
        load(made, cpu, shapes)


def test_arguments_of_add_to_that_are_something_else(cpu: MLContext) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    with pytest.raises(ValidationError, match="builder: got MLContext, expected an MLGraphBuilder"):
        add_to(cpu, made)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="inputs: got list, expected a mapping by name"):
        add_to(MLGraphBuilder(cpu), made, ["x"])  # type: ignore[arg-type]


def test_what_cannot_be_mapped_is_found_in_functions_branches_and_loops(cpu: MLContext) -> None:
    def value(name: str) -> Any:
        return onnx.ValueInfoProto(name=name)

    def function(name: str, nodes: list[Any]) -> Any:
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
        return helper.make_function("own", name, ["a"], ["b"], nodes, opsets)

    find = node("Optional", ["a"], ["i"], name="deep")
    functions = [
        function("Inner", [find, node("Cast", ["i"], ["b"], to=1)]),
        function("Outer", [node("Inner", ["a"], ["m"], domain="own"), node("Abs", ["m"], ["b"])]),
    ]
    distinct = node("Unique", ["x"], ["u"], name="distinct")
    taken = helper.make_graph([distinct], "t", [], [value("u")])
    noise = [node("Unique", ["v"], ["w"], name="noise"), node("Identity", ["g"], ["h"])]
    body = helper.make_graph(
        noise, "b", [value("r"), value("g"), value("v")], [value("h"), value("w")]
    )
    nodes = [
        node("Outer", ["x"], ["o"], domain="own", name="outer"),
        node("If", ["yes"], ["f"], name="choice", then_branch=taken, else_branch=taken),
        node("Cast", ["x"], ["c"], to=onnx.TensorProto.BOOL),
        node("If", ["c"], ["e"], name="unknown", then_branch=taken, else_branch=taken),
        node("Loop", ["n", "", "x"], ["l"], name="rounds", body=body),
        node("Odd", ["x"], ["p"], name="odd"),
    ]
    weights = {"yes": np.asarray(True), "n": np.asarray(2)}
    made = model(nodes, {"x": [1]}, ["o", "f", "e", "l", "p"], weights)
    made.functions.extend(functions)
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.ir_version = 10
    with pytest.raises(NotSupportedError) as caught:
        load(made, cpu)
    lines = str(caught.value).splitlines()[1:]
    named = [line.split(":")[0].strip() for line in lines]
    assert named == [
        "Optional [outer/deep]",
        "Unique [choice/distinct, unknown/distinct, rounds/noise]",
        "If [unknown]",
        "Odd [odd]",
    ]


def test_a_branch_that_contents_decide(cpu: MLContext) -> None:
    """Both are computed, and one is taken where the graph runs."""

    def body(name: str, *nodes: Any) -> Any:
        outputs = [onnx.ValueInfoProto(name=f"{name}{i}") for i in (1, 2)]
        return helper.make_graph(list(nodes), name, [], outputs)

    low = body("l", node("Neg", ["x"], ["l1"]), node("Less", ["x", "s"], ["l2"]))
    high = body("h", node("Exp", ["x"], ["h1"]), node("Greater", ["x", "s"], ["h2"]))
    inner = node("If", ["c"], ["y", "z"], then_branch=low, else_branch=high)
    outer = body("o", inner, node("Abs", ["y"], ["o1"]), node("Not", ["z"], ["o2"]))
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=1),
        node("Less", ["s", "none"], ["c"]),
        node("If", ["c"], ["a", "b"], then_branch=outer, else_branch=high),
    ]
    graph = load(model(nodes, {"x": ["n"]}, ["a", "b"], {"none": np.zeros(1, np.float32)}), cpu)
    for values in ([1, -3, -1], [1, 2]):
        x = np.asarray(values, np.float32)
        results = MLExecution(cpu).compute(graph, {"x": x})
        taken = (abs(x), ~(x < sum(x))) if sum(x) < 0 else (np.exp(x), x > sum(x))
        np.testing.assert_allclose(results["a"], taken[0], rtol=1e-6)
        assert (results["b"] == taken[1]).all()


def test_branches_of_different_shapes_that_contents_decide(cpu: MLContext) -> None:
    taken, other = (
        helper.make_graph([node(op, ["x"], [op])], op, [], [onnx.ValueInfoProto(name=op)])
        for op in ("Neg", "ReduceSum")
    )
    choice = node("If", ["c"], ["y"], name="choice", then_branch=taken, else_branch=other)
    made = model([node("IsNaN", ["z"], ["c"]), choice], {"x": [2], "z": [1]}, ["y"])
    with pytest.raises(
        NotSupportedError, match=r"If \[choice\]: its condition must be known at imp"
    ):
        load(made, cpu)


def test_an_output_that_is_listed_twice(cpu: MLContext) -> None:
    """As exporters write modules that return a tensor twice; ONNX Runtime gives it twice."""
    made = model([node("Neg", ["x"], ["y"])], {"x": [2]}, ["y", "x", "y"])
    x = np.asarray([1, 2], np.float32)
    results = computed(cpu, made, x)
    assert {name: array.tolist() for name, array in results.items()} == {
        "y": [-1, -2],
        "x": [1, 2],
    }
    for value in made.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    first, _, again = backend.run_model(made, [x])
    assert first.tolist() == again.tolist() == [-1, -2]


def test_outputs_that_nothing_reads_need_no_counterpart(cpu: MLContext) -> None:
    """As exporters gave normalizations five outputs before opset 14."""
    weights = {name: np.full(2, 0.5, np.float32) for name in ("s", "b", "m", "v")}
    outputs = ["y", "m2", "v2", "m3", "v3"]
    norm = node("BatchNormalization", ["x", *weights], outputs, name="norm")
    made = model([norm], {"x": [1, 2, 3]}, ["y"], weights, opset=9)
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    wanted = (x - 0.5) / np.sqrt(0.5 + 1e-5) * 0.5 + 0.5
    np.testing.assert_allclose(computed(cpu, made, x)["y"], wanted, rtol=1e-5)
    for name in ("m2", "v3"):
        nodes = [norm, node("Neg", [name], ["z"])]
        made = model(nodes, {"x": [1, 2, 3]}, ["y", "z"], weights, opset=9)
        place = outputs.index(name)
        with pytest.raises(
            NotSupportedError,
            match=rf"BatchNormalization \[norm\]: its output {place} has no counterpart",
        ):
            load(made, cpu)
    made = model([norm], {"x": [1, 2, 3]}, ["y", "m2"], weights, opset=9)
    with pytest.raises(NotSupportedError, match="its output 1 has no counterpart"):
        load(made, cpu)


def test_control_flow_and_local_functions(cpu: MLContext) -> None:
    branch = [
        helper.make_graph(
            [node(op, ["x"], [f"{op}y"])], op, [], [onnx.ValueInfoProto(name=f"{op}y")]
        )
        for op in ("Neg", "Relu")
    ]
    taken = node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])
    body = helper.make_graph(
        [node("Add", ["v", "x"], ["w"]), node("Identity", ["go"], ["on"])],
        "body",
        [onnx.ValueInfoProto(name=name) for name in ("i", "go", "v")],
        [onnx.ValueInfoProto(name=name) for name in ("on", "w")],
    )
    loop = node("Loop", ["n", "", "y"], ["z"], body=body)
    own = node("Twice", ["z"], ["t"], domain="own")
    made = model([taken, loop, own], {"x": [2]}, ["t"], {"c": np.asarray(True), "n": np.asarray(3)})
    opset = [helper.make_opsetid("", 21)]
    twice = helper.make_function(
        "own", "Twice", ["p"], ["q"], [node("Add", ["p", "p"], ["q"])], opset
    )
    made.functions.append(twice)
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.ir_version = 10
    x = np.asarray([1, 2], np.float32)
    assert computed(cpu, made, x)["t"].tolist() == [4, 8]


def test_broken_models(cpu: MLContext, tmp_path: Path) -> None:
    cyclic = [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"])]
    with pytest.raises(DataError, match="cyclic"):
        load(model(cyclic, {"x": [2]}, ["b"]), cpu)
    with pytest.raises(DataError, match="'nothing'"):
        load(model([node("Neg", ["nothing"], ["y"])], {"x": [2]}, ["y"]), cpu)
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "none.onnx", cpu)
    for contents in (b"", b"\x00" * 50, b"not a model"):
        with pytest.raises(DataError):
            load(contents, cpu)
    with pytest.raises(ValidationError, match="int"):
        load(3, cpu)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_products_with_packed_weights(cpu: MLContext, bits: int, has_zeros: bool) -> None:
    rng = np.random.default_rng(0)
    n, k, block = 3, 40, 16
    numbers = rng.integers(0, 1 << bits, (n, 3, block)).astype(np.uint8)
    zeros = rng.integers(0, 1 << bits, (n, 4)).astype(np.uint8)
    scales = rng.uniform(0.5, 1, (n, 3)).astype(np.float32)
    halves = lambda x: x[..., ::2] | (x[..., 1::2] << 4) if bits == 4 else x  # noqa: E731
    weights = {"b": halves(numbers), "s": scales.reshape(-1)}
    if has_zeros:
        weights["z"] = halves(zeros if bits == 4 else zeros[:, :3]).reshape(-1)
    product = node(
        "MatMulNBits",
        ["x", *weights],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=bits,
        block_size=block,
    )
    made = model([product], {"x": [2, k]}, ["y"], weights)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = rng.normal(size=(2, k)).astype(np.float32)
    off = zeros[:, :3, None].astype(np.float64) if has_zeros else 1 << (bits - 1)
    wide = ((numbers.astype(np.float64) - off) * scales[..., None]).reshape(n, -1)[:, :k]
    np.testing.assert_allclose(computed(cpu, made, x)["y"], x @ wide.T, rtol=1e-4, atol=1e-4)


def test_sums_of_many_integers_are_exact(cpu: MLContext) -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(200, 256, (1, 700, 1, 2)).astype(np.uint8)
    x = rng.integers(200, 256, (1, 700, 1, 3)).astype(np.uint8)
    conv = model([node("ConvInteger", ["x", "w"], ["y"])], {"x": x.shape}, ["y"], {"w": w}, elem=2)
    wide = (w[0, :, 0].astype(np.int64), x[0, :, 0].astype(np.int64))
    expected = [(wide[0] * wide[1][:, i : i + 2]).sum() for i in (0, 1)]
    assert computed(cpu, conv, x)["y"].reshape(-1).tolist() == expected
    product = node("MatMulInteger", ["x", "w"], ["y"])
    columns = {"w": w.reshape(700, 2)}
    matmul = model([product], {"x": [3, 700]}, ["y"], columns, elem=2)
    rows = np.ascontiguousarray(x.reshape(700, 3).T)
    assert (computed(cpu, matmul, rows)["y"] == rows.astype(np.int32) @ columns["w"]).all()


def test_weights_of_four_bits(cpu: MLContext) -> None:
    for elem, low in ((onnx.TensorProto.INT4, -8), (onnx.TensorProto.UINT4, 0)):
        numbers = np.arange(6).reshape(2, 3) + low
        made = model(
            [node("DequantizeLinear", ["w", "s"], ["d"]), node("Add", ["x", "d"], ["y"])],
            {"x": [2, 3]},
            ["y"],
            {"s": np.asarray(0.5, np.float32)},
        )
        made.graph.initializer.append(
            helper.make_tensor("w", elem, [2, 3], numbers.reshape(-1).tolist())
        )
        assert (computed(cpu, made, np.zeros((2, 3), np.float32))["y"] == numbers / 2).all()


def test_initializers_that_nothing_reads_must_be_whole_too(cpu: MLContext) -> None:
    """They are read once a node asks for them, and the others at the end."""
    made = model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"], {"w": np.ones(3, np.float32)})
    np.testing.assert_array_equal(computed(cpu, made, np.ones(2, np.float32))["y"], [1, 1])
    made.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(DataError, match="tensor 'w': its contents do not fit"):
        load(made, cpu)


@pytest.mark.parametrize(("opset", "kind"), [(7, "float32"), (10, "uint8"), (13, "uint8")])
def test_masks_of_dropout_are_of_the_input_s_type_or_bools(
    cpu: MLContext, opset: int, kind: str
) -> None:
    made = model([node("Dropout", ["x"], ["y", "m"])], {"x": [2]}, ["y", "m"], opset=opset)
    found = computed(cpu, made, np.asarray([3, -4], np.float32))
    assert found["y"].tolist() == [3, -4]
    assert (found["m"].dtype, found["m"].tolist()) == (np.dtype(kind), [1, 1])
