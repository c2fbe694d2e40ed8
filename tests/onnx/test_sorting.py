"""TopK, which WebNN has not: in order, equals by their places, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.models import model
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError, ml
from webnn_py.onnx import load, to_onnx

CASES: list[tuple[tuple[int, ...], int, int, int, Any]] = [
    ((3, 7), 2, 1, 1, np.float32),
    ((3, 7), 7, 1, 0, np.float32),
    ((2, 40, 3), 9, 1, 1, np.float16),
    ((300,), 20, 0, 1, np.float32),
    ((2, 1000), 20, -1, 0, np.float32),
    ((1, 700), 70, -1, 1, np.int32),
    ((2, 3000), 300, 1, 1, np.float32),
]


def sorting(shape: Any, count: int, axis: int, largest: int, dtype: Any) -> onnx.ModelProto:
    node = onnx.helper.make_node(
        "TopK", ["x", "k"], ["values", "places"], axis=axis, largest=largest
    )
    elem = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = {"k": np.asarray([count])}
    return model([node], {"x": shape}, ["values", "places"], weights, elem=elem)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_ones(case: Any, engine: str) -> None:
    pytest.importorskip(engine if engine != "reference" else "onnx")
    shape, count, axis, largest, dtype = case
    x = np.random.default_rng(0).integers(-50, 50, shape).astype(dtype)  # with many equals
    order = np.argsort(-x.astype(np.float64) if largest else x, axis, kind="stable")
    places = np.take(order, np.arange(count), axis)
    with ml.create_context_sync(device_type="cpu", engine=engine) as context:
        graph = load(sorting(*case), context)
        found = MLExecution(context).compute(graph, {"x": x})
    np.testing.assert_array_equal(found["places"], places)
    np.testing.assert_array_equal(found["values"], np.take_along_axis(x, places, axis))


def test_the_first_ones_on_a_gpu(gpu: MLContext) -> None:
    graph = load(sorting((2, 3, 600), 40, -1, 1, np.float32), gpu)
    x = np.random.default_rng(0).integers(-50, 50, (2, 3, 600)).astype(np.float32)
    given = gpu.create_tensor_sync("float32", x.shape, writable=True)
    gpu.write_tensor(given, x)
    places = gpu.create_tensor_sync("int64", (2, 3, 40), readable=True)
    values = gpu.create_tensor_sync("float32", (2, 3, 40), readable=True)
    gpu.dispatch(graph, {"x": given}, {"values": values, "places": places})
    wanted = np.argsort(-x, -1, kind="stable")[..., :40]
    np.testing.assert_array_equal(gpu.read_tensor_sync(places), wanted)


def test_infinities_come_before_what_fills_blocks(cpu: MLContext) -> None:
    x = np.full((1, 400), -np.inf, np.float32)
    x[0, 399] = 1
    graph = load(sorting((1, 400), 5, -1, 1, np.float32), cpu)
    found = MLExecution(cpu).compute(graph, {"x": x})
    assert found["places"].tolist() == [[399, 0, 1, 2, 3]]


def test_many_of_open_rows(cpu: MLContext) -> None:
    graph = load(sorting(("n", "m"), 3000, -1, 1, np.float32), cpu)
    x = np.random.default_rng(0).permutation(4000).astype(np.float32)[None]
    found = MLExecution(cpu).compute(graph, {"x": x})
    assert found["values"].tolist() == [list(range(3999, 999, -1))]


def sorted_whole() -> onnx.ModelProto:
    """All of open rows, as exporters write sorting."""
    node = onnx.helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "one", "two"], ["k"]),
        node("TopK", ["x", "k"], ["values", "places"], axis=1),
    ]
    weights = {"one": np.asarray([1]), "two": np.asarray([2])}
    return model(nodes, {"x": ["n", "m"]}, ["values", "places"], weights)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino"])
def test_rows_of_open_size_are_sorted(engine: str) -> None:
    pytest.importorskip(engine if engine != "reference" else "onnx")
    with ml.create_context_sync(device_type="cpu", engine=engine) as context:
        graph = load(sorted_whole(), context)
        for made in (graph, load(to_onnx(graph), context)):
            for shape in ((2, 7), (1, 1), (3, 300)):
                x = np.random.default_rng(0).integers(-50, 50, shape).astype(np.float32)
                found = MLExecution(context).compute(made, {"x": x})
                places = np.argsort(-x, 1, kind="stable")
                np.testing.assert_array_equal(found["places"], places)
                np.testing.assert_array_equal(found["values"], np.take_along_axis(x, places, 1))


def test_rows_of_open_size_are_sorted_on_a_gpu(gpu: MLContext) -> None:
    graph = load(sorted_whole(), gpu)
    for shape in ((2, 7), (3, 1), (3, 300)):
        x = np.random.default_rng(0).integers(-50, 50, shape).astype(np.float32)
        given = gpu.create_tensor_sync("float32", x.shape, writable=True)
        gpu.write_tensor(given, x)
        places = gpu.create_tensor_sync("int64", shape, readable=True)
        values = gpu.create_tensor_sync("float32", shape, readable=True)
        gpu.dispatch(graph, {"x": given}, {"values": values, "places": places})
        wanted = np.argsort(-x, 1, kind="stable")
        np.testing.assert_array_equal(gpu.read_tensor_sync(places), wanted)
        np.testing.assert_array_equal(gpu.read_tensor_sync(values), -np.sort(-x, 1))


def test_too_many_to_sort_on_a_gpu(gpu: MLContext) -> None:
    with pytest.raises(NotSupportedError, match=r"arg_top_k.*WebNN has no sorting"):
        load(sorting((1, 1 << 20), 3000, -1, 1, np.float32), gpu)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino"])
def test_rows_have_as_many_elements_as_are_wanted(engine: str) -> None:
    pytest.importorskip(engine if engine != "reference" else "onnx")
    with ml.create_context_sync(engine=engine) as context:
        graph = load(sorting((3, "n"), 3, 1, 1, np.float32), context)
        execution = MLExecution(context)
        assert execution.compute(graph, {"x": np.ones((3, 3), np.float32)})["places"].shape == (
            3,
            3,
        )
        with pytest.raises(DataError, match="2"):
            execution.compute(graph, {"x": np.ones((3, 2), np.float32)})
