"""The engine that runs graphs by ONNX Runtime: what it is given, holds, and says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from webnn_py import (
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    ValidationError,
    ml,
)

pytest.importorskip("onnxruntime")
import onnx
import onnxruntime

FAST = ("onnxruntime", "openvino")
SIDE = 80
"""So that results are no small ones."""


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="onnxruntime")


@pytest.fixture(scope="module", params=FAST)
def fast(request: pytest.FixtureRequest) -> MLContext:
    """A context of each engine that runs ONNX models."""
    pytest.importorskip(request.param)
    return ml.create_context_sync(engine=request.param)


def doubled(context: MLContext, size: int = SIDE) -> MLGraph:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [size, size])
    return builder.build_sync({"y": builder.add(x, x), "z": builder.neg(x)})


def squares(value: float, size: int = SIDE) -> np.ndarray[Any, Any]:
    return np.full((size, size), value, np.float32)


@pytest.mark.parametrize("size", [2, SIDE])
def test_results_lie_where_they_are_wanted(fast: MLContext, size: int) -> None:
    graph, execution = doubled(fast, size), MLExecution(fast)
    given = {"y": squares(0, size), "z": squares(0, size)}
    for value in (1, 2, 3):
        made = execution.compute(graph, {"x": squares(value, size)}, given)
        assert made["y"] is given["y"]
        assert given["y"].tolist() == squares(2 * value, size).tolist()
        assert given["z"].tolist() == squares(-value, size).tolist()


@pytest.mark.parametrize("size", [2, SIDE])
def test_new_results_stay_as_they_are(fast: MLContext, size: int) -> None:
    graph, execution = doubled(fast, size), MLExecution(fast)
    made = [execution.compute(graph, {"x": squares(value, size)}) for value in (1, 2, 3)]
    for value, results in zip((1, 2, 3), made, strict=True):
        assert results["y"].tolist() == squares(2 * value, size).tolist()
        assert results["z"].tolist() == squares(-value, size).tolist()
        assert results["y"].flags.writeable


@pytest.mark.parametrize("size", [2, SIDE])
def test_many_threads_run_one_graph(fast: MLContext, size: int) -> None:
    graph, execution = doubled(fast, size), MLExecution(fast)
    wrong = []

    def work(value: int) -> None:
        for _ in range(50):
            made = execution.compute(graph, {"x": squares(value, size)})
            if not (made["y"] == 2 * value).all() or not (made["z"] == -value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_it_cannot_run_goes_to_the_reference(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "int32", [3])
    y = builder.pow(builder.add(x, x), x)
    graph = builder.build_sync({"y": y})
    assert "# engine onnxruntime" in str(graph)
    assert "# engine reference" in str(graph)
    made = MLExecution(context).compute(graph, {"x": np.array([1, 2, 3], np.int32)})
    assert made["y"].tolist() == [2, 16, 216]


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("wrong", [0, "2", True, 1.0])
def test_threads_are_a_number_from_1(name: str, wrong: Any) -> None:
    pytest.importorskip(name)
    with pytest.raises(ValidationError, match=r"'threads': got .*, expected an integer from 1"):
        ml.create_context_sync(engine=name, engine_options={"threads": wrong})


def test_threads_are_an_option(sessions: list[Any]) -> None:
    with ml.create_context_sync(engine="onnxruntime", engine_options={"threads": 1}) as context:
        doubled(context)
    assert sessions[-1].get_session_options().intra_op_num_threads == 1


def test_idle_threads_of_small_graphs_leave_their_cores_sooner(sessions: list[Any]) -> None:
    option, found = "session.intra_op.spin_duration_us", []
    for size in (64, 512):
        with ml.create_context_sync(engine="onnxruntime") as context:
            doubled(context, size)
        found.append(int(sessions[-1].get_session_options().get_session_config_entry(option)))
    assert found[0] < found[1]


def test_nodes_are_called_by_operator_and_label(context: MLContext, models: list[Any]) -> None:
    """So that ONNX Runtime's errors name them."""
    builder = MLGraphBuilder(context)
    x = builder.input("x", "int32", [3])
    builder.build_sync({"y": builder.div(x, x, label="share"), "z": builder.add(x, x)})
    names = {node.name for model in models for node in model.graph.node}
    assert "div [share]/Div" in names
    assert {"div [share]", "add"} <= names


def test_positions_along_a_dimension_are_not_clamped_to_it(
    context: MLContext, models: list[Any]
) -> None:
    rng = np.random.default_rng(0)
    x, other = (rng.normal(size=(3, count)).astype(np.float32) for count in (9, 5))
    for wide, clamps in ((x, 0), (other, 1)):
        b = MLGraphBuilder(context)
        given = b.input("x", "float32", ["n", 9])
        best = b.arg_top_k(given, 1, 4)
        rows, count = b.arg_max(given, 1, output_data_type="int64"), given.shape[0]
        rows = b.expand(b.reshape(rows, [count, 1]), [count, 2])
        values = given if wide is x else b.input("wide", "float32", ["n", 5])
        outputs = {"y": b.gather_elements(values, best, axis=1)}
        outputs["z"] = b.gather_elements(values, rows, axis=1)
        inputs = {"x": x} if wide is x else {"x": x, "wide": wide}
        made = MLExecution(context).compute(b.build_sync(outputs), inputs)
        places = np.argsort(-x, 1)[:, :4].clip(0, wide.shape[1] - 1)
        np.testing.assert_array_equal(made["y"], np.take_along_axis(wide, places, 1))
        np.testing.assert_array_equal(made["z"], np.repeat(made["y"][:, :1], 2, 1))
        kinds = [node.op_type for node in models[-1].graph.node]
        assert bool(kinds.count("Where")) == bool(clamps)


