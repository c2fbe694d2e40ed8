"""Whatever operators and expressions can be built are saved and loaded, and keep to the schema."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.property.strategies import calls
from tests.property.test_valid_calls import built
from tests.property.trees import Tree, calculated, trees
from tests.public import OPERATORS
from tests.saved import contents, document_of, validator
from webnn_py import MLContext, MLDimension, MLError, MLGraphBuilder, NotSupportedError, ml

some = settings(
    database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
RANGES = {"a": (1, 9), "b": (2, 5), "c": (1, 2**31 - 1), "d": (7, 7 + 2**20)}
CALCULATIONS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]


@pytest.fixture(scope="module")
def reference() -> MLContext:
    return ml.create_context_sync(engine="reference")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_saved(reference: MLContext, tmp_path: Path, name: str) -> None:
    path = tmp_path / "graph.mlgraph"

    @settings(some, max_examples=3)
    @given(calls(name))
    def check(call: Any) -> None:
        builder = MLGraphBuilder(reference)
        graph = built(builder, call(builder))
        graph.save(path)
        validator.validate(document_of(path))
        loaded = reference.load_graph_sync(path)
        assert str(loaded) == str(graph)
        assert contents(loaded) == contents(graph)

    check()


def test_expressions_are_saved(reference: MLContext, tmp_path: Path) -> None:
    path, saved = tmp_path / "graph.mlgraph", 0

    @settings(some, max_examples=100)
    @given(trees(-4, sorted(RANGES), CALCULATIONS, most=7))
    def check(tree: Tree) -> None:
        nonlocal saved
        b = MLGraphBuilder(reference, dimensions=RANGES)
        x = b.input("x", "float32", list(RANGES))
        try:
            size = calculated(tree, dict(zip(RANGES, x.shape, strict=True)))
            y = b.expand(b.reduce_sum(x), [size])
        except (MLError, ZeroDivisionError):  # it is not known to be a size
            return
        if not isinstance(size, MLDimension):
            return
        graph = b.build_sync({"y": y})
        try:
            graph.save(path)
        except NotSupportedError:
            assert len(str(size)) > 50
            return
        loaded = reference.load_graph_sync(path)
        (again,) = loaded.outputs["y"].shape
        assert (str(again), again.bounds) == (str(size), size.bounds)  # type: ignore[union-attr]
        saved += 1

    check()
    assert saved > 10
