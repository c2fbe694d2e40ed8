"""Models that are right for some sizes alone: multiples of a number, ranges, chosen branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import (
    DataError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
    ml,
)
from webnn_py.onnx import add_to, load, to_onnx

node = onnx.helper.make_node
ENGINES = ["reference", "onnxruntime", "openvino"]


def ladder() -> onnx.ModelProto:
    """Halved twice, rounded up, and doubled beside what was there before: a network of skips."""
    half: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    weights = {"two": np.asarray([1, 1, 2, 2], np.float32)}
    nodes = [
        node("MaxPool", ["x"], ["a"], **half),
        node("AveragePool", ["a"], ["b"], **half),
        node("Resize", ["b", "", "two"], ["c"], coordinate_transformation_mode="asymmetric"),
        node("Concat", ["a", "c"], ["d"], axis=1),
        node("Resize", ["d", "", "two"], ["e"], coordinate_transformation_mode="asymmetric"),
        node("Concat", ["e", "x"], ["y"], axis=1),
    ]
    made = model(nodes, {"x": ["n", 2, "h", "w"]}, ["y"], weights, opset=19)
    made.ir_version = 9
    return made


@pytest.mark.parametrize("engine", ENGINES)
def test_sizes_that_must_be_multiples(engine: str) -> None:
    pytest.importorskip(engine if engine != "reference" else "onnx")
    with ml.create_context_sync(device_type="cpu", engine=engine) as context:
        graph = load(ladder(), context)
        shape = [str(size) for size in graph.inputs["x"].shape]
        assert shape == ["n", "2", "4*h_by_4", "4*w_by_4"]
        assert graph.output_shapes({"n": 1, "h_by_4": 3, "w_by_4": 2})["y"] == (1, 6, 12, 8)
        for size in ((1, 2, 4, 4), (2, 2, 12, 40)):
            x = np.random.default_rng(0).normal(size=size).astype(np.float32)
            fixed = load(ladder(), context, {"x": size})
            wanted = MLExecution(context).compute(fixed, {"x": x})["y"]
            found = MLExecution(context).compute(graph, {"x": x})["y"]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_is_no_multiple_is_refused(cpu: MLContext) -> None:
    graph = load(ladder(), cpu)
    with pytest.raises(DataError, match=r"4\*h_by_4 is 10, expected a multiple of 4$"):
        MLExecution(cpu).compute(graph, {"x": np.ones((1, 2, 10, 8), np.float32)})


def test_multiples_have_the_bounds_of_what_the_user_gave(cpu: MLContext) -> None:
    graph = load(ladder(), cpu, {"h": (6, 30), "w": 8})
    assert [str(size) for size in graph.inputs["x"].shape] == ["n", "2", "4*h_by_4", "8"]
    for size in (4, 32):
        with pytest.raises(DataError, match=rf"is {size}, expected a multiple of 4 in 8\.\.28"):
            MLExecution(cpu).compute(graph, {"x": np.ones((1, 2, size, 8), np.float32)})


def test_a_size_that_a_model_calls_a_multiple(cpu: MLContext) -> None:
    """As `to_onnx` does: what is so for multiples of both sizes alone can be read again."""
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["a", "", "two"], ["b"], coordinate_transformation_mode="asymmetric"),
        node("Reshape", ["b", "flat"], ["c"]),
        node("Reshape", ["x", "flat"], ["d"]),
        node("Add", ["c", "d"], ["y"]),
    ]
    weights = {"two": np.asarray([1, 1, 2, 2], np.float32), "flat": np.asarray([0, 0, -1])}
    made = model(nodes, {"x": ["n", 2, "2*h", "4 * w"]}, ["y"], weights)
    graph = load(made, cpu)
    assert [str(size) for size in graph.inputs["x"].shape] == ["n", "2", "2*h", "4*w"]
    again = load(to_onnx(graph), cpu)
    assert again.output_shapes({"n": 1, "h": 3, "w": 2})["y"] == (1, 2, 48)
    assert [str(n) for n in load(made, cpu, {"h": 5}).inputs["x"].shape] == ["n", "2", "10", "4*w"]


def test_multiples_on_a_gpu(gpu: MLContext) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 8, 12)).astype(np.float32)
    tensor = gpu.create_tensor_sync("float32", x.shape, writable=True)
    gpu.write_tensor(tensor, x)
    made = []
    for graph in (load(ladder(), gpu), load(ladder(), gpu, {"x": x.shape})):
        out = gpu.create_tensor_sync("float32", (1, 6, 8, 12), readable=True)
        gpu.dispatch(graph, {"x": tensor}, {"y": out})
        made.append(gpu.read_tensor_sync(out))
    np.testing.assert_allclose(*made, rtol=1e-5, atol=1e-6)


def test_one_of_several_sizes_is_bounded(cpu: MLContext) -> None:
    """What was pooled to rows is taken for one row: so it is for some heights."""
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[8, 1], strides=[8, 1]),
        node("Shape", ["a"], ["s"]),
        node("Gather", ["s", "at"], ["w"]),
        node("Concat", ["one", "w"], ["t"], axis=0),
        node("Reshape", ["a", "t"], ["y"]),
    ]
    weights = {"at": np.asarray([0, 3]), "one": np.asarray([1])}
    graph = load(model(nodes, {"x": ["n", 1, "h", "w"]}, ["y"], weights), cpu)
    assert graph.inputs["x"].shape[2].bounds == (8, 15)  # type: ignore[attr-defined]
    x = np.random.default_rng(0).normal(size=(2, 1, 9, 5)).astype(np.float32)
    found = MLExecution(cpu).compute(graph, {"x": x})["y"]
    np.testing.assert_array_equal(found[0], x[:, 0, :8].max(1))


def rows_of_another(x: list[Any], mask: list[Any]) -> onnx.ModelProto:
    """As many rows as another input has: right where the two have the same batch."""
    nodes = [
        node("Shape", ["x"], ["batch"], start=0, end=1),
        node("Concat", ["batch", "rest"], ["shape"], axis=0),
        node("Reshape", ["mask", "shape"], ["y"], name="rows"),
    ]
    return model(nodes, {"x": x, "mask": mask}, ["y"], {"rest": np.asarray([-1])})


def test_sizes_of_one_axis_are_one_where_that_is_right(cpu: MLContext) -> None:
    """As torch.export names them where nobody says which are equal."""
    graph = load(rows_of_another(["s1", "s2"], ["s3", "s4"]), cpu)
    shapes = {name: [str(size) for size in one.shape] for name, one in graph.inputs.items()}
    assert shapes["mask"] == ["s1", "s4"]
    mask = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    inputs = {"x": np.ones((2, 3), np.float32), "mask": mask}
    given = {name: inputs[name] for name in graph.inputs}
    np.testing.assert_array_equal(MLExecution(cpu).compute(graph, given)["y"], mask)


def test_one_of_several_sizes_is_a_number(cpu: MLContext) -> None:
    """A tracer that took a length for a number."""
    nodes = [node("Shape", ["x"], ["batch"], start=1, end=2), node("Mul", ["batch", "two"], ["t"])]
    nodes += [
        node("Concat", ["seven", "t", "four"], ["s"], axis=0),
        node("Reshape", ["x", "s"], ["y"]),
    ]
    weights = {"two": np.asarray([2]), "seven": np.asarray([7]), "four": np.asarray([4])}
    graph = load(model(nodes, {"x": ["length", "batch", 8]}, ["y"], weights), cpu)
    assert [str(size) for size in graph.inputs["x"].shape] == ["7", "batch", "8"]


def test_what_no_choice_of_sizes_helps_is_told_with_the_rest(cpu: MLContext) -> None:
    made = rows_of_another(["a"], [3, "m"])
    made.graph.node.append(node("Unique", ["x"], ["places"], name="found"))
    made.graph.output.append(onnx.ValueInfoProto(name="places"))
    with pytest.raises(NotSupportedError) as raised:
        load(made, cpu)
    assert "Reshape [rows]" in str(raised.value)
    assert "Unique [found]" in str(raised.value)


def test_a_squeezed_size_is_one(cpu: MLContext) -> None:
    pool = node("MaxPool", ["x"], ["a"], kernel_shape=[4], strides=[4])
    squeeze = node("Squeeze", ["a", "axes"], ["y"], name="last")
    weights = {"axes": np.asarray([2])}
    graph = load(model([pool, squeeze], {"x": ["n", 2, "length"]}, ["y"], weights), cpu)
    assert graph.inputs["x"].shape[2].bounds == (4, 7)  # type: ignore[attr-defined]
    with pytest.raises(NotSupportedError, match=r"Squeeze \[last\]: its axis 2 of shape"):
        load(model([pool, squeeze], {"x": [1, 2, 8]}, ["y"], weights), cpu)


def test_dimensions_without_a_word_for_a_name_are_their_own(cpu: MLContext) -> None:
    graph = load(model([node("Neg", ["x"], ["y"])], {"x": ["?", "?", ""]}, ["y"]), cpu)
    assert [str(size) for size in graph.inputs["x"].shape] == ["x_0", "x_1", "x_2"]


def test_an_end_beyond_everything_bounds_nothing(cpu: MLContext) -> None:
    """As tf2onnx writes it."""
    weights = {"a": np.asarray([1]), "z": np.asarray([10**9])}
    made = model([node("Slice", ["x", "a", "z"], ["y"])], {"x": ["n", 2048]}, ["y"], weights)
    assert str(load(made, cpu).output_shapes({"n": 5})["y"]) == "(4, 2048)"


def rates() -> onnx.ModelProto:
    """A rate chooses one of two frames; each branch is right for one length alone."""

    def branch(length: int) -> onnx.GraphProto:
        outputs = [onnx.ValueInfoProto(name=f"y{length}")]
        weight = onnx.numpy_helper.from_array(np.ones((length, 2), np.float32), f"w{length}")
        product = node("MatMul", ["x", f"w{length}"], [f"y{length}"])
        return onnx.helper.make_graph([product], f"g{length}", [], outputs, [weight])

    nodes = [
        node("Equal", ["rate", "fast"], ["is"]),
        node("If", ["is"], ["y"], then_branch=branch(6), else_branch=branch(3)),
    ]
    made = model(nodes, {"x": ["n", "length"]}, ["y"], {"fast": np.asarray(16000)})
    rate = onnx.helper.make_tensor_value_info("rate", onnx.TensorProto.INT64, [])
    made.graph.input.append(rate)
    return made


def test_constants_choose_a_branch(cpu: MLContext) -> None:
    with pytest.raises(NotSupportedError, match=r"input rate; give load\(constants=\.\.\.\)"):
        load(rates(), cpu)
    for rate, length in ((16000, 6), (8000, 3)):
        graph = load(rates(), cpu, constants={"rate": rate})
        assert list(graph.inputs) == ["x"]
        x = np.ones((2, length), np.float32)
        assert (MLExecution(cpu).compute(graph, {"x": x})["y"] == length).all()


def test_constants_that_the_model_does_not_have(cpu: MLContext) -> None:
    with pytest.raises(ValidationError, match="no input 'speed'; it has x, rate"):
        load(rates(), cpu, constants={"speed": 1})
    with pytest.raises(ValidationError, match="got float, the model has int64"):
        load(rates(), cpu, constants={"rate": np.float32(1)})


def graph_of(name: str, *nodes: Any) -> onnx.GraphProto:
    """A branch: its output is that of the last node."""
    output = onnx.ValueInfoProto(name=nodes[-1].output[0])
    return onnx.helper.make_graph(list(nodes), name, [], [output])


def squeezed_where(*condition: Any) -> onnx.ModelProto:
    """As torch and tf2onnx write squeeze: `If(condition) Squeeze else Identity`."""
    then = graph_of("then", node("Squeeze", ["x", "first"], ["t"], name="squeezed"))
    other = graph_of("other", node("Identity", ["x"], ["e"]))
    nodes = [
        node("Shape", ["x"], ["shape"], start=0, end=1),
        *condition,
        node("If", ["is"], ["y"], name="choice", then_branch=then, else_branch=other),
    ]
    weights = {"first": np.asarray([0]), "one": np.asarray([1]), "two": np.asarray([2])}
    return model(nodes, {"x": ["n", 3]}, ["y"], weights)


CONDITIONS = {
    "equal": [node("Equal", ["shape", "one"], ["is"])],
    "less": [node("Less", ["shape", "two"], ["is"])],
    "less or equal": [node("LessOrEqual", ["shape", "one"], ["is"])],
    "greater": [node("Greater", ["two", "shape"], ["is"])],
    "not": [node("Greater", ["shape", "one"], ["more"]), node("Not", ["more"], ["is"])],
    "both": [
        node("Equal", ["shape", "one"], ["a"]),
        node("Equal", ["one", "shape"], ["b"]),
        node("And", ["a", "b"], ["is"]),
    ],
    "of all elements": [
        node("Size", ["x"], ["count"]),
        node("Cast", ["count"], ["c"], to=onnx.TensorProto.FLOAT),
        node("Constant", [], ["five"], value_float=5.0),
        node("Less", ["c", "five"], ["is"]),
    ],
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_branch_that_open_sizes_choose_narrows_none_of_them(cpu: MLContext, name: str) -> None:
    made = squeezed_where(*CONDITIONS[name])
    text = (
        r"If \[choice\]: its condition must be known at import, and follows from open dimensions;"
        r" give input_shapes=\{'n': \.\.\.\}"
    )
    with pytest.raises(NotSupportedError, match=text) as refused:
        load(made, cpu)
    assert "squeezed" not in str(refused.value)  # it is right, where it is taken
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    alone = MLExecution(cpu).compute(load(made, cpu, {"n": 1}), {"x": x[:1]})["y"]
    assert alone.tolist() == [0, 1, 2]
    if name != "both" and name != "not":
        graph = load(made, cpu, {"n": (2, None)})
        assert MLExecution(cpu).compute(graph, {"x": x})["y"].tolist() == x.tolist()


def test_add_to_says_which_sizes_choose_a_branch(cpu: MLContext) -> None:
    made = squeezed_where(*CONDITIONS["equal"])
    with pytest.raises(
        NotSupportedError, match=r"If \[choice\]: .*; give dimensions=\{'n': \.\.\.\}"
    ):
        add_to(MLGraphBuilder(cpu), made)


def test_branches_that_agree_leave_the_sizes_open_that_choose_them(cpu: MLContext) -> None:
    """Of their results the right one is taken where the graph runs."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Equal", ["n", "one"], ["is"]),
        node(
            "If",
            ["is"],
            ["a"],
            then_branch=graph_of("then", node("Neg", ["x"], ["t"])),
            else_branch=graph_of("other", node("Exp", ["x"], ["e"])),
        ),
        node(  # of which the rest must be known
            "If",
            ["is"],
            ["to"],
            then_branch=graph_of("flat", node("Concat", ["n", "all"], ["l"], axis=0)),
            else_branch=graph_of("same", node("Concat", ["n", "all"], ["r"], axis=0)),
        ),
        node("Reshape", ["a", "to"], ["y"]),
    ]
    weights = {"zero": np.asarray([0]), "one": np.asarray([1]), "all": np.asarray([-1])}
    graph = load(model(nodes, {"x": ["n", 3, 1]}, ["y"], weights), cpu)
    assert graph.inputs["x"].shape[0].bounds[0] == 1  # type: ignore[attr-defined]
    assert graph.inputs["x"].shape[0].bounds[1] > 1 << 30  # type: ignore[attr-defined]
    for n in (1, 2):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3, 1)
        found = MLExecution(cpu).compute(graph, {"x": x})["y"]
        wanted = -x if n == 1 else np.exp(x)
        np.testing.assert_allclose(found, wanted.reshape(n, 3), rtol=1e-6)