def test_slices_name_the_axes_that_they_cut(context: MLContext, models: list[Any]) -> None:
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", ["n", 4, 6])
    count = x.shape[0]
    parts = {
        "middle": b.slice(x, [0, 1, 0], [count, 2, 6]),
        "steps": b.slice(x, [0, 0, 0], [count, 4, 6], strides=[1, 1, 2]),
        "whole": b.slice(x, [0, 0, 0], [count, 4, 6]),
    }
    numbers = np.arange(48, dtype=np.float32).reshape(2, 4, 6)
    made = MLExecution(context).compute(b.build_sync(parts), {"x": numbers})
    np.testing.assert_array_equal(made["middle"], numbers[:, 1:3])
    np.testing.assert_array_equal(made["steps"], numbers[:, :, ::2])
    np.testing.assert_array_equal(made["whole"], numbers)
    graph = models[-1].graph
    constants = {one.name: onnx.numpy_helper.to_array(one).tolist() for one in graph.initializer}
    cut = [constants[node.input[3]] for node in graph.node if node.op_type == "Slice"]
    assert sorted(cut) == [[1], [2]]


def test_a_sum_before_a_normalization_stays_one(
    context: MLContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ONNX Runtime's kernel for both takes several times as long."""
    path = tmp_path / "optimized.onnx"
    real = onnxruntime.SessionOptions

    def options() -> Any:
        made = real()
        made.optimized_model_filepath = str(path)
        return made

    monkeypatch.setattr(onnxruntime, "SessionOptions", options)
    b = MLGraphBuilder(context)
    x, y = (b.input(name, "float32", [1, 8, 16]) for name in "xy")
    scale, bias = (b.constant(np.full(16, value, np.float32)) for value in (1, 2))
    b.build_sync({"z": b.layer_normalization(b.add(x, y), scale=scale, bias=bias, axes=[2])})
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds == ["Add", "LayerNormalization"]


@pytest.mark.parametrize("reader", ["x * sigmoid(x)", "x * sigmoid(y)", "an output"])
def test_sigmoids_are_its_own_where_x_times_their_error_does_no_harm(
    context: MLContext, reader: str
) -> None:
    builder = MLGraphBuilder(context)
    x, y = (builder.input(name, "float32", [3]) for name in "xy")
    share = builder.sigmoid(x if reader != "x * sigmoid(y)" else y)
    outputs = {"z": builder.mul(x, share), "w": builder.add(x, y)}
    if reader == "an output":
        outputs["share"] = share
    graph = builder.build_sync(outputs)
    given = np.asarray([-20, -0.5, 4], np.float32)
    found = MLExecution(context).compute(graph, {"x": given, "y": given})
    wanted = 1 / (1 + np.exp(-given.astype(np.float64)))
    np.testing.assert_array_less(np.abs(found["z"] - given * wanted), 2e-7 * np.abs(given))
    if reader != "x * sigmoid(x)":
        np.testing.assert_allclose(found["z"], given * wanted, rtol=1e-6)


@pytest.mark.parametrize("data_type", ["int32", "int64"])
@pytest.mark.parametrize(
    ("axes", "keep"), [([1], False), ([0, 2], True), ([2, 0, 1], False), ([], False)]
)
def test_sums_of_integers_keep_all_bits(
    context: MLContext, data_type: Any, axes: list[int], keep: bool
) -> None:
    """And are within the engine's part of a graph; what is out of range wraps around."""
    builder = MLGraphBuilder(context)
    x = builder.input("x", data_type, [3, 4, 5])
    graph = builder.build_sync({"y": builder.reduce_sum(x, axes=axes, keep_dimensions=keep)})
    assert "# engine reference" not in str(graph)
    limits = np.iinfo(data_type)
    given = np.random.default_rng(0).integers(limits.min, limits.max, [3, 4, 5], data_type)
    found = MLExecution(context).compute(graph, {"x": given})["y"]
    wanted = given.sum(tuple(axes), data_type, keepdims=keep)
    np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("shape", [[3, 2], [1, 3, 2], [2, 3, 2]])
def test_zero_points_of_columns_of_several_matrices(fast: MLContext, shape: list[int]) -> None:
    builder = MLGraphBuilder(fast)
    a, b = builder.input("a", "uint8", [1, 3]), builder.input("b", "uint8", shape)
    zero = builder.input("zero", "uint8", [2])
    graph = builder.build_sync({"y": builder.matmul_integer(a, b, b_zero_point=zero)})
    arrays = {
        "a": np.array([[1, 2, 3]], np.uint8),
        "b": np.arange(np.prod(shape), dtype=np.uint8).reshape(shape),
        "zero": np.array([5, 2], np.uint8),
    }
    expected = arrays["a"].astype(int) @ (arrays["b"].astype(int) - arrays["zero"])
    np.testing.assert_array_equal(MLExecution(fast).compute(graph, arrays)["y"], expected)
