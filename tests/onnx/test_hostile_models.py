"""Models that contradict themselves, or would take all memory or time: an error that says what."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from webnn_py import (
    DataError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
)
from webnn_py.onnx import add_to, backend, load

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
node = helper.make_node


def value(name: str, shape: Sequence[int] | None = None, elem: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem, shape)


X, Y = [value("x", [2, 3])], [value("y")]


def model(
    nodes: Any,
    constants: dict[str, Any] | None = None,
    inputs: Any = X,
    outputs: Any = Y,
    functions: Any = (),
) -> Any:
    known = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "hostile", inputs, outputs, known)
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions)


RELU = node("Relu", ["x"], ["y"])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (model([RELU, node("Neg", ["x"], ["y"])]), r"node 'y' \(Neg\): it makes 'y', which there"),
        (model([node("Relu", ["x"], ["x"]), RELU]), r"node 'x' \(Relu\): it makes 'x'"),
        (model([node("Split", ["x"], ["y", "y"], num_outputs=2)]), "it makes 'y'"),
        (model([node("Relu", ["x"], ["w"]), RELU], {"w": np.float32(1)}), "it makes 'w'"),
        (model([RELU], inputs=[value("x", [1])] * 2), "two of the model's inputs are called 'x'"),
    ],
)
def test_names_stand_for_one_thing(cpu: MLContext, made: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        load(made, cpu)


def test_initializers_have_names_of_their_own(cpu: MLContext) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"w": np.float32(1)})
    made.graph.initializer.append(numpy_helper.from_array(np.float32(2).reshape(()), "w"))
    with pytest.raises(DataError, match="two of the model's initializers are called 'w'"):
        load(made, cpu)


def test_a_name_may_come_again_in_each_round_of_a_loop(cpu: MLContext) -> None:
    body = helper.make_graph(
        [node("Identity", ["on"], ["again"]), node("Add", ["v", "v"], ["sum"])],
        "body",
        [value("i", [], TensorProto.INT64), value("on", [], TensorProto.BOOL), value("v")],
        [value("again", [], TensorProto.BOOL), value("sum")],
    )
    made = model([node("Loop", ["trips", "", "x"], ["y"], body=body)], {"trips": np.int64(3)})
    assert load(made, cpu).outputs["y"].shape == (2, 3)


def function(name: str, *called: str) -> Any:
    names = ["a", *(f"t{i}" for i in range(len(called) - 1)), "b"]
    nodes = [
        node(kind, [names[i]], [names[i + 1]], domain="" if kind == "Relu" else "d")
        for i, kind in enumerate(called)
    ]
    return helper.make_function("d", name, ["a"], ["b"], nodes, OPSETS)


CALL = node("F0", ["x"], ["y"], domain="d")
TENFOLD = [function(f"F{i}", *[f"F{i + 1}"] * 10) for i in range(9)]


@pytest.mark.parametrize(
    "functions",
    [
        [function("F0", "Relu", "F0")],
        [function("F0", "F1"), function("F1", "F0")],
        [*(function(f"F{i}", f"F{i + 1}") for i in range(2000)), function("F2000", "Relu")],
    ],
    ids=["itself", "each other", "deep"],
)
def test_functions_that_call_each_other_without_an_end(cpu: MLContext, functions: Any) -> None:
    with pytest.raises(DataError, match=r"local functions call each other without an end: d\.F"):
        load(model([CALL], functions=functions), cpu)


def test_functions_of_functions_are_counted_before_they_are_written_out(cpu: MLContext) -> None:
    made = model([CALL], functions=[*TENFOLD, function("F9", "Relu")])
    with pytest.raises(NotSupportedError, match="over 200000 nodes after its functions"):
        load(made, cpu)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (model([node("Softmax", ["x"], ["y"], axis=7)]), "its axis 7 is not one of rank 2"),
        (model([node("Concat", ["x", "x"], ["y"], axis=-3)]), "its axis -3 is not one of rank 2"),
        (model([node("Unsqueeze", ["x", "a"], ["y"])], {"a": [0, 0]}), r"\[0, 0\] have one twice"),
        (model([node("TopK", ["x", "k"], ["y", ""])], {"k": [100]}), "k is 100, of 3 elements"),
        (model([node("TopK", ["x", "k"], ["y", ""])], {"k": [-1]}), "k is -1, of 3 elements"),
        (model([node("Gather", ["x", "i"], ["y"])], {"i": [1, 5]}), "index 5 is not one of 2"),
        (model([node("Einsum", ["x"], ["y"], equation="ij->ik")]), "a result of other indices"),
        (model([node("Einsum", ["x"], ["y"], equation="ij->ii")]), "a result of other indices"),
        (
            model(
                [node("Conv", ["i", "w"], ["y"], kernel_shape=[3, 3])],
                {"w": np.ones((1, 1, 2, 2), np.float32)},
                [value("i", [1, 1, 4, 4])],
            ),
            r"its kernel_shape is \[3, 3\], its filter \[1, 1, 2, 2\]",
        ),
        (
            model(
                [node("Resize", ["x", "", "s"], ["y"])], {"s": np.array([1, np.nan], np.float32)}
            ),
            r"its scales are \[1.0, nan\], expected positive numbers",
        ),
        (
            model([node("Relu", ["x", "x"], ["y"])]),
            "is not valid: 2 inputs, expected 1",
        ),
        (model([node("Softmax", ["x"], ["y"], axis="1")]), "'axis' is STRING, expected INT"),
        (model([node("Einsum", ["x"], ["y"])]), "it lacks its attribute 'equation'"),
        (
            model([RELU], outputs=[value("y", [2, 3], TensorProto.INT64)]),
            "output 'y' is float, and declared as int64",
        ),
    ],
)
def test_nodes_that_are_not_as_their_operator_is_defined(
    cpu: MLContext, made: Any, why: str
) -> None:
    with pytest.raises(DataError, match=why):
        load(made, cpu)


def test_an_initializer_of_a_negative_size(cpu: MLContext) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"w": np.ones(3, np.float32)})
    made.graph.initializer[0].dims[0] = -1
    with pytest.raises(DataError, match=r"tensor 'w': its shape is \[-1\]"):
        load(made, cpu)


HUGE = 2**40
RANGE = [node("Range", ["a", "b", "c"], ["k"]), node("Cast", ["k"], ["y"], to=TensorProto.FLOAT)]


@pytest.mark.parametrize(
    "made",
    [
        model(RANGE, {"a": np.int64(0), "b": np.int64(HUGE), "c": np.int64(1)}),
        model(RANGE, {"a": np.float32(-np.inf), "b": np.float32(np.inf), "c": np.float32(1)}),
        model(
            [node("OneHot", ["i", "d", "v"], ["y"])],
            {"d": np.int64(2**31 - 1), "v": np.zeros(2, np.float32)},
            [value("i", [2], TensorProto.INT64)],
        ),
        model([node("Resize", ["x", "", "", "s"], ["y"])], {"s": np.array([2, 2**31 - 1])}),
        model(
            [node("Resize", ["x", "", "s"], ["y"], mode="linear")],
            {"s": np.array([1, 2e8], np.float32)},
        ),
        model([node("Expand", ["x", "s"], ["y"])], {"s": [HUGE, 2, 3]}),
        model([node("Tile", ["x", "s"], ["y"])], {"s": [HUGE, 1]}),
        model([node("ConstantOfShape", ["s"], ["y"])], {"s": [2**20, 2**20]}),
    ],
)
def test_what_would_take_all_memory(cpu: MLContext, made: Any) -> None:
    load(model([RELU]), cpu)
    tracemalloc.start()
    try:
        with pytest.raises(NotSupportedError, match="cannot be mapped"):
            load(made, cpu)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_the_diagonal_of_an_open_matrix(cpu: MLContext) -> None:
    made = model([node("Einsum", ["x"], ["y"], equation="ii->i")], inputs=[value("x", ["n", "n"])])
    matrix = np.arange(9, dtype=np.float32).reshape(3, 3)
    found = MLExecution(cpu).compute(load(made, cpu), {"x": matrix})["y"]
    np.testing.assert_array_equal(found, [0, 4, 8])


def test_the_backend_is_given_all_inputs_and_no_more() -> None:
    made = model([node("Add", ["x", "z"], ["y"])], inputs=[value("x", [2]), value("z", [2])])
    one = np.ones(2, np.float32)
    prepared = backend.prepare(made)
    assert prepared.run([one, one])[0].tolist() == [2, 2]
    for inputs in ([one], {"x": one}, one):
        with pytest.raises(ValidationError, match="input 'z' is missing"):
            prepared.run(inputs)
    with pytest.raises(ValidationError, match="got 3 inputs, expected"):
        prepared.run([one, one, one])


ROW, COLUMN = np.zeros((1, 1 << 12), np.float32), np.zeros((1 << 12, 1), np.float32)


@pytest.mark.parametrize(
    ("kind", "inputs", "constants"),
    [
        ("ConstantOfShape", ["s"], {"s": [1_000_000]}),
        ("Tile", ["t", "s"], {"s": [1_000_000], "t": np.ones(1, np.float32)}),
        (
            "Range",
            ["a", "b", "c"],
            {"a": np.float32(0), "b": np.float32(1e6), "c": np.float32(1)},
        ),
        ("Add", ["row", "column"], {"row": ROW, "column": COLUMN}),
        ("Gather", ["row", "i"], {"row": ROW, "i": np.zeros((1 << 12, 1), np.int64)}),
    ],
)
def test_nodes_that_together_would_take_all_memory(
    cpu: MLContext, kind: str, inputs: list[str], constants: dict[str, Any]
) -> None:
    nodes = [node(kind, inputs, [f"k{i}"]) for i in range(100)]
    nodes += [node("ReduceMax", [f"k{i}"], [f"m{i}"], keepdims=0) for i in range(100)]
    nodes.append(node("Sum", ["x", *(f"m{i}" for i in range(100))], ["y"]))
    load(model([RELU]), cpu)
    builder, made = MLGraphBuilder(cpu), model(nodes, constants)
    tracemalloc.start()
    try:
        add_to(builder, made)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


PLACE = "place"
"""How the importer says where a file has the contents of a tensor."""
FAR = {"key": PLACE, "value": f"0 {1 << 60}"}


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([FAR], "gives no location; it has 'place'"),
        ([{"key": PLACE, "value": "16 24"}], "gives no location; it has 'place'"),
        ([], "gives no location; it has nothing"),
        ([{"key": "location", "value": ""}], "gives no location"),
        ([{"key": "location", "value": "w"}, {"key": "offset", "value": "-1"}], "offset '-1'"),
        ([{"key": "location", "value": "w"}, {"key": "length", "value": "x"}], "length 'x'"),
        ([{"key": "location", "value": "w"}, {"key": "offset", "value": "8"}], "do not fit"),
        ([{"key": "location", "value": "w"}, {"key": "length", "value": "9"}], "do not fit"),
        ([{"key": "location", "value": "m.onnx/w"}], "cannot be read"),
    ],
)
def test_external_data_that_is_malformed(
    cpu: MLContext, tmp_path: Path, entries: Any, why: str
) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"w": np.zeros((2, 3), np.float32)})
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for entry in entries:
        weight.external_data.add(**entry)
    (tmp_path / "w").write_bytes(bytes(24))
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    for source in (path, made):
        with pytest.raises(DataError, match="tensor 'w': "):
            load(source, cpu)
    with pytest.raises(DataError, match=why):
        load(path, cpu)


@pytest.mark.parametrize("key", ["place", "location"])
@pytest.mark.parametrize("count", [6, 6000], ids=["small", "large"])
def test_external_entries_of_a_tensor_that_has_its_data(
    cpu: MLContext, tmp_path: Path, key: str, count: int
) -> None:
    """Only `data_location` says that the data is elsewhere."""
    weight = np.arange(count, dtype=np.float32)
    made = model([node("Add", ["x", "w"], ["y"])], {"w": weight}, [value("x", [count])])
    place = "0 24" if key == PLACE else "w"
    made.graph.initializer[0].external_data.add(key=key, value=place)
    (tmp_path / "w").write_bytes(bytes(4 * count))
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    for source in (path, path.read_bytes(), made):
        graph = load(source, cpu)
        found = MLExecution(cpu).compute(graph, {"x": np.zeros(count, np.float32)})["y"]
        np.testing.assert_array_equal(found, weight)


def test_a_path_that_no_file_has(cpu: MLContext) -> None:
    with pytest.raises(DataError, match=r"'m\\x00.onnx' cannot be read"):
        load("m\0.onnx", cpu)


def squared_size(times: int) -> Any:
    """A size of an input, squared so many times, as a new shape."""
    nodes = [node("Shape", ["x"], ["s0"])]
    nodes += [node("Mul", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(times)]
    nodes += [node("Expand", ["one", f"s{times}"], ["y"])]
    return model(nodes, {"one": np.ones(1, np.float32)}, [value("x", ["n"])])


def products_of_sums() -> Any:
    """Two inputs whose lengths are sums of 80 sizes each: all pairs, in a row."""
    inputs, nodes = [], []
    for side, title in enumerate("ab"):
        names = [f"{title}{i}" for i in range(80)]
        inputs += [value(name, [f"n_{name}"]) for name in names]
        nodes += [node("Concat", names, [f"{title}_row"], axis=0)]
        nodes += [node("Unsqueeze", [f"{title}_row", f"axis{side}"], [f"{title}_all"])]
    nodes += [node("Add", ["a_all", "b_all"], ["all"]), node("Reshape", ["all", "flat"], ["y"])]
    axes = {f"axis{side}": np.array([side], np.int64) for side in range(2)}
    return model(nodes, {**axes, "flat": np.array([-1], np.int64)}, inputs)


NAMED = [value("x", ["*".join("n" * 11)]), value("z", ["n"])]


@pytest.mark.parametrize(
    "made",
    [squared_size(11), squared_size(40), products_of_sums(), model([RELU], inputs=NAMED)],
)
def test_sizes_too_large_to_calculate_with_are_refused(cpu: MLContext, made: Any) -> None:
    with pytest.raises(NotSupportedError, match=r"too large an expression.*input_shapes="):
        load(made, cpu)


def nested_loops(depth: int, rounds: int) -> Any:
    """Loops in each other, of so many rounds each."""

    def loop(level: int, name: str) -> Any:
        if level == 0:
            return node("Relu", [name], [f"w{level}"])
        return node("Loop", ["rounds", "on", name], [f"w{level}"], body=body(level - 1))

    def body(level: int) -> Any:
        counted = value(f"i{level}", [], TensorProto.INT64)
        on = value(f"on{level}", [], TensorProto.BOOL)
        handed = value(f"still{level}", [], TensorProto.BOOL)
        nodes = [loop(level, f"v{level}"), node("Identity", [f"on{level}"], [f"still{level}"])]
        ends = [handed, value(f"w{level}")]
        return helper.make_graph(nodes, f"b{level}", [counted, on, value(f"v{level}")], ends)

    outer = node("Loop", ["rounds", "on", "x"], ["y"], body=body(depth - 1))
    return model([outer], {"rounds": np.int64(rounds), "on": np.bool_(True)})


def test_loops_that_are_too_many_are_counted_before_they_are_unrolled(cpu: MLContext) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(NotSupportedError, match="over 200000 nodes after unrolling"):
            add_to(MLGraphBuilder(cpu), nested_loops(9, 10))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_scans_in_each_other_are_counted(cpu: MLContext) -> None:
    body = helper.make_graph([nested_loops(4, 10).graph.node[0]], "b", [value("x")], [value("y")])
    scan = node("Scan", ["rows"], ["z"], body=body, num_scan_inputs=1)
    constants = {"rounds": np.int64(10), "on": np.bool_(True)}
    made = model([scan], constants, [value("rows", [500, 2])], [value("z")])
    with pytest.raises(NotSupportedError, match="over 200000 nodes after unrolling"):
        load(made, cpu)


def test_few_loops_in_each_other_are_unrolled(cpu: MLContext) -> None:
    assert load(nested_loops(3, 3), cpu).outputs["y"].shape == (2, 3)
