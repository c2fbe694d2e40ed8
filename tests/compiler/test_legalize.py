"""Rewrites for a device's limits: they go on until nothing is left to do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.compiler.compiled import legal
from tests.graphs import Build
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.compiler.loop_bounds import LONG
from webnn_py.engines.webgpu.compiler.lower.reduction import count_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ops.declare import REGISTRY

Outputs = dict[str, MLOperand]


def reduction(b: MLGraphBuilder) -> Outputs:
    x = b.expand(b.input("x", "float32", [1]), [1, 1 << 28])
    return {"y": b.reduce_l2(x, axes=[1])}


def log_sum_exp(b: MLGraphBuilder) -> Outputs:
    return {"y": b.reduce_log_sum_exp(b.input("x", "float16", [2, 100_000]), axes=[1])}


def global_pool(b: MLGraphBuilder) -> Outputs:
    return {"y": b.l2_pool2d(b.input("x", "float32", [1, 2, 1, 1 << 20]))}


def few_windows(b: MLGraphBuilder) -> Outputs:
    """Rows after columns, each window of theirs a reduction that is long itself."""
    x = b.input("x", "float32", [1, 1, 152, 60_003])
    return {"y": b.max_pool2d(x, window_dimensions=[150, 60_000], padding=[0, 1, 0, 1])}


def recurrent(b: MLGraphBuilder) -> Outputs:
    """The product of all steps is over a long line."""
    x = b.input("x", "float32", [2, 1, 40_000])
    weight = b.input("w", "float32", [1, 8, 40_000])
    return {"y": b.lstm(x, weight, b.input("r", "float32", [1, 8, 2]), 2, 2)[0]}


def places(b: MLGraphBuilder) -> Outputs:
    return {"y": b.arg_min(b.input("x", "int8", [3, 1 << 20]), 1)}


def running_sum(b: MLGraphBuilder) -> Outputs:
    return {"y": b.cumulative_sum(b.input("x", "float32", [1 << 20, 2]), 0)}


def pieces(b: MLGraphBuilder) -> Outputs:
    """More than one kernel can bind."""
    return {"y": b.concat([b.input(f"x{i}", "float32", [2]) for i in range(60)], 0)}


GRAPHS: list[Build] = [
    reduction,
    log_sum_exp,
    global_pool,
    few_windows,
    recurrent,
    places,
    running_sum,
    pieces,
]


@pytest.mark.parametrize("what", GRAPHS)
def test_nothing_is_left_to_do(what: Build) -> None:
    graph = legal(what, Features())
    assert str(legalize(graph, Features())) == str(graph)
    assert len(graph.nodes) > 1
    for node in graph.nodes:
        operands = list(node.operands)
        if node.op in REGISTRY and REGISTRY[node.op].reduce is not None:
            assert count_of(node) <= LONG
        if node.op in ("cumulative_sum", "arg_min"):
            assert operands[0].shape[node.attrs["axis"]] <= LONG
        if node.op == "matmul":
            assert operands[0].shape[-1] <= LONG
        if "window_dimensions" in node.attrs:
            assert math.prod(node.attrs["window_dimensions"]) <= LONG
        assert len(operands) < Features().max_bindings


def test_short_graphs_stay_as_they_are() -> None:
    def short(b: MLGraphBuilder) -> Outputs:
        x = b.input("x", "float32", [1, 2, 8, 8])
        pooled = b.relu(b.max_pool2d(x, window_dimensions=[3, 3], padding=[1, 1, 1, 1]))
        weight = b.constant(np.ones((8, 3), np.float32))
        return {"y": b.reduce_mean(b.matmul(pooled, weight), axes=[0], label="last")}

    listing = str(legal(short, Features()))
    assert [line.split(" = ")[1].split("(")[0] for line in listing.splitlines()[2:-2]] == [
        "max_pool2d",
        "relu",
        "matmul",
        "reduce_mean",
    ]
    assert '"last"' in listing