def test_what_every_run_needs_still_bounds_the_sizes_that_choose_a_branch(cpu: MLContext) -> None:
    made = squeezed_where(*CONDITIONS["equal"])
    made.graph.node.append(node("Squeeze", ["x", "first"], ["z"]))
    made.graph.output.append(onnx.ValueInfoProto(name="z"))
    graph = load(made, cpu)
    assert [*graph.inputs["x"].shape] == [1, 3]
    assert graph.output_shapes({}) == {"y": (3,), "z": (3,)}


def rounds_while(*nodes: Any) -> onnx.ModelProto:
    """A loop that goes on while `go` holds, `x` doubled in each round."""
    values = [onnx.ValueInfoProto(name=name) for name in ("i", "on", "v", "again", "w")]
    body = onnx.helper.make_graph(
        [node("Add", ["v", "v"], ["w"]), node("Identity", ["go"], ["again"])],
        "body",
        values[:3],
        values[3:],
    )
    loop = node("Loop", ["two", "go", "x"], ["y"], name="rounds", body=body)
    made = [node("Shape", ["x"], ["shape"], start=0, end=1), *nodes, loop]
    weights = {"one": np.asarray([1]), "two": np.asarray(2)}
    return model(made, {"x": ["n", 3]}, ["y"], weights)


