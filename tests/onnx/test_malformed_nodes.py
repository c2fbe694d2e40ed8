"""Nodes that are not as their operator is defined: what is said of them, and of mutated models."""

from __future__ import annotations

import os
import signal
import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.onnx import fuzz_models
from tests.onnx.model_mutations import mutant, sources
from tests.onnx.models import model
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

MUTANTS = 600
OWN = "com.microsoft"
node = helper.make_node
X = np.zeros((1, 2, 4, 4), np.float32)
WEIGHTS = {
    "w": np.zeros((3, 2, 3, 3), np.float32),
    "v": np.zeros(3, np.float32),
    "m": np.zeros((2, 2), np.float32),
    "i": np.zeros((1, 2, 4, 4), np.int64),
    "p": np.zeros(7, np.int64),
    "one": np.asarray([1], np.int64),
    "two": np.asarray([1, 2], np.int64),
    "none": np.asarray([], np.int64),
    "half": np.asarray([0.5], np.float32),
    "text": np.asarray(["a"], object),
    "lstm": np.zeros((1, 8, 4), np.float32),
}


def untyped(kind: str, **changes: Any) -> Any:
    """A Relu with an attribute that its helper would not make."""
    made = node(kind, ["x"], ["y"])
    made.attribute.append(AttributeProto(name="a", **changes))
    return made


