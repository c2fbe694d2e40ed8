"""Whatever graphs can be built are saved and loaded as they were; their files keep to the schema.

WEBNN_RANDOM_CASES is the number of random graphs (30 if not set).
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings

from tests.internals import recipe_of, replayed
from tests.property.graphs import seeded_case
from tests.property.strategies import calls
from tests.property.test_open_shapes import EXPRESSIONS, OPEN, Opened, opened, some, symbolic, tried
from tests.property.test_open_shapes import assert_same as assert_same_graphs
from tests.property.test_replay import CASES, assert_same, each_operator
from tests.property.test_valid_calls import built
from tests.property.trees import Tree
from tests.saved import validator
from webnn_py import DataError, MLContext, MLDimension, MLGraphBuilder, NotSupportedError, ml
from webnn_py.core.dimensions import symbols_of
from webnn_py.core.open_dims import OpenSizes, plain_names
from webnn_py.ir import Descriptor, Graph
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.storage.archive import Archive, write_archive
from webnn_py.storage.document import Field
from webnn_py.storage.expressions import expression_from_json, expression_to_json
from webnn_py.storage.graph_file import GRAPH, graph_entries, read_graph


@pytest.fixture(scope="module")
def reference() -> MLContext:
    return ml.create_context_sync(engine="reference")


def loaded(graph: Graph) -> Graph:
    """The graph, saved and loaded."""
    stream = io.BytesIO()
    write_archive(stream, graph_entries(graph))
    archive = Archive(stream.getvalue(), "file")
    validator.validate(json.loads(archive.read(GRAPH)))
    builder = GraphBuilder()
    return builder.recorded(read_graph(archive, builder, OpenSizes()))


@each_operator
def test_every_operator_is_saved(reference: MLContext, name: str) -> None:
    @settings(some, max_examples=3)
    @given(calls(name))
    def check(call: Any) -> None:
        builder = MLGraphBuilder(reference)
        graph = recipe_of(built(builder, call(builder)))
        assert_same(loaded(graph), graph, call.inputs)

    check()


@each_operator
def test_every_operator_with_open_dimensions_is_saved(name: str) -> None:
    @settings(some, max_examples=4)
    @given(opened(name))
    def check(case: Opened) -> None:
        graph = tried(case.record)
        if isinstance(graph, Exception):
            return
        plain = {size for value in graph.inputs for size in plain_names(value.shape)}
        if plain != set(graph.open_sizes):
            with pytest.raises(DataError, match="no input has a dimension of this size"):
                loaded(graph)
        else:
            assert_same_graphs(loaded(graph), graph)

    check()


@settings(some, max_examples=100)
@given(EXPRESSIONS)
def test_expressions_are_saved(tree: Tree) -> None:
    made = symbolic(tree)
    if not isinstance(made, MLDimension):
        return
    try:
        text = json.dumps(expression_to_json(made))
    except NotSupportedError:
        assert len(str(made)) > 50
        return
    read = expression_from_json(Field(json.loads(text), "file"), symbols_of(OPEN.values()))
    assert read == made
    assert str(read) == str(made)
    assert read.bounds == made.bounds


def opened_graph(graph: Graph) -> Graph | None:
    """A graph with an open first dimension of an input, if its operators take one."""
    for value in graph.inputs:
        if value.shape:
            batch: Any = OpenSizes().declare("batch", 2, 2**20)
            wanted = Descriptor(value.data_type, (batch, *value.shape[1:]))
            found = tried(lambda v=value, w=wanted: replayed(graph, {v.name: w}))
            if isinstance(found, Graph):
                return found
    return None


def test_random_graphs_are_saved() -> None:
    found = 0
    for seed in range(CASES):
        case = seeded_case(seed)
        assert_same(loaded(case.graph), case.graph, case.inputs)
        with_batch = opened_graph(case.graph)
        if with_batch is not None:
            assert_same_graphs(loaded(with_batch), with_batch)
            found += 1
    assert found >= CASES // 10