KIN = {
    "a condition of a loop": (
        rounds_while(node("Equal", ["shape", "one"], ["go"])),
        r"Loop \[rounds\]: its condition must be known",
    ),
    "a trip count": (
        model(
            [
                node("Shape", ["x"], ["n"], start=0, end=1),
                node(
                    "Loop",
                    ["n", "", "x"],
                    ["y"],
                    name="rounds",
                    body=rounds_while().graph.node[-1].attribute[0].g,
                ),
            ],
            {"x": ["n", 3]},
            ["y"],
            {"go": np.asarray(True)},
        ),
        r"Loop \[rounds\]: its trip count must be known",
    ),
    "a choice among shapes": (
        model(
            [
                node("Shape", ["x"], ["shape"]),
                node("Equal", ["shape", "one"], ["is"]),
                node("Where", ["is", "two", "shape"], ["to"]),
                node("Expand", ["x", "to"], ["y"], name="wide"),
            ],
            {"x": ["n"]},
            ["y"],
            {"one": np.asarray([1]), "two": np.asarray([2])},
        ),
        r"Expand \[wide\]: shape must be known",
    ),
    "axes that are not said": (
        model([node("Squeeze", ["x"], ["y"], name="all")], {"x": ["n", 1]}, ["y"]),
        r"Squeeze \[all\]: whether `n == 1` is not known",
    ),
    "an expansion from 1 or from its own size": (
        model(
            [node("Expand", ["x", "to"], ["y"], name="wide")],
            {"x": ["n", 1]},
            ["y"],
            {"to": np.asarray([3, 2])},
        ),
        r"Expand \[wide\]: .*whether `n == 3` is not known",
    ),
}


