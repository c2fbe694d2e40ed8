"""MLGraphBuilder and MLGraph: what they refuse, and that nothing breaks by it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, assert_works, doubling
from webnn_py import (
    InvalidStateError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperandDescriptor,
    ValidationError,
)


@pytest.fixture
def builder(cpu: MLContext) -> MLGraphBuilder:
    return MLGraphBuilder(cpu)


# Inputs and constants


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "float32", [1]), "name ''"),
        ((3, "float32", [1]), "name 3"),
        (("x", "float64", [1]), "'float64' is not one of"),
        (("x", "int4", [2]), "int4 is for constants only"),
        (("x", "float32", [2, 0]), "dimension 0"),
        (("x", "float32", [2**31]), "dimension 2147483648"),
        (("x", "float32", [2**16, 2**16]), "elements"),
        (("x", "float32", [2**30]), "bytes"),
        (("x", "float32", [1] * 9), "rank 9"),
        (("x", "float32", "23"), "expected a list"),
    ],
)
def test_inputs_that_cannot_be(
    builder: MLGraphBuilder, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        builder.input(*arguments)


def test_input_names_are_unique(builder: MLGraphBuilder) -> None:
    builder.input("x", "float32", [1])
    with pytest.raises(ValidationError, match="'x': there is an input of this name"):
        builder.input("x", "float32", [2])


def test_descriptors_stand_for_type_and_shape(builder: MLGraphBuilder) -> None:
    descriptor = MLOperandDescriptor("float16", [2, 3])
    operand = builder.input("x", descriptor)
    assert (operand.data_type, operand.shape) == ("float16", (2, 3))
    assert descriptor == MLOperandDescriptor("float16", (2, 3))
    assert builder.constant(b"\0" * 12, descriptor).shape == (2, 3)
    assert builder.constant(b"\0" * 12, descriptor, [2, 3]).shape == (2, 3)


def test_a_shape_besides_a_descriptor_is_the_same(cpu: MLContext, builder: MLGraphBuilder) -> None:
    descriptor = MLOperandDescriptor("float16", [2, 3])
    contents = bytes(12)
    for call in (
        lambda: builder.input("other", descriptor, [3, 2]),
        lambda: builder.constant(contents, descriptor, [6]),
        lambda: cpu.create_tensor_sync(descriptor, [6]),
        lambda: cpu.create_constant_tensor_sync(contents, descriptor, [6]),
    ):
        with pytest.raises(
            ValidationError, match=r"besides MLOperandDescriptor\('float16', \[2, 3"
        ):
            call()


def test_what_is_said_of_a_constant_tensor_is_so(cpu: MLContext, builder: MLGraphBuilder) -> None:
    tensor = cpu.create_constant_tensor_sync(ONES)
    assert builder.constant(tensor, "float32", ONES.shape).shape == ONES.shape
    with pytest.raises(ValidationError, match="data type 'int8', but the MLTensor is float32"):
        builder.constant(tensor, "int8")
    with pytest.raises(ValidationError, match=r"shape \[6\], but the MLTensor is float32\[2,3\]"):
        builder.constant(tensor, "float32", [6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(3),), "float64 is not one of"),
        ((ONES, "float16"), "float32, expected float16"),
        ((ONES, "float32", [2, 2]), "6 elements, expected 4"),
        ((3.0,), "a number needs a data type"),
        ((b"\0\0\0", "float32", [1]), "3 bytes, expected 4"),
        (([1.0, 2.0], "float32"), "expected an array"),
    ],
)
def test_constants_that_cannot_be(
    builder: MLGraphBuilder, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        builder.constant(*arguments)


def test_constants_are_copied(cpu: MLContext, builder: MLGraphBuilder) -> None:
    array = ONES.copy()
    graph = builder.build_sync({"y": builder.identity(builder.constant(array))})
    array[:] = 5
    np.testing.assert_array_equal(MLExecution(cpu).compute(graph, {})["y"], ONES)


# Building


def test_descriptors_cannot_be_changed(cpu: MLContext, builder: MLGraphBuilder) -> None:
    descriptor = MLOperandDescriptor("float32", [2, 3])
    x = builder.input("x", descriptor)
    graph = builder.build_sync({"y": builder.add(x, x)})
    for made in (descriptor, graph.inputs["x"], graph.outputs["y"], x):
        for name, value in (("shape", (-1,)), ("data_type", "no such"), ("other", 1)):
            with pytest.raises(AttributeError):
                setattr(made, name, value)
        with pytest.raises(AttributeError):
            del made.shape
        assert (made.data_type, made.shape) == ("float32", (2, 3))
    for name in ("inputs", "outputs"):
        with pytest.raises(TypeError):
            getattr(graph, name)["x"] = descriptor
        with pytest.raises(AttributeError):
            setattr(graph, name, {})
    assert copy.deepcopy(descriptor) == pickle.loads(pickle.dumps(descriptor)) == descriptor
    np.testing.assert_array_equal(MLExecution(cpu).compute(graph, {"x": ONES})["y"], ONES * 2)


def test_what_a_context_and_its_tensors_are_cannot_be_changed(cpu: MLContext) -> None:
    tensor = cpu.create_tensor_sync("float32", [2])
    for name in ("data_type", "shape", "readable", "writable", "exportable", "constant"):
        with pytest.raises(AttributeError):
            setattr(tensor, name, True)
    for name in ("device_type", "accelerated", "device", "engine"):
        with pytest.raises(AttributeError):
            setattr(cpu, name, True)


def test_an_operand_of_another_builder(cpu: MLContext, builder: MLGraphBuilder) -> None:
    other = MLGraphBuilder(cpu)
    foreign = other.input("x", "float32", [1])
    with pytest.raises(ValidationError, match=r"relu \[act\]: operand 'input': .*another builder"):
        builder.relu(foreign, label="act")
    with pytest.raises(ValidationError, match="another builder"):
        builder.build_sync({"y": other.relu(foreign)})
    assert_works(cpu)


def test_operands_must_be_operands(builder: MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [2, 3])
    with pytest.raises(ValidationError, match="operand 'b': got array"):
        builder.add(x, ONES)  # type: ignore[arg-type]


def test_a_message_names_operator_label_operand_and_both_values(builder: MLGraphBuilder) -> None:
    x, w = builder.input("x", "float32", [2, 3]), builder.constant(np.ones((3, 4), np.float16))
    with pytest.raises(ValidationError) as caught:
        builder.matmul(x, w, label="head")
    for part in ("matmul [head]", "'b'", "float16", "float32"):
        assert part in str(caught.value)


@pytest.mark.parametrize("outputs", [{}, None, [], {"": "y"}, {3: "y"}, {"y": 5}])
def test_outputs_that_cannot_be(builder: MLGraphBuilder, outputs: Any) -> None:
    y = builder.relu(builder.input("x", "float32", [2, 3]))
    named = {k: y if v == "y" else v for k, v in outputs.items()} if outputs else outputs
    with pytest.raises(ValidationError, match="build"):
        builder.build_sync(named)
    assert builder.build_sync({"y": y}).outputs == {"y": MLOperandDescriptor("float32", [2, 3])}


def test_inputs_and_constants_are_no_outputs(builder: MLGraphBuilder) -> None:
    for operand in (builder.input("x", "float32", [1]), builder.constant(ONES)):
        with pytest.raises(ValidationError, match=r"put identity\(\) between"):
            builder.build_sync({"y": operand})


def test_a_builder_builds_once(builder: MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [1])
    y = builder.relu(x)
    builder.build_sync({"y": y})
    for again in (
        lambda: builder.build_sync({"y": y}),
        lambda: builder.relu(x),
        lambda: builder.input("z", "float32", [1]),
        lambda: builder.constant(ONES),
    ):
        with pytest.raises(InvalidStateError, match="make a new builder"):
            again()


async def test_building_awaited_gives_the_same_graph(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [2, 3])
    graph = await builder.build_async({"y": builder.add(x, x)})
    assert str(graph) == str(doubling(cpu))


def test_a_graph_tells_its_interface(builder: MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [2, 3])
    builder.input("unused", "int8", [1])
    graph = builder.build_sync({"b": builder.relu(x), "a": builder.cast(x, "int32")})
    assert graph.inputs == {"x": MLOperandDescriptor("float32", [2, 3])}
    assert list(graph.outputs) == ["b", "a"]
    assert graph.outputs["a"] == MLOperandDescriptor("int32", [2, 3])


def test_inputs_are_not_compared_with_each_other(cpu: MLContext) -> None:
    """Comparing each name, and size without a name, with all before would take minutes here."""
    b = MLGraphBuilder(cpu)
    made = [b.input(f"x{i}", "float32", [-1]) for i in range(50_000)]
    assert [str(x.shape[0]) for x in made[::49_999]] == ["?0", "?49999"]
