"""Exported models are valid ONNX, and compute what the graph does.

WEBNN_EXAMPLES=100 draws so many calls of each operator.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.backend.compared import applied, assert_close, stays_in_range
from tests.property.drawing import Array
from tests.property.strategies import calls
from tests.public import OPERATORS
from webnn_py import (
    InvalidStateError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperand,
    MLOperandDataType,
    NotSupportedError,
    ValidationError,
    ml,
)
from webnn_py.onnx import load, to_onnx

PACKED_4BIT = ("int4", "uint4")
EXAMPLES = int(os.environ.get("WEBNN_EXAMPLES", "2"))


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


PACKED_4BIT = ("int4", "uint4")


def session_of(model: onnx.ModelProto) -> Any:
    """ONNX Runtime's session, or None where it has no kernel for some node."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:
        return None


def run(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The results, by ONNX Runtime where it has all kernels, else by ONNX's reference."""
    names = [output.name for output in model.graph.output]
    session = session_of(model) or ReferenceEvaluator(model)
    results = session.run(names, dict(inputs))
    # ONNX's reference leaves sums of integers in NumPy's own data type.
    types = [
        helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type) for o in model.graph.output
    ]
    made = zip(names, results, types, strict=True)
    return {name: np.asarray(array).astype(wanted) for name, array, wanted in made}


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_operator(context: MLContext, name: str, data: st.DataObject) -> None:
    call = data.draw(calls(name))
    if name in ("gelu", "sigmoid"):
        # Far tails cancel in ONNX Runtime: right to 1e-7, not to so many places.
        assume(np.max(call.operands["input"].array) > -2)  # type: ignore[union-attr]
    assume(stays_in_range(call))
    builder = MLGraphBuilder(context)
    outputs = call(builder)
    assume(all(output.data_type not in PACKED_4BIT for output in outputs))
    graph = builder.build_sync({f"out{i}": output for i, output in enumerate(outputs)})
    inputs = {key: call.inputs[key] for key in graph.inputs}
    try:
        model = to_onnx(graph)
    except NotSupportedError:
        floats = all(t.data_type in ("float32", "float16") for t in call.named().values())
        assert not floats, "has it a lowering in webnn_py/engines/onnx_lowering/?"
        return
    wanted = MLExecution(context).compute(graph, inputs)
    # An interpolation or quotient that lies between two integers may be rounded to either.
    integers = 1 if name in ("resample2d", "quantize_linear") else 0
    for key, result in run(model, inputs).items():
        assert_close(result, wanted[key], integers)


@pytest.mark.parametrize(("count", "same"), [(6, True), (13, False)])
def test_products_that_leave_the_range_are_not_drawn(
    cpu: MLContext, count: int, same: bool
) -> None:
    call = applied("reduce_product", {"input": np.full(count, 6, np.int32)})
    builder = MLGraphBuilder(cpu)
    graph = builder.build_sync({"y": call(builder)[0]})
    wanted = MLExecution(cpu).compute(graph, call.inputs)["y"]
    assert (run(to_onnx(graph), call.inputs)["y"] == wanted) == same  # ONNX Runtime does not wrap
    assert stays_in_range(call) == same


