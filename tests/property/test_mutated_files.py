"""Files with something wrong are a DataError each, or load as a graph that keeps to all rules.

WEBNN_RANDOM_CASES is the number of files (150 if not set).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samples.models import digits, load_weights
from tests.backend.networks import encoder
from tests.graphs import build
from tests.property.mutations import check_mutations, loaded
from tests.saved import built, document_of
from webnn_py import MLContext, MLError, ml

EXPECTED = {
    "DataError": re.compile(
        r"^/\S+\.mlgraph: (byte \d+|graph\.json|weights\.safetensors|got|entry)"
    ),
    "NotSupportedError": re.compile("version .* is later"),
    "OperationError": re.compile("memory"),
}
"""How a file may be refused, and what is said then."""

CONSISTENT = ("members_changed", "text_changed")
"""What gives a document another meaning, with the right checksum."""


def files(context: MLContext, path: Path) -> list[bytes]:
    """Good ones."""
    weights, found = load_weights("digits"), []
    for graph in (
        built(context),
        build(context, lambda b: {"y": digits(b, weights)}),
        build(context, lambda b: {"y": encoder(b, "batch", "length", 1, 16, 2)}),
    ):
        graph.save(path)
        found.append(path.read_bytes())
    return found


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


def test_mutated_files(context: MLContext, tmp_path: Path) -> None:
    path = tmp_path / "graph.mlgraph"

    def check(way: str, data: bytes, good: bytes) -> str:
        """A file that loads is the graph of the good one, unless its meaning is another."""
        path.write_bytes(data)
        graph = loaded(lambda: context.load_graph_sync(path), data)
        if isinstance(graph, MLError):
            outcome = type(graph).__name__
            assert EXPECTED[outcome].search(str(graph)), graph
            return outcome
        graph.save(path)
        assert str(context.load_graph_sync(path)) == str(graph)
        if way not in CONSISTENT:
            saved = document_of(path)
            path.write_bytes(good)
            assert document_of(path) == saved
        return "loaded"

    check_mutations(files(context, tmp_path / "good.mlgraph"), "graph.json", check)
