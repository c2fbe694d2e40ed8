"""Graphs with open dimensions, in every mode and several sizes, like builds with fixed ones."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import empty_buffer, read, submit
from tests.graphs import ONES, build
from webnn_py import (
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    ValidationError,
    ml,
)

SIZES = [(1, 1), (2, 5), (3, 7), (2, 5), (4, 1)]
WEIGHTS = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)


def attention(context: MLContext, batch: Any = "batch", length: Any = "length") -> MLGraph:
    bounds = {"batch": (1, 64), "length": (1, 512)} if batch == "batch" else {}
    b = MLGraphBuilder(context, dimensions=bounds)
    x = b.input("x", "float32", [batch, length, 8])
    mask = b.input("mask", "float32", [batch, length])
    q = b.matmul(x, b.constant(WEIGHTS))
    scores = b.matmul(q, b.transpose(x, permutation=[0, 2, 1]))
    scores = b.add(scores, b.reshape(mask, [mask.shape[0], 1, mask.shape[1]]))
    y = b.matmul(b.softmax(scores, 2), x)
    return b.build_sync({"y": y, "mean": b.reduce_mean(y, axes=[1])})


def arrays(batch: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(batch * 100 + length)
    return {
        "x": rng.normal(size=(batch, length, 8)).astype(np.float32),
        "mask": rng.normal(size=(batch, length)).astype(np.float32),
    }


def awaited(context: MLContext, graph: MLGraph, inputs: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(MLAwaitedExecution(context).compute(graph, inputs))


def assert_close(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-6)


def test_awaited_runs_of_any_size(context: MLContext) -> None:
    graph = attention(context)
    for batch, length in SIZES:
        inputs = arrays(batch, length)
        wanted = awaited(context, attention(context, batch, length), inputs)
        assert_close(awaited(context, graph, inputs), wanted)
        assert graph.output_shapes({"batch": batch, "length": length}) == {
            name: array.shape for name, array in wanted.items()
        }


def test_many_sizes_at_once(context: MLContext) -> None:
    graph, execution = attention(context), MLAwaitedExecution(context)
    every = [arrays(batch, length) for batch, length in SIZES * 3]

    async def main() -> list[dict[str, Any]]:
        return await asyncio.gather(*(execution.compute(graph, inputs) for inputs in every))

    for inputs, got in zip(every, asyncio.run(main()), strict=True):
        assert_close(got, awaited(context, graph, inputs))


def test_synchronous_runs(cpu: MLContext) -> None:
    graph = attention(cpu)
    for batch, length in SIZES:
        inputs = arrays(batch, length)
        out = {"mean": np.empty((batch, 8), np.float32)}
        got = MLExecution(cpu).compute(graph, inputs, out)
        assert got["mean"] is out["mean"]
        assert_close(got, awaited(cpu, graph, inputs))


def test_dispatches_on_tensors(context: MLContext) -> None:
    graph = attention(context)
    for batch, length in SIZES:
        inputs = arrays(batch, length)
        tensors = {
            name: context.create_tensor_sync("float32", array.shape, writable=True)
            for name, array in inputs.items()
        }
        for name, array in inputs.items():
            context.write_tensor(tensors[name], array)
        shapes = graph.output_shapes({"batch": batch, "length": length})
        outputs = {
            name: context.create_tensor_sync("float32", shape, readable=True)
            for name, shape in shapes.items()
        }
        for _ in range(2):
            context.dispatch(graph, tensors, outputs)
        got = {name: context.read_tensor_sync(tensor) for name, tensor in outputs.items()}
        assert_close(got, awaited(context, graph, inputs))
        wrong = outputs | {"mean": outputs["y"]}
        with pytest.raises(ValidationError, match="output 'mean'"):
            context.dispatch(graph, tensors, wrong)


@pytest.mark.parametrize("given", [[ONES], [ONES, ONES], ONES, "x", None])
def test_dispatches_take_tensors_alone(context: MLContext, given: object) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 3])
    graph = builder.build_sync({"y": builder.relu(x)})
    y = context.create_tensor_sync("float32", [2, 3])
    with pytest.raises(ValidationError, match=r"input 'x': got .*, expected an MLTensor"):
        context.dispatch(graph, {"x": given}, {"y": y})  # type: ignore[dict-item]


def test_recorded_runs_take_sizes_from_dimensions(gpu: MLContext) -> None:
    graph = attention(gpu)
    for batch, length in SIZES[:3]:
        inputs = arrays(batch, length)
        given: dict[str, Any] = dict(inputs)
        buffer = gpu.device.create_buffer_with_data(data=inputs["x"], usage=128)
        given["x"] = {"resource": buffer, "dimensions": [batch, length, 8]}
        shapes = graph.output_shapes({"batch": batch, "length": length})
        outputs = {
            name: empty_buffer(gpu.device, 4 * int(np.prod(shape)))
            for name, shape in shapes.items()
        }
        encoder = MLCommandEncoder(gpu)
        encoder.initialize_graph(graph)
        encoder.dispatch(graph, given, outputs)
        submit(encoder, gpu)
        got = {name: read(outputs[name], shape) for name, shape in shapes.items()}
        assert_close(got, awaited(gpu, graph, inputs))
        graph = attention(gpu)  # a graph is initialized once


def test_a_buffer_is_as_large_as_other_inputs_say(gpu: MLContext) -> None:
    graph, inputs = attention(gpu), arrays(2, 5)
    buffer = gpu.device.create_buffer_with_data(data=inputs["x"], usage=128)
    got = awaited(gpu, graph, {"x": buffer, "mask": inputs["mask"]})
    assert_close(got, awaited(gpu, graph, inputs))
    mask = gpu.device.create_buffer_with_data(data=inputs["mask"], usage=128)
    with pytest.raises(DataError, match=r"batch, length does not follow.* give 'x' .* as an array"):
        awaited(gpu, graph, {"x": buffer, "mask": mask})


def test_sizes_that_do_not_fit(context: MLContext) -> None:
    graph = attention(context)
    good = arrays(2, 5)
    for inputs, message in (
        ({"x": good["x"], "mask": arrays(3, 5)["mask"]}, "batch.* is 3.*batch is 2|is 2.*is 3"),
        (arrays(65, 5), "batch is 65, expected 1..64"),
        ({"x": good["x"][0], "mask": good["mask"]}, "rank 3"),
        ({"x": good["x"][..., :7], "mask": good["mask"]}, "7, expected 8"),
        ({"x": good["x"]}, "input 'mask' is missing"),
        ({"x": {"resource": good["x"], "dimensions": [2, 4, 8]}, "mask": good["mask"]}, "is 5"),
        (good | {"more": good["x"]}, "unknown input 'more'"),
    ):
        with pytest.raises(DataError, match=message):
            awaited(context, graph, inputs)
    with pytest.raises(ValidationError, match="length"):
        graph.output_shapes({"batch": 2})
    with pytest.raises(ValidationError, match="batch"):
        graph.prepare_sync({"batch": 65, "length": 2})
    assert_close(awaited(context, graph, good), awaited(context, attention(context, 2, 5), good))
    graph.destroy()
    with pytest.raises(InvalidStateError):
        graph.prepare_sync({"batch": 1, "length": 1})


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino", "gpu"])
def test_windows_of_open_sizes_are_checked_at_each_run(
    engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "gpu":
        context = request.getfixturevalue("gpu")
    else:
        if engine != "reference":
            pytest.importorskip(engine)
        context = ml.create_context_sync(engine=engine)
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)

    def outputs(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.conv2d(x, b.constant(weights), strides=[2, 2], padding=[1, 1, 1, 1])
        y = b.max_pool2d(b.relu(y), window_dimensions=[2, 2], strides=[2, 2])
        y = b.conv2d(y, b.constant(weights[:, :1]), groups=4)
        n, c, h, w = y.shape
        return b.softmax(b.reshape(y, [n, c, h * w]), 2)

    opened = build(context, lambda b: {"y": outputs(b, b.input("x", "float32", [1, 3, "h", "w"]))})
    for shape in ((1, 3, 32, 17), (1, 3, 11, 40), (1, 3, 64, 64)):
        x = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
        fixed = build(context, lambda b, s=shape: {"y": outputs(b, b.input("x", "float32", s))})
        got, wanted = (awaited(context, graph, x)["y"] for graph in (opened, fixed))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValidationError, match=r"^conv2d: a window of 3 x 3 is larger"):
        awaited(context, opened, {"x": np.zeros((1, 3, 10, 40), np.float32)})