STRUCTURE: list[tuple[Any, str]] = [
    (node("Relu", [], ["y"]), "0 inputs, expected 1 (X)"),
    (node("Add", ["x"], ["y"]), "1 inputs, expected 2 (A, B)"),
    (node("Add", ["x", ""], ["y"]), "it lacks its input 'B'"),
    (node("Concat", ["x", ""], ["y"], axis=0), "it lacks its input 'inputs'"),
    (node("Relu", ["x"], ["y", "z"]), "2 outputs, expected 1"),
    (node("TopK", ["x", "one"], ["y"]), "1 outputs, expected 2"),
    (node("Softmax", ["x"], ["y"], axis=1.5), "attribute 'axis' is FLOAT, expected INT"),
    (node("Softmax", ["x"], ["y"], axes=1), "attribute 'axes' is not one of its attributes (axis)"),
    (node("DepthToSpace", ["x"], ["y"]), "it lacks its attribute 'blocksize'"),
    (untyped("Relu"), "attribute 'a' has no type"),
    (untyped("Relu", type=1, ref_attr_name="b"), "attribute 'a' refers to 'b' of a function"),
    (untyped("Relu", type=AttributeProto.GRAPH), "attribute 'a' has no value"),
    (
        node("Add", ["x", "i"], ["y"]),
        "input 'B' is tensor(int64), and input 'A', which it is to be",
    ),
    (
        node("Where", ["x", "x", "x"], ["y"]),
        "input 'condition' is tensor(float), expected tensor(b",
    ),
    (node("Add", ["text", "text"], ["y"]), "input 'A' is tensor(string), expected one of"),
    (node("SequenceAt", ["x", "one"], ["y"]), "input 'input_sequence' is tensor(float), expected"),
    (node("BiasGelu", ["x"], ["y"], domain=OWN), "1 inputs, expected 2 (x, bias)"),
    (node("BiasGelu", ["x", ""], ["y"], domain=OWN), "it lacks its input 'bias'"),
    (
        node("QuickGelu", ["x"], ["y"], domain=OWN, alpha="a"),
        "'alpha' is STRING, expected FLOAT or",
    ),
    (
        node("FusedMatMulActivation", ["m", "m"], ["y"], domain=OWN),
        "lacks its attribute",
    ),
    (node("QLinearSigmoid", ["x", "v"], ["y"], domain=OWN), "2 inputs, expected 4 to 5"),
    (node("Constant", [], ["y"]), "it has 0 attributes, expected one"),
]
VALUES: list[tuple[Any, str]] = [
    (node("Conv", ["x", "w"], ["y"], strides=[1]), "strides is [1], expected 2 numbers from 1 on"),
    (node("Conv", ["x", "w"], ["y"], strides=[1, 0]), "strides is [1, 0], expected 2"),
    (node("Conv", ["x", "w"], ["y"], pads=[1, 1]), "pads is [1, 1], expected 4 numbers"),
    (node("Conv", ["x", "w"], ["y"], auto_pad="SAME"), "auto_pad is 'SAME', expected 'NOTSET'"),
    (node("Conv", ["x", "m"], ["y"]), "w has rank 2, expected 4"),
    (node("Conv", ["m", "m"], ["y"]), "x has rank 2, expected 3 to 10"),
    (node("Conv", ["x", "w"], ["y"], group=0), "group is 0, expected 1 or more"),
    (node("ConvTranspose", ["x", "w"], ["y"], dilations=[1]), "dilations is [1], expected 2"),
    (node("MaxPool", ["x"], ["y"], kernel_shape=[2]), "kernel_shape is [2], expected 2 numbers"),
    (node("LpPool", ["x"], ["y"], kernel_shape=[9, 9]), "its window reaches over 9 elements, of 4"),
    (node("GlobalMaxPool", ["v"], ["y"]), "x has rank 1, expected 3 to 10"),
    (node("MatMulInteger", ["u8", "w8"], ["y"]), "a has rank 0, expected 1 to 8"),
    (node("Det", ["v"], ["y"]), "x has rank 1, expected 2 to 10"),
    (node("Einsum", ["x", "m"], ["y"], equation="ab->a"), "has 1 terms, of 2 inputs"),
    (node("Einsum", ["m"], ["y"], equation="abc->a"), "'abc' has other indices than an input"),
    (node("GatherElements", ["x", "one"], ["y"]), "indices has rank 1, expected 4"),
    (node("GatherND", ["x", "one"], ["y"], batch_dims=3), "batch_dims is 3, of ranks 4 and 1"),
    (node("ScatterND", ["x", "i", "x"], ["y"], reduction="sum"), "reduction is 'sum', expected"),
    (node("ScatterElements", ["x", "i", "m"], ["y"]), "updates has rank 2, expected 4"),
    (node("Compress", ["x", "no"], ["y"]), "condition has rank 0, expected 1"),
    (node("DepthToSpace", ["x"], ["y"], blocksize=0), "blocksize is 0, expected 1 or more"),
    (node("SpaceToDepth", ["v"], ["y"], blocksize=2), "x has rank 1, expected 4"),
    (node("Pad", ["x", "two"], ["y"]), "pads is [1, 2], expected 8 numbers"),
    (node("Pad", ["x", "p"], ["y"], mode="mirror"), "mode is 'mirror', expected 'constant'"),
    (node("Slice", ["x", "two", "one"], ["y"]), "ends is [1], expected 2 numbers"),
    (node("Slice", ["x", "p0", "one", "one", "p0"], ["y"]), "steps are [0], expected none of 0"),
    (node("Range", ["none", "one", "one"], ["y"]), "start has shape [0], expected one element"),
    (node("CumSum", ["x", "two"], ["y"]), "axis has shape [2], expected one element"),
    (node("Reshape", ["x", "mm"], ["y"]), "shape is [-1, -1], expected one -1 at most"),
    (node("EyeLike", ["v"], ["y"]), "x has rank 1, expected 2"),
    (node("Trilu", ["v"], ["y"]), "x has rank 1, expected 2 to 10"),
    (node("ReverseSequence", ["m", "i"], ["y"]), "lengths has rank 4, expected 1"),
    (node("Resize", ["x", "", "half"], ["y"]), "scales is [0.5], expected 4 numbers"),
    (node("Resize", ["x", "", "", "one"], ["y"]), "sizes is [1], expected 4 numbers from 1 on"),
    (node("GridSample", ["x", "m"], ["y"]), "grid has rank 2, expected 4"),
    (node("LSTM", ["lstm", "lstm", "lstm"], ["y"], direction="up"), "direction is 'up', expected"),
    (node("GRU", ["lstm", "lstm", "m"], ["y"]), "r has rank 2, expected 3"),
    (node("AffineGrid", ["lstm", "two"], ["y"]), "size is [1, 2], expected a batch, channels and"),
    (node("Col2Im", ["lstm", "two", "one"], ["y"]), "block_shape is [1], expected 2"),
    (node("GroupNormalization", ["v", "v", "v"], ["y"], num_groups=1), "x has rank 1, expected 2"),
    (node("QuantizeLinear", ["m", "m"], ["y"], block_size=2**62), "shape [2, 2], expected one for"),
    (node("QuantizeLinear", ["m", "m"], ["y"], block_size=5), "expected one for each 5 of 2"),
    (node("LpPool", ["x"], ["y"], kernel_shape=[2, 2], p=0), "p is 0, expected 1 or more"),
    (node("GlobalLpPool", ["x"], ["y"], p=0), "p is 0, expected 1 or more"),
    (node("LpNormalization", ["x"], ["y"], p=3), "p is 3, expected 1 or 2"),
    (node("QLinearConcat", ["v", "v", "x"], ["y"], domain=OWN, axis=0), "it has 1 inputs behind"),
    (
        node(
            "GroupQueryAttention",
            ["lstm", "lstm", "lstm", "", "", "l32", "l32"],
            ["y"],
            domain=OWN,
            num_heads=1,
            kv_num_heads=1,
            local_window_size=2**40,
        ),
        "a size or place of it is 1099511627776, expected an int32",
    ),
    (node("SequenceAt", ["s", "two"], ["y"]), "position has shape [2], expected one element"),
    (node("MatMulNBits", ["m", "m", "v"], ["y"], domain=OWN, K=0, N=1, block_size=16), "K is 0"),
    (node("RelativePositionBias", ["v", "one", "one"], ["y"], domain=OWN, max_distance=9),
     "bias_table has rank 1, expected 2"),
]  # fmt: skip


