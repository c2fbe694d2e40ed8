"""Contexts, MLGraph and MLExecution: results, what is refused, and that nothing breaks by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from tests.graphs import ONES, TWOS, assert_works, doubling
from webnn_py import (
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
    ml,
)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, None, "input 'x' is missing; expected .*float32"),
        ({"x": ONES, "z": ONES}, None, "unknown input 'z'; this graph has 'x'"),
        ({"x": ONES}, {"z": ONES}, "unknown output 'z'; this graph has 'y'"),
        ({"x": ONES[0]}, None, r"input 'x': shape \[3\], expected \[2, 3\]"),
        ({"x": ONES.T}, None, r"input 'x': shape \[3, 2\], expected \[2, 3\]"),
        ({"x": np.ones((2, 3))}, None, "input 'x': data type float64, expected float32"),
        ({"x": bytes(23)}, None, "input 'x': 23 bytes, expected 24"),
        ({"x": ONES.tolist()}, None, "input 'x': got list"),
        ({"x": {"resource": ONES, "dimensions": [3, 2]}}, None, r"dimensions \[3, 2\], expected"),
        ({"x": {"resource": ONES, "size": 3}}, None, r"unknown keys \['size'\]"),
        ([ONES], None, "inputs: got list, expected a mapping"),
        ({"x": ONES}, {"y": np.empty(5, np.float32)}, "5 elements, expected at least 6"),
        ({"x": ONES}, {"y": np.empty((2, 3))}, "output 'y': data type float64"),
        ({"x": ONES}, {"y": bytes(24)}, "output 'y': the array is read-only"),
        (
            {"x": ONES},
            {"y": np.empty((3, 2), np.float32)},
            r"'y': shape \[3, 2\], expected \[2, 3\]",
        ),
    ],
)
def test_bad_resources_are_data_errors_and_harmless(
    cpu: MLContext, inputs: Any, outputs: Any, message: str
) -> None:
    graph = doubling(cpu)
    execution = MLExecution(cpu)
    with pytest.raises(DataError, match=message):
        execution.compute(graph, inputs, outputs)
    np.testing.assert_array_equal(execution.compute(graph, {"x": ONES})["y"], TWOS)


def test_nothing_is_written_before_everything_is_checked(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [2, 3])
    graph = builder.build_sync({"y": builder.add(x, x), "z": builder.relu(x)})
    y = np.zeros((2, 3), np.float32)
    with pytest.raises(DataError, match="output 'z'"):
        MLExecution(cpu).compute(graph, {"x": ONES}, {"y": y, "z": np.empty(1, np.float32)})
    assert not y.any()


def test_outputs_are_written_in_place_and_returned(cpu: MLContext) -> None:
    target = np.zeros((2, 3), np.float32)
    results = MLExecution(cpu).compute(doubling(cpu), {"x": ONES}, {"y": target})
    assert results["y"] is target
    np.testing.assert_array_equal(target, TWOS)


def test_a_strided_output_of_the_right_shape_is_written(cpu: MLContext) -> None:
    whole = np.zeros((3, 4), np.float32)
    MLExecution(cpu).compute(doubling(cpu), {"x": ONES}, {"y": whole.T[1:3]})
    assert whole.tolist() == [[0, 2, 2, 0]] * 3


def test_a_larger_output_keeps_its_rest(cpu: MLContext) -> None:
    large = np.full(8, -1, np.float32)
    results = MLExecution(cpu).compute(doubling(cpu), {"x": ONES}, {"y": large})
    assert results["y"] is large
    assert large.tolist() == [2] * 6 + [-1] * 2


def test_inputs_are_not_modified(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [2, 3])
    shaped = builder.reshape(x, [3, 2])
    graph = builder.build_sync({"y": builder.relu(builder.neg(shaped)), "same": shaped})
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = MLExecution(cpu).compute(graph, {"x": given})
    results["same"][:] = -9
    assert given.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    given.flags.writeable = False
    MLExecution(cpu).compute(graph, {"x": given})


def test_an_output_may_lie_over_the_input(cpu: MLContext) -> None:
    array = ONES.copy()
    MLExecution(cpu).compute(doubling(cpu), {"x": array}, {"y": array})
    np.testing.assert_array_equal(array, TWOS)


@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_what_only_moves_an_input_is_not_written_over(engine: str, step: int) -> None:
    array = np.arange(24, dtype=np.float32)
    given = array[8:14]
    target = array[20:8:-2] if step < 0 else array[6 : 6 + 6 * step : step]
    with ml.create_context_sync(engine=engine) as context:
        builder = MLGraphBuilder(context)
        x = builder.input("x", "float32", [6])
        moved = {"part": builder.slice(x, [1], [3]), "shaped": builder.reshape(x, [2, 3])}
        graph = builder.build_sync({"y": builder.neg(x), **moved})
        outputs = MLExecution(context).compute(graph, {"x": given}, {"y": target})
    np.testing.assert_array_equal(target, [-8, -9, -10, -11, -12, -13])
    np.testing.assert_array_equal(outputs["part"], [9, 10, 11])
    np.testing.assert_array_equal(outputs["shaped"], [[8, 9, 10], [11, 12, 13]])


# States


def test_a_product_divided_by_zero_is_infinite_and_warns_of_nothing(cpu: MLContext) -> None:
    """Such a divisor cannot be folded into the weights, as others are."""
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [1, 1, 1, 2])
    y = builder.conv2d(x, builder.constant(np.ones((2, 1, 1, 1), np.float32)))
    y = builder.add(y, builder.constant(np.float32([1, 2]).reshape(2, 1, 1)))
    y = builder.div(y, builder.constant(np.float32([2, 0]).reshape(2, 1, 1)))
    graph = builder.build_sync({"y": y})
    got = MLExecution(cpu).compute(graph, {"x": np.float32([[[[1, -3]]]])})["y"]
    np.testing.assert_array_equal(got, np.float32([[[[1, -1]], [[np.inf, -np.inf]]]]))


def test_a_destroyed_graph_does_not_run(cpu: MLContext) -> None:
    graph = doubling(cpu)
    graph.destroy()
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        MLExecution(cpu).compute(graph, {"x": ONES})
    assert_works(cpu)


def test_a_graph_belongs_to_its_context(cpu: MLContext) -> None:
    with ml.create_context_sync(device_type="cpu") as other:
        graph = doubling(other)
        with pytest.raises(DataError, match="another context"):
            MLExecution(cpu).compute(graph, {"x": ONES})
    assert_works(cpu)


async def test_blocking_under_asyncio(cpu: MLContext) -> None:
    graph = doubling(cpu)
    with pytest.raises(InvalidStateError, match="MLAwaitedExecution"):
        MLExecution(cpu).compute(graph, {"x": ONES})
    allowed = MLExecution(cpu, allow_blocking=True).compute(graph, {"x": ONES})
    awaited = await MLAwaitedExecution(cpu).compute(graph, {"x": ONES})
    np.testing.assert_array_equal(allowed["y"], awaited["y"])


def test_blocking_under_trio(cpu: MLContext) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStateError, match="event loop"):
            MLExecution(cpu).compute(doubling(cpu), {"x": ONES})

    trio.run(main)
    assert_works(cpu)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_type": "npu"}, "expected one of 'cpu', 'gpu', 'default'"),
        ({"power_preference": "high"}, "power_preference"),
        ({"engine": "torch"}, "engine"),
        ({"accelerated": 3}, "accelerated"),
        ({"device": object()}, "GPUDevice"),
        ({"device": object(), "device_type": "cpu"}, "contradicts"),
        ({"device_type": np.zeros(2)}, "device_type"),
        ({"accelerated": np.zeros(2)}, "accelerated"),
        ({"device_type": "gpu", "engine": "reference"}, "'reference' runs on the CPU"),
        ({"device_type": "gpu", "engine": "onnxruntime"}, "'onnxruntime' runs on the CPU"),
        ({"device": object(), "engine": "reference"}, "'reference' runs on the CPU"),
        ({"accelerated": True, "engine": "reference"}, "'reference' runs on the CPU"),
        ({"engine": "webgpu"}, "'webgpu' runs on GPUs: it needs device_type='gpu'"),
        ({"device_type": "cpu", "engine": "webgpu"}, "'webgpu' runs on GPUs"),
        (
            {"device_type": "cpu", "engine": "nothing"},
            "is not there; use one of 'auto', 'reference'",
        ),
    ],
)
def test_context_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MLError, match=message):
        ml.create_context_sync(**options)


@pytest.mark.parametrize("device_type", ["cpu", "default", None])
def test_the_default_device_is_the_cpu(device_type: Any) -> None:
    with ml.create_context_sync(device_type=device_type) as context:
        assert (context.device_type, context.accelerated, context.device) == ("cpu", False, None)


def test_the_engine_of_a_gpu_context_has_a_name(gpu: MLContext) -> None:
    for options in ({"device_type": "gpu"}, {"device": gpu.device}):
        with ml.create_context_sync(**options, engine="webgpu") as context:
            assert (context.device_type, context.engine) == ("gpu", "webgpu")
        with pytest.raises(ValidationError, match="'reference' runs on the CPU"):
            ml.create_context_sync(**options, engine="reference")
    if not gpu.accelerated:
        with pytest.raises(NotSupportedError, match="there is no hardware GPU"):
            ml.create_context_sync(accelerated=True, engine="webgpu")


def test_gpu_contexts_are_not_for_blocking(gpu: MLContext) -> None:
    with pytest.raises(InvalidStateError, match="MLAwaitedExecution or MLCommandEncoder"):
        MLExecution(gpu)


def test_shapes_that_change_from_run_to_run(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    x, y = (builder.input(name, "float32", ["n", 2]) for name in "xy")
    graph, execution = builder.build_sync({"z": builder.add(x, y)}), MLExecution(cpu)
    for count in (1, 3, 3, 1, 2, 3):
        ones = np.ones((count, 2), np.float32)
        made = execution.compute(graph, {"x": ones, "y": ones})["z"]
        np.testing.assert_array_equal(made, 2 * ones)
        with pytest.raises(DataError, match="n"):
            execution.compute(graph, {"x": ones, "y": np.ones((count + 1, 2), np.float32)})
        with pytest.raises(DataError, match="float64"):
            execution.compute(graph, {"x": ones, "y": np.ones((count, 2))})
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        execution.compute(graph, {"x": ones, "y": ones})
