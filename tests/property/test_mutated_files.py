"""Files with something wrong are a DataError each, or load as a graph that keeps to all rules.

WEBNN_RANDOM_CASES is the number of files (150 if not set).
"""

from __future__ import annotations

import io
import os
import re
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.internals import built_from, recipe_of
from tests.property.graphs import seeded_case
from tests.property.mutations import Mutations
from tests.saved import built
from webnn_py import DataError, MLContext, NotSupportedError, OperationError, ml
from webnn_py.ir import Graph
from webnn_py.passes.pipeline import verify_types
from webnn_py.storage.archive import Archive, write_archive
from webnn_py.storage.graph_file import GRAPH, graph_entries

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "150"))
FIXED = 2**20
"""Bytes that loading may take besides; what is kept for all graphs is among them."""
PER_BYTE_OF_JSON = 32
"""What Python's objects may take for each byte of a document."""
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


def file_of(graph: Graph) -> bytes:
    stream = io.BytesIO()
    write_archive(stream, graph_entries(graph))
    return stream.getvalue()


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


def check(context: MLContext, path: Path, data: bytes, good: bytes = b"") -> str:
    """What comes of a file; if it loads, and a good one is given, it is to be that graph."""
    path.write_bytes(data)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    outcome, said = "loaded", ""
    try:
        graph = context.load_graph_sync(path)
    except (DataError, NotSupportedError, OperationError) as error:
        outcome, said = type(error).__name__, str(error)
    _, peak = tracemalloc.get_traced_memory()
    json = data.find(b"weights.safetensors")
    most = FIXED + 3 * len(data) + PER_BYTE_OF_JSON * (json if json > 0 else len(data))
    assert peak - before < most, f"{peak - before} bytes for a file of {len(data)}"
    if outcome != "loaded":
        assert EXPECTED[outcome].search(said), said
    else:
        verify_types(recipe_of(graph))
        graph.save(path)
        assert str(context.load_graph_sync(path)) == str(graph)
        if good:
            assert Archive.open(path).read(GRAPH) == Archive(good, "good").read(GRAPH)
    return outcome


def test_mutated_files(context: MLContext, tmp_path: Path) -> None:
    graphs = [built(context), *(built_from(context, seeded_case(s).graph) for s in range(9))]
    files = [file_of(recipe_of(graph)) for graph in graphs]
    outcomes: Counter[tuple[str, str]] = Counter()
    tracemalloc.start()
    try:
        for seed in range(CASES):
            file = files[seed % len(files)]
            mutations = Mutations(file, np.random.default_rng(seed))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that stand twice
                way, data = mutations.draw()
            try:
                good = b"" if way in CONSISTENT else file
                outcomes[way, check(context, tmp_path / "graph.mlgraph", data, good)] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}: {way}")
                raise
    finally:
        tracemalloc.stop()
    print(*sorted(outcomes.items()), sep="\n")
    ways = {way for way, _ in outcomes}
    assert len(ways) == 9
    for way in ways:
        assert outcomes[way, "DataError"] > outcomes.total() // 100, way