@pytest.mark.parametrize("data_type", PACKED_4BIT)
@pytest.mark.parametrize(
    "blocks",
    [[2, 4, 2], [1, 4, 8], [2, 2, 8], [2, 4, 1], [2, 4, 8], [1, 1, 1], [1, 1, 8], [1, 4, 1]],
)
def test_blocks_of_4_bits(
    context: MLContext, blocks: list[int], data_type: MLOperandDataType
) -> None:
    rng, shape = np.random.default_rng(0), [2, 4, 8]
    builder = MLGraphBuilder(context)

    def packed(shape: list[int]) -> MLOperand:
        count = -(-math.prod(shape) // 2)
        return builder.constant(rng.bytes(count), data_type, shape)

    scale = builder.constant(rng.normal(size=blocks).astype(np.float32))
    weights = builder.dequantize_linear(packed(shape), scale, packed(blocks))
    x = builder.input("x", "float32", shape)
    graph = builder.build_sync({"y": builder.add(x, weights)})
    model, inputs = to_onnx(graph), {"x": np.zeros(shape, np.float32)}
    wanted = MLExecution(context).compute(graph, inputs)["y"]
    assert session_of(model) is not None
    assert_close(run(model, inputs)["y"], wanted)
    again = MLExecution(context).compute(load(model, context), inputs)["y"]
    np.testing.assert_array_equal(again, wanted)


def test_names_and_labels_are_kept(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    image = builder.input("image", "float32", [1, 3, 8, 8])
    filters = np.ones((4, 3, 3, 3), np.float32)
    weights = builder.constant(filters, name="stem.weight")
    maps = builder.relu(builder.conv2d(image, weights, label="stem"), label="bend")
    turned = builder.conv2d(
        maps,
        builder.constant(np.ones((1, 1, 1, 4), np.float32)),
        filter_layout="ohwi",
        label="head",
    )
    graph = builder.build_sync({"maps": maps, "scores": turned, "again": turned, "image": maps})
    model = to_onnx(graph)
    assert [value.name for value in model.graph.input] == ["image"]
    outputs = [value.name for value in model.graph.output]
    assert outputs == ["maps", "scores", "again", "image_1"]
    assert {"stem.weight", "constant"} <= {tensor.name for tensor in model.graph.initializer}
    assert {"stem", "bend", "head", "head/Transpose"} <= {node.name for node in model.graph.node}
    picture = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    wanted = MLExecution(context).compute(graph, {"image": picture})
    results = run(model, {"image": picture})
    for name, exported in zip(wanted, outputs, strict=True):
        assert_close(results[exported], wanted[name])


@pytest.mark.parametrize(("indices", "alone"), [([0, -2, 1], True), ([0, 2], False), ([-3], False)])
def test_known_indices_are_held_inside_where_they_may_not_be(
    context: MLContext, indices: list[int], alone: bool
) -> None:
    """Of a size that is open, and at least 2."""
    b = MLGraphBuilder(context, dimensions={"n": (2, 9)})
    x = b.input("x", "float32", ["n", 2])
    graph = b.build_sync({"y": b.gather(x, b.constant(np.array(indices, np.int64)))})
    model = to_onnx(graph)
    assert ([node.op_type for node in model.graph.node] == ["Gather"]) == alone
    rows = np.arange(4, dtype=np.float32).reshape(2, 2)
    wanted = MLExecution(context).compute(graph, {"x": rows})["y"]
    assert_close(run(model, {"x": rows})["y"], wanted)


def test_names_that_utf8_does_not_hold_are_escaped(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    x = b.input("x\udc80", "float32", [2])
    model = to_onnx(b.build_sync({"y\ud800": b.relu(x, label="z\udfff")}))
    assert [value.name for value in model.graph.input] == ["x\\udc80"]
    assert [value.name for value in model.graph.output] == ["y\\ud800"]
    assert [node.name for node in model.graph.node] == ["z\\udfff"]


def test_constants_are_what_was_given_before_any_pass(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    two = builder.constant(np.full(2, 2, np.float32), name="two")
    graph = builder.build_sync({"y": builder.add(x, builder.sqrt(two))})
    model = to_onnx(graph)
    assert [node.op_type for node in model.graph.node] == ["Sqrt", "Add"]
    (tensor,) = model.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), np.full(2, 2, np.float32))


def test_all_that_has_no_onnx_is_said_at_once(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "int32", [1, 1, 2, 2])
    y = builder.max_pool2d(builder.pow(x, x, label="square"), label="shrink")
    graph = builder.build_sync({"y": y})
    with pytest.raises(NotSupportedError) as caught:
        to_onnx(graph)
    assert str(caught.value).splitlines() == [
        "to_onnx: 2 nodes have no ONNX:",
        "  pow [square]: ONNX does not say what negative powers of integers are",
        "  max_pool2d [shrink]: ONNX has no maximum pooling of int32",
    ]


def test_what_cannot_be_exported(context: MLContext) -> None:
    with pytest.raises(ValidationError, match="graph: got 3, expected an MLGraph"):
        to_onnx(3)  # type: ignore[arg-type]
    builder = MLGraphBuilder(context)
    graph = builder.build_sync({"y": builder.relu(builder.input("x", "float32", [2]))})
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        to_onnx(graph)


@pytest.mark.parametrize("data_type", ["uint8", "int8", "uint32", "int32", "float16"])
def test_triangles_of_types_that_onnx_runtime_lacks(cpu: MLContext, data_type: Any) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", data_type, ["n", 3])
    graph = builder.build_sync({"y": builder.triangular(x, upper=False, diagonal=-1)})
    array = (np.arange(12).reshape(4, 3) + 100).astype(data_type)
    np.testing.assert_array_equal(run(to_onnx(graph), {"x": array})["y"], np.tril(array, -1))
    with ml.create_context_sync(device_type="cpu", engine="onnxruntime") as context:
        again = load(to_onnx(graph), context)
        result = MLExecution(context).compute(again, {"x": array})["y"]
        np.testing.assert_array_equal(result, np.tril(array, -1))
        kernels = {row.kernel.split()[0] for row in again.profile({"x": array})}
        if data_type == "int32":  # has no kernel in older versions
            pytest.importorskip("onnxruntime", minversion="1.30")
        assert kernels == {"onnxruntime"}
