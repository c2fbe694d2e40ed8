"""Files with something wrong are a DataError each, or load as a graph that keeps to all rules.

WEBNN_RANDOM_CASES is the number of files (150 if not set).
"""

from __future__ import annotations

import os
import re
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from samples.models import digits, load_weights
from tests.backend.networks import encoder
from tests.graphs import build
from tests.property.mutations import Mutations
from tests.saved import built, document_of
from webnn_py import DataError, MLContext, NotSupportedError, OperationError, ml

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
        graph.save(path)
        assert str(context.load_graph_sync(path)) == str(graph)
        if good:
            saved = document_of(path)
            path.write_bytes(good)
            assert document_of(path) == saved
    return outcome


def test_mutated_files(context: MLContext, tmp_path: Path) -> None:
    good_files = files(context, tmp_path / "good.mlgraph")
    outcomes: Counter[tuple[str, str]] = Counter()
    tracemalloc.start()
    try:
        for seed in range(CASES):
            file = good_files[seed % len(good_files)]
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
