"""Whatever stands in the place of a labelled node says whose place it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.internals import recipe_of
from tests.property.graphs import seeded_case
from tests.property.strategies import calls
from webnn_py import MLContext, MLGraphBuilder, ml
from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.passes import Target, optimize
from webnn_py.passes.decompose import decompose

NO_COMPOSITES = Target(lambda node: node.op not in DECOMPOSITIONS, evaluate)
COMPOSITES = sorted(DECOMPOSITIONS)


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


@pytest.mark.parametrize("name", COMPOSITES)
def test_the_parts_of_a_composite_have_its_label(context: MLContext, name: str) -> None:
    @settings(
        max_examples=5,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(name))
    def check(call: Any) -> None:
        # Those of 4 bits have no parts: every engine runs them whole.
        assume(all(t.data_type not in PACKED_4BIT for t in call.named().values()))
        builder = MLGraphBuilder(context)
        labelled = replace(call, options={**call.options, "label": "mine"})
        outputs = {f"y{i}": output for i, output in enumerate(labelled(builder))}
        parts = decompose(recipe_of(builder.build_sync(outputs)), NO_COMPOSITES).nodes
        assert parts
        assert {node.label for node in parts} == {"mine"}

    check()


def labelled(graph: Graph) -> Graph:
    """The graph with a label of its own on each node."""
    return graph.replace(nodes=[replace(n, label=f"n{i}") for i, n in enumerate(graph.nodes)])


def test_no_pass_drops_labels() -> None:
    for seed in range(40):
        graph = labelled(seeded_case(seed).graph)
        made = optimize(graph, NO_COMPOSITES)
        assert {node.label for node in made.nodes} <= {node.label for node in graph.nodes}


def test_a_label_that_a_part_is_given_is_its_own(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    builder._node_builder.outer_label = "outer"
    x = builder.input("x", "float32", [2])
    outputs = {"y": builder.relu(builder.abs(x), label="own")}
    assert [node.label for node in recipe_of(builder.build_sync(outputs)).nodes] == ["outer", "own"]