def whole(one: Any) -> Any:
    weights = WEIGHTS | {
        "l32": np.asarray([7], np.int32),
        "u8": np.asarray(1, np.uint8),
        "w8": np.ones((1, 1), np.uint8),
        "no": np.asarray(True),
        "p0": np.asarray([0], np.int64),
        "mm": np.asarray([-1, -1], np.int64),
    }
    made = model([node("SequenceConstruct", ["x"], ["s"]), one], {"x": X.shape}, ["y"], weights)
    made.opset_import.append(helper.make_opsetid(OWN, 1))
    return made


@pytest.mark.parametrize(("one", "why"), STRUCTURE + VALUES, ids=lambda one: str(one)[:40])
def test_what_is_wrong_with_a_node_is_said(cpu: MLContext, one: Any, why: str) -> None:
    with pytest.raises(DataError) as caught:
        load(whole(one), cpu)
    assert str(caught.value).startswith(f"onnx: node 'y' ({one.op_type}): ")
    assert why in str(caught.value)
    assert fuzz_models.fault_of(caught.value) is None


def test_versions_of_operators_that_there_are_not(cpu: MLContext) -> None:
    made = whole(node("Relu", ["x"], ["y"]))
    made.opset_import[0].version = 0
    with pytest.raises(DataError, match="opset version 0 of domain '', expected 1 or more"):
        load(made, cpu)
    made.opset_import[0].version = 21
    made.opset_import.append(helper.make_opsetid("ai.onnx", 7))
    with pytest.raises(DataError, match="opset versions 21 and 7 of domain 'ai"):
        load(made, cpu)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data_type": 99}, "its element type is 99"),
        ({"data_type": 0}, "its element type is 0"),
        ({"raw_data": b"123"}, "got 3 bytes, expected 16 for float [2, 2]"),
        ({"dims": [2, 2, 2**40]}, "got 16 bytes, expected"),
        ({"dims": [0, 2**62, 2**62], "raw_data": b""}, "which is too large"),
        ({"data_type": TensorProto.STRING}, "it is of strings"),
    ],
)
def test_contents_that_do_not_fit_their_shape(cpu: MLContext, changes: Any, why: str) -> None:
    made = whole(node("Add", ["x", "m"], ["y"]))
    weight = next(one for one in made.graph.initializer if one.name == "m")
    for name, value in changes.items():
        weight.ClearField(name)
        part = TensorProto(**{name: value})
        weight.MergeFrom(part)
    with pytest.raises(DataError) as caught:
        load(made, cpu)
    assert "tensor 'm': " in str(caught.value)
    assert why in str(caught.value)


def test_bodies_that_take_other_inputs_than_they_are_given(cpu: MLContext) -> None:
    value = onnx.ValueInfoProto
    body = helper.make_graph(
        [node("Neg", ["a"], ["b"])], "body", [value(name="a")], [value(name="b")]
    )
    loop = [node("Loop", ["", "", "a"], ["b"])]
    lacking = helper.make_graph(loop, "lacking", [value(name="a")], [value(name="b")])
    for one, why in (
        (node("Scan", ["x", "x"], ["y"], body=body, num_scan_inputs=3), "is 3, expected 1 to 2"),
        (node("Scan", ["x", "x"], ["y"], body=body, num_scan_inputs=2), "has 1 inputs, expected 2"),
        (
            node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[1, 1]),
            "scan_input_axes is [1, 1], expected 1 number",
        ),
        (node("Scan", ["x"], ["y"], body=lacking, num_scan_inputs=1), "lacks its attribute 'body'"),
        (node("Scan", ["x", ""], ["y"], body=body, num_scan_inputs=1), "lacks one of its scan"),
        (node("Scan", ["x"], ["y"], body=body, num_scan_inputs=-(2**62)), "expected 1 to 1"),
        (node("Loop", ["one", "", "x"], ["y"], body=body), "'body' has 1 inputs, expected 3"),
    ):
        with pytest.raises(DataError) as caught:
            load(whole(one), cpu)
        assert why in str(caught.value)


def test_an_operator_whose_name_is_no_text(cpu: MLContext) -> None:
    contents = whole(node("Softplus", ["x"], ["y"])).SerializeToString()
    with pytest.raises(DataError, match=r"a node has the name .*, which is no text"):
        load(contents.replace(b"Softplus", b"\xffoftplus"), cpu)