@pytest.mark.parametrize("name", KIN)
def test_what_several_sizes_are_right_for_narrows_none_of_them(cpu: MLContext, name: str) -> None:
    made, text = KIN[name]
    with pytest.raises(NotSupportedError, match=text) as refused:
        load(made, cpu)
    assert "'n': " in str(refused.value)


def test_sizes_beside_1_stay_open(cpu: MLContext) -> None:
    nodes = [
        node("Add", ["x", "row"], ["a"]),
        node("Expand", ["a", "ones"], ["b"]),
        node("Slice", ["b", "zero", "one", "zero"], ["first"]),
        node("Mul", ["b", "first"], ["c"]),
        node("Reshape", ["c", "to"], ["y"]),
    ]
    weights = {
        "row": np.ones((1, 3), np.float32),
        "ones": np.asarray([1, 1]),
        "zero": np.asarray([0]),
        "one": np.asarray([1]),
        "to": np.asarray([0, 1, -1]),
    }
    graph = load(model(nodes, {"x": ["n", 3]}, ["y"], weights), cpu)
    for n in (1, 4):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        found = MLExecution(cpu).compute(graph, {"x": x})["y"]
        np.testing.assert_array_equal(found[:, 0], (x + 1) * (x + 1)[:1])


def test_frames_of_an_open_signal(cpu: MLContext) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    weights = {"step": np.asarray(4), "window": np.hanning(8).astype(np.float32)}
    nodes = [node("STFT", ["x", "step", "window"], ["y"])]
    made = model(nodes, {"x": ["n", "length", 1]}, ["y"], weights, opset=17)
    made.ir_version = 8
    session = onnxruntime.InferenceSession(made.SerializeToString())
    graph = load(made, cpu)
    for length in (8, 21):
        x = np.random.default_rng(0).normal(size=(2, length, 1)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        found = MLExecution(cpu).compute(graph, {"x": x})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
