"""What a node was given, and what follows from it, are kept apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import build
from tests.internals import built_from, recipe_of
from tests.unit.test_passes import EVERY_KERNEL, NO_COMPOSITES
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand
from webnn_py.ir import Graph, Node
from webnn_py.passes import optimize
from webnn_py.passes.pipeline import verify_types

Make = Callable[[MLGraphBuilder, MLOperand], MLOperand | list[MLOperand]]
HUGE = 1e39
"""A finite option that is infinite in float32."""


def node_of(context: MLContext, make: Make, shape: tuple[int, ...] = (1, 2, 4, 4)) -> Node:
    """The last node of what is made of a float32 input."""

    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        made = make(b, b.input("x", "float32", shape))
        outputs = made if isinstance(made, list) else [made]
        return {f"y{i}": output for i, output in enumerate(outputs)}

    return recipe_of(build(context, body)).nodes[-1]


@pytest.mark.parametrize(
    ("make", "given", "inferred"),
    [
        (lambda b, x: b.max_pool2d(x), {"window_dimensions": None}, {"window_dimensions": (4, 4)}),
        (lambda b, x: b.reduce_sum(x), {"axes": None}, {"axes": (0, 1, 2, 3)}),
        (lambda b, x: b.reverse(x), {"axes": None}, {"axes": (0, 1, 2, 3)}),
        (lambda b, x: b.layer_normalization(x), {"axes": None}, {"axes": (1, 2, 3)}),
        (lambda b, x: b.transpose(x), {"permutation": None}, {"permutation": (3, 2, 1, 0)}),
        (
            lambda b, x: b.slice(x, [0] * 4, [1] * 4),
            {"starts": (0, 0, 0, 0), "strides": None},
            {"strides": (1, 1, 1, 1)},
        ),
        (lambda b, x: b.elu(x, alpha=HUGE), {"alpha": HUGE}, {"alpha": math.inf}),
        (lambda b, x: b.linear(x, alpha=0.1), {"alpha": 0.1}, {"alpha": float(np.float32(0.1))}),
        (lambda b, x: b.clamp(x, max_value=math.nan), {"min_value": None}, {"max_value": None}),
        (
            lambda b, x: b.resample2d(x, scales=[1.1, np.int64(2)]),
            {"scales": (1.1, 2.0), "sizes": None},
            {"scales": (float(np.float32(1.1)), 2.0)},
        ),
        (lambda b, x: b.split(x, 2, axis=3), {"splits": 2, "axis": 3}, {}),
    ],
)  # fmt: skip
def test_what_follows_is_not_stored_as_given(
    cpu: MLContext, make: Make, given: dict[str, Any], inferred: dict[str, Any]
) -> None:
    node = node_of(cpu, make)
    assert {name: node.given[name] for name in given} == given
    assert {name: node.inferred[name] for name in inferred} == inferred
    assert node.attrs == {**node.given, **node.inferred}


def test_nodes_cannot_be_changed(cpu: MLContext) -> None:
    node = node_of(cpu, lambda b, x: b.elu(x))
    for options in (node.given, node.inferred, node.attrs):
        with pytest.raises(TypeError):
            options["alpha"] = 2.0  # type: ignore[index]


@pytest.mark.parametrize(
    "inferred", [{}, {"axes": (0, 1)}, {"axes": (0, 1, 2, 3), "keep_dimensions": True}]
)
def test_attributes_that_do_not_follow_are_found(cpu: MLContext, inferred: dict[str, Any]) -> None:
    graph = recipe_of(
        build(cpu, lambda b: {"y": b.reduce_sum(b.input("x", "float32", [1, 2, 4, 4]))})
    )
    (node,) = graph.nodes
    verify_types(graph)
    with pytest.raises(AssertionError, match=r"reduce_sum has .*, its declaration says"):
        verify_types(graph.replace(nodes=[replace(node, inferred=inferred)]))


def optimized(context: MLContext, body: Callable[[MLGraphBuilder], dict[str, MLOperand]]) -> Graph:
    """After the passes, verified after each."""
    return optimize(recipe_of(build(context, body)), EVERY_KERNEL)


def test_an_option_beyond_the_data_type_survives_the_folding_of_a_bias(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        product = b.gemm(b.input("x", "float32", [1, 2]), b.constant(np.eye(2, dtype=np.float32)),
                         alpha=HUGE)  # fmt: skip
        return {"y": b.add(product, b.constant(np.ones(2, np.float32)))}

    (node,) = optimized(cpu, body).nodes
    assert (node.op, node.given["alpha"], node.attrs["alpha"]) == ("gemm", HUGE, math.inf)
    graph = build(cpu, body)
    results = MLExecution(cpu).compute(graph, {"x": np.full((1, 2), 2, np.float32)})
    assert results["y"].tolist() == [[math.inf, math.inf]]


def test_what_moves_with_its_dimensions_is_still_not_given(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.transpose(b.input("x", "float32", [2, 3, 4]), permutation=[1, 2, 0])
        cut = b.slice(b.reverse(x), [0, 1, 0], [3, 2, 2])
        return {"y": b.transpose(b.elu(cut, alpha=HUGE), permutation=[2, 0, 1])}

    reverse, cut, elu = optimized(cpu, body).nodes
    assert (reverse.given["axes"], cut.given["strides"]) == (None, None)
    assert (cut.given["starts"], cut.given["sizes"]) == ((0, 0, 1), (2, 3, 2))
    assert (elu.given["alpha"], elu.attrs["alpha"]) == (HUGE, math.inf)


def test_epsilons_beyond_the_data_type_are_decomposed(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [1, 2, 4, 4])
        return {"y": b.layer_normalization(b.instance_normalization(x, epsilon=HUGE), epsilon=HUGE)}

    graph = optimize(recipe_of(build(cpu, body)), NO_COMPOSITES)
    verify_types(graph)
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    assert not MLExecution(cpu).compute(built_from(cpu, graph), {"x": x})["y"].any()