def test_control_flow_of_a_version_before_it_was_there(cpu: MLContext) -> None:
    made = whole(node("Scan", ["x"], ["y"]))
    made.opset_import[0].version = 7
    del made.graph.node[0]
    with pytest.raises(NotSupportedError, match=r"Scan \[y\]: webnn_py has no importer for it"):
        load(made, cpu)


def test_axes_of_sequences_that_count_from_the_end(cpu: MLContext) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    weights = {"i": np.asarray([2, 3], np.int64)}
    turned = node("ReverseSequence", ["x", "i"], ["y"], batch_axis=-1, time_axis=-2)
    graph = load(model([turned], {"x": [3, 2]}, ["y"], weights), cpu)
    found = MLExecution(cpu).compute(graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, [[2, 5], [0, 3], [4, 1]])


def test_resizing_nothing(cpu: MLContext) -> None:
    sizes = {"s": np.asarray([0, 2, 2, 2], np.int64)}
    made = model([node("Resize", ["x", "", "", "s"], ["y"])], {"x": [0, 1, 4, 4]}, ["y"], sizes)
    with pytest.raises(NotSupportedError, match="WebNN has no tensors without elements"):
        load(made, cpu)


def test_values_of_a_sparse_tensor_that_are_no_list(cpu: MLContext) -> None:
    made = whole(node("Add", ["x", "q"], ["y"]))
    sparse = made.graph.sparse_initializer.add(dims=[1, 4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones((1, 4), np.float32), "q"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "i"))
    with pytest.raises(DataError, match=r"its values have shape \[1, 4\], expected a list"):
        load(made, cpu)


def test_no_square_matrix_of_a_long_axis_is_made(cpu: MLContext) -> None:
    sizes = {"s": np.asarray([1, 1, 2, 4], np.int64)}
    resize = node("Resize", ["x", "", "", "s"], ["y"], mode="linear", antialias=1)
    made = model([resize], {"x": [1, 1, 1 << 13, 4]}, ["y"], sizes)
    tracemalloc.start()
    try:
        load(made, cpu)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_heads_of_open_size(cpu: MLContext) -> None:
    attention = node("MultiHeadAttention", ["x", "x", "x"], ["y"], domain=OWN, num_heads=2)
    made = model([attention], {"x": [1, 4, "n"]}, ["y"])
    made.opset_import.append(helper.make_opsetid(OWN, 1))
    with pytest.raises(NotSupportedError, match=r"heads of open size, "):
        load(made, cpu)


def test_channels_of_transposed_convolutions_divide_into_groups(cpu: MLContext) -> None:
    weights = {"w": np.ones((2, 1, 1, 1), np.float32)}
    made = model(
        [node("ConvTranspose", ["x", "w"], ["y"], group=32)], {"x": [1, 2, 4, 4]}, ["y"], weights
    )
    with pytest.raises(DataError, match="2 input channels do not divide into 32 groups"):
        load(made, cpu)


def broken_load(contents: bytes, context: MLContext) -> Any:
    """What an importer might do of a mutant; the contents say what."""
    if contents == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    while contents == b"hang":
        pass
    if contents == b"memory":
        return bytearray(fuzz_models.MEMORY)
    if contents == b"raw":
        return {}["x"]
    if contents == b"passed on":
        try:
            return {}["x"]
        except KeyError as error:
            raise DataError(f"it is damaged: {error}") from error
    raise DataError("tuple index out of range" if contents == b"said" else "its axis is 3")


def test_what_counts_as_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["right", "crash", "hang", "memory", "raw", "passed on", "said", "right"]
    monkeypatch.setattr(fuzz_models, "mutant", lambda _, seed: ("", kinds[seed].encode()))
    monkeypatch.setattr(fuzz_models, "load", broken_load)
    monkeypatch.setattr(fuzz_models, "SECONDS", 1)
    outcome = fuzz_models.run(len(kinds), 0, 1, [])
    found = {seed: group for group, ones in outcome.findings.items() for seed, _ in ones}
    assert found.keys() == set(range(1, 7))
    starts = [
        "crashed",
        "hung",
        "memory: Mem",
        "KeyError",
        "passed on: KeyError",
        "said: DataError",
    ]
    assert [found[i].startswith(start) for i, start in enumerate(starts, 1)] == [True] * 6
    assert outcome.counts["refused: DataError"] == 4


def test_mutated_models() -> None:
    """Each is right, or refused by an MLError that says what is wrong with it."""
    found = sources()
    outcome = fuzz_models.run(MUTANTS, 1, 1, found)
    assert not outcome.findings, fuzz_models.report(outcome)
    assert sum(outcome.counts.values()) == MUTANTS
    assert {"run", "refused: DataError", "refused: NotSupportedError"} <= outcome.counts.keys()
    assert mutant(found, 7) == mutant(found, 7)
