"""Profiles of CPU engines: rows for the operators that the library runs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from webnn_py import MLContext, MLGraph, MLGraphBuilder, ml
from webnn_py.api.compiled import compiled_of
from webnn_py.engines.onnx_lowering.node_times import NodeTime, steps_of
from webnn_py.ir import Graph

pytest.importorskip("onnxruntime")

RANDOM = np.random.default_rng(0)


def network(context: MLContext, batch: int | str = 1) -> MLGraph:
    """An image, convolved, pooled and classified."""
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [batch, 3, 16, 16])
    filters = builder.constant(RANDOM.random((8, 3, 3, 3), np.float32))
    weights = builder.constant(RANDOM.random((8, 5), np.float32))
    y = builder.relu(builder.conv2d(x, filters, padding=[1, 1, 1, 1], label="stem"))
    pooled = builder.reshape(builder.average_pool2d(y), [x.shape[0], 8])
    return builder.build_sync({"y": builder.softmax(builder.matmul(pooled, weights), 1)})


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("batch", [1, "batch"])
def test_each_operator_has_a_row_with_what_is_fused_into_it(engine: str, batch: int | str) -> None:
    pytest.importorskip(engine)
    with ml.create_context_sync(engine=engine) as context:
        graph = network(context, batch)
        profile = graph.profile({"x": np.ones((1, 3, 16, 16), np.float32)}, runs=2)
    rows = {row.operator: row for row in profile}
    stem = rows["conv2d, relu [stem]"]
    assert stem.kernel == f"{engine} {'Conv' if engine == 'onnxruntime' else 'Convolution'}"
    assert stem.flop > 2 * 8 * 27 * 256
    operators = {
        name for row in profile if row.flop for name in row.operator.split(" [")[0].split(", ")
    }
    assert {"conv2d", "relu", "average_pool2d", "matmul", "softmax"} <= operators
    assert sum(row.share for row in profile) == pytest.approx(1)
    assert len(profile) > 3


@pytest.fixture
def graph() -> Graph:
    """A sine, its negation and two exponentials of that, which read one another."""
    with ml.create_context_sync(engine="reference") as context:
        builder = MLGraphBuilder(context)
        y = builder.neg(builder.sin(builder.input("x", "float32", [2])))
        return compiled_of(builder.build_sync({"y": builder.exp(builder.exp(y))})).recipe


def steps(graph: Graph, *times: tuple[str, str, float]) -> list[tuple[str, list[str], float]]:
    """Kernel, operators and seconds of each step; node 0 of the model makes the tensor `t`."""
    made = helper.make_node("Sin", ["x"], ["t"], name="0")
    model = helper.make_model(helper.make_graph([made], "g", [], []))
    found = steps_of("e", graph, model, [NodeTime(name, name, *more) for name, *more in times])
    return [(step.name, [node.op for node in step.nodes], step.seconds) for step in found]


def test_the_first_run_of_a_node_warms_up(graph: Graph) -> None:
    times = [("0", "Sin", 9.0), ("0", "Sin", 3.0), ("0", "Sin", 1.0), ("0", "Sin", 2.0)]
    assert [seconds for *_, seconds in steps(graph, *times)] == [2.0]


def test_nodes_of_one_operator_are_one_step_with_what_is_fused(graph: Graph) -> None:
    times = [("t_nchwc", "Sin", 1.0), ("2/Cast", "Cast", 2.0), ("2", "Exp", 3.0)]
    assert steps(graph, *times) == [
        ("e Sin", ["sin", "neg"], 1.0),
        ("e Cast, Exp", ["exp", "exp"], 5.0),
    ]


def test_operators_fused_before_a_node_belong_to_it(graph: Graph) -> None:
    assert steps(graph, ("3/Fused/", "Exp", 1.0)) == [("e Exp", ["sin", "neg", "exp", "exp"], 1.0)]


def test_nodes_of_the_library_alone_are_steps_without_operators(graph: Graph) -> None:
    times = [("0", "Sin", 1.0), ("Reorder", "Reorder", 2.0), ("77", "Copy", 3.0)]
    assert steps(graph, *times)[1:] == [("e Reorder", [], 2.0), ("e Copy", [], 3.0)]
